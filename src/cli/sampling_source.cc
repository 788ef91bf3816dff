#include "cli/sampling_source.h"

#include <fmt/format.h>

#include "cli/parsed_option.h"
#include "core/quoted.h"

namespace coppice::cli {

Result<SamplingSource> ParseSamplingSource(std::string_view text) {
  if (text == "model") return SamplingSource::kModel;
  if (text == "openai") return SamplingSource::kOpenAi;
  return InvalidArgument(fmt::format("{} is no source of sampling parameters; expected model or openai", Quoted(text)));
}

SamplingParams SamplingOf(SamplingSource source, const ModelInfo& model) {
  return source == SamplingSource::kModel ? model.sampling : SamplingParams();
}

void AddSamplingDefaults(CLI::App& command, SamplingSource& source) {
  AddParsed<SamplingSource>(command, "--sampling-defaults", source, ParseSamplingSource,
                            "Temperature, top_p, top_k, min_p and repetition penalty where none are given: model (its "
                            "generation_config.json) or openai (temperature 1, the others off)")
      ->default_str("model");
}

}  // namespace coppice::cli
