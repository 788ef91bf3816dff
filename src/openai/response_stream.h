// The answer to a completion or chat completion with "stream": true: a JSON object for whatever a sample's event brings. Layer:
// openai.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/engine/engine.h"
#include "core/text_source.h"
#include "openai/answer_stream.h"
#include "openai/logprobs.h"
#include "openai/request.h"
#include "openai/response.h"
#include "openai/tool_call_parser.h"

namespace coppice::openai {

// Events as "data: {...}\n\n" each.
class ResponseStream final : public AnswerStream {
 public:
  // `request` and `tokenizer`, which may be null, outlive the stream. The samples are the answer's choices from `first_choice` on.
  ResponseStream(const OpenAiRequest* request, const ResponseFacts& facts, int32_t first_choice, const Tokenizer* tokenizer);

  // With return_token_ids: the first object of each choice, with the prompt's ids. Those of Echo have them where there is one.
  std::unique_ptr<TextSource> Begin(std::string* out) override;
  void Append(const StreamEvent& event, std::string* out) override;
  // Once for each choice.
  std::unique_ptr<TextSource> Echo(const StreamEvent& event) override;
  // With usage asked for a last object, then "data: [DONE]\n\n"; or the error. Never returns a source.
  std::unique_ptr<TextSource> End(const TokenUsage& usage, const BodyError& failure, std::string* out) override;

 private:
  struct Choice {
    bool begun = false;
    int64_t offset = 0;                   // characters of a completion, as its log-probabilities count them
    std::optional<ToolCallParser> tools;  // of a request with tools
  };

  // The fields of a chat's first delta, with those that follow it.
  std::string RoleDelta(int32_t sample) const;
  // An object with one choice, `inner` being its fields between index and finish_reason, which is empty while it goes on.
  void AppendChoice(int32_t sample, const std::string& inner, std::string_view reason, std::string* out) const;
  void BeginChoice(int32_t sample, std::string* out) const;
  void EndChoice(std::string_view reason, std::string* out) const;
  // The event's additions to a chat's message, as the fields of a delta; "": none.
  std::string DeltaOf(const StreamEvent& event, Choice* choice) const;
  std::string LogprobsOf(const StreamEvent& event, Choice* choice) const;
  CompletionLogprobs logprobs() const { return {tokenizer_, request_->request.top_logprobs > 0, request_->tokens_as_ids}; }
  bool has_ids() const { return request_->return_token_ids || !tokenizer_; }

  const OpenAiRequest* request_;
  const Tokenizer* tokenizer_;
  const int32_t first_choice_;
  const bool chat_;
  const std::string id_;    // of the answer
  const std::string head_;  // of every object, up to the choices
  std::vector<Choice> choices_;
};

}  // namespace coppice::openai
