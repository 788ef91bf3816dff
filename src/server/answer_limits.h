// How large an answer may become: bounded before anything is computed for it. Layer: server.
#pragma once

#include <cstdint>
#include <span>

#include "openai/body_error.h"
#include "openai/request.h"
#include "openai/score_request.h"

namespace coppice::server {

struct AnswerLimits {
  int32_t max_choices = 128;               // samples of one prompt: n, best_of; 0: no limit
  int64_t max_bytes = int64_t{128} << 20;  // of JSON, by AnswerBytes of openai/answer_size.h; 0: no limit
};

// Of one request with these prompts, which are set. Where it names no number of output tokens, that is lowered to what there is
// room for. INVALID_ARGUMENT says how large the answer would be, and what to ask for instead.
openai::BodyError CheckAnswer(const AnswerLimits& limits, int32_t max_context, std::span<openai::OpenAiRequest> prompts);
openai::BodyError CheckAnswer(const AnswerLimits& limits, const openai::ScoreRequest& request);

}  // namespace coppice::server
