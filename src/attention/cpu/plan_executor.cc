#include "attention/cpu/plan_executor.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "attention/argument_checks.h"
#include "attention/cpu/row_ops.h"
#include "attention/cpu/softmax_state.h"
#include "attention/plan.h"
#include "core/check.h"
#include "core/math.h"

namespace coppice::attention::cpu {
namespace {

// Rows of a task. Their packed queries, accumulators and scores stay in L2 (2 MiB on current servers, 512 KiB at least) beside
// a KV tile: 512 rows x 128 x (4 + 2) bytes = 384 KiB.
constexpr int32_t kBlockRows = 512;

// Deterministic mode (plan.h says which items occur).
constexpr int32_t kUnit = kDeterministicUnit, kSuperblock = kDeterministicSuperblock;

constexpr size_t AlignUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

void Clear(const RowState& state, int32_t head_dim) {
  std::fill_n(state.acc, head_dim, 0.0f);
  *state.m = kNegInf;
  *state.l = 0;
}

}  // namespace

struct CpuPlanExecutor::Call {
  const KvLayerView& kv;
  const RunArgs& args;
};

struct CpuPlanExecutor::Rows {
  std::span<const int32_t> sets;
  std::span<const TileQuery> queries;
  int32_t kv_begin, kv_end;  // what any of them sees
};

CpuPlanExecutor::CpuPlanExecutor(Executor* executor, const TileKernels& kernels, const AttentionSpec& spec,
                                 const PlanCapacity& capacity)
    : executor_(executor),
      kernels_(kernels),
      spec_(spec),
      capacity_(capacity),
      checked_pages_(capacity.max_branches),
      checked_begin_(capacity.max_branches) {
  for (std::vector<int32_t>* array :
       {&branches_.node, &branches_.query_begin, &branches_.query_count, &branches_.kv_len, &branches_.page_begin}) {
    array->resize(capacity.max_branches);
  }
}

Result<std::unique_ptr<PlanExecutor>> CpuPlanExecutor::Create(Executor* executor, const TileKernels& kernels,
                                                              const AttentionSpec& spec, const PlanCapacity& capacity,
                                                              const PlanSizes& sizes) {
  std::unique_ptr<CpuPlanExecutor> self(new CpuPlanExecutor(executor, kernels, spec, capacity));
  const int32_t d = spec.head_dim, group = spec.group_size();
  for (TaskQueue* queue : {&self->compute_, &self->bandwidth_}) queue->first_task.resize(sizes.max_items + 1);

  self->max_states_ = sizes.max_states;
  COPPICE_ASSIGN_OR_RETURN(self->states_, Buffer::Allocate(static_cast<size_t>(sizes.max_states) * (d + 2) * sizeof(float)));
  self->tickets_ = std::vector<std::atomic<int32_t>>(static_cast<size_t>(sizes.max_merge_sets) * spec.num_kv_heads);

  // A task's last merge set may begin at row kBlockRows - 1; a set has at most max(64, group) rows.
  const int32_t max_rows = std::min(kBlockRows + std::max(64, group), capacity.max_queries * group);
  const size_t state_bytes = AlignUp(size_t(max_rows) * (d + 2) * sizeof(float));
  const size_t kernel_bytes =
      AlignUp(std::max(kernels.dense.scratch_bytes(d, max_rows), kernels.stream.scratch_bytes(d, max_rows)));
  const size_t worker_bytes = Worker::kNumStates * state_bytes + kernel_bytes;
  COPPICE_ASSIGN_OR_RETURN(self->scratch_, Buffer::Allocate(worker_bytes * executor->num_workers()));
  self->workers_.resize(executor->num_workers());
  for (size_t w = 0; w < self->workers_.size(); ++w) {
    Worker& worker = self->workers_[w];
    worker.queries.resize(max_rows / group);
    std::byte* base = self->scratch_.data() + w * worker_bytes;
    for (TileStates& states : worker.states) {
      float* acc = reinterpret_cast<float*>(base);
      states = {.acc = acc, .acc_stride = d, .m = acc + int64_t{max_rows} * d, .l = acc + int64_t{max_rows} * (d + 1)};
      base += state_bytes;
    }
    worker.kernel_scratch = base;
  }
  return std::unique_ptr<PlanExecutor>(std::move(self));
}

Status CpuPlanExecutor::Upload(const PlanView& plan, const PrefixForestView& forest, Stream) {
  const bool same_plan = plan.revision != 0 && plan.revision == plan_.revision;
  plan_ = plan;
  forest_ = forest;
  const auto keep = [](std::span<const int32_t>& array, std::vector<int32_t>& copy, bool kept = false) {
    COPPICE_CHECK(array.size() <= copy.size());
    if (!kept) std::ranges::copy(array, copy.begin());
    array = std::span(copy).first(array.size());
  };
  keep(forest_.branch_node, branches_.node, same_plan);  // a plan is of these branches with these queries
  keep(forest_.branch_query_count, branches_.query_count, same_plan);
  keep(forest_.branch_query_begin, branches_.query_begin);
  keep(forest_.branch_kv_len, branches_.kv_len);
  keep(forest_.branch_page_begin, branches_.page_begin);
  if (same_plan) return OkStatus();
  NumberTasks(plan.compute_queue, compute_);
  NumberTasks(plan.bandwidth_queue, bandwidth_);
  return OkStatus();
}

void CpuPlanExecutor::NumberTasks(std::span<const int32_t> items, TaskQueue& queue) const {
  queue.items = items;
  int64_t tasks = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const WorkItem& item = plan_.items[items[i]];
    int32_t rows_before_last_set = 0;
    for (int32_t m = 0; m + 1 < item.member_count; ++m) rows_before_last_set += SetRows(plan_.members[item.member_begin + m]);
    const int32_t head_blocks = CeilDiv(spec_.num_kv_heads, item.heads_per_task);
    queue.first_task[i] = tasks;
    tasks += int64_t{rows_before_last_set / kBlockRows + 1} * head_blocks;
  }
  queue.first_task[items.size()] = tasks;
}

