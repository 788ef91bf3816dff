// Executes a plan on the CPU: hands its items to the workers, runs the tile kernels, stores partial states, and lets the worker
// that finishes a merge set fold them. Nothing here allocates after construction. Layer: attention/cpu. POD-Attention's
// co-scheduling: half of the workers begin with compute-bound items, half with bandwidth-bound ones, so that both resources are
// used at the same moment; each half then helps the other.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "attention/backend.h"
#include "attention/cpu/kernel_table.h"
#include "attention/cpu/softmax_state.h"
#include "attention/cpu/tile_kernel.h"
#include "core/buffer.h"

namespace coppice::attention::cpu {

class BoundCpuKv final : public BoundKv {
 public:
  BoundCpuKv(const AttentionSpec& spec, const KvLayerView& view) : BoundKv(spec, view) {}
};

class CpuPlanExecutor final : public PlanExecutor {
 public:
  static Result<std::unique_ptr<PlanExecutor>> Create(Executor* executor, const TileKernels& kernels, const AttentionSpec& spec,
                                                      const PlanCapacity& capacity, const PlanSizes& sizes);

  Status Upload(const PlanView& plan, const PrefixForestView& forest, Stream stream) override;
  Status Run(const BoundKv& kv, const RunArgs& args, Stream stream) override;

 private:
  // Items of one queue cut into tasks: item x rows of at most kBlockRows x heads_per_task kv heads. Tasks are numbered along the
  // queue; first_task[i] is the first one of the queue's i-th item.
  struct TaskQueue {
    std::span<const int32_t> items;
    std::vector<int64_t> first_task;  // items.size() + 1 are in use
    alignas(64) std::atomic<int64_t> next{0};
  };
  // Memory of one worker. Three sets of states: a kernel's result; deterministic mode also needs the running superblock and total.
  struct Worker {
    static constexpr int kNumStates = 3;
    std::vector<TileQuery> queries;
    TileStates states[kNumStates];
    std::byte* kernel_scratch;

    RowState Row(int which, int32_t row) const {
      const TileStates& s = states[which];
      return {.acc = s.acc + row * s.acc_stride, .m = s.m + row, .l = s.l + row};
    }
  };
  struct Call;  // what Run was given
  struct Rows;  // the merge sets and queries of one task

  // Per branch, what the executor indexes memory by: copied at Upload, where it was checked, so that it stays the same until Run.
  struct BranchArrays {
    std::vector<int32_t> node, query_begin, query_count, kv_len, page_begin;
  };

  CpuPlanExecutor(Executor* executor, const TileKernels& kernels, const AttentionSpec& spec, const PlanCapacity& capacity);

  Status CheckPages(const KvLayerView& kv);
  int32_t SetRows(int32_t set) const { return plan_.merge_sets[set].query_count * spec_.group_size(); }
  void NumberTasks(std::span<const int32_t> items, TaskQueue& queue) const;
  void Drain(TaskQueue& queue, const Call& call, Worker& worker);
  void RunTask(const WorkItem& item, int32_t item_id, int32_t row_block, int32_t head_block, const Call& call, Worker& worker);
  Rows GatherRows(const WorkItem& item, int32_t row_block, Worker& worker) const;
  void ComputeStates(const WorkItem& item, const TileTask& task, Worker& worker) const;
  void Deliver(int32_t item_id, const Rows& rows, int32_t kv_head, const Call& call, Worker& worker);
  void FoldContributions(const MergeSet& set, int32_t own_item, int32_t first_own, int32_t kv_head, const Call& call,
                         Worker& worker) const;
  void StoreOutput(const MergeSet& set, int32_t row, int32_t kv_head, const ConstRowState& state, const Call& call) const;
  std::span<const Contribution> Contributions(const MergeSet& set) const {
    return plan_.contributions.subspan(set.contribution_begin, set.contribution_count);
  }
  static int64_t StateBegin(const Contribution& c, int32_t kv_head) { return c.state_begin + int64_t{kv_head} * c.head_stride; }
  RowState Partial(int64_t state) const;

  Executor* executor_;
  TileKernels kernels_;
  AttentionSpec spec_;
  PlanCapacity capacity_;
  PlanView plan_;
  PrefixForestView forest_;  // of the last Upload; its arrays of branches are those of branches_
  BranchArrays branches_;    // [max_branches]
  TaskQueue compute_, bandwidth_;
  // [max_branches]: the first entries of a branch's page row that were found inside the pool, of checked_pool_pages_ pages, in this
  // version of the forest, and where the row began then. Entries are added as a branch grows, so a step looks at new ones only.
  std::vector<int32_t> checked_pages_, checked_begin_;
  uint64_t checked_version_ = 0;
  int32_t checked_pool_pages_ = 0;
  std::vector<Worker> workers_;
  Buffer scratch_;  // of all workers

  // Workspace: one launch in flight.
  Buffer states_;  // acc [max_states][head_dim], then m, then l
  int64_t max_states_ = 0;
  std::vector<std::atomic<int32_t>> tickets_;  // [max_merge_sets][num_kv_heads]: contributions that have arrived
};

}  // namespace coppice::attention::cpu
