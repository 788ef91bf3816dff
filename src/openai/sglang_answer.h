// The answer to SGLang's POST /generate, whole or as the data of server-sent events. Layer: openai.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "openai/answer_stream.h"
#include "openai/response_body.h"

namespace coppice::openai {

// {"text", "output_ids", "meta_info": {"id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens",
// "weight_version", "output_token_logprobs", ...}}, or a list of those, prompt by prompt. `tokenizer`, which outlives the body, may
// be null.
std::unique_ptr<TextSource> SglangBody(std::vector<Answer> answers, ResponseFacts facts, const Tokenizer* tokenizer);

// Such an object whenever a sample has something new, with all that it has by then, and "index" where there are several samples;
// then "data: [DONE]\n\n".
class SglangStream final : public AnswerStream {
 public:
  // `request` and `tokenizer` outlive the stream. The samples are the answer's from `first` on.
  SglangStream(const OpenAiRequest* request, const ResponseFacts& facts, int32_t first, const Tokenizer* tokenizer);

  void Append(const StreamEvent& event, std::string* out) override;
  std::unique_ptr<TextSource> Echo(const StreamEvent& event) override;
  std::unique_ptr<TextSource> End(const TokenUsage& usage, const BodyError& failure, std::string* out) override;

 private:
  const OpenAiRequest* request_;
  const Tokenizer* tokenizer_;
  const ResponseFacts facts_;
  const int32_t first_;
  TokenUsage usage_;  // of the prompt
  EchoedPrompt prompt_;
  std::vector<Sample> samples_;
};

}  // namespace coppice::openai
