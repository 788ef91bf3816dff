#include "openai/answer_stream.h"

#include "openai/infill_answer.h"
#include "openai/response_stream.h"
#include "openai/responses_stream.h"
#include "openai/sglang_answer.h"
#include "openai/tokens_answer.h"

namespace coppice::openai {

std::unique_ptr<AnswerStream> StreamOf(const OpenAiRequest* request, const ResponseFacts& facts, int32_t first_choice,
                                       const Tokenizer* tokenizer) {
  if (request->token_route) return std::make_unique<TokensStream>(request, facts);
  if (request->sglang) return std::make_unique<SglangStream>(request, facts, first_choice, tokenizer);
  if (request->infill) return std::make_unique<InfillStream>(request, facts, tokenizer);
  if (request->endpoint == Endpoint::kResponses) return std::make_unique<ResponsesStream>(request, facts, tokenizer);
  return std::make_unique<ResponseStream>(request, facts, first_choice, tokenizer);
}

}  // namespace coppice::openai
