#include "cli/bench/load_result.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "cli/run_stats.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;

double Share(int64_t part, int64_t whole) { return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0; }

double PerSecond(int64_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0; }

ordered_json Distribution(const std::vector<double>& values) {
  const std::vector<double> percentiles = Percentiles(values);
  if (percentiles.empty())
    return {{"mean", nullptr}, {"p50", nullptr}, {"p90", nullptr}, {"p99", nullptr}, {"percentiles", ordered_json::array()}};
  return {{"mean", std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size())},
          {"p50", percentiles[50]},
          {"p90", percentiles[90]},
          {"p99", percentiles[99]},
          {"percentiles", percentiles}};
}

// Steps of prompts alone, of prompts beside samples that decode, of samples that decode.
ordered_json StepsByKind(const EngineMetrics& metrics) {
  const auto kind = [](int64_t steps, double seconds) { return ordered_json{{"steps", steps}, {"seconds", seconds}}; };
  ordered_json hybrid = kind(metrics.hybrid_steps, metrics.hybrid_seconds);
  hybrid.update({{"predicted_seconds", metrics.hybrid_predicted_seconds}, {"over_target", metrics.hybrid_steps_over_target}});
  return {{"prefill",
           kind(metrics.steps - metrics.decode_steps - metrics.hybrid_steps, metrics.prefill_seconds - metrics.hybrid_seconds)},
          {"hybrid", std::move(hybrid)},
          {"decode", kind(metrics.decode_steps, metrics.decode_seconds)}};
}

void AppendEngine(const EngineFigures& engine, ordered_json* json) {
  const EngineMetrics& metrics = engine.metrics;
  json->update({{"dtype", Name(engine.dtype)},
                {"hit_rate", Share(metrics.cached_tokens, metrics.cached_tokens + metrics.prefilled_tokens)},
                {"cached_tokens", metrics.cached_tokens},
                {"prefilled_tokens", metrics.prefilled_tokens},
                {"preemptions", metrics.preemptions},
                {"steps", metrics.steps},
                {"steps_by_kind", StepsByKind(metrics)},
                {"graph_steps", metrics.graph_steps},
                {"device_idle_seconds", metrics.device_idle_seconds},
                {"kv_bytes_read", metrics.kv_bytes_read},
                {"kv_bytes_distinct", metrics.kv_bytes_distinct},
                {"kv_bytes_saved", std::max<int64_t>(0, metrics.kv_bytes_read_unshared - metrics.kv_bytes_read)},
                {"kv_bytes_stored", metrics.kv_bytes_stored},
                {"kv_bytes_stored_unshared", metrics.kv_bytes_stored_unshared},
                {"peak_rss_bytes", PeakRssBytes()}});
}

void AppendServer(const ServerFigures& server, const LoadResult& result, ordered_json* json) {
  const auto per_token = [&](double seconds) {
    return result.output_tokens > 0 ? seconds / static_cast<double>(result.output_tokens) : 0;
  };
  json->update({{"refused", server.refused}, {"short_requests", server.short_requests}});
  if (server.reports_cached) (*json)["hit_rate"] = Share(server.cached_tokens, result.prompt_tokens);
  (*json)["client_cpu_seconds_per_token"] = per_token(server.client_cpu_seconds);
  if (server.server_cpu_seconds) (*json)["server_cpu_seconds_per_token"] = per_token(*server.server_cpu_seconds);
}

}  // namespace

std::vector<double> Percentiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  std::vector<double> percentiles;
  for (int percent = 0; percent <= 100; ++percent) {
    const double place = static_cast<double>(percent) / 100 * static_cast<double>(values.size() - 1);
    const size_t below = static_cast<size_t>(place), above = std::min(below + 1, values.size() - 1);
    percentiles.push_back(std::lerp(values[below], values[above], place - static_cast<double>(below)));
  }
  return percentiles;
}

ordered_json ToJson(const LoadResult& result) {
  ordered_json json = {{"requests", result.requests},
                       {"samples", result.samples},
                       {"prompt_tokens", result.prompt_tokens},
                       {"output_tokens", result.output_tokens},
                       {"seconds", result.seconds},
                       {"requests_per_second", PerSecond(result.requests, result.seconds)},
                       {"output_tokens_per_second", PerSecond(result.output_tokens, result.seconds)},
                       {"total_tokens_per_second", PerSecond(result.prompt_tokens + result.output_tokens, result.seconds)},
                       {"ttft", Distribution(result.ttft)},
                       {"tbt", Distribution(result.tbt)},
                       {"latency", Distribution(result.latency)},
                       {"normalized_latency", Distribution(result.normalized_latency)},
                       {"stalled_200ms_share", Share(result.stalled_200ms, result.requests)},
                       {"stalled_500ms_share", Share(result.stalled_500ms, result.requests)}};
  if (result.engine) AppendEngine(*result.engine, &json);
  if (result.server) AppendServer(*result.server, result, &json);
  return json;
}

}  // namespace coppice::cli
