#include "cli/run_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "openai/response.h"

namespace coppice::cli {

using nlohmann::ordered_json;

namespace {

ordered_json OptionalNumbers(const std::vector<std::optional<float>>& values) {
  ordered_json list = ordered_json::array();
  for (const std::optional<float>& value : values) list.push_back(value ? ordered_json(*value) : ordered_json());
  return list;
}

template <class T>
ordered_json OrNull(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

// `first` and behind it `second`.
ordered_json Joined(ordered_json first, const ordered_json& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

std::string FormatSample(const openai::Sample& sample, int32_t rank, std::string_view echo) {
  std::string heading =
      rank > 0 ? fmt::format("--- rank {}, sample {}", rank, sample.index) : fmt::format("--- sample {}", sample.index);
  heading +=
      fmt::format(": {} tokens, {}", sample.token_ids.size(), sample.finish_reason ? Name(*sample.finish_reason) : "unfinished");
  if (const std::optional<double> mean = sample.mean_logprob()) heading += fmt::format(", mean log-probability {:.3f}", *mean);
  const std::string body = sample.text.empty() ? fmt::format("{}", fmt::join(sample.token_ids, ",")) : sample.text;
  return fmt::format("{}\n{}{}\n", heading, echo, body);
}

std::string FormatVotes(const std::vector<VotedAnswer>& votes, int32_t samples) {
  std::string text;
  for (const VotedAnswer& vote : votes) {
    text +=
        fmt::format("vote: {} ({} of {} samples: {})\n", vote.answer, vote.voters.size(), samples, fmt::join(vote.voters, ", "));
  }
  return text.empty() ? "vote: no sample has an answer\n" : text;
}

std::string FormatJson(const openai::Generation& generation, const RunStats& stats, const JsonOptions& options) {
  ordered_json json;
  json["prompt_ids"] = generation.prompt_ids;
  if (!generation.prompt_logprobs.empty()) json["prompt_logprobs"] = OptionalNumbers(generation.prompt_logprobs);
  ordered_json& list = json["samples"] = ordered_json::array();
  for (const openai::Sample* sample : openai::Select(generation.samples, options.selection)) {
    ordered_json entry = {{"index", sample->index},
                          {"text", sample->text},
                          {"token_ids", sample->token_ids},
                          {"logprobs", sample->logprobs},
                          {"mean_logprob", OrNull(sample->mean_logprob())},
                          {"finish_reason", Name(*sample->finish_reason)}};
    if (options.echo) {
      entry["text"] = generation.prompt_text + sample->text;
      entry["token_ids"] = Joined(json["prompt_ids"], entry["token_ids"]);
      entry["logprobs"] = Joined(OptionalNumbers(generation.prompt_logprobs), entry["logprobs"]);
    }
    list.push_back(std::move(entry));
  }
  if (options.votes) {
    ordered_json& votes = json["votes"] = ordered_json::array();
    for (const VotedAnswer& vote : *options.votes) {
      votes.push_back({{"answer", vote.answer}, {"samples", vote.voters}, {"mean_logprob", OrNull(vote.mean_logprob)}});
    }
  }
  json["usage"]["shared_prefix"] = openai::SharedPrefixOf(generation.shared_reads);
  json["stats"] = ToJson(stats);
  json["stats"]["interrupted"] = generation.interrupted;
  return json.dump(1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace) + "\n";
}

std::string FormatProgress(const openai::GenerationProgress& progress) {
  const EngineMetrics& metrics = *progress.metrics;
  std::string line =
      fmt::format("prefill {}/{} tokens, {}/{} generated", std::min(metrics.prefilled_tokens, progress.prompt_tokens),
                  progress.prompt_tokens, metrics.generated_tokens, progress.tokens_wanted);
  if (metrics.decode_seconds > 0)
    line += fmt::format(" at {:.1f}/s", static_cast<double>(progress.decode_tokens) / metrics.decode_seconds);
  return line + fmt::format(", {}/{} samples", progress.samples_finished, progress.samples);
}

}  // namespace coppice::cli
