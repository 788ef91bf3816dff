// A GGUF directory read as a language model: metadata -> ModelConfig and TokenizerData, tensor names -> Hugging Face names.
// Layer: model.
#pragma once

#include "coppice/core/status.h"
#include "model/gguf.h"
#include "model/model_contents.h"

namespace coppice {

// The tensors view into the bytes that `gguf` was parsed from. UNIMPLEMENTED names an architecture, RoPE kind or tensor that this
// build cannot run; INVALID_ARGUMENT a key or tensor that is wrong or missing, with both values.
Result<ModelContents> ReadGgufModel(const GgufDirectory& gguf);

}  // namespace coppice
