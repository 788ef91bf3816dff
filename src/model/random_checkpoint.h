// A model of a given shape whose weights are random: for measuring shapes without their weights. Layer: model.
#pragma once

#include <memory>
#include <string>

#include "coppice/core/status.h"
#include "model/checkpoint.h"

namespace coppice {

// `config_path`: a config.json as Hugging Face writes it. Matrices hold normal numbers of standard deviation 0.02 (what models are
// initialised with), norms one, biases zero; the same in every run. No tokenizer. Errors as of Checkpoint::Open.
Result<std::unique_ptr<Checkpoint>> MakeRandomCheckpoint(const std::string& config_path);

}  // namespace coppice
