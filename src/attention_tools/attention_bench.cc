#include "attention_tools/attention_bench.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "attention/plan.h"
#include "attention/work_list.h"
#include "attention_tools/reference.h"
#include "core/buffer.h"
#include "core/check.h"
#include "core/math.h"

namespace coppice::attention {
namespace {

// A turn of a mode runs as many layers as last this long with the plan: long beside the clock and the first layer's cold state,
// short beside what the neighbours of a virtual machine do.
constexpr double kTurnSeconds = 250e-6;
constexpr int kWarmUpRounds = 2;

// Whether two plans over one forest execute the same items in the same order.
bool SameWork(const AttentionPlan& one, const AttentionPlan& other) {
  const PlanView a = InspectablePlan::Of(one).View(), b = InspectablePlan::Of(other).View();
  const auto same_item = [&](int32_t i, int32_t j) {
    const WorkItem &x = a.items[i], &y = b.items[j];
    return x.kind == y.kind && x.heads_per_task == y.heads_per_task && x.page_row == y.page_row && x.kv_begin == y.kv_begin &&
           x.kv_end == y.kv_end &&
           std::ranges::equal(a.members.subspan(x.member_begin, x.member_count), b.members.subspan(y.member_begin, y.member_count));
  };
  return std::ranges::equal(a.compute_queue, b.compute_queue, same_item) &&
         std::ranges::equal(a.bandwidth_queue, b.bandwidth_queue, same_item);
}

// The forest with the last query alone of a few of the branches that have some.
OwnedForest LastQueries(OwnedForest forest) {
  constexpr size_t kMost = 4;
  std::vector<size_t> branches;
  for (size_t b = 0; b < forest.branch_node.size(); ++b) {
    if (forest.branch_query_count[b] > 0) branches.push_back(b);
  }
  const size_t apart = CeilDiv(branches.size(), kMost);
  for (size_t i = 0; i < branches.size(); ++i) {
    int32_t& count = forest.branch_query_count[branches[i]];
    const int32_t left_out = i % apart == 0 ? count - 1 : count;
    forest.branch_query_begin[branches[i]] += left_out;
    count -= left_out;
  }
  return forest;
}

// Moves that make pages of random values those of a cache: where branches have pages of their own for tokens of one node, which
// is so where the node does not end with a page, all get the values of the first one.
std::vector<SlotMove> CopiedTokens(const OwnedForest& forest) {
  std::vector<SlotMove> moves;
  std::vector<int32_t> first(forest.node_parent.size(), -1);  // branch by node
  const int32_t page_size = forest.page_size;
  for (int32_t b = 0; b < forest.num_branches(); ++b) {
    if (forest.branch_query_count[b] == 0) continue;
    const auto row = std::span(forest.page_indices).subspan(forest.branch_page_begin[b]);
    for (int32_t n = forest.branch_node[b]; n != kNoParent; n = forest.node_parent[n]) {
      if (first[n] < 0) first[n] = b;
      const auto first_row = std::span(forest.page_indices).subspan(forest.branch_page_begin[first[n]]);
      const int32_t end = std::min(forest.node_end[n], forest.branch_kv_len[b]);
      for (int32_t t = forest.node_begin[n]; t < end; ++t) {
        const int64_t from = first_row[t / page_size], to = row[t / page_size];
        if (from != to) moves.push_back({.from = from * page_size + t % page_size, .to = to * page_size + t % page_size});
      }
    }
  }
  return moves;
}

// Of what a plan computed for the queries of `checked`, as a part of the tolerance. Products may be of integers (reference.h).
Result<double> LargestError(const AttentionPlan& plan, const AttentionSpec& spec, const OwnedForest& checked,
                            const ReferenceResult& want, const std::byte* out) {
  const int32_t heads = spec.num_qo_heads, dims = spec.head_dim, contributions = plan.Stats().num_contributions;
  double worst = 0;
  for (size_t b = 0; b < checked.branch_node.size(); ++b) {
    if (checked.branch_query_count[b] == 0) continue;
    const int64_t row = checked.branch_query_begin[b];
    for (int64_t r = row * heads; r < (row + 1) * heads; ++r) {
      const Tolerance tolerance = ToleranceFor(spec, checked.branch_kv_len[b], contributions, want.max_abs_score[r]);
      const double relative = tolerance.out_relative + 2 * kIntegerScores * want.max_abs_score[r];
      const double absolute = tolerance.out_absolute + kIntegerValues * want.sum_largest[r];
      for (int64_t i = r * dims; i < (r + 1) * dims; ++i) {
        const double got = ElementOf(out, spec.q_dtype, i);
        const double error = std::abs(got - want.out[i]) / (relative * (want.sum_abs[i] + std::abs(want.out[i])) + absolute);
        if (!(error <= 1)) {
          return Internal("element " + std::to_string(i % dims) + " of row " + std::to_string(row) + ", head " +
                          std::to_string(r % heads) + ", is " + std::to_string(got) + "; the oracle says " +
                          std::to_string(want.out[i]) + ", " + std::to_string(error) + " tolerances away");
        }
        worst = std::max(worst, error);
      }
    }
  }
  return worst;
}

}  // namespace

std::string_view Name(BenchMode mode) {
  switch (mode) {
    case BenchMode::kPlanned: return "planned";
    case BenchMode::kAllShared: return "all-shared";
    case BenchMode::kOneLevel: return "one-level";
    case BenchMode::kStore: return "store";
    case BenchMode::kNone: return "none";
    case BenchMode::kDeterministic: return "deterministic";
  }
  return "?";
}

Status AttentionBench::ReserveKv(int64_t bytes, DType dtype) {
  if (kv_ != nullptr && kv_bytes_ >= bytes && kv_dtype_ == dtype) return OkStatus();
  kv_.reset();
  COPPICE_ASSIGN_OR_RETURN(kv_, RandomBenchMemory(device_, static_cast<size_t>(bytes), dtype, /*seed=*/0));
  kv_bytes_ = bytes;
  kv_dtype_ = dtype;
  return OkStatus();
}

// One mode: its forest, plan and layers.
struct AttentionBench::Contestant {
  BenchMode mode;
  AttentionSpec spec;
  OwnedForest forest;
  int64_t layer_bytes = 0;
  std::unique_ptr<AttentionPlan> plan = nullptr;
  std::vector<std::unique_ptr<BoundKv>> layers = {};  // one after the other in the KV memory

