// config.json and generation_config.json of a Hugging Face folder -> ModelConfig.
// Layer: model.
#pragma once

#include <string>

#include "coppice/core/status.h"
#include "model/config.h"

namespace coppice {

// The text of one file and its path, for messages.
struct TextFile {
  std::string path, text;
};

// RoPE settings are read in both spellings: rope_theta with rope_scaling, and rope_parameters. Of a model of several modalities,
// the text model is read. `generation_config` may have an empty text: the end-of-sequence ids are then those of `config`. Token ids
// beyond the vocabulary and below 0 are ignored. UNIMPLEMENTED names an architecture, activation or RoPE type that
// this build cannot run; INVALID_ARGUMENT the key, the value found and the one expected.
Result<ModelConfig> ParseHuggingFaceConfig(const TextFile& config, const TextFile& generation_config);

}  // namespace coppice
