#include "openai/tokens_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "openai/field_reader.h"

namespace coppice::openai {
namespace {

using nlohmann::json;

// Of sampling_params, that a completion has by the same name.
constexpr const char* kTokensSampling[] = {
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "seed", "stop",
    "stop_token_ids", "ignore_eos", "max_tokens", "min_tokens", "logprobs", "logprobs_mode", "prompt_logprobs", "logit_bias",
    "structured_outputs",
    // Unsupported fields that change the answer are refused by these names.
    "allowed_token_ids", "bad_words", "truncate_prompt_tokens", "logits_processors", "thinking_token_budget"};
constexpr const char* kTokensBody[] = {
    "model",        "stream",  "stream_options", "cache_salt", "cache_private_begin", "return_token_ids",
    "min_answered", "timeout", "group_id"};
// Of sampling_params: fields that change the text alone.
constexpr const char* kOfText[] = {"include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens"};
// Of sampling_params: fields that change no answer here.
constexpr const char* kTokensWithoutEffect[] = {"detokenize", "flat_logprobs", "array_logprobs",
                                                "extra_args", "skip_clone",    "skip_reading_prefix_cache"};

// RequestOutputKind of vLLM: as numbers, or by name.
std::optional<int32_t> OutputKindOf(const json& value) {
  constexpr std::string_view kNames[] = {"cumulative", "delta", "final_only"};
  if (IsWhole(value) && value.get<double>() >= 0 && value.get<double>() <= 2) return value.get<int32_t>();
  if (!value.is_string()) return std::nullopt;
  std::string name = value.get<std::string>();
  std::ranges::transform(name, name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; });
  const auto found = std::ranges::find(kNames, name);
  return found == std::end(kNames) ? std::nullopt : std::optional(static_cast<int32_t>(found - std::begin(kNames)));
}

// A stream reports what is new, whether cumulative or delta is asked for, as in vLLM.
void TakeOutputKind(FieldReader& params, TokensForm* form) {
  const json* value = params.Find("output_kind");
  if (!value) return;
  const std::optional<int32_t> kind = OutputKindOf(*value);
  if (!kind) return params.Expect("output_kind", *value, "0 (cumulative), 1 (delta) or 2 (final_only)");
  form->final_only = *kind == 2;
}

bool IsOfSampling(const std::string& name) {
  const std::string_view first = std::string_view(name).substr(0, name.find_first_of(".["));
  return std::ranges::find(kTokensSampling, first) != std::end(kTokensSampling) ||
         std::ranges::find(kOfText, first) != std::end(kOfText);
}

}  // namespace

BodyError InWordsOfTokens(BodyError error) {
  if (error.param == "prompt") {
    error.param = "token_ids";
  } else if (error.param == "priority") {
    error.status =
        InvalidArgument(std::string(error.status.message()) +
                        "; on this route lower numbers come first, and the number meant is the negative of the one sent");
  } else if (IsOfSampling(error.param)) {
    error.param = "sampling_params." + error.param;
  }
  return error;
}

bool IsSeededTokens(const json& body) {
  if (!body.is_object()) return false;
  const auto params = body.find("sampling_params");
  if (params == body.end() || !params->is_object()) return false;
  const auto seed = params->find("seed");
  return seed != params->end() && !seed->is_null();
}

std::optional<OpenAiRequest> ParseTokens(const json& body, const OpenAiRequestParser& parser, BodyError* error,
                                         const std::string& schema) {
  if (!body.is_object()) return RefuseBody(body, error);
  UnknownFieldsOf unknown{.rule = parser.unknown_fields()};
  FieldReader fields(body, &unknown);
  json completion = {{"max_tokens", -1}};
  auto form = std::make_shared<TokensForm>();

  constexpr const char* kIds = "token_ids";
  const json* ids = fields.Find(kIds);
  const bool is_list = ids && ids->is_array() && !ids->empty() && ids->front().is_number();
  if (!is_list) fields.Expect(kIds, ids ? *ids : json(), "a list of token ids, at least one");
  if (is_list) completion["prompt"] = *ids;
  for (const char* const name : kTokensBody) {
    if (const json* value = fields.Find(name)) completion[name] = *value;
  }
  std::string id, mode = "tokens", logprobs_format = "openai";
  fields.TakeClientId("request_id", &id);
  fields.Take("output_mode", &mode);
  if (mode != "tokens" && mode != "text") fields.Expect("output_mode", mode, "tokens or text");
  form->with_text = mode == "text";
  fields.Take("logprobs_format", &logprobs_format);
  if (logprobs_format != "openai") fields.Expect("logprobs_format", logprobs_format, "openai");
  int32_t priority = 0;
  fields.Take("priority", &priority);
  if (priority == INT32_MIN) fields.Expect("priority", priority, "a number above -2147483648");
  if (fields.ok()) completion["priority"] = -priority;
  for (const char* const name : {"features", "content_parts", "kv_transfer_params", "ec_transfer_params"}) {
    const json* value = fields.Find(name);
    if (value && !(value->is_structured() && value->empty())) fields.Expect(name, *value, "it absent: it is not supported");
  }
  for (const char* const name : {"token_offsets", "reasoning_ended", "reasoning_parser_kwargs"}) fields.Find(name);

  const json none = json::object();
  const json* given = fields.Find("sampling_params");
  if (given && !given->is_object()) fields.Expect("sampling_params", *given, "an object such as {\"max_tokens\": 16}");
  FieldReader params = fields.Inner(given && given->is_object() ? *given : none, "sampling_params");
  for (const char* const name : kTokensSampling) {
    if (const json* value = params.Find(name)) completion[name] = *value;
  }
  for (const char* const name : kOfText) {
    const json* value = params.Find(name);
    if (value && form->with_text) completion[name] = *value;
  }
  for (const char* const name : kTokensWithoutEffect) params.Find(name);
  TakeOutputKind(params, form.get());
  if (BodyError wrong = params.Finish(); !wrong.status.ok()) fields.FailWithin("sampling_params", wrong);
  if (*error = fields.Finish(); !error->status.ok()) return std::nullopt;

  std::optional<OpenAiRequest> parsed = parser.Parse(Endpoint::kCompletions, completion, error, {}, nullptr, schema);
  if (!parsed) {
    *error = InWordsOfTokens(std::move(*error));
    return std::nullopt;
  }
  parsed->RenameOutputField([](const std::string& field) { return InWordsOfTokens({.param = field}).param; });
  parsed->request.ranks |= parsed->logprobs;
  parsed->client_id = std::move(id);
  parsed->token_route = std::move(form);
  for (const std::string& name : parsed->ignored_fields)
    unknown.ignored.push_back(IsOfSampling(name) ? "sampling_params." + name : name);
  parsed->ignored_fields = std::move(unknown.ignored);
  return parsed;
}

}  // namespace coppice::openai