  bool may_equal_planned() const { return mode != BenchMode::kNone && !spec.deterministic; }
  KvPoolShape pool() const {
    return {.num_pages = static_cast<int32_t>(forest.num_pages()),
            .page_size = forest.page_size,
            .num_kv_heads = spec.num_kv_heads,
            .head_dim = spec.head_dim,
            .dtype = spec.kv_dtype};
  }
};

struct AttentionBench::Contest {
  std::vector<Contestant> contestants;  // by mode; their forests stay where they are
  std::unique_ptr<BenchMemory> q, out;
  RunArgs args;
};

Result<std::unique_ptr<AttentionBench::Contest>> AttentionBench::Prepare(const AttentionSpec& spec, const ForestOfMode& forest_of) {
  auto contest = std::make_unique<Contest>();
  for (const BenchMode mode : options_.modes) {
    Contestant& c = contest->contestants.emplace_back(Contestant{.mode = mode, .spec = spec, .forest = forest_of(mode)});
    c.spec.deterministic = mode == BenchMode::kDeterministic;
    PlannerOptions planner = {.machine_model_path = options_.machine_model_path};
    planner.force_sharing = mode == BenchMode::kAllShared;
    if (mode == BenchMode::kOneLevel) planner.policy = SharePolicy::kOneLevel;
    if (mode == BenchMode::kStore || mode == BenchMode::kNone) planner.policy = SharePolicy::kStore;
    COPPICE_ASSIGN_OR_RETURN(c.plan, AttentionPlan::Create(device_.backend(), c.spec, c.forest.Capacity(), planner));
  }
  int64_t kv_bytes = device_.flushes_caches() ? 0 : options_.working_set_bytes;
  for (Contestant& c : contest->contestants) {
    c.layer_bytes = static_cast<int64_t>(c.pool().bytes());
    kv_bytes = std::max(kv_bytes, c.layer_bytes);
  }
  COPPICE_RETURN_IF_ERROR(ReserveKv(kv_bytes, spec.kv_dtype));
  for (Contestant& c : contest->contestants) {  // the forests no longer move
    const int64_t layers = device_.flushes_caches() ? 1 : kv_bytes / c.layer_bytes;
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::byte* data = static_cast<std::byte*>(kv_->data()) + layer * c.layer_bytes;
      COPPICE_ASSIGN_OR_RETURN(c.layers.emplace_back(), device_.backend().BindKv(c.spec, c.pool().View(data)));
    }
    COPPICE_RETURN_IF_ERROR(c.plan->Update(c.forest.Forest()));
    COPPICE_RETURN_IF_ERROR(c.plan->Upload());
  }
  const int64_t row = int64_t{spec.num_qo_heads} * spec.head_dim;
  const size_t row_bytes = contest->contestants[0].forest.num_queries() * row * SizeOf(spec.q_dtype);
  COPPICE_ASSIGN_OR_RETURN(contest->q, RandomBenchMemory(device_, row_bytes, spec.q_dtype, 99));
  COPPICE_ASSIGN_OR_RETURN(contest->out, device_.Allocate(row_bytes));
  contest->args = {
      .q = contest->q->data(), .q_row_stride = row, .out = contest->out->data(), .out_row_stride = row, .lse = nullptr};
  return contest;
}

Result<std::vector<BenchRow>> AttentionBench::Run(const AttentionSpec& spec, const BenchTree& tree) {
  return Measure(spec, [&](BenchMode mode) {
    OwnedForest forest;
    AddUniformTree(
        {.levels = tree.levels, .queries = tree.queries, .page_size = options_.page_size, .share = mode != BenchMode::kNone},
        forest);
    return forest;
  });
}

