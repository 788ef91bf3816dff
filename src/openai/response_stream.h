// The answer to an OpenAI request with "stream": true, as the data of server-sent events: a JSON object for whatever a sample's
// event brings. Layer: openai.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/engine/engine.h"
#include "core/text_source.h"
#include "openai/logprobs.h"
#include "openai/request.h"
#include "openai/response.h"
#include "openai/tool_call_parser.h"

namespace coppice::openai {

// The events of one prompt's request, in the order in which they come. Thread-compatible.
class ResponseStream {
 public:
  // `request` and `tokenizer`, which may be null, outlive the stream. The samples are the answer's choices from `first_choice` on.
  ResponseStream(const OpenAiRequest* request, const ResponseFacts& facts, int32_t first_choice, const Tokenizer* tokenizer);

  // Appends what the event of a sample brings to `*out`, as "data: {...}\n\n" each; nothing while a character is incomplete.
  void Append(const StreamEvent& event, std::string* out);
  // What the event of the prompt brings: it comes once for each choice. null: nothing.
  std::unique_ptr<TextSource> Echo(const StreamEvent& event);
  // The stream's end: with usage asked for a last object, then "data: [DONE]\n\n". Once for all streams of an answer.
  void AppendEnd(const TokenUsage& usage, std::string* out) const;

 private:
  struct Choice {
    bool begun = false;
    int64_t offset = 0;                   // characters of a completion, as its log-probabilities count them
    std::optional<ToolCallParser> tools;  // of a request with tools
  };

  // An object with one choice, `inner` being its fields between index and finish_reason, which is empty while it goes on.
  void AppendChoice(int32_t sample, const std::string& inner, std::string_view reason, std::string* out) const;
  void BeginChoice(int32_t sample, std::string* out) const;
  void EndChoice(std::string_view reason, std::string* out) const;
  // What the event adds to a chat's message, as the fields of a delta; "": nothing.
  std::string DeltaOf(const StreamEvent& event, Choice* choice) const;
  std::string LogprobsOf(const StreamEvent& event, Choice* choice) const;
  CompletionLogprobs logprobs() const { return {tokenizer_, request_->request.top_logprobs > 0}; }
  bool has_ids() const { return request_->return_token_ids || !tokenizer_; }

  const OpenAiRequest* request_;
  const Tokenizer* tokenizer_;
  const int32_t first_choice_;
  const bool chat_;
  const std::string id_;    // of the answer
  const std::string head_;  // of every object, up to the choices
  std::vector<Choice> choices_;
};

// `status` as an object of the stream: what is told when a sample fails after the answer has begun. `param`: the field at fault.
std::string StreamError(const Status& status, std::string_view param = "");

}  // namespace coppice::openai
