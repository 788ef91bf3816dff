// The fields of a body that say how tokens are chosen, under the names of OpenAI and of other servers. Layer: openai.
#pragma once

#include "coppice/runner/sampling.h"
#include "openai/field_reader.h"

namespace coppice::openai {

// temperature, top_p, top_k, min_p, the penalties and logit_bias, where the body has them. Ranges are the engine's to check.
void TakeSampling(FieldReader& fields, SamplingParams* sampling);
// seed, as OpenAI allows it: any integer.
void TakeSeed(FieldReader& fields, uint64_t* seed);

}  // namespace coppice::openai
