// What reading a model file or folder gives, whatever its format: the parts of a Checkpoint.
// Layer: model.
#pragma once

#include <optional>

#include "model/config.h"
#include "model/weights.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

struct ModelContents {
  ModelConfig config;
  std::optional<TokenizerData> tokenizer;
  TensorMap tensors;  // by Hugging Face name; exactly those that CheckWeights asks for
};

}  // namespace coppice
