// Which SMs compute and which stream: dense tiles leave the memory idle and streams the tensor cores, so some SMs stream from the
// start while the others compute, which join them when no dense task is left (POD-Attention's point, by SM); or those that compute
// stream too, in overlapped tiles. Chosen by a simulation of the step (docs/kernels/hopper.md, "SM partition"; overlap.md). Layer:
// attention/cuda.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/lower/sm_costs.h"
#include "attention/cuda/lower/step_ranges.h"

namespace coppice::attention::cuda {

// Stream tasks: their bytes, the part from memory, and their steps and number before any cut.
struct StreamWork {
  double bytes, memory_share;
  int64_t steps, tasks;
  int64_t overlapped_steps;  // of overlapped tiles
  bool overlapped = false;   // the kernel has overlapped tiles, and the tasks are fit for them
};

struct SmSplit {
  int32_t dense_ctas;       // CTAs that take dense tasks
  int32_t dense_piece;      // tokens of a dense task at most
  bool overlapped = false;  // CTAs overlap streaming with their dense tasks
};

// Allocates in its constructor only.
class SmPartition {
 public:
  SmPartition(int num_sms, int32_t num_kv_heads, int32_t max_items)
      : num_sms_(num_sms), heads_(num_kv_heads), busy_until_(num_sms), ring_(num_sms), merged_(num_sms) {
    dense_.reserve(max_items);
  }

  // The split for which the step ends soonest. most_states: partial states that dense pieces may have.
  SmSplit Choose(std::span<const QueuedItem> items, const StreamWork& stream, const SmCosts& costs, int64_t most_states);

 private:
  struct Simulated {
    double ns = 0, dense_ns = 0;
    int64_t states = 0;  // of dense pieces
  };
  struct Chosen {
    SmSplit split;
    double ns;
  };
  struct DenseEnds;
  double LastStreamEndNs(const StreamWork& stream, const SmCosts& costs, const DenseEnds& dense, bool overlapped) const;
  // The best with overlapped tiles, or without. tokens: of all dense items and kv heads.
  Chosen Search(int64_t tokens, const StreamWork& stream, const SmCosts& costs, int64_t most_states, bool overlapped);
  Simulated Simulate(const StreamWork& stream, const SmCosts& costs, SmSplit split);
  void AddTasks(std::span<double> ends, int64_t tasks, double task_ns);
  DenseEnds RunDense(const SmCosts& costs, SmSplit split);

  int num_sms_;
  int64_t heads_;
  std::vector<QueuedItem> dense_;      // of the items, those with dense tasks
  std::vector<double> busy_until_;     // [SM]
  std::vector<double> ring_, merged_;  // [SM] of AddTasks
};

}  // namespace coppice::attention::cuda
