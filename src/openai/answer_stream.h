// The answer to an OpenAI request with "stream": true, as text of server-sent events, whatever its route. Layer: openai.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "coppice/engine/engine.h"
#include "core/text_source.h"
#include "openai/body_error.h"
#include "openai/request.h"
#include "openai/response.h"

namespace coppice::openai {

// The events of one prompt's request, in the order in which they come. Thread-compatible.
class AnswerStream {
 public:
  virtual ~AnswerStream() = default;

  // Appends what the stream begins with, before anything is computed; what is large of it is returned instead, and follows.
  virtual std::unique_ptr<TextSource> Begin(std::string* /*out*/) { return nullptr; }
  // Appends what the event of a sample brings; nothing while a character is incomplete.
  virtual void Append(const StreamEvent& event, std::string* out) = 0;
  // The content of the prompt's event. null: nothing.
  virtual std::unique_ptr<TextSource> Echo(const StreamEvent& /*event*/) { return nullptr; }
  // Appends the stream's end, once for all streams of an answer; what is large of it is returned instead, and follows. `failure`:
  // why the answer ends before its time, if it does.
  virtual std::unique_ptr<TextSource> End(const TokenUsage& usage, const BodyError& failure, std::string* out) = 0;
};

// `request` and `tokenizer`, which may be null, outlive the stream. The samples are the answer's choices from `first_choice` on.
std::unique_ptr<AnswerStream> StreamOf(const OpenAiRequest* request, const ResponseFacts& facts, int32_t first_choice,
                                       const Tokenizer* tokenizer);

}  // namespace coppice::openai