Result<std::vector<BenchRow>> AttentionBench::Run(const AttentionSpec& spec, const OwnedForest& forest) {
  return Measure(spec, [&](BenchMode) { return forest; });
}

Result<double> AttentionBench::Check(const AttentionSpec& spec, const OwnedForest& forest) {
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Contest> contest, Prepare(spec, [&](BenchMode) { return forest; }));
  const OwnedForest checked = LastQueries(forest);
  const Contestant& first = contest->contestants.front();
  const int64_t row = contest->args.q_row_stride, rows = forest.num_queries();
  COPPICE_RETURN_IF_ERROR(device_.backend().MoveSlots(spec, first.layers.front()->view(), CopiedTokens(forest)));
  const size_t row_bytes = rows * row * SizeOf(spec.q_dtype);
  COPPICE_ASSIGN_OR_RETURN(Buffer kv, Buffer::Allocate(first.layer_bytes));
  COPPICE_ASSIGN_OR_RETURN(Buffer q, Buffer::Allocate(row_bytes));
  COPPICE_ASSIGN_OR_RETURN(Buffer out, Buffer::Allocate(row_bytes));
  COPPICE_RETURN_IF_ERROR(kv_->CopyTo({kv.data(), kv.size()}));
  COPPICE_RETURN_IF_ERROR(contest->q->CopyTo({q.data(), q.size()}));
  const ReferenceResult want = ReferenceAttention(spec, checked.Forest(), first.pool().View(kv.data()), q.data(), row, rows);
  double worst = 0;
  for (const Contestant& c : contest->contestants) {
    COPPICE_RETURN_IF_ERROR(
        device_.Time([&](Stream stream) { return c.plan->Run(*c.layers.front(), contest->args, stream); }).status());
    COPPICE_RETURN_IF_ERROR(contest->out->CopyTo({out.data(), out.size()}));
    const Result<double> error = LargestError(*c.plan, c.spec, checked, want, out.data());
    if (!error.ok()) return Status(error.status().code(), "mode " + std::string(Name(c.mode)) + ": " + error.status().message());
    worst = std::max(worst, *error);
  }
  return worst;
}

Result<std::vector<BenchRow>> AttentionBench::Measure(const AttentionSpec& spec, const ForestOfMode& forest_of) {
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Contest> contest, Prepare(spec, forest_of));
  std::vector<Contestant>& contestants = contest->contestants;
  int64_t turn_layers = 1;
  int64_t position = 0;  // where in the KV memory the next turn goes on, for any contestant
  const auto take_turn = [&](Contestant& c) -> Result<double> {
    const int64_t layers = static_cast<int64_t>(c.layers.size()), count = std::min(turn_layers, layers);
    const int64_t first = CeilDiv(position, c.layer_bytes);
    COPPICE_ASSIGN_OR_RETURN(const double seconds, device_.Time([&](Stream stream) {
      for (int64_t i = first; i < first + count; ++i) {
        COPPICE_RETURN_IF_ERROR(c.plan->Run(*c.layers[i % layers], contest->args, stream));
      }
      return OkStatus();
    }));
    position = (first + count) % layers * c.layer_bytes;
    return seconds / static_cast<double>(count);
  };
  for (int i = 0; i < kWarmUpRounds; ++i) {
    for (Contestant& c : contestants) COPPICE_RETURN_IF_ERROR(take_turn(c).status());
  }
  COPPICE_ASSIGN_OR_RETURN(const double planned_s, take_turn(contestants.front()));
  turn_layers = static_cast<int64_t>(std::max(1.0, std::ceil(kTurnSeconds / planned_s)));

  COPPICE_ASSIGN_OR_RETURN(const std::vector<InterleavedTimes> timed,
                           TimeInTurns(contestants.size(), options_.rounds, [&](size_t i) { return take_turn(contestants[i]); }));

  std::vector<BenchRow> result;
  for (size_t i = 0; i < contestants.size(); ++i) {
    const Contestant& c = contestants[i];
    const auto [fastest, slowest] = std::ranges::minmax(timed[i].times);
    const PlanStats stats = c.plan->Stats();
    const double least_bytes =
        static_cast<double>(c.forest.num_tokens() * 2 * spec.num_kv_heads * spec.head_dim) * SizeOf(spec.kv_dtype);
    result.push_back({.mode = c.mode,
                      .median_s = timed[i].Median(),
                      .fastest_s = fastest,
                      .slowest_s = slowest,
                      .rounds = static_cast<int>(timed[i].times.size()),
                      .kv_bytes = static_cast<double>(stats.kv_bytes_read),
                      .flops = static_cast<double>(stats.flops),
                      .kv_bytes_unshared = static_cast<double>(stats.kv_bytes_read_unshared),
                      .predicted_s = stats.predicted_ns * 1e-9,
                      .roofline_s = std::max(least_bytes / device_.read_bytes_per_s(),
                                             static_cast<double>(stats.flops) / device_.product_flops_per_s()),
                      .over_planned = timed[i].over_first,
                      .same_work = c.may_equal_planned() && SameWork(*c.plan, *contestants.front().plan)});
  }
  return result;
}

}  // namespace coppice::attention
