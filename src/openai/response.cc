#include "openai/response.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "coppice/engine/ranking.h"
#include "core/check.h"
#include "core/dismantle_json.h"
#include "openai/logprobs.h"

namespace coppice::openai {
namespace {

using nlohmann::ordered_json;

ordered_json LogprobsOf(const OpenAiRequest& request, const EchoedPrompt& prompt, const Sample& sample,
                        const Tokenizer* tokenizer) {
  if (!request.logprobs) return nullptr;
  if (request.endpoint == Endpoint::kChatCompletions)
    return ChatLogprobs(sample.token_ids, sample.logprobs, sample.top_logprobs, tokenizer);
  CompletionLogprobs logprobs(tokenizer, request.request.top_logprobs > 0);
  for (size_t i = 0; i < prompt.token_ids.size(); ++i) {
    logprobs.Add({.id = prompt.token_ids[i],
                  .logprob = prompt.logprobs[i],
                  .top = i > 0 && i < prompt.top_logprobs.size() ? &prompt.top_logprobs[i] : nullptr});
  }
  for (size_t i = 0; i < sample.token_ids.size(); ++i) {
    logprobs.Add({.id = sample.token_ids[i],
                  .logprob = sample.logprobs[i],
                  .top = i < sample.top_logprobs.size() ? &sample.top_logprobs[i] : nullptr});
  }
  return logprobs.Take();
}

// A chat's message; `*calls`: what it calls.
ordered_json MessageOf(const OpenAiRequest& request, std::string_view answer_id, const Sample& sample, int32_t index,
                       int32_t* num_calls) {
  if (!request.tools) return {{"role", "assistant"}, {"content", sample.text}};
  ParsedOutput output;
  ToolCallParser parser(request.tools.get());
  parser.Push(sample.text, &output);
  parser.Finish(&output);
  *num_calls = parser.num_calls();
  if (*num_calls == 0) return {{"role", "assistant"}, {"content", output.content}};
  ordered_json calls = ordered_json::array();
  for (const ParsedOutput::Call& call : output.calls)
    calls.push_back({{"id", ToolCallId(request.tools->format.style, answer_id, index, call.index)},
                     {"type", "function"},
                     {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  return {{"role", "assistant"},
          {"content", output.content.empty() ? ordered_json() : ordered_json(output.content)},
          {"tool_calls", std::move(calls)}};
}

ordered_json Choice(const OpenAiRequest& request, std::string_view answer_id, const EchoedPrompt& prompt, const Sample& sample,
                    int32_t index, const Tokenizer* tokenizer) {
  const bool chat = request.endpoint == Endpoint::kChatCompletions;
  ordered_json choice = {{"index", index}};
  int32_t num_calls = 0;
  if (chat) {
    choice["message"] = MessageOf(request, answer_id, sample, index, &num_calls);
  } else {
    choice["text"] = prompt.text + sample.text;
  }
  choice["logprobs"] = LogprobsOf(request, prompt, sample, tokenizer);
  choice["finish_reason"] = sample.finish_reason ? ordered_json(ReasonOf(*sample.finish_reason, num_calls)) : ordered_json();
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

std::string_view ReasonOf(FinishReason reason, int32_t num_calls) {
  return num_calls > 0 && reason == FinishReason::kStop ? "tool_calls" : Name(reason);
}

ordered_json SharedPrefixOf(const SharedReads& reads) {
  return {{"tokens", reads.tokens}, {"sharers", reads.sharers}, {"kv_bytes_not_read", reads.kv_bytes_not_read}};
}

ordered_json UsageOf(const TokenUsage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached}}},
          {"shared_prefix", SharedPrefixOf(usage.shared_reads)}};
}

Result<ordered_json> ResponseBody(std::span<const Answer> answers, const ResponseFacts& facts, const Tokenizer* tokenizer) {
  COPPICE_CHECK(!answers.empty());
  const bool chat = answers.front().request->endpoint == Endpoint::kChatCompletions;
  ordered_json choices = ordered_json::array(), votes;
  TokenUsage usage;
  for (const auto& [request, output, prompt_tokens] : answers) {
    usage.prompt += prompt_tokens;
    usage.cached += output->cached_tokens;
    usage.shared_reads.Add(output->shared_reads);
    for (const Sample& sample : output->samples) usage.completion += static_cast<int64_t>(sample.token_ids.size());
    const bool fewer = request->choices < std::ssize(output->samples);
    const std::vector<const Sample*> chosen =
        Select(output->samples,
               {.rank = request->rank || fewer, .deduplicate = request->deduplicate, .best = fewer ? request->choices : 0});
    for (const Sample* sample : chosen) {
      const auto index = static_cast<int32_t>(choices.size());
      choices.push_back(Choice(*request, facts.id, output->prompt, *sample, index, tokenizer));
    }
    if (!request->vote) continue;
    COPPICE_CHECK(answers.size() == 1);
    COPPICE_ASSIGN_OR_RETURN(const std::vector<VotedAnswer> voted, Vote(output->samples, *request->vote));
    votes = Votes(voted, chosen);
  }
  ordered_json body = {{"id", (chat ? "chatcmpl-" : "cmpl-") + facts.id},
                       {"object", chat ? "chat.completion" : "text_completion"},
                       {"created", facts.created},
                       {"model", facts.model},
                       {"choices", std::move(choices)},
                       {"usage", UsageOf(usage)}};
  if (!votes.is_null()) body["votes"] = std::move(votes);
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
  return ErrorBody(HttpStatus(status), status.message(), param);
}

ordered_json ErrorBody(int http_status, std::string_view message, std::string_view param) {
  const std::string_view type = http_status == 401   ? "authentication_error"
                                : http_status == 429 ? "rate_limit_error"
                                : http_status < 500  ? "invalid_request_error"
                                                     : "server_error";
  // Told where there is no memory too: no list of values, which the library takes apart with memory of its own.
  DismantledJson<ordered_json> body(OrderedObject(1));
  ordered_json& error = (*body)["error"] = OrderedObject(4);
  error["message"] = message;
  error["type"] = type;
  error["param"] = param.empty() ? ordered_json() : ordered_json(param);
  error["code"] = http_status == 401 ? ordered_json("invalid_api_key") : ordered_json();
  return std::move(*body);
}

}  // namespace coppice::openai
