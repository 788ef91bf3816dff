#include "openai/sample_fields.h"

#include <optional>
#include <string>
#include <utility>

#include "openai/prompt_fields.h"
#include "openai/sampling_fields.h"

namespace coppice::openai {
namespace {

constexpr const char* kOfRequest[] = {"n",
                                      "keep_tokens",
                                      "max_tokens",
                                      "max_completion_tokens",
                                      "min_tokens",
                                      "seed",
                                      "temperature",
                                      "top_p",
                                      "top_k",
                                      "min_p",
                                      "presence_penalty",
                                      "frequency_penalty",
                                      "repetition_penalty",
                                      "logit_bias",
                                      "logprobs_mode",
                                      "stop",
                                      "stop_token_ids",
                                      "ignore_eos",
                                      "echo",
                                      "logprobs",
                                      "top_logprobs",
                                      "prompt_logprobs",
                                      "return_token_ids",
                                      "return_tokens_as_token_ids",
                                      "response_format",
                                      "structured_outputs",
                                      "regex",
                                      "grammar"};

}  // namespace

ForkOptions TakeFork(FieldReader& fields, const SamplingParams& parent) {
  ForkOptions options;
  fields.Take("n", &options.n);
  fields.Take("keep_tokens", &options.keep_tokens);
  fields.Take("max_tokens", &options.max_tokens);
  if (fields.Find("seed")) TakeSeed(fields, &options.seed.emplace());
  SamplingParams sampling = parent;
  if (TakeSampling(fields, &sampling)) options.params = std::move(sampling);
  return options;
}

std::vector<int32_t> TakeExtension(FieldReader& fields, const Tokenizer* tokenizer, const PromptBounds& bounds) {
  std::optional<std::string> text;
  fields.Take("text", &text);
  std::optional<std::vector<int32_t>> tokens;
  if (const nlohmann::json* const ids = fields.Find("token_ids")) {
    tokens = ids->is_array() ? TokenIds(*ids) : std::nullopt;
    if (!tokens) fields.Expect("token_ids", *ids, "a list of token ids");
  }
  const auto refuse = [&](Status status) {
    fields.Fail("text", std::move(status));
    return std::vector<int32_t>();
  };
  if (!fields.ok()) return {};
  if (text.has_value() == tokens.has_value()) return refuse(InvalidArgument("extend needs text or token_ids, one of the two"));
  if (tokens) return *std::move(tokens);
  if (!tokenizer) return refuse(FailedPrecondition("text needs a tokenizer and the model has none: give token_ids"));
  if (Status fits = bounds.CheckText("text", text->size()); !fits.ok()) return refuse(std::move(fits));
  Result<std::vector<int32_t>> encoded = tokenizer->Encode(*text, {.add_special = false});
  if (!encoded.ok()) return refuse(encoded.status());
  return *std::move(encoded);
}

void RefuseOthersOfRequest(FieldReader& fields) {
  for (const char* const name : kOfRequest) {
    if (fields.IsKnown(name)) continue;
    if (const nlohmann::json* value = fields.Find(name)) fields.Expect(name, *value, "it absent: this verb does not change it");
  }
}

}  // namespace coppice::openai
