// The answer to POST /infill in llama.cpp's form, whole or as the data of server-sent events. Layer: openai.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>

#include "openai/answer_stream.h"
#include "openai/response_body.h"

namespace coppice::openai {

// {"content", "stop": true, "stop_type", "tokens_predicted", "tokens_evaluated", ...} of the answer's one sample.
std::unique_ptr<TextSource> InfillBody(const Answer& answer, const ResponseFacts& facts, const Tokenizer* tokenizer);

// An object for each piece of text, then one with "stop": true, and no "[DONE]".
class InfillStream final : public AnswerStream {
 public:
  // `request` and `tokenizer` outlive the stream.
  InfillStream(const OpenAiRequest* request, const ResponseFacts& facts, const Tokenizer* tokenizer)
      : request_(request), tokenizer_(tokenizer), model_(facts.model), prompt_tokens_(std::ssize(request->request.prompt_ids)) {}

  void Append(const StreamEvent& event, std::string* out) override;
  std::unique_ptr<TextSource> End(const TokenUsage& usage, const BodyError& failure, std::string* out) override;

 private:
  const OpenAiRequest* request_;
  const Tokenizer* tokenizer_;
  const std::string model_;
  const int64_t prompt_tokens_;
  int64_t generated_ = 0;
  bool has_new_line_ = false;
  int32_t last_token_ = -1;
  std::optional<FinishReason> reason_;
};

}  // namespace coppice::openai
