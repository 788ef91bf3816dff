// The answer of OpenAI's /v1/responses with "stream": true: events that say how each item of the answer begins, grows and ends,
// and at last the whole answer. Layer: openai.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "openai/answer_stream.h"
#include "openai/generation.h"
#include "openai/responses_body.h"
#include "openai/responses_items.h"

namespace coppice::openai {

class ResponsesStream final : public AnswerStream {
 public:
  // `request` and `tokenizer` outlive the stream. REQUIRES: the request is of Endpoint::kResponses.
  ResponsesStream(const OpenAiRequest* request, const ResponseFacts& facts, const Tokenizer* tokenizer);

  std::unique_ptr<TextSource> Begin(std::string* out) override;
  void Append(const StreamEvent& event, std::string* out) override;
  std::unique_ptr<TextSource> End(const TokenUsage& usage, const BodyError& failure, std::string* out) override;

 private:
  // `first_token`: of the sample, the first of those that the change brought.
  void Report(const OutputItems::Change& change, size_t first_token, std::string* out);

  const OpenAiRequest* request_;
  ResponsesWriter writer_;
  OutputItems items_;
  Sample sample_;         // its tokens as far as log-probabilities are reported; no text
  int64_t sequence_ = 0;  // events sent
  std::optional<FinishReason> reason_;
};

}  // namespace coppice::openai
