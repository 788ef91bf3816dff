// The engine's counters: gathered by the thread that steps, published once a step for all others.
// Layer: engine. docs/engine.md, "Counters".
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/scheduled_batch.h"
#include "runner/runner.h"

namespace coppice {

// Snapshot and running are thread-safe, all else is the stepping thread's.
class MetricsRecorder {
 public:
  struct Fixed {  // what does not change
    int32_t pages_total = 0, page_size = 16;
    int64_t kv_bytes_per_token = 0;
    int32_t chunk = 0;
    std::vector<ChunkSpeed> chunk_probe;
  };
  explicit MetricsRecorder(Fixed fixed);

  // Counters, to which each part of the engine adds.
  EngineMetrics& totals() { return totals_; }
  // Of the call of Engine::Step at hand: times are added to it.
  StepMetrics& step() { return step_; }

  void BeginStep() { step_ = {}; }
  // Step `step` was launched: notes how its plan reads what samples have in common, where that is due. The cache's forest is the
  // one that was planned.
  void NotePlan(int64_t step, const ScheduledBatch& batch, const Runner& runner, const KvCache& cache);
  // A step was computed, and is to be committed: all sequences that ran still hold their pages.
  void CountStep(const ScheduledBatch& batch, const StepStats& stats, const KvCache::Usage& usage);
  // The call of Engine::Step at hand committed a step and took so long.
  void CountTime(double seconds);

  // State of other components that Publish reads.
  struct Now {
    const KvCache* cache = nullptr;
    int32_t waiting = 0, running = 0;
    int64_t preemptions = 0, draft_trees_cut = 0, draft_kv_bytes_read = 0;
    double detokenize_seconds = 0;
    bool idle = false;  // there was nothing to do
  };
  void Publish(const Now& now);

  EngineMetrics Snapshot() const;
  int32_t running() const;

 private:
  // More rows decode than in the plan that had most so far.
  bool IsFullest(int32_t decode_rows) const { return decode_rows > (totals_.fullest_plan ? totals_.fullest_plan->decode_rows : 0); }
  // The plan that was noted is of this step: publishes it.
  void CountPlan();
  void CountRows(const ScheduledBatch& batch, const StepStats& stats);
  void CountMemory(const KvCache::Usage& usage);

  const int64_t kv_bytes_per_token_, kv_bytes_per_page_;
  EngineMetrics totals_;
  StepMetrics step_;
  double edit_seconds_ = 0;                               // StepStats, of this step
  bool was_idle_ = true;                                  // since the step before
  std::chrono::steady_clock::time_point prefixes_due_{};  // when totals_.prefixes is gathered again
  std::chrono::steady_clock::time_point plan_due_{};      // likewise of totals_.plan
  std::unique_ptr<StepPlan> plan_;                        // noted, of a step that is under way
  mutable std::mutex mutex_;                              // guards what follows
  EngineMetrics published_;
};

}  // namespace coppice
