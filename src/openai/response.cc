#include "openai/response.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "coppice/engine/ranking.h"
#include "core/check.h"

namespace coppice::openai {
namespace {

using nlohmann::ordered_json;

std::string TextOf(const Tokenizer* tokenizer, int32_t id) {
  return tokenizer ? std::string(tokenizer->TokenBytes(id, /*keep_special=*/true)) : std::string();
}

// Characters of UTF-8: bytes that continue none.
int64_t NumCharacters(std::string_view text) {
  int64_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
  return count;
}

ordered_json CompletionLogprobs(const EchoedPrompt& prompt, const Sample& sample, const Tokenizer* tokenizer) {
  ordered_json tokens = ordered_json::array(), logprobs = ordered_json::array(), offsets = ordered_json::array();
  int64_t offset = 0;
  const auto add = [&](int32_t id, const std::optional<float>& logprob) {
    std::string text = TextOf(tokenizer, id);
    offsets.push_back(offset);
    offset += NumCharacters(text);
    tokens.push_back(std::move(text));
    logprobs.push_back(logprob ? ordered_json(*logprob) : ordered_json());
  };
  for (size_t i = 0; i < prompt.token_ids.size(); ++i) add(prompt.token_ids[i], prompt.logprobs[i]);
  for (size_t i = 0; i < sample.token_ids.size(); ++i) add(sample.token_ids[i], sample.logprobs[i]);
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", nullptr},
          {"text_offset", std::move(offsets)}};
}

ordered_json ChatLogprobs(const Sample& sample, const Tokenizer* tokenizer) {
  ordered_json content = ordered_json::array();
  for (size_t i = 0; i < sample.token_ids.size(); ++i) {
    const std::string text = TextOf(tokenizer, sample.token_ids[i]);
    ordered_json bytes = ordered_json::array();
    for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
    content.push_back(
        {{"token", text}, {"logprob", sample.logprobs[i]}, {"bytes", std::move(bytes)}, {"top_logprobs", ordered_json::array()}});
  }
  return {{"content", std::move(content)}};
}

ordered_json Choice(const OpenAiRequest& request, const EchoedPrompt& prompt, const Sample& sample, int32_t index,
                    const Tokenizer* tokenizer) {
  const bool chat = request.endpoint == Endpoint::kChatCompletions;
  ordered_json choice = {{"index", index}};
  if (chat) {
    choice["message"] = {{"role", "assistant"}, {"content", sample.text}};
  } else {
    choice["text"] = prompt.text + sample.text;
  }
  choice["logprobs"] = !request.logprobs ? ordered_json()
                       : chat            ? ChatLogprobs(sample, tokenizer)
                                         : CompletionLogprobs(prompt, sample, tokenizer);
  choice["finish_reason"] = sample.finish_reason ? ordered_json(Name(*sample.finish_reason)) : ordered_json();
  if (request.return_token_ids || !tokenizer) {
    std::vector<int32_t> ids = prompt.token_ids;
    ids.insert(ids.end(), sample.token_ids.begin(), sample.token_ids.end());
    choice["token_ids"] = std::move(ids);
  }
  return choice;
}

// Who gave an answer, as places among the choices; `count` has those too that were not chosen.
ordered_json Votes(const std::vector<VotedAnswer>& votes, const std::vector<const Sample*>& choices) {
  ordered_json list = ordered_json::array();
  for (const VotedAnswer& vote : votes) {
    ordered_json places = ordered_json::array();
    for (size_t i = 0; i < choices.size(); ++i) {
      if (std::ranges::find(vote.voters, choices[i]->index) != vote.voters.end()) places.push_back(i);
    }
    list.push_back({{"answer", vote.answer},
                    {"count", vote.voters.size()},
                    {"choices", std::move(places)},
                    {"mean_logprob", vote.mean_logprob ? ordered_json(*vote.mean_logprob) : ordered_json()}});
  }
  return list;
}

}  // namespace

Result<ordered_json> ResponseBody(const OpenAiRequest& request, const EchoedPrompt& prompt, std::span<const Sample> samples,
                                  const ResponseFacts& facts, const Tokenizer* tokenizer) {
  const bool chat = request.endpoint == Endpoint::kChatCompletions;
  ordered_json choices = ordered_json::array();
  int64_t completion_tokens = 0;  // of all that was generated
  for (const Sample& sample : samples) completion_tokens += static_cast<int64_t>(sample.token_ids.size());
  const bool fewer = request.choices < std::ssize(samples);
  const Selection selection = {
      .rank = request.rank || fewer, .deduplicate = request.deduplicate, .best = fewer ? request.choices : 0};
  const std::vector<const Sample*> chosen = Select(samples, selection);
  int32_t index = 0;
  for (const Sample* sample : chosen) choices.push_back(Choice(request, prompt, *sample, index++, tokenizer));
  ordered_json body = {{"id", (chat ? "chatcmpl-" : "cmpl-") + facts.id},
                       {"object", chat ? "chat.completion" : "text_completion"},
                       {"created", facts.created},
                       {"model", facts.model},
                       {"choices", std::move(choices)},
                       {"usage",
                        {{"prompt_tokens", facts.prompt_tokens},
                         {"completion_tokens", completion_tokens},
                         {"total_tokens", facts.prompt_tokens + completion_tokens},
                         {"prompt_tokens_details", {{"cached_tokens", facts.cached_tokens}}}}}};
  if (request.vote) {
    COPPICE_ASSIGN_OR_RETURN(const std::vector<VotedAnswer> votes, Vote(samples, *request.vote));
    body["votes"] = Votes(votes, chosen);
  }
  return body;
}

int HttpStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk: return 200;
    case StatusCode::kDeadlineExceeded: return 408;
    case StatusCode::kResourceExhausted:
    case StatusCode::kUnavailable: return 503;
    case StatusCode::kInternal: return 500;
    default: return 400;
  }
}

ordered_json ErrorBody(const Status& status, std::string_view param) {
  const int http = HttpStatus(status);
  return {{"error",
           {{"message", status.message()},
            {"type", http < 500 ? "invalid_request_error" : "server_error"},
            {"param", param.empty() ? ordered_json() : ordered_json(param)},
            {"code", nullptr}}}};
}

}  // namespace coppice::openai
