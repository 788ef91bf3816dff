#include "cli/bench/load_run.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "core/check.h"

namespace coppice::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Events come on the engine's thread, and may outlive the run if it fails.
struct Run {
  Run(std::span<const WorkloadRequest> requests, std::span<const double> arrivals) : recorder(requests, arrivals) {}

  double now() const { return std::chrono::duration<double>(Clock::now() - begin).count(); }
  void OnEvent(size_t request, const StreamEvent& event) {
    const double time = now();
    if (event.finish_reason == FinishReason::kError) {
      const std::lock_guard lock(mutex);
      if (failure.ok()) failure = event.status;
    }
    if (event.index >= 0 && !event.token_ids.empty())
      recorder.AddTokens(request, event.index, static_cast<int64_t>(event.token_ids.size()), time);
    if (event.request_done) recorder.End(request, time);
  }
  Status Failure() {
    const std::lock_guard lock(mutex);
    return failure;
  }

  const Clock::time_point begin = Clock::now();
  LoadRecorder recorder;
  std::mutex mutex;
  Status failure;
};

}  // namespace

Result<LoadResult> RunLoad(Engine& engine, std::span<const WorkloadRequest> requests, const LoadSchedule& schedule) {
  const std::vector<double>& arrivals = schedule.arrivals;
  const auto run = std::make_shared<Run>(requests, arrivals);
  size_t next = 0;
  const auto has_room = [&] {
    return schedule.concurrency == 0 || next - run->recorder.done() < static_cast<size_t>(schedule.concurrency);
  };
  while (run->recorder.done() < requests.size()) {
    for (; next < requests.size() && arrivals[next] <= run->now() && has_room(); ++next) {
      Request request{.prompt_ids = requests[next].prompt_ids,
                      .n = requests[next].samples,
                      .max_tokens = requests[next].output_tokens,
                      .ignore_eos = true,
                      .on_event = [run, i = next](const StreamEvent& event) { run->OnEvent(i, event); }};
      request.sampling.seed = next;
      if (schedule.concurrency > 0) run->recorder.Arrive(next, run->now());
      if (Result<RequestId> id = engine.Submit(std::move(request)); !id.ok()) return id.status();
    }
    COPPICE_ASSIGN_OR_RETURN(const bool worked, engine.Step());
    COPPICE_RETURN_IF_ERROR(run->Failure());
    if (worked || run->recorder.done() == requests.size()) continue;
    if (next < requests.size() && has_room())
      std::this_thread::sleep_until(run->begin +
                                    std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(arrivals[next])));
  }
  LoadResult result = run->recorder.Take();
  result.engine = {.metrics = engine.Metrics(), .dtype = engine.model_info().kv_dtype};
  return result;
}

}  // namespace coppice::cli
