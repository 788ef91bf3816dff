// Where sampling parameters come from that neither options nor a request name. Layer: cli.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string_view>

#include "coppice/core/status.h"
#include "coppice/engine/model_info.h"
#include "coppice/runner/sampling.h"

namespace coppice::cli {

enum class SamplingSource : uint8_t {
  kModel,   // its generation_config.json
  kOpenAi,  // the model's own distribution: temperature 1, nothing cut off
};

// "model" or "openai".
Result<SamplingSource> ParseSamplingSource(std::string_view text);
SamplingParams SamplingOf(SamplingSource source, const ModelInfo& model);
// --sampling-defaults
void AddSamplingDefaults(CLI::App& command, SamplingSource& source);

}  // namespace coppice::cli
