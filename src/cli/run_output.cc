#include "cli/run_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/progress_line.h"
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
  if (sample.beam_score) heading += fmt::format(", score {:.4f}", *sample.beam_score);
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
    if (sample->beam_score) entry["beam_score"] = *sample->beam_score;
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

std::string SampleStream::Add(const StreamEvent& event) {
  std::string text = has_text_ ? event.text : "";
  for (size_t i = 0; !has_text_ && i < event.token_ids.size(); ++i) {
    text += fmt::format("{}{}", ends_line_ && i == 0 ? "" : ",", event.token_ids[i]);
  }
  if (!text.empty()) ends_line_ = text.back() == '\n';
  return text;
}

std::vector<std::string> FormatProgress(const openai::GenerationProgress& progress) {
  const EngineMetrics& metrics = *progress.metrics;
  if (metrics.generated_tokens == 0) {
    const int64_t prefilled = std::min(metrics.prefilled_tokens, progress.prompt_tokens);
    const double part = static_cast<double>(prefilled) / static_cast<double>(std::max<int64_t>(progress.prompt_tokens, 1));
    return {fmt::format("{} prompt {}/{} tokens", FormatBar(part), prefilled, progress.prompt_tokens)};
  }
  const auto generated = static_cast<double>(metrics.generated_tokens), wanted = static_cast<double>(progress.tokens_wanted);
  std::vector<std::string> parts = {fmt::format("{} {}/{} tokens", FormatBar(generated / std::max(wanted, 1.0)),
                                                metrics.generated_tokens, progress.tokens_wanted)};
  if (progress.decode_tokens > 0 && metrics.decode_seconds > 0) {
    const double rate = static_cast<double>(progress.decode_tokens) / metrics.decode_seconds;
    parts.push_back(fmt::format("{:.1f}/s", rate));
    parts.push_back(FormatTimeLeft((wanted - generated) / rate));
  }
  parts.push_back(fmt::format("{}/{} samples", progress.samples_finished, progress.samples));
  return parts;
}

}  // namespace coppice::cli
