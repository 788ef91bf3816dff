// The answer to vLLM's POST /inference/v1/generate, whole or as the data of server-sent events. Layer: openai.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "openai/answer_stream.h"
#include "openai/response_body.h"

namespace coppice::openai {

// {"request_id", "choices": [{"index", "finish_reason", "stop_reason", "token_ids", "logprobs": {"content": [...]},
// "weight_versions"}], "prompt_logprobs", "usage", ...}. `tokenizer`, which outlives the body, may be null.
std::unique_ptr<TextSource> TokensBody(Answer answer, ResponseFacts facts, const Tokenizer* tokenizer);

// An object with one choice for each token, the last of each choice with finish_reason, stop_reason and weight_versions, then
// "data: [DONE]\n\n".
class TokensStream final : public AnswerStream {
 public:
  // `request` outlives the stream.
  TokensStream(const OpenAiRequest* request, const ResponseFacts& facts);

  void Append(const StreamEvent& event, std::string* out) override;
  std::unique_ptr<TextSource> End(const TokenUsage& usage, const BodyError& failure, std::string* out) override;

 private:
  const OpenAiRequest* request_;
  const ResponseFacts facts_;
  const std::string head_;  // of every object, up to the choices
  bool reports_prompt_ = false;
  std::vector<Sample> samples_;  // sent parts are let go, but for their tokens
  std::vector<size_t> written_;  // tokens of each
};

// The stop of a sample: a stop string, the id of a token of stop_token_ids, or null.
nlohmann::ordered_json StopReasonOf(const Request& request, const Sample& sample);
// The versions of weights that chose the tokens: [{"version": "3", "start": 0, "end": 17}].
nlohmann::ordered_json VersionsOf(const Sample& sample, const ResponseFacts& facts);

}  // namespace coppice::openai
