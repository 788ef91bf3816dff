// How large an answer becomes, before it is computed. Layer: openai.
#pragma once

#include <cstdint>

#include "openai/request.h"
#include "openai/score_request.h"

namespace coppice::openai {

// An answer's part of one prompt.
struct AnswerExtent {
  int64_t choices = 0;
  int64_t prompt_tokens = 0, prompt_bytes = 0;  // in each choice, where the prompt is echoed
  int64_t output_tokens = 0;                    // of all choices together
};
// The most that a request whose prompt is set may get. All samples count, also those that best_of leaves out: they are kept until
// the best are known.
AnswerExtent LargestExtent(const OpenAiRequest& request, int32_t max_context);

// Bytes of JSON, by what tokens and numbers take as a rule: choices x (prompt, if echoed, + output) x (1 + alternatives).
double AnswerBytes(const OpenAiRequest& request, const AnswerExtent& extent);
double BytesOfOutputToken(const OpenAiRequest& request);
double AnswerBytes(const ScoreRequest& request);

// Tokens of the prompt that the answer repeats in further choices, so that limits count them.
int64_t RepeatedTokens(const OpenAiRequest& request, int64_t prompt_tokens);

}  // namespace coppice::openai