Status CpuPlanExecutor::Run(const BoundKv& bound, const RunArgs& args, Stream) {
  const KvLayerView& kv = bound.view();
  if (plan_.items.empty()) return OkStatus();
  if (dynamic_cast<const BoundCpuKv*>(&bound) == nullptr) {
    return InvalidArgument("Run: the KV was bound by another backend; bind it with this plan's context");
  }
  COPPICE_RETURN_IF_ERROR(CheckRun(spec_, forest_.page_size, capacity_.max_queries, bound, args));
  COPPICE_RETURN_IF_ERROR(CheckPages(kv));
  const Call call = {kv, args};
  compute_.next.store(0, std::memory_order_relaxed);
  bandwidth_.next.store(0, std::memory_order_relaxed);
  const int32_t workers = static_cast<int32_t>(workers_.size());
  executor_->ParallelFor(workers, [&](int64_t role, int worker) {
    const bool compute_first = role < (workers + 1) / 2;
    Drain(compute_first ? compute_ : bandwidth_, call, workers_[worker]);
    Drain(compute_first ? bandwidth_ : compute_, call, workers_[worker]);
  });
  return OkStatus();
}

Status CpuPlanExecutor::CheckPages(const KvLayerView& kv) {
  if (forest_.version != checked_version_ || kv.num_pages != checked_pool_pages_) {
    std::ranges::fill(checked_pages_, 0);
    checked_version_ = forest_.version;
    checked_pool_pages_ = kv.num_pages;
  }
  for (size_t b = 0; b < forest_.branch_node.size(); ++b) {
    if (forest_.branch_node[b] == kFreeSlot || forest_.branch_query_count[b] == 0) continue;
    const int32_t pages = CeilDiv(forest_.branch_kv_len[b], forest_.page_size);
    const int32_t* row = forest_.page_indices.data() + forest_.branch_page_begin[b];
    if (forest_.branch_page_begin[b] != std::exchange(checked_begin_[b], forest_.branch_page_begin[b])) checked_pages_[b] = 0;
    for (int32_t i = checked_pages_[b]; i < pages; ++i) {
      if (row[i] < 0 || row[i] >= kv.num_pages) {
        checked_pages_[b] = 0;
        return OutOfRange("Run: entry " + std::to_string(i) + " of the page row of branch " + std::to_string(b) + " is " +
                          std::to_string(row[i]) + "; the KV layer has " + std::to_string(kv.num_pages) + " pages");
      }
    }
    checked_pages_[b] = pages;
  }
  return OkStatus();
}

