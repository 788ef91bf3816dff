// The fields of bodies that fork and extend samples, whatever takes them: a script's line, a route, a call of Python. Layer:
// openai.
#pragma once

#include <cstdint>
#include <vector>

#include "coppice/engine/engine.h"
#include "coppice/tokenizer/tokenizer.h"
#include "openai/field_reader.h"
#include "openai/prompt_bounds.h"

namespace coppice::openai {

// n, keep_tokens, max_tokens, seed, and fields of TakeSampling. `parent`: how the sample draws; a child draws likewise but for the
// fields that the body has. Ranges are the engine's to check.
ForkOptions TakeFork(FieldReader& fields, const SamplingParams& parent);

// Either `text`, which is tokenized as a part of a prompt, or `token_ids`. `tokenizer` may be null: then there is no text.
std::vector<int32_t> TakeExtension(FieldReader& fields, const Tokenizer* tokenizer, const PromptBounds& bounds);

// Refuses fields of a request that change what is generated or answered, and that none of the above has taken.
void RefuseOthersOfRequest(FieldReader& fields);

}  // namespace coppice::openai
