#include "cli/run_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace coppice::cli {

using nlohmann::ordered_json;

std::string FormatSample(const Sample& sample, int32_t rank) {
  std::string heading =
      rank > 0 ? fmt::format("--- rank {}, sample {}", rank, sample.index) : fmt::format("--- sample {}", sample.index);
  heading +=
      fmt::format(": {} tokens, {}", sample.token_ids.size(), sample.finish_reason ? Name(*sample.finish_reason) : "unfinished");
  if (const std::optional<double> mean = sample.mean_logprob()) heading += fmt::format(", mean log-probability {:.3f}", *mean);
  const std::string body = sample.text.empty() ? fmt::format("{}", fmt::join(sample.token_ids, ",")) : sample.text;
  return fmt::format("{}\n{}\n", heading, body);
}

std::string FormatJson(const Generation& generation, const RunStats& stats, bool ranked) {
  ordered_json json;
  json["prompt_ids"] = generation.prompt_ids;
  if (!generation.prompt_logprobs.empty()) {
    ordered_json& logprobs = json["prompt_logprobs"] = ordered_json::array();
    for (const std::optional<float>& logprob : generation.prompt_logprobs)
      logprobs.push_back(logprob ? ordered_json(*logprob) : ordered_json());
  }
  std::vector<const Sample*> samples = Ranked(generation);
  if (!ranked) std::ranges::sort(samples, {}, &Sample::index);
  ordered_json& list = json["samples"] = ordered_json::array();
  for (const Sample* sample : samples) {
    const std::optional<double> mean = sample->mean_logprob();
    list.push_back({{"index", sample->index},
                    {"text", sample->text},
                    {"token_ids", sample->token_ids},
                    {"logprobs", sample->logprobs},
                    {"mean_logprob", mean ? ordered_json(*mean) : ordered_json()},
                    {"finish_reason", Name(*sample->finish_reason)}});
  }
  json["stats"] = ToJson(stats);
  json["stats"]["interrupted"] = generation.interrupted;
  return json.dump(1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace) + "\n";
}

std::string FormatProgress(const GenerationProgress& progress) {
  const EngineMetrics& metrics = *progress.metrics;
  std::string line =
      fmt::format("prefill {}/{} tokens, {}/{} generated", std::min(metrics.prefilled_tokens, progress.prompt_tokens),
                  progress.prompt_tokens, metrics.generated_tokens, progress.tokens_wanted);
  if (metrics.decode_seconds > 0)
    line += fmt::format(" at {:.1f}/s", static_cast<double>(progress.decode_tokens) / metrics.decode_seconds);
  return line + fmt::format(", {}/{} samples", progress.samples_finished, progress.samples);
}

}  // namespace coppice::cli
