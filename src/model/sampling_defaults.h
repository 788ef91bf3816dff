// How a model's files say that its tokens are to be chosen, where a request does not: what its authors measured it with.
// Layer: model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/gguf.h"
#include "model/hf_config.h"

namespace coppice {

// Parameters that the files name; the meanings are SamplingParams'.
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
};

// generation_config.json: "do_sample" false is a temperature of 0. A value that none of the parameters can have is left out, and
// `notes` says so: a model runs without them.
SamplingDefaults ReadSamplingDefaults(const TextFile& generation_config, std::vector<std::string>* notes);
// general.sampling.* of a GGUF file, in the same way.
SamplingDefaults ReadSamplingDefaults(const GgufDirectory& gguf, std::vector<std::string>* notes);

}  // namespace coppice