void CpuPlanExecutor::Drain(TaskQueue& queue, const Call& call, Worker& worker) {
  const auto first = queue.first_task.begin();
  const int64_t num_tasks = first[queue.items.size()];
  for (int64_t t; (t = queue.next.fetch_add(1, std::memory_order_relaxed)) < num_tasks;) {
    const size_t i = std::upper_bound(first, first + queue.items.size() + 1, t) - first - 1;
    const int32_t id = queue.items[i];
    const WorkItem& item = plan_.items[id];
    const int32_t head_blocks = CeilDiv(spec_.num_kv_heads, item.heads_per_task);
    const int32_t task = static_cast<int32_t>(t - first[i]);
    RunTask(item, id, task / head_blocks, task % head_blocks, call, worker);
  }
}

void CpuPlanExecutor::RunTask(const WorkItem& item, int32_t item_id, int32_t row_block, int32_t head_block, const Call& call,
                              Worker& worker) {
  const KvLayerView& kv = call.kv;
  const Rows rows = GatherRows(item, row_block, worker);
  const size_t kv_element = SizeOf(kv.dtype), q_element = SizeOf(spec_.q_dtype);
  const float sm_scale = spec_.sm_scale != 0 ? spec_.sm_scale : 1 / std::sqrt(static_cast<float>(spec_.head_dim));
  const int32_t head_end = std::min((head_block + 1) * item.heads_per_task, spec_.num_kv_heads);
  for (int32_t head = head_block * item.heads_per_task; head < head_end; ++head) {
    const TileTask task = {
        .kv = {.k = static_cast<const std::byte*>(kv.k) + head * kv.head_stride * kv_element,
               .v = static_cast<const std::byte*>(kv.v) + head * kv.head_stride * kv_element,
               .page_bytes = kv.page_stride * static_cast<int64_t>(kv_element),
               .slot_bytes = kv.slot_stride * static_cast<int64_t>(kv_element),
               .pages = forest_.page_indices.data() + forest_.branch_page_begin[item.page_row],
               .page_size = kv.page_size},
        .kv_begin = rows.kv_begin,
        .kv_end = rows.kv_end,
        .queries = rows.queries,
        .group_size = spec_.group_size(),
        .head_dim = spec_.head_dim,
        .q = static_cast<const std::byte*>(call.args.q) + int64_t{head} * spec_.group_size() * spec_.head_dim * q_element,
        .q_row_bytes = call.args.q_row_stride * static_cast<int64_t>(q_element),
        .score_scale = sm_scale * kv.k_scale * (spec_.soft_cap > 0 ? 1.0f : kLog2E),
        .soft_cap = spec_.soft_cap,
    };
    ComputeStates(item, task, worker);
    Deliver(item_id, rows, head, call, worker);
  }
}

