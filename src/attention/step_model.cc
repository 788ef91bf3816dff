// The arithmetic of step_model.h. Layer: attention.
#include "attention/step_model.h"

#include <algorithm>

#include "attention/stream_cuts.h"

namespace coppice::attention {
namespace {

// All stream tasks on all warps: their starts, and their tokens from the cache.
double StreamNs(const CostModel& cost, const StepShape& shape) {
  return static_cast<double>(shape.stream_tasks) * cost.kv_heads() * cost.machine().stream_task_ns /
             (cost.workers() * cost.warps()) +
         static_cast<double>(shape.stream_tokens) * cost.rates().cache_ns;
}

double MergeNs(const CostModel& cost, const StepShape& shape) {
  return static_cast<double>(shape.merges) * cost.rates().merge_ns + static_cast<double>(shape.state_rows) * cost.rates().state_ns;
}

double SumsNs(const CostModel& cost, const StepShape& shape) {
  const CostRates& rates = cost.rates();
  const auto misses = static_cast<double>(std::max<int64_t>(0, shape.item_misses - shape.read_misses));
  const double memory = static_cast<double>(shape.read_tokens) * rates.read_ns +
                        static_cast<double>(shape.reread_tokens()) * rates.cache_ns + misses * (rates.read_ns - rates.cache_ns);
  const double compute = static_cast<double>(shape.dense_row_tokens) * rates.dense_ns +
                         static_cast<double>(shape.stream_row_tokens) * rates.stream_ns +
                         static_cast<double>(shape.stream_tokens) * rates.stream_kv_ns;
  return std::max(memory, compute) + static_cast<double>(shape.item_starts) * rates.item_ns +
         static_cast<double>(shape.dense_tasks) * rates.dense_start_ns + MergeNs(cost, shape);
}

// Whether each worker has one stream task at most and no dense one: its warps read the task together.
bool RunsCooperatively(const CostModel& cost, const StepShape& shape) {
  return cost.cooperative_warps() > 0 && shape.dense_tasks == 0 &&
         StreamsCooperatively(shape.stream_tasks * cost.kv_heads(), shape.stream_tokens * cost.kv_heads(), cost.workers());
}

// CooperativeStepNs of the step once it is cut.
double CutCooperativeStepNs(const CostModel& cost, const StepShape& shape) {
  const int64_t tasks = std::max<int64_t>(shape.stream_tasks, 1);
  const int64_t whole = shape.stream_tokens / tasks, pieces = cost.workers() / (tasks * cost.kv_heads());
  const int64_t piece =
      CooperativePiece(whole, EvenCooperativePiece(whole, pieces), shape.merges > 0, cost.cooperative_warps(), cost.machine().sm);
  return CooperativeStepNs(cost, shape, std::min(whole, piece), shape.merges > 0 || piece < whole);
}

}  // namespace

double StepNs(const CostModel& cost, const StepShape& shape, const CriticalPath& path) {
  if (!cost.has_latencies()) return SumsNs(cost, shape);
  return RunsCooperatively(cost, shape) ? CutCooperativeStepNs(cost, shape) : WarpTasksStepNs(cost, shape, path);
}

double WarpTasksStepNs(const CostModel& cost, const StepShape& shape, const CriticalPath& path) {
  const CostRates& rates = cost.rates();
  const MachineModel& machine = cost.machine();
  const double heads = cost.kv_heads();
  const double dense_memory = static_cast<double>(shape.dense_item_tokens) * rates.read_ns;
  const double streamed = static_cast<double>(std::max<int64_t>(0, shape.read_tokens - shape.dense_item_tokens)) * rates.read_ns;
  const double memory = streamed + machine.sm.slow_reads * std::min(streamed, machine.sm.slow_ns) +
                        static_cast<double>(shape.reread_tokens()) * rates.cache_ns;
  const double stream = std::max(StreamNs(cost, shape), path.longest_stream_ns);
  const double dense =
      static_cast<double>(shape.dense_tasks) * heads * machine.unhidden_start * machine.dense_task_ns / cost.workers() +
      std::max(static_cast<double>(shape.dense_row_tokens) * rates.dense_ns, dense_memory);
  // An SM computes its dense tasks, then streams; those without one stream from the start.
  const bool spare = static_cast<double>(path.dense_pieces) * heads < cost.workers();
  const double work = spare ? std::max(dense_memory + memory, dense + stream) : dense + std::max(memory, stream);
  return machine.launch_ns + std::max(work + MergeNs(cost, shape) + path.longest_fold_ns, path.longest_dense_ns);
}

double CooperativeStepNs(const CostModel& cost, const StepShape& shape, int64_t piece_tokens, bool merges) {
  const CostRates& rates = cost.rates();
  const SmRates& sm = cost.machine().sm;
  const bool two_column = shape.two_column_tasks > 0;
  const double memory = static_cast<double>(shape.read_tokens) * rates.read_ns;
  const double reads = memory + sm.cooperative_slow_reads * std::min(memory, sm.cooperative_slow_ns) +
                       sm.cooperative_unhidden_reread * static_cast<double>(shape.reread_tokens()) * rates.cache_ns;
  const auto cooperative_steps = static_cast<double>(CeilDiv(piece_tokens, int64_t{kStreamStepTokens} * cost.cooperative_warps()));
  const double steps = cooperative_steps * (two_column ? sm.cooperative_two_column_step_ns : sm.cooperative_step_ns);
  return sm.cooperative_launch_ns + (two_column ? sm.cooperative_two_column_task_ns : 0) + std::max(reads, steps) +
         (merges ? sm.cooperative_merge_ns : 0);
}

int64_t ShortestStreamPiece(const CostModel& cost, const StepShape& shape) {
  const double tokens_per_warp =
      static_cast<double>(shape.stream_tokens * cost.kv_heads()) / (int64_t{cost.workers()} * cost.warps());
  return StreamPiecesOf(tokens_per_warp, cost.warps()).shortest;
}

double RereadPrice(const CostModel& cost, const StepShape& shape) {
  const double reread = static_cast<double>(shape.reread_tokens()) * cost.rates().cache_ns;
  const double unhidden = cost.machine().unhidden_reread;
  if (reread <= 0) return unhidden;
  const double read = static_cast<double>(shape.read_tokens) * cost.rates().read_ns;
  return std::clamp((StreamNs(cost, shape) - read) / reread, unhidden, 1.0);
}

}  // namespace coppice::attention
