#include "openai/response_stream.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "openai/logprobs.h"

namespace coppice::openai {
namespace {

using nlohmann::ordered_json;

// Tokens need not end on a character: what is no UTF-8 becomes U+FFFD.
std::string Dump(const ordered_json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

std::string HeadOf(bool chat, const ResponseFacts& facts) {
  return fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{})", Dump((chat ? "chatcmpl-" : "cmpl-") + facts.id),
                     chat ? "chat.completion.chunk" : "text_completion", facts.created, Dump(facts.model));
}

}  // namespace

ResponseStream::ResponseStream(const OpenAiRequest* request, const ResponseFacts& facts, int32_t first_choice,
                               const Tokenizer* tokenizer)
    : request_(request),
      tokenizer_(tokenizer),
      first_choice_(first_choice),
      chat_(request->endpoint == Endpoint::kChatCompletions),
      head_(HeadOf(chat_, facts)),
      choices_(static_cast<size_t>(request->choices)) {}

void ResponseStream::Append(const StreamEvent& event, std::string* out) {
  if (event.index < 0) return AppendPrompt(event, out);
  Choice& choice = choices_[static_cast<size_t>(event.index)];
  if (chat_ && !std::exchange(choice.begun, true))
    AppendChoice(event.index, R"("delta":{"role":"assistant","content":""},"logprobs":null)", std::nullopt, out);

  const bool ids = request_->return_token_ids || !tokenizer_;
  const bool has_tokens = !event.token_ids.empty() && (request_->logprobs || ids);
  if (!event.text.empty() || has_tokens || event.finish_reason) {
    const std::string text = Dump(event.text);
    std::string inner = !chat_ ? R"("text":)" + text : event.text.empty() ? R"("delta":{})" : R"("delta":{"content":)" + text + "}";
    inner += R"(,"logprobs":)" + (has_tokens && request_->logprobs ? LogprobsOf(event, &choice) : "null");
    if (ids) inner += R"(,"token_ids":)" + Dump(event.token_ids);
    AppendChoice(event.index, inner, event.finish_reason, out);
  }
}

void ResponseStream::AppendPrompt(const StreamEvent& event, std::string* out) {
  if (!request_->request.echo) return;
  for (int32_t sample = 0; sample < request_->choices; ++sample) {
    std::string inner = R"("text":)" + Dump(event.text) + R"(,"logprobs":)";
    if (request_->logprobs) {
      CompletionLogprobs logprobs(tokenizer_, request_->request.top_logprobs > 0);
      for (size_t i = 0; i < event.token_ids.size(); ++i) {
        logprobs.Add({.id = event.token_ids[i],
                      .logprob = event.prompt_logprobs[i],
                      .top = i > 0 && i < event.prompt_top_logprobs.size() ? &event.prompt_top_logprobs[i] : nullptr});
      }
      choices_[static_cast<size_t>(sample)].offset = logprobs.offset();
      inner += Dump(logprobs.Take());
    } else {
      inner += "null";
    }
    if (request_->return_token_ids || !tokenizer_) inner += R"(,"token_ids":)" + Dump(event.token_ids);
    AppendChoice(sample, inner, std::nullopt, out);
  }
}

std::string ResponseStream::LogprobsOf(const StreamEvent& event, Choice* choice) const {
  if (chat_) return Dump(ChatLogprobs(event.token_ids, event.logprobs, event.top_logprobs, tokenizer_));
  CompletionLogprobs logprobs(tokenizer_, request_->request.top_logprobs > 0, choice->offset);
  for (size_t i = 0; i < event.token_ids.size(); ++i) {
    logprobs.Add({.id = event.token_ids[i],
                  .logprob = event.logprobs[i],
                  .top = i < event.top_logprobs.size() ? &event.top_logprobs[i] : nullptr});
  }
  choice->offset = logprobs.offset();
  return Dump(logprobs.Take());
}

void ResponseStream::AppendChoice(int32_t sample, const std::string& inner, const std::optional<FinishReason>& reason,
                                  std::string* out) const {
  fmt::format_to(std::back_inserter(*out),
                 R"(data: {},"choices":[{{"index":{},{},"finish_reason":{}}}]{}}})"
                 "\n\n",
                 head_, first_choice_ + sample, inner, reason ? fmt::format("\"{}\"", Name(*reason)) : "null",
                 request_->include_usage ? R"(,"usage":null)" : "");
}

void ResponseStream::AppendEnd(const TokenUsage& usage, std::string* out) const {
  if (request_->include_usage)
    fmt::format_to(std::back_inserter(*out),
                   R"(data: {},"choices":[],"usage":{}}})"
                   "\n\n",
                   head_, Dump(UsageOf(usage)));
  *out += "data: [DONE]\n\n";
}

std::string StreamError(const Status& status) { return "data: " + Dump(ErrorBody(status, "")) + "\n\n"; }

}  // namespace coppice::openai