CpuPlanExecutor::Rows CpuPlanExecutor::GatherRows(const WorkItem& item, int32_t row_block, Worker& worker) const {
  const std::span<const int32_t> members = plan_.members.subspan(item.member_begin, item.member_count);
  const int32_t group = spec_.group_size();
  size_t begin = 0, end = 0;  // sets whose first row lies in this block
  for (int32_t row = 0; end < members.size() && row / kBlockRows <= row_block; ++end) {
    if (row / kBlockRows < row_block) begin = end + 1;
    row += SetRows(members[end]);
  }
  Rows rows = {.sets = members.subspan(begin, end - begin), .kv_begin = INT32_MAX, .kv_end = 0};
  size_t count = 0;
  for (const int32_t s : rows.sets) {
    const MergeSet& set = plan_.merge_sets[s];
    const int32_t b = set.branch, span_begin = forest_.branch_kv_len[b] - forest_.branch_query_count[b];
    for (int32_t i = set.query_begin; i < set.query_begin + set.query_count; ++i) {
      const int64_t q_row = forest_.branch_query_begin[b] + i;
      const int32_t own = span_begin + i;
      const bool has_tree = !forest_.query_tree_mask.empty();
      TileQuery& query = worker.queries[count++];
      query = {.q_row = q_row,
               .begin = std::max(item.kv_begin, spec_.window > 0 ? own - spec_.window + 1 : 0),
               .end = std::min(item.kv_end, own + 1),
               .span_begin = has_tree ? span_begin : INT32_MAX,
               .tree_mask = has_tree ? forest_.query_tree_mask[q_row] : 0};
      if (query.begin >= query.end) continue;
      rows.kv_begin = std::min(rows.kv_begin, query.begin);
      rows.kv_end = std::max(rows.kv_end, query.end);
    }
  }
  COPPICE_DCHECK(static_cast<int32_t>(count) * group <= kBlockRows + std::max(64, group));
  rows.queries = std::span(worker.queries).first(count);
  if (rows.kv_end == 0) rows.kv_begin = 0;
  return rows;
}

// Leaves the item's states of these rows in worker.states[0].
void CpuPlanExecutor::ComputeStates(const WorkItem& item, const TileTask& task, Worker& worker) const {
  const bool stream = !spec_.deterministic && (item.kind == ItemKind::kStreamTile || task.num_rows() <= kernels_.stream_max_rows);
  const TileKernel& kernel = stream ? kernels_.stream : kernels_.dense;
  if (!spec_.deterministic) {
    kernel.run(task, worker.states[0], worker.kernel_scratch);
    return;
  }
  enum { kTotal = 0, kUnitState = 1, kRunning = 2 };
  const int32_t d = spec_.head_dim, rows = task.num_rows();
  for (int32_t r = 0; r < rows; ++r) Clear(worker.Row(kTotal, r), d);
  const auto fold = [&](int into, int from) {
    for (int32_t r = 0; r < rows; ++r) {
      const RowState term = worker.Row(from, r);
      FoldState(worker.Row(into, r), {.acc = term.acc, .m = *term.m, .l = *term.l}, d);
    }
  };
  TileTask unit_task = task;
  for (int32_t superblock = task.kv_begin / kSuperblock * kSuperblock; superblock < task.kv_end; superblock += kSuperblock) {
    for (int32_t r = 0; r < rows; ++r) Clear(worker.Row(kRunning, r), d);
    for (int32_t unit = superblock; unit < std::min(superblock + kSuperblock, task.kv_end); unit += kUnit) {
      unit_task.kv_begin = std::max(unit, task.kv_begin);
      unit_task.kv_end = std::min(unit + kUnit, task.kv_end);
      if (unit_task.kv_begin >= unit_task.kv_end) continue;
      kernel.run(unit_task, worker.states[kUnitState], worker.kernel_scratch);
      fold(kRunning, kUnitState);
    }
    fold(kTotal, kRunning);
  }
}

RowState CpuPlanExecutor::Partial(int64_t state) const {
  float* acc = const_cast<float*>(states_.As<float>());
  return {.acc = acc + state * spec_.head_dim,
          .m = acc + max_states_ * spec_.head_dim + state,
          .l = acc + max_states_ * (spec_.head_dim + 1) + state};
}

