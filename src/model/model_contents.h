// What reading a model file or folder gives, whatever its format: the parts of a Checkpoint.
// Layer: model.
#pragma once

#include <optional>

#include "coppice/core/status.h"
#include "model/config.h"
#include "model/weights.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

struct ModelContents {
  ModelConfig config;
  std::optional<TokenizerData> tokenizer;
  Status tokenizer_status = NotFound("the model has no tokenizer");  // OK if it has one that was read
  TensorMap tensors;  // by Hugging Face name; exactly those that CheckWeights asks for
};

}  // namespace coppice
