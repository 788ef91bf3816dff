#include "cli/run_stats.h"
#include "core/format_bytes.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace coppice::cli {
namespace {

// A figure with sharing, without it, and of another engine; 0: not known.
struct Row {
  std::string label;
  double with = 0, without = 0, peer = 0;
  bool is_rate = false;  // tokens/s, of which more is better; else bytes
};

std::string FormatFigure(double value, bool is_rate) {
  if (value <= 0) return "-";
  return is_rate ? fmt::format("{:.1f}", value) : FormatBytes(value);
}

// "1.44x", "32x": how much better it is with sharing than the better one of the others.
std::string FormatFactor(const Row& row) {
  const double other = row.peer <= 0      ? row.without
                       : row.without <= 0 ? row.peer
                       : row.is_rate      ? std::max(row.without, row.peer)
                                          : std::min(row.without, row.peer);
  if (row.with <= 0 || other <= 0) return "-";
  const double factor = row.is_rate ? row.with / other : other / row.with;
  return factor < 10 ? fmt::format("{:.2f}x", factor) : fmt::format("{:.0f}x", factor);
}

// Columns as wide as their longest cell; numbers to the right. `peer`: the name of another engine; empty: it has no column.
std::string Layout(std::string_view with, std::string_view peer, std::initializer_list<Row> rows) {
  using Cells = std::vector<std::string>;
  std::vector<Cells> lines = {{"", std::string(with), "without", std::string(peer), "factor"}};
  for (const Row& row : rows)
    lines.push_back({row.label, FormatFigure(row.with, row.is_rate), FormatFigure(row.without, row.is_rate),
                     FormatFigure(row.peer, row.is_rate), FormatFactor(row)});
  if (peer.empty()) {
    for (Cells& line : lines) line.erase(line.begin() + 3);
  }
  std::vector<size_t> width(lines.front().size());
  for (const Cells& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) width[i] = std::max(width[i], line[i].size());
  }
  std::string text;
  for (const Cells& line : lines) {
    text += fmt::format("{:<{}}", line.front(), width.front());
    for (size_t i = 1; i < line.size(); ++i) text += fmt::format("  {:>{}}", line[i], width[i]);
    text += "\n";
  }
  return text;
}

// The meaning of the column "without", and the reason where there is no gain; lines of at most 80 columns.
std::string ExplainTable(const RunStats& stats) {
  std::string text;
  if (!stats.baseline) {
    text = "Without: computed; --baseline store measures its speed.\n";
  } else if (stats.baseline->sharing == SharingMode::kStore) {
    text =
        "Without: each sample reads what they share itself (--sharing store, measured);\n"
        "of what is stored, it has a copy of its own (computed).\n";
  } else {
    text = fmt::format("Without: --sharing {}, measured; bytes read and stored: a copy for each sample.\n",
                       Name(stats.baseline->sharing));
  }
  if (stats.peer) text += fmt::format("{}: the same job, run before. Factor: over the better of the two.\n", stats.peer->name);
  if (stats.shares() && stats.decode_steps > 0 && stats.kv_bytes_read_per_step() > 0.98 * stats.kv_bytes_read_per_step_unshared()) {
    text += fmt::format(
        "The samples' text was read by each of them all the same: for {} samples over {}\n"
        "tokens, combining parts would cost this device as much as reading once saves.\n"
        "More samples or a longer prompt make sharing save time.\n",
        stats.samples, stats.prompt_tokens);
  }
  return text;
}

}  // namespace

RunStats MakeRunStats(const EngineOptions& options, const ModelInfo& model, const openai::Generation& generation) {
  const EngineMetrics& metrics = generation.metrics;
  return {.sharing = options.sharing,
          .dtype = model.kv_dtype,
          .weights = options.weights,
          .page_size = model.page_size,
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
      {"beside", nullptr},
  };
  if (stats.baseline) {
    json["baseline"] = {{"sharing", Name(stats.baseline->sharing)},
                        {"prefill_tokens_per_second", stats.baseline->prefill_tokens_per_second},
                        {"decode_tokens_per_second", stats.baseline->decode_tokens_per_second}};
  }
  if (stats.peer) {
    json["beside"] = {{"name", stats.peer->name},
                      {"prefill_tokens_per_second", stats.peer->prefill_tokens_per_second},
                      {"decode_tokens_per_second", stats.peer->decode_tokens_per_second}};
  }
  return json;
}

std::string FormatDrafts(const RunStats& stats) {
  if (stats.drafted_tokens == 0) return "";
  std::string text = fmt::format("{:.2f} tokens a step of a sample: {} of {} drafted tokens accepted", stats.tokens_per_step(),
                                 stats.accepted_draft_tokens, stats.drafted_tokens);
  if (stats.undrafted_steps > 0) text += fmt::format(";\n{} steps without drafts, by measured gain", stats.undrafted_steps);
  if (stats.draft_trees_cut > 0)
    text += fmt::format(";\n{} draft trees became linear, since prompts ran in the same steps", stats.draft_trees_cut);
  return text + "\n";
}

std::string FormatTable(const RunStats& stats) {
  if (stats.samples == 1 && !stats.baseline && !stats.peer) {
    const auto with_speed = [](int64_t tokens, double speed) {
      return speed > 0 ? fmt::format("{} tokens at {:.1f}/s", tokens, speed) : fmt::format("{} tokens", tokens);
    };
    return FormatDrafts(stats) +
           fmt::format("{}; prompt {}; peak memory {}{}\n", with_speed(stats.generated_tokens, stats.decode_tokens_per_second()),
                       with_speed(stats.prompt_tokens, stats.prefill_tokens_per_second()),
                       FormatBytes(static_cast<double>(stats.peak_rss_bytes)), stats.samples_finished == 0 ? "; interrupted" : "");
  }
  const BaselineSpeed baseline = stats.baseline.value_or(BaselineSpeed());
  const std::string with = stats.sharing == SharingMode::kTree ? "with sharing" : fmt::format("sharing {}", Name(stats.sharing));
  const PeerSpeed peer = stats.peer.value_or(PeerSpeed());
  return Layout(with, peer.name,
                {{.label = "decode tokens/s",
                  .with = stats.decode_tokens_per_second(),
                  .without = baseline.decode_tokens_per_second,
                  .peer = peer.decode_tokens_per_second,
                  .is_rate = true},
                 {.label = "prefill tokens/s",
                  .with = stats.prefill_tokens_per_second(),
                  .without = baseline.prefill_tokens_per_second,
                  .peer = peer.prefill_tokens_per_second,
                  .is_rate = true},
                 {.label = "KV read per decode step",
                  .with = stats.kv_bytes_read_per_step(),
                  .without = stats.kv_bytes_read_per_step_unshared()},
                 {.label = "KV stored at the peak",
                  .with = static_cast<double>(stats.kv_bytes_stored),
                  .without = static_cast<double>(stats.kv_bytes_stored_unshared)}}) +
         ExplainTable(stats) + FormatDrafts(stats) +
         fmt::format("{} prompt tokens; {} generated in {} of {} samples; peak memory {}\n", stats.prompt_tokens,
                     stats.generated_tokens, stats.samples_finished, stats.samples,
                     FormatBytes(static_cast<double>(stats.peak_rss_bytes)));
}

}  // namespace coppice::cli
