// The fields of a body that ask for beam search, under the names that vLLM and TensorRT-LLM gave them. Layer: openai.
#pragma once

#include "coppice/engine/engine.h"
#include "openai/field_reader.h"

namespace coppice::openai {

// use_beam_search, beam_width or best_of (absent: n), length_penalty, early_stopping and stochastic_beams, for a request whose n
// and sampling are taken. Penalties, which beams do not have, are neutral where the body has none, whatever the defaults of the
// model or server are. Ranges are the engine's to check.
void TakeBeams(FieldReader& fields, Request* request);

}  // namespace coppice::openai