// Writes the output of sets that this item alone serves; of the others it stores the partial states, or folds all of them if it
// comes last. Tickets are drawn after all stores: a ticket waits until the stores before it are visible, and their misses overlap.
void CpuPlanExecutor::Deliver(int32_t item_id, const Rows& rows, int32_t kv_head, const Call& call, Worker& worker) {
  const auto ticket = [&](int32_t s) -> std::atomic<int32_t>& {
    return tickets_[static_cast<size_t>(s) * spec_.num_kv_heads + kv_head];
  };
  int32_t first_row = 0;
  for (const int32_t s : rows.sets) {
    const MergeSet& set = plan_.merge_sets[s];
    // A worker that finds all others arrived will fold, and leaves no state.
    if (const int32_t others = set.contribution_count - 1; ticket(s).load(std::memory_order_relaxed) < others) {
      const auto mine = std::ranges::find(Contributions(set), item_id, &Contribution::item);
      COPPICE_DCHECK(mine != Contributions(set).end());
      const int64_t base = StateBegin(*mine, kv_head);
      for (int32_t r = 0; r < SetRows(s); ++r) {
        const RowState from = worker.Row(0, first_row + r), to = Partial(base + r);
        std::copy_n(from.acc, spec_.head_dim, to.acc);
        *to.m = *from.m;
        *to.l = *from.l;
      }
    }
    first_row += SetRows(s);
  }
  first_row = 0;
  for (const int32_t s : rows.sets) {
    const MergeSet& set = plan_.merge_sets[s];
    if (set.contribution_count == 1) {
      for (int32_t r = 0; r < SetRows(s); ++r) {
        const RowState state = worker.Row(0, first_row + r);
        StoreOutput(set, r, kv_head, {.acc = state.acc, .m = *state.m, .l = *state.l}, call);
      }
      // acq_rel: publishes these states, and makes those of earlier arrivals visible to the last worker.
    } else if (ticket(s).fetch_add(1, std::memory_order_acq_rel) + 1 == set.contribution_count) {
      ticket(s).store(0, std::memory_order_relaxed);  // the next Run's ParallelFor orders it
      FoldContributions(set, item_id, first_row, kv_head, call, worker);
    }
    first_row += SetRows(s);
  }
}

// Path order, whichever worker is the last, so that the bits do not depend on timing. In deterministic mode the states of one
// superblock fold first; items then never cross from one superblock into the middle of the next (the planner's rule). The states of
// this worker's own item, which begin at first_own, are still where the kernel left them.
void CpuPlanExecutor::FoldContributions(const MergeSet& set, int32_t own_item, int32_t first_own, int32_t kv_head, const Call& call,
                                        Worker& worker) const {
  const auto contributions = Contributions(set);
  const int32_t d = spec_.head_dim;
  const RowState total = worker.Row(1, 0), running = worker.Row(2, 0);
  const auto superblock = [&](const Contribution& c) { return plan_.items[c.item].kv_begin / kSuperblock; };
  for (int32_t r = 0; r < set.query_count * spec_.group_size(); ++r) {
    Clear(total, d);
    if (spec_.deterministic) Clear(running, d);
    for (size_t i = 0; i < contributions.size(); ++i) {
      const Contribution& c = contributions[i];
      const RowState state = c.item == own_item ? worker.Row(0, first_own + r) : Partial(StateBegin(c, kv_head) + r);
      const ConstRowState term = {.acc = state.acc, .m = *state.m, .l = *state.l};
      if (!spec_.deterministic) {
        FoldState(total, term, d);
        continue;
      }
      FoldState(running, term, d);
      if (i + 1 == contributions.size() || superblock(contributions[i + 1]) != superblock(c)) {
        FoldState(total, {.acc = running.acc, .m = *running.m, .l = *running.l}, d);
        Clear(running, d);
      }
    }
    StoreOutput(set, r, kv_head, {.acc = total.acc, .m = *total.m, .l = *total.l}, call);
  }
}

void CpuPlanExecutor::StoreOutput(const MergeSet& set, int32_t row, int32_t kv_head, const ConstRowState& state,
                                  const Call& call) const {
  const int32_t group = spec_.group_size();
  const int64_t query = forest_.branch_query_begin[set.branch] + set.query_begin + row / group;
  const int64_t head = int64_t{kv_head} * group + row % group;
  const size_t element = SizeOf(spec_.q_dtype);
  std::byte* out = static_cast<std::byte*>(call.args.out) + (query * call.args.out_row_stride + head * spec_.head_dim) * element;
  StoreRow(state.acc, state.l > 0 ? call.kv.v_scale / state.l : 0.0f, spec_.head_dim, spec_.q_dtype, out);
  if (call.args.lse != nullptr) call.args.lse[query * spec_.num_qo_heads + head] = NaturalLse(state.m, state.l);
}

}  // namespace coppice::attention::cpu
