// The contents of a model file or folder, whatever its format: the parts of a Checkpoint.
// Layer: model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coppice/core/status.h"
#include "model/config.h"
#include "model/sampling_defaults.h"
#include "model/weights.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

struct ModelContents {
  ModelConfig config;
  std::optional<TokenizerData> tokenizer;
  Status tokenizer_status = NotFound("the model has no tokenizer");  // OK if it has one that was read
  SamplingDefaults sampling;
  // Assumptions where the files are silent, fields set aside where they contradict themselves: a line each, for the model's users.
  std::vector<std::string> notes;
  TensorMap tensors;  // by Hugging Face name; exactly those that CheckWeights asks for
};

}  // namespace coppice
