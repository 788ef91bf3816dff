#include "cli/bench/load_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "cli/run_stats.h"
#include "core/check.h"

namespace coppice::cli {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

double Share(int64_t part, int64_t whole) { return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0; }

double PerSecond(int64_t count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0; }

// Notes when tokens come; events come on the engine's thread.
class LoadRecorder {
 public:
  LoadRecorder(std::span<const WorkloadRequest> requests, std::span<const double> arrivals) : traces_(requests.size()) {
    for (size_t i = 0; i < requests.size(); ++i) {
      traces_[i].arrival = arrivals[i];
      traces_[i].last_token.assign(static_cast<size_t>(requests[i].samples), kNever);
      result_.samples += requests[i].samples;
      result_.prompt_tokens += static_cast<int64_t>(requests[i].prompt_ids.size());
    }
    result_.requests = static_cast<int64_t>(requests.size());
  }

  void OnEvent(size_t request, const StreamEvent& event, double now) {
    const std::lock_guard lock(mutex_);
    Trace& trace = traces_[request];
    if (event.finish_reason == FinishReason::kError && failure_.ok()) failure_ = event.status;
    if (event.index >= 0 && !event.token_ids.empty()) AddTokens(&trace, event, now);
    if (!event.request_done) return;
    ++done_;
    result_.latency.push_back(now - trace.arrival);
    result_.stalled_200ms += trace.longest_gap > 0.2;
    result_.stalled_500ms += trace.longest_gap > 0.5;
    result_.seconds = now;
  }
  size_t done() const {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  Status failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  LoadResult Take() { return std::move(result_); }

 private:
  static constexpr double kNever = -1;
  struct Trace {
    double arrival = 0, longest_gap = 0;
    bool begun = false;
    std::vector<double> last_token;  // by sample
  };

  void AddTokens(Trace* trace, const StreamEvent& event, double now) {
    result_.output_tokens += static_cast<int64_t>(event.token_ids.size());
    if (!std::exchange(trace->begun, true)) result_.ttft.push_back(now - trace->arrival);
    double& last = trace->last_token[event.index];
    if (last != kNever) {
      result_.tbt.push_back(now - last);
      trace->longest_gap = std::max(trace->longest_gap, now - last);
    }
    result_.tbt.insert(result_.tbt.end(), event.token_ids.size() - 1, 0.0);  // tokens that come together
    last = now;
  }

  mutable std::mutex mutex_;
  std::vector<Trace> traces_;
  LoadResult result_;
  Status failure_;
  size_t done_ = 0;
};

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

Result<LoadResult> RunLoad(Engine& engine, std::span<const WorkloadRequest> requests, std::span<const double> arrivals) {
  COPPICE_CHECK(requests.size() == arrivals.size());
  const auto recorder = std::make_shared<LoadRecorder>(requests, arrivals);  // events may outlive this call if it fails
  const Clock::time_point begin = Clock::now();
  const auto now = [begin] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  size_t next = 0;
  while (recorder->done() < requests.size()) {
    for (; next < requests.size() && arrivals[next] <= now(); ++next) {
      Request request{.prompt_ids = requests[next].prompt_ids,
                      .n = requests[next].samples,
                      .max_tokens = requests[next].output_tokens,
                      .ignore_eos = true,
                      .on_event = [recorder, now, i = next](const StreamEvent& event) { recorder->OnEvent(i, event, now()); }};
      request.sampling.seed = next;
      if (Result<RequestId> id = engine.Submit(std::move(request)); !id.ok()) return id.status();
    }
    COPPICE_ASSIGN_OR_RETURN(const bool worked, engine.Step());
    COPPICE_RETURN_IF_ERROR(recorder->failure());
    if (worked || recorder->done() == requests.size()) continue;
    if (next < requests.size())
      std::this_thread::sleep_until(begin +
                                    std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(arrivals[next])));
  }
  LoadResult result = recorder->Take();
  result.seconds -= arrivals.empty() ? 0 : arrivals.front();
  result.metrics = engine.Metrics();
  return result;
}

ordered_json ToJson(const LoadResult& result) {
  const EngineMetrics& metrics = result.metrics;
  const auto distribution = [](const std::vector<double>& values) -> ordered_json {
    const std::vector<double> percentiles = Percentiles(values);
    if (percentiles.empty()) return {{"p50", nullptr}, {"p90", nullptr}, {"p99", nullptr}, {"percentiles", ordered_json::array()}};
    return {{"p50", percentiles[50]}, {"p90", percentiles[90]}, {"p99", percentiles[99]}, {"percentiles", percentiles}};
  };
  return {{"requests", result.requests},
          {"samples", result.samples},
          {"prompt_tokens", result.prompt_tokens},
          {"output_tokens", result.output_tokens},
          {"seconds", result.seconds},
          {"requests_per_second", PerSecond(result.requests, result.seconds)},
          {"output_tokens_per_second", PerSecond(result.output_tokens, result.seconds)},
          {"total_tokens_per_second", PerSecond(result.prompt_tokens + result.output_tokens, result.seconds)},
          {"ttft", distribution(result.ttft)},
          {"tbt", distribution(result.tbt)},
          {"latency", distribution(result.latency)},
          {"stalled_200ms_share", Share(result.stalled_200ms, result.requests)},
          {"stalled_500ms_share", Share(result.stalled_500ms, result.requests)},
          {"hit_rate", Share(metrics.cached_tokens, metrics.cached_tokens + metrics.prefilled_tokens)},
          {"cached_tokens", metrics.cached_tokens},
          {"prefilled_tokens", metrics.prefilled_tokens},
          {"preemptions", metrics.preemptions},
          {"steps", metrics.steps},
          {"kv_bytes_read", metrics.kv_bytes_read},
          {"kv_bytes_saved", std::max<int64_t>(0, metrics.kv_bytes_read_unshared - metrics.kv_bytes_read)},
          {"kv_bytes_stored", metrics.kv_bytes_stored},
          {"kv_bytes_stored_unshared", metrics.kv_bytes_stored_unshared},
          {"peak_rss_bytes", PeakRssBytes()}};
}

}  // namespace coppice::cli
