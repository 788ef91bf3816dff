#include "cli/run_stats.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace coppice::cli {
namespace {

struct Row {
  std::string label, value, unshared, baseline;
};

std::string FormatRate(double tokens_per_second) { return tokens_per_second > 0 ? fmt::format("{:.1f}", tokens_per_second) : "-"; }

// Columns as wide as their longest cell; numbers to the right.
std::string Layout(const std::vector<Row>& rows) {
  std::array<size_t, 3> width{};
  for (const Row& row : rows) {
    width[0] = std::max(width[0], row.label.size());
    width[1] = std::max(width[1], row.value.size());
    width[2] = std::max(width[2], row.unshared.size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line =
        fmt::format("{:<{}}  {:>{}}  {:>{}}  {}", row.label, width[0], row.value, width[1], row.unshared, width[2], row.baseline);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace

RunStats MakeRunStats(const EngineOptions& options, const ModelInfo& model, const openai::Generation& generation) {
  const EngineMetrics& metrics = generation.metrics;
  return {.sharing = options.sharing,
          .dtype = model.kv_dtype,
          .weights = options.weights,
          .page_size = options.page_size,
          .samples = static_cast<int32_t>(generation.samples.size()),
          .samples_finished = static_cast<int32_t>(std::ranges::count_if(generation.samples, &openai::Sample::finished)),
          .prompt_tokens = static_cast<int64_t>(generation.prompt_ids.size()),
          .prefilled_tokens = metrics.prefilled_tokens,
          .generated_tokens = metrics.generated_tokens,
          .decode_tokens = generation.decode_tokens,
          .decode_steps = metrics.decode_steps,
          .decode_graph_steps = metrics.decode_graph_steps,
          .prefill_seconds = metrics.prefill_seconds,
          .decode_seconds = metrics.decode_seconds,
          .steps = metrics.steps,
          .graph_steps = metrics.graph_steps,
          .bubbles = metrics.bubbles,
          .device_idle_seconds = metrics.device_idle_seconds,
          .plan_seconds = metrics.plan_seconds,
          .forward_seconds = metrics.forward_seconds,
          .sample_seconds = metrics.sample_seconds,
          .host_seconds = metrics.host_seconds,
          .detokenize_seconds = metrics.detokenize_seconds,
          .kv_bytes_stored = metrics.kv_bytes_stored,
          .kv_bytes_stored_unshared = metrics.kv_bytes_stored_unshared,
          .kv_page_rounding_bytes = metrics.kv_page_rounding_bytes,
          .kv_bytes_read = metrics.kv_bytes_read,
          .kv_bytes_read_unshared = metrics.kv_bytes_read_unshared,
          .decode_kv_bytes_read = metrics.decode_kv_bytes_read,
          .decode_kv_bytes_read_unshared = metrics.decode_kv_bytes_read_unshared,
          .kv_bytes_distinct = metrics.kv_bytes_distinct,
          .decode_kv_bytes_distinct = metrics.decode_kv_bytes_distinct,
          .sample_steps = metrics.sample_steps,
          .drafted_tokens = metrics.drafted_tokens,
          .accepted_draft_tokens = metrics.accepted_draft_tokens,
          .undrafted_steps = metrics.undrafted_steps,
          .draft_trees_cut = metrics.draft_trees_cut,
          .draft_kv_bytes_read = metrics.draft_kv_bytes_read,
          .draft_seconds = metrics.draft_seconds,
          .peak_rss_bytes = PeakRssBytes()};
}

int64_t PeakRssBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;  // Linux counts KiB
}

nlohmann::ordered_json ToJson(const RunStats& stats) {
  nlohmann::ordered_json json = {
      {"sharing", Name(stats.sharing)},
      {"dtype", Name(stats.dtype)},
      {"weights", Name(stats.weights)},
      {"page_size", stats.page_size},
      {"samples", stats.samples},
      {"samples_finished", stats.samples_finished},
      {"prompt_tokens", stats.prompt_tokens},
      {"prefilled_tokens", stats.prefilled_tokens},
      {"generated_tokens", stats.generated_tokens},
      {"decode_tokens", stats.decode_tokens},
      {"decode_steps", stats.decode_steps},
      {"decode_graph_steps", stats.decode_graph_steps},
      {"prefill_seconds", stats.prefill_seconds},
      {"decode_seconds", stats.decode_seconds},
      {"steps", stats.steps},
      {"graph_steps", stats.graph_steps},
      {"bubbles", stats.bubbles},
      {"device_idle_seconds", stats.device_idle_seconds},
      {"plan_seconds", stats.plan_seconds},
      {"forward_seconds", stats.forward_seconds},
      {"sample_seconds", stats.sample_seconds},
      {"host_seconds", stats.host_seconds},
      {"detokenize_seconds", stats.detokenize_seconds},
      {"prefill_tokens_per_second", stats.prefill_tokens_per_second()},
      {"decode_tokens_per_second", stats.decode_tokens_per_second()},
      {"kv_bytes_stored", stats.kv_bytes_stored},
      {"kv_bytes_stored_unshared", stats.kv_bytes_stored_unshared},
      {"kv_page_rounding_bytes", stats.kv_page_rounding_bytes},
      {"kv_bytes_read", stats.kv_bytes_read},
      {"kv_bytes_read_unshared", stats.kv_bytes_read_unshared},
      {"decode_kv_bytes_read", stats.decode_kv_bytes_read},
      {"decode_kv_bytes_read_unshared", stats.decode_kv_bytes_read_unshared},
      {"kv_bytes_read_per_step", stats.kv_bytes_read_per_step()},
      {"kv_bytes_read_per_step_unshared", stats.kv_bytes_read_per_step_unshared()},
      {"kv_bytes_distinct", stats.kv_bytes_distinct},
      {"kv_bytes_distinct_per_step", stats.kv_bytes_distinct_per_step()},
      {"sample_steps", stats.sample_steps},
      {"drafted_tokens", stats.drafted_tokens},
      {"accepted_draft_tokens", stats.accepted_draft_tokens},
      {"undrafted_steps", stats.undrafted_steps},
      {"draft_trees_cut", stats.draft_trees_cut},
      {"tokens_per_step", stats.tokens_per_step()},
      {"draft_kv_bytes_read", stats.draft_kv_bytes_read},
      {"draft_seconds", stats.draft_seconds},
      {"peak_rss_bytes", stats.peak_rss_bytes},
      {"baseline", nullptr},
  };
  if (stats.baseline) {
    json["baseline"] = {{"sharing", Name(stats.baseline->sharing)},
                        {"prefill_tokens_per_second", stats.baseline->prefill_tokens_per_second},
                        {"decode_tokens_per_second", stats.baseline->decode_tokens_per_second}};
  }
  return json;
}

std::string FormatBytes(double bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string FormatDrafts(const RunStats& stats) {
  if (stats.drafted_tokens == 0) return "";
  std::string text = fmt::format("{:.2f} tokens a step of a sample: {} of {} drafted tokens accepted", stats.tokens_per_step(),
                                 stats.accepted_draft_tokens, stats.drafted_tokens);
  if (stats.undrafted_steps > 0) text += fmt::format("; {} steps without drafts, by measured gain", stats.undrafted_steps);
  if (stats.draft_trees_cut > 0)
    text += fmt::format("; {} draft trees became chains, since prompts ran in the same steps", stats.draft_trees_cut);
  return text + "\n";
}

std::string FormatTable(const RunStats& stats) {
  std::vector<Row> rows = {{"", fmt::format("sharing {}", Name(stats.sharing)), "without sharing", "baseline"}};
  const std::string speed_baseline =
      stats.baseline ? fmt::format("{}, measured", Name(stats.baseline->sharing)) : "not measured; --baseline store does";
  rows.push_back({"prefill tokens/s", FormatRate(stats.prefill_tokens_per_second()),
                  stats.baseline ? FormatRate(stats.baseline->prefill_tokens_per_second) : "-", speed_baseline});
  rows.push_back({"decode tokens/s", FormatRate(stats.decode_tokens_per_second()),
                  stats.baseline ? FormatRate(stats.baseline->decode_tokens_per_second) : "-", speed_baseline});
  rows.push_back({"KV stored at the peak", FormatBytes(static_cast<double>(stats.kv_bytes_stored)),
                  FormatBytes(static_cast<double>(stats.kv_bytes_stored_unshared)), "none: a copy per request"});
  rows.push_back({"KV read per decode step", FormatBytes(stats.kv_bytes_read_per_step()),
                  FormatBytes(stats.kv_bytes_read_per_step_unshared()), "store: each request reads its own path"});
  return Layout(rows) + FormatDrafts(stats) +
         fmt::format(
             "{} prompt tokens, {} generated in {} of {} samples finished; page rounding {} of the KV stored; peak memory {}\n",
             stats.prompt_tokens, stats.generated_tokens, stats.samples_finished, stats.samples,
             FormatBytes(static_cast<double>(stats.kv_page_rounding_bytes)),
             FormatBytes(static_cast<double>(stats.peak_rss_bytes)));
}

}  // namespace coppice::cli
