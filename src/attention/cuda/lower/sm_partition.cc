// The search for a split and the simulation that prices it. Layer: attention/cuda.
#include "attention/cuda/lower/sm_partition.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include "attention/cuda/kernel_config.h"
#include "attention/cuda/lower/cut_rules.h"
#include "attention/cuda/lower/kv_cuts.h"
#include "attention/plan_units.h"

namespace coppice::attention::cuda {
namespace {

// Long items are cut.
int64_t TasksOnceCut(const StreamWork& stream) {
  return std::max(stream.tasks, stream.steps * kStreamStepTokens / kTokensOfLastPieces);
}

}  // namespace

SmSplit SmPartition::Choose(std::span<const QueuedItem> items, const StreamWork& stream, const SmCosts& costs,
                            int64_t most_states) {
  dense_.clear();
  std::ranges::copy_if(items, std::back_inserter(dense_), [](const QueuedItem& item) { return item.dense && item.tokens > 0; });
  int64_t tokens = 0;
  for (const QueuedItem& item : dense_) tokens += int64_t{item.tokens} * item.blocks * heads_;
  if (tokens == 0) return {.dense_ctas = num_sms_, .dense_piece = INT32_MAX};
  const Chosen apart = Search(tokens, stream, costs, most_states, /*overlapped=*/false);
  if (!stream.overlapped || stream.tasks == 0) return apart.split;
  const Chosen overlapped = Search(tokens, stream, costs, most_states, /*overlapped=*/true);
  return overlapped.ns < kWorthOverlap * apart.ns ? overlapped.split : apart.split;
}

SmPartition::Chosen SmPartition::Search(int64_t tokens, const StreamWork& stream, const SmCosts& costs, int64_t most_states,
                                        bool overlapped) {
  SmSplit best_split{.dense_ctas = num_sms_, .dense_piece = INT32_MAX, .overlapped = overlapped};
  struct Choice {
    double ns = INFINITY;
    int64_t tasks = 0;
    int32_t piece = INT32_MAX;
  };
  std::array<Choice, kPieceShares.size()> choices;
  size_t num_choices = 0;
  double best_ns = INFINITY;
  int64_t best_tasks = 0;
  for (const double share : kPieceShares) {
    const double wanted = std::min(share * static_cast<double>(tokens) / num_sms_, 1e9);
    const auto piece = static_cast<int32_t>(costs.WholeDenseSteps(static_cast<int64_t>(wanted) + 1));
    int64_t tasks = 0;
    for (const QueuedItem& item : dense_) tasks += DensePieces(item, piece, costs) * item.blocks * heads_;
    if (num_choices > 0 && tasks == choices[num_choices - 1].tasks) continue;  // the same cuts
    const Simulated step = Simulate(stream, costs, {.dense_ctas = num_sms_, .dense_piece = piece, .overlapped = overlapped});
    if (step.states > most_states) break;
    choices[num_choices++] = {step.ns, tasks, piece};
    if (step.ns < kWorthChanging * best_ns) best_ns = step.ns, best_tasks = tasks, best_split.dense_piece = piece;
  }
  if (costs.path() != KernelPath::kHopper) return {best_split, best_ns};
  const int64_t stream_tasks = TasksOnceCut(stream);
  // As many SMs as take whole rounds of the tasks.
  const double all_sms_ns = best_ns;
  for (const Choice& choice : std::span(choices).first(num_choices)) {
    if (choice.ns > kPieceWorthTrying * all_sms_ns) continue;
    double most = num_sms_ - 1;
    for (int64_t rounds = CeilDiv(choice.tasks, num_sms_); most >= kFewestComputing * num_sms_; ++rounds) {
      const auto ctas = static_cast<int32_t>(CeilDiv(choice.tasks, rounds));
      if (ctas > most) continue;
      most = ctas - kSmsApart * num_sms_;
      const int64_t streaming_warps = int64_t{num_sms_ - ctas} * kStreamWarpsPerSm;
      if (ctas < kFewestComputing * num_sms_ || stream_tasks < kTasksOfStreamingWarp * streaming_warps) break;
      const SmSplit split{.dense_ctas = ctas, .dense_piece = choice.piece, .overlapped = overlapped};
      const Simulated step = Simulate(stream, costs, split);
      const bool no_risk = step.dense_ns < kDenseSoonDone * step.ns && choice.tasks <= best_tasks;
      if (step.ns >= (no_risk ? kAsGood : kWorthChanging) * best_ns) continue;
      best_ns = step.ns, best_tasks = choice.tasks, best_split = split;
    }
  }
  return {best_split, best_ns};
}

struct SmPartition::DenseEnds {
  std::span<const double> ends;  // of the SMs that compute, the first one first
  double fold_ns = 0;            // by the dense tile that arrives last
  double stream_fold_ns = 0;     // by a stream warp that does: of a set of more states than it holds
  double memory_share = 0;       // of the tokens that dense tasks read: those from memory
  int64_t states = 0;
};

// Adds tasks of one length to SMs whose ends are sorted, each to the SM that is free first. Ends only grow, so the SM that is free
// first heads either those without such a task or those with one: a merge of two sorted lists in place of a heap.
void SmPartition::AddTasks(std::span<double> ends, int64_t tasks, double task_ns) {
  if (tasks == 0) return;
  const size_t sms = ends.size();
  if (ends.front() == ends.back()) {  // whole rounds leave them equal
    for (; tasks >= std::ssize(ends); tasks -= std::ssize(ends)) ends.front() += task_ns;
    std::ranges::fill(ends, ends.front());
  }
  size_t idle = 0, head = 0, count = 0;  // first of ends without a task; first and number of those with one, a ring
  for (; tasks > 0; --tasks) {
    double end;
    if (count == 0 || (idle < sms && ends[idle] <= ring_[head])) {
      end = ends[idle++];
    } else {
      end = ring_[head];
      head = head + 1 == sms ? 0 : head + 1;
      --count;
    }
    const size_t at = head + count;
    ring_[at < sms ? at : at - sms] = end + task_ns;
    ++count;
  }
  size_t to = 0;
  std::ranges::copy(ends.subspan(idle), merged_.begin());
  for (size_t i = 0, left = sms - idle; to < sms;) {
    const bool from_ring = i == left || (count > 0 && ring_[head] < merged_[i]);
    if (!from_ring) {
      ends[to++] = merged_[i++];
      continue;
    }
    ends[to++] = ring_[head];
    head = head + 1 == sms ? 0 : head + 1;
    --count;
  }
}

// When each SM has done its dense tasks if nothing disturbs them: longest tasks first as the queue has them, each on the SM that is
// free first.
SmPartition::DenseEnds SmPartition::RunDense(const SmCosts& costs, SmSplit split) {
  const auto busy_until = std::span(busy_until_).first(split.dense_ctas);
  std::ranges::fill(busy_until, 0.0);
  DenseEnds out;
  int64_t tasks = 0, alike = 0;  // alike: tasks of alike_ns that no SM has yet
  double rest_ns = 0, tokens = 0, memory_tokens = 0, alike_ns = 0;
  for (const QueuedItem& item : dense_) {
    tokens += static_cast<double>(item.tokens) * item.blocks;
    memory_tokens += item.memory_tokens;
    const int64_t count = DensePieces(item, split.dense_piece, costs);
    const double task_ns =
        costs.DenseTaskNs(CeilDiv(item.tokens, count)) + (split.overlapped ? costs.rates().dense_task_overlapped_ns : 0.0);
    const int64_t item_tasks = count * item.blocks * heads_;
    if (count > 1) {
      out.states += count * item.rows * heads_;
      out.fold_ns = std::max(out.fold_ns, static_cast<double>(count) * costs.FoldNs(item.rows));
      if ((count + 1) * item.most_set_rows > kSharedStates) {
        out.stream_fold_ns = std::max(out.stream_fold_ns, costs.StreamFoldNs(item.most_set_rows, count + 1));
      }
    }
    if (tasks += item_tasks; tasks > kSimulatedTasksPerSm * num_sms_) {
      rest_ns += static_cast<double>(item_tasks) * task_ns;
      continue;
    }
    if (task_ns != alike_ns) AddTasks(busy_until, std::exchange(alike, 0), std::exchange(alike_ns, task_ns));
    alike += item_tasks;
  }
  AddTasks(busy_until, alike, alike_ns);
  for (double& end : busy_until) end += rest_ns / split.dense_ctas;
  out.ends = busy_until;
  out.memory_share = tokens > 0 ? memory_tokens / tokens : 0;
  return out;
}

// When the last stream task ends but for its fold, no sooner than which the step does, if they are of one length: first on the
// warps of SMs without dense tasks, then on those of SMs that are done with them, or in overlapped tiles before. Where there are
// few, each takes its steps' latencies, whatever the memory gives.
double SmPartition::LastStreamEndNs(const StreamWork& stream, const SmCosts& costs, const DenseEnds& dense, bool overlapped) const {
  const SmRates& rates = costs.rates();
  const int64_t tasks = TasksOnceCut(stream);
  const auto of_task = [&](int64_t steps) { return static_cast<double>(steps) / static_cast<double>(tasks); };
  const double task_ns = of_task(stream.steps) * kLoneStep * rates.stream_step_ns + rates.stream_task_ns;
  const std::span<const double> computing = dense.ends.subspan(std::ranges::count(dense.ends, 0.0));
  const int64_t free_warps = (num_sms_ - std::ssize(computing)) * kStreamWarpsPerSm, waiting = tasks - free_warps;
  if (waiting <= 0) return task_ns;
  const int64_t sms = std::min<int64_t>(CeilDiv(waiting, int64_t{kStreamWarpsPerSm}), std::ssize(computing));
  double begin = computing[sms - 1];
  if (free_warps > 0) begin = std::min(begin, static_cast<double>(CeilDiv(tasks, free_warps) - 1) * task_ns);
  if (!overlapped) return begin + task_ns;
  const double overlapped_task_ns = of_task(stream.overlapped_steps) * rates.overlapped_step_ns + rates.overlapped_task_ns;
  return std::min(begin + task_ns, static_cast<double>(CeilDiv(waiting, std::ssize(computing))) * overlapped_task_ns);
}

// The step's time if dense items are cut to this length and run on this many SMs.
SmPartition::Simulated SmPartition::Simulate(const StreamWork& stream, const SmCosts& costs, SmSplit split) {
  const DenseEnds dense = RunDense(costs, split);
  const SmRates& rates = costs.rates();
  // Then with the streams, which share the memory with the dense tiles as each asks for it.
  const auto stream_bytes_per_ns = [&](double task_ns) {  // of an SM
    const double warp_ns = static_cast<double>(stream.steps) * costs.stream_step_ns() + static_cast<double>(stream.tasks) * task_ns;
    return std::min(costs.bulk_bytes_per_ns(), stream.bytes * kStreamWarpsPerSm / std::max(1.0, warp_ns));
  };
  const double memory = costs.memory_bytes_per_ns();
  const double beside = stream_bytes_per_ns(rates.stream_task_with_dense_ns);
  const double after = std::min(stream_bytes_per_ns(rates.stream_task_ns), memory / stream.memory_share / num_sms_);
  const double dense_bytes_per_ns = dense.memory_share * costs.bytes_per_token() / costs.DenseTokenNs();  // of an SM, from memory
  // Overlapped tiles: one step after the other on each SM that computes, but at the begin, where the first is looked up, and at the
  // end.
  const double overlapped_ns = static_cast<double>(stream.overlapped_steps) * rates.overlapped_step_ns +
                               static_cast<double>(stream.tasks) * rates.overlapped_task_ns;
  const double overlapped_idle_ns =
      rates.dense_task_ns + kOverlappedTasksNotBegun * overlapped_ns / static_cast<double>(TasksOnceCut(stream));
  const double overlapped_share = std::max(0.0, 1.0 - overlapped_idle_ns / dense.ends.back());
  const double overlapped_bytes_per_ns = split.overlapped ? overlapped_share * stream.bytes / overlapped_ns : 0.0;
  const double slowed_by_overlap = split.overlapped ? rates.slowed_by_overlap : 0.0;
  double now = 0, left = stream.bytes, undisturbed = 0;
  int64_t computing = split.dense_ctas;
  for (const double end : dense.ends) {
    if (end == undisturbed) {  // at the same moment as the SM before it: tasks are alike
      --computing;
      continue;
    }
    double dense_ns = end - undisturbed;
    const double dense_bytes = static_cast<double>(computing) * dense_bytes_per_ns;
    if (left > 0) {
      const auto streaming = static_cast<double>(num_sms_ - computing);
      const double bytes_per_ns = streaming * beside + static_cast<double>(computing) * overlapped_bytes_per_ns;
      const double share = costs.MemoryShare(bytes_per_ns * stream.memory_share + dense_bytes);
      const double pace = std::min(share, 1 / (1 + rates.slowed_by_streams * streaming / num_sms_ + slowed_by_overlap));
      const double ns = std::min(dense_ns / pace, left / (bytes_per_ns * share));
      now += ns, dense_ns -= ns * pace, left -= ns * bytes_per_ns * share;
    }
    if (dense_ns > 0) now += dense_ns / costs.MemoryShare(dense_bytes);
    undisturbed = end;
    --computing;
  }
  const double dense_end = now;
  if (left > 0) now += left / (after * num_sms_);
  if (stream.tasks > 0) {
    const double stream_end = LastStreamEndNs(stream, costs, dense, split.overlapped);
    now = std::max(now, stream_end + (stream_end > dense_end ? dense.stream_fold_ns : 0.0));
  }
  // Where streaming ends later, its warps fold, a set each.
  return {.ns = rates.launch_ns + std::max(now, dense_end + dense.fold_ns), .dense_ns = dense_end, .states = dense.states};
}

}  // namespace coppice::attention::cuda
