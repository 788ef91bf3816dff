#include "openai/score_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.h"
#include "openai/field_reader.h"
#include "openai/prompt_fields.h"

namespace coppice::openai {
namespace {

using nlohmann::json;

// Of all sequences together, so that a small body does not ask for much tokenizing: 4 million, 512 continuations of 8,192 tokens.
constexpr size_t kMostTokens = size_t{1} << 22;
// Of all texts together; of most languages, twice the bytes that so many tokens are.
constexpr size_t kMostBytes = 8 * kMostTokens;

constexpr const char* kFields[] = {"model",         "user",     "metadata",        "prompt",
                                   "continuations", "prefix",   "cache_salt",      "cache_private_begin",
                                   "timeout",       "priority", "return_token_ids"};

// The prompt and what belongs to every request, by the rules of a completion without tokens to generate.
std::optional<OpenAiRequest> ParsePromptOf(const json& body, const OpenAiRequestParser& parser, BodyError* error,
                                           const FindNamedPrefix& find_prefix) {
  UnknownFieldsOf unknown{.rule = parser.unknown_fields()};
  FieldReader fields(body, &unknown);
  json completion = {{"max_tokens", 0}};
  for (const char* const name : kFields) {
    const json* value = fields.Find(name);
    if (value && std::string_view(name) != "continuations") completion[name] = *value;
  }
  if (*error = fields.Finish(); !error->status.ok()) return std::nullopt;
  std::optional<OpenAiRequest> parsed = parser.Parse(Endpoint::kCompletions, completion, error, find_prefix);
  if (parsed) parsed->ignored_fields = std::move(unknown.ignored);
  return parsed;
}

Result<std::vector<int32_t>> EncodeWith(const OpenAiRequest& prompt, const std::vector<int32_t>& prompt_ids,
                                        const Prompt& continuation, const OpenAiRequestParser& parser) {
  if (continuation.text && prompt.text) {  // text after text is one text
    OpenAiRequest whole = prompt;
    *whole.text += *continuation.text;
    return parser.Encode(whole);
  }
  if (continuation.text) return InvalidArgument("a continuation is a string, expected token ids, as the prompt is");
  std::vector<int32_t> ids = prompt_ids;
  ids.insert(ids.end(), continuation.ids.begin(), continuation.ids.end());
  return ids;
}

// Adds the prompt with a continuation behind it.
Status AddSequence(const OpenAiRequest& prompt, const std::vector<int32_t>& prompt_ids, const json& continuation,
                   const OpenAiRequestParser& parser, ScoreRequest* request) {
  const std::optional<Prompt> parsed = ParsePrompt(continuation);
  if (!parsed)
    return InvalidArgument(fmt::format("a continuation is {}, expected a string or a list of token ids", Shown(continuation)));
  COPPICE_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, EncodeWith(prompt, prompt_ids, *parsed, parser));
  const auto begin = static_cast<int32_t>(std::ranges::mismatch(prompt_ids, tokens).in2 - tokens.begin());
  if (begin == std::ssize(tokens))
    return InvalidArgument(fmt::format("continuation {} adds no token to the prompt", Shown(continuation)));
  if (begin == 0)
    return InvalidArgument(
        fmt::format("nothing is before the first token of continuation {}; begin the prompt with a token", Shown(continuation)));
  request->usage.prompt += std::ssize(tokens) - begin;
  request->sequences.push_back({.tokens = std::move(tokens), .begin = begin});
  return OkStatus();
}

}  // namespace

std::optional<ScoreRequest> ParseScore(const json& body, const OpenAiRequestParser& parser, BodyError* error,
                                       const FindNamedPrefix& find_prefix) {
  if (!body.is_object()) return RefuseBody(body, error);
  std::optional<OpenAiRequest> prompt = ParsePromptOf(body, parser, error, find_prefix);
  if (!prompt) return std::nullopt;
  const auto fail = [&](Status status, const char* param) {
    *error = {std::move(status), param};
    return std::nullopt;
  };
  Result<std::vector<int32_t>> prompt_ids = parser.Encode(*prompt);
  if (!prompt_ids.ok()) return fail(prompt_ids.status(), "prompt");

  const auto list = body.find("continuations");
  if (list == body.end() || !list->is_array() || list->empty() || list->size() > kMaxPrompts) {
    return fail(InvalidArgument(fmt::format("continuations is {}, expected a list of 1 to {} strings or lists of token ids",
                                            list == body.end() ? "missing" : Shown(*list), kMaxPrompts)),
                "continuations");
  }
  ScoreRequest request{.usage = {.prompt = std::ssize(*prompt_ids)},
                       .return_token_ids = prompt->return_token_ids,
                       .ignored_fields = std::move(prompt->ignored_fields)};
  size_t tokens = 0, bytes = 0;
  for (const json& continuation : *list) {
    bytes += prompt->text ? prompt->text->size() : 0;
    if (continuation.is_string()) bytes += continuation.get_ref<const std::string&>().size();
    if (bytes > kMostBytes) {
      return fail(InvalidArgument(fmt::format("the prompt with each continuation makes more than {} bytes in all; send several "
                                              "requests",
                                              kMostBytes)),
                  "continuations");
    }
    const Status added = AddSequence(*prompt, *prompt_ids, continuation, parser, &request);
    if (!added.ok()) return fail(added, "continuations");
    tokens += request.sequences.back().tokens.size();
    if (tokens > kMostTokens) {
      return fail(InvalidArgument(fmt::format("the prompt with each continuation makes more than {} tokens in all; send several "
                                              "requests",
                                              kMostTokens)),
                  "continuations");
    }
  }
  parser.SetPrompt(*std::move(prompt_ids), &*prompt);
  request.request = std::move(prompt->request);
  // Shared tokens of a prefix are those that all sequences have; a continuation may have changed the prompt's last ones.
  for (const ScoredSequence& sequence : request.sequences) {
    int32_t& tenant_begin = request.request.cache_tenant.begin;
    tenant_begin = std::min(tenant_begin, sequence.begin);
    if (prompt->public_prefix) request.request.cache_private_begin = std::min(request.request.cache_private_begin, sequence.begin);
  }
  request.request.prompt_ids.clear();
  return request;
}

}  // namespace coppice::openai
