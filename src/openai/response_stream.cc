#include "openai/response_stream.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/json.h"
#include "openai/logprobs.h"

namespace coppice::openai {
namespace {

using nlohmann::ordered_json;

std::string HeadOf(bool chat, const ResponseFacts& facts) {
  return fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{})", DumpJson((chat ? "chatcmpl-" : "cmpl-") + facts.id),
                     chat ? "chat.completion.chunk" : "text_completion", facts.created, DumpJson(facts.model));
}

}  // namespace

ResponseStream::ResponseStream(const OpenAiRequest* request, const ResponseFacts& facts, int32_t first_choice,
                               const Tokenizer* tokenizer)
    : request_(request),
      tokenizer_(tokenizer),
      first_choice_(first_choice),
      chat_(request->endpoint == Endpoint::kChatCompletions),
      id_(facts.id),
      head_(HeadOf(chat_, facts)),
      choices_(static_cast<size_t>(request->choices)) {
  if (!request->tools) return;
  for (Choice& choice : choices_) choice.tools.emplace(request->tools.get());
}

void ResponseStream::Append(const StreamEvent& event, std::string* out) {
  if (event.index < 0) return AppendPrompt(event, out);
  Choice& choice = choices_[static_cast<size_t>(event.index)];
  if (chat_ && !std::exchange(choice.begun, true))
    AppendChoice(event.index, R"("delta":{"role":"assistant","content":""},"logprobs":null)", "", out);

  const std::string delta = chat_ ? DeltaOf(event, &choice) : "";
  const bool ids = request_->return_token_ids || !tokenizer_;
  const bool has_tokens = !event.token_ids.empty() && (request_->logprobs || ids);
  const bool has_text = chat_ ? !delta.empty() : !event.text.empty();
  if (has_text || has_tokens || event.finish_reason) {
    std::string inner = chat_ ? R"("delta":{)" + delta + "}" : R"("text":)" + DumpJson(event.text);
    inner += R"(,"logprobs":)" + (has_tokens && request_->logprobs ? LogprobsOf(event, &choice) : "null");
    if (ids) inner += R"(,"token_ids":)" + DumpJson(event.token_ids);
    const int32_t num_calls = choice.tools ? choice.tools->num_calls() : 0;
    AppendChoice(event.index, inner, event.finish_reason ? ReasonOf(*event.finish_reason, num_calls) : "", out);
  }
}

std::string ResponseStream::DeltaOf(const StreamEvent& event, Choice* choice) const {
  if (!choice->tools) return event.text.empty() ? "" : R"("content":)" + DumpJson(event.text);
  ParsedOutput output;
  choice->tools->Push(event.text, &output);
  if (event.finish_reason) choice->tools->Finish(&output);
  std::string delta = output.content.empty() ? "" : R"("content":)" + DumpJson(output.content);
  if (output.calls.empty()) return delta;
  ordered_json calls = ordered_json::array();
  for (const ParsedOutput::Call& call : output.calls) {
    ordered_json& added = calls.emplace_back(ordered_json{{"index", call.index}});
    if (call.begins) {
      added["id"] = ToolCallId(request_->tools->format.style, id_, first_choice_ + event.index, call.index);
      added["type"] = "function";
      added["function"]["name"] = call.name;
    }
    added["function"]["arguments"] = call.arguments;
  }
  return delta + (delta.empty() ? "" : ",") + R"("tool_calls":)" + DumpJson(std::move(calls));
}

void ResponseStream::AppendPrompt(const StreamEvent& event, std::string* out) {
  if (!request_->request.echo) return;
  for (int32_t sample = 0; sample < request_->choices; ++sample) {
    std::string inner = R"("text":)" + DumpJson(event.text) + R"(,"logprobs":)";
    if (request_->logprobs) {
      CompletionLogprobs logprobs(tokenizer_, request_->request.top_logprobs > 0);
      for (size_t i = 0; i < event.token_ids.size(); ++i) {
        logprobs.Add({.id = event.token_ids[i],
                      .logprob = event.prompt_logprobs[i],
                      .top = i > 0 && i < event.prompt_top_logprobs.size() ? &event.prompt_top_logprobs[i] : nullptr});
      }
      choices_[static_cast<size_t>(sample)].offset = logprobs.offset();
      inner += DumpJson(logprobs.Take());
    } else {
      inner += "null";
    }
    if (request_->return_token_ids || !tokenizer_) inner += R"(,"token_ids":)" + DumpJson(event.token_ids);
    AppendChoice(sample, inner, "", out);
  }
}

std::string ResponseStream::LogprobsOf(const StreamEvent& event, Choice* choice) const {
  if (chat_) return DumpJson(ChatLogprobs(event.token_ids, event.logprobs, event.top_logprobs, tokenizer_));
  CompletionLogprobs logprobs(tokenizer_, request_->request.top_logprobs > 0, choice->offset);
  for (size_t i = 0; i < event.token_ids.size(); ++i) {
    logprobs.Add({.id = event.token_ids[i],
                  .logprob = event.logprobs[i],
                  .top = i < event.top_logprobs.size() ? &event.top_logprobs[i] : nullptr});
  }
  choice->offset = logprobs.offset();
  return DumpJson(logprobs.Take());
}

void ResponseStream::AppendChoice(int32_t sample, const std::string& inner, std::string_view reason, std::string* out) const {
  fmt::format_to(std::back_inserter(*out),
                 R"(data: {},"choices":[{{"index":{},{},"finish_reason":{}}}]{}}})"
                 "\n\n",
                 head_, first_choice_ + sample, inner, reason.empty() ? "null" : fmt::format("\"{}\"", reason),
                 request_->include_usage ? R"(,"usage":null)" : "");
}

void ResponseStream::AppendEnd(const TokenUsage& usage, std::string* out) const {
  if (request_->include_usage)
    fmt::format_to(std::back_inserter(*out),
                   R"(data: {},"choices":[],"usage":{}}})"
                   "\n\n",
                   head_, DumpJson(UsageOf(usage)));
  *out += "data: [DONE]\n\n";
}

std::string StreamError(const Status& status) { return "data: " + DumpJson(ErrorBody(status, "")) + "\n\n"; }

}  // namespace coppice::openai
