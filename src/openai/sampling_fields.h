// The fields of a body that say how tokens are chosen, under the names of OpenAI and of other servers. Layer: openai.
#pragma once

#include <string_view>

#include "coppice/core/status.h"
#include "coppice/runner/sampling.h"
#include "openai/field_reader.h"

namespace coppice::openai {

// temperature, top_p, top_k, min_p, the penalties, logit_bias and logprobs_mode, where the body has them. Ranges are the engine's
// to check. Returns whether the body has any.
bool TakeSampling(FieldReader& fields, SamplingParams* sampling);
// "raw" or "processed", also with "_logprobs" behind it, as vLLM writes it.
Result<LogprobsMode> ParseLogprobsMode(std::string_view name);
// seed, as OpenAI allows it: any integer.
void TakeSeed(FieldReader& fields, uint64_t* seed);

}  // namespace coppice::openai
