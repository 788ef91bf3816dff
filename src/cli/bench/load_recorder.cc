#include "cli/bench/load_recorder.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace coppice::cli {

LoadRecorder::LoadRecorder(std::span<const WorkloadRequest> requests, std::span<const double> arrivals)
    : requests_(requests), traces_(requests.size()) {
  COPPICE_CHECK(requests.size() == arrivals.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    traces_[i].arrival = arrivals[i];
    traces_[i].last_token.assign(static_cast<size_t>(requests[i].samples), kNever);
  }
}

void LoadRecorder::Arrive(size_t request, double now) {
  const std::lock_guard lock(mutex_);
  traces_[request].arrival = std::max(traces_[request].arrival, now);
}

void LoadRecorder::AddTokens(size_t request, int32_t sample, int64_t count, double now) {
  const std::lock_guard lock(mutex_);
  Trace& trace = traces_[request];
  trace.tokens += count;
  if (!std::exchange(trace.begun, true)) result_.ttft.push_back(now - trace.arrival);
  double& last = trace.last_token[static_cast<size_t>(sample)];
  if (last != kNever) {
    result_.tbt.push_back(now - last);
    trace.longest_gap = std::max(trace.longest_gap, now - last);
  }
  result_.tbt.insert(result_.tbt.end(), static_cast<size_t>(count) - 1, 0.0);
  last = now;
}

void LoadRecorder::AddUntimed(size_t request, int64_t count) {
  const std::lock_guard lock(mutex_);
  traces_[request].tokens += count;
  result_.tbt.insert(result_.tbt.end(), static_cast<size_t>(count), 0.0);
}

void LoadRecorder::End(size_t request, double now) {
  const std::lock_guard lock(mutex_);
  const Trace& trace = traces_[request];
  const double latency = now - trace.arrival;
  const auto samples = static_cast<int64_t>(trace.last_token.size());
  ++done_;
  ++result_.requests;
  result_.samples += samples;
  result_.prompt_tokens += static_cast<int64_t>(requests_[request].prompt_ids.size());
  result_.output_tokens += trace.tokens;
  result_.latency.push_back(latency);
  if (trace.tokens > 0)
    result_.normalized_latency.push_back(latency * static_cast<double>(samples) / static_cast<double>(trace.tokens));
  result_.stalled_200ms += trace.longest_gap > 0.2;
  result_.stalled_500ms += trace.longest_gap > 0.5;
  result_.seconds = std::max(result_.seconds, now);
}

void LoadRecorder::Refuse(size_t request) {
  const std::lock_guard lock(mutex_);
  traces_[request].refused = true;
  ++done_;
}

size_t LoadRecorder::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

int64_t LoadRecorder::tokens(size_t request) const {
  const std::lock_guard lock(mutex_);
  return traces_[request].tokens;
}

LoadResult LoadRecorder::Take() {
  const std::lock_guard lock(mutex_);
  double first = result_.seconds;
  for (const Trace& trace : traces_) {
    if (!trace.refused) first = std::min(first, trace.arrival);
  }
  result_.seconds -= first;
  return std::move(result_);
}

}  // namespace coppice::cli
