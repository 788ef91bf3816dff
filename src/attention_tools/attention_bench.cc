#include "attention_tools/attention_bench.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "attention/plan.h"
#include "attention/work_list.h"
#include "core/buffer.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

// A turn of a mode runs as many layers as last this long with the plan: long beside the clock and the first layer's cold state,
// short beside what the neighbours of a virtual machine do.
constexpr double kTurnSeconds = 250e-6;
constexpr int kWarmUpRounds = 2;

// One mode: its forest, plan and layers.
struct Contestant {
  BenchMode mode;
  AttentionSpec spec;
  OwnedForest forest;
  int64_t layer_bytes = 0;
  std::unique_ptr<AttentionPlan> plan;
  std::vector<std::unique_ptr<BoundKv>> layers;  // one after the other in the KV memory

  bool may_equal_planned() const { return mode != BenchMode::kNone && !spec.deterministic; }
};

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

}  // namespace

std::string_view Name(BenchMode mode) {
  switch (mode) {
    case BenchMode::kPlanned: return "planned";
    case BenchMode::kAllShared: return "all-shared";
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

Result<std::vector<BenchRow>> AttentionBench::Run(const AttentionSpec& spec, const BenchTree& tree) {
  std::vector<Contestant> contestants;
  for (const BenchMode mode : options_.modes) {
    Contestant& c = contestants.emplace_back(Contestant{.mode = mode, .spec = spec});
    c.spec.deterministic = mode == BenchMode::kDeterministic;
    AddUniformTree(
        {.levels = tree.levels, .queries = tree.queries, .page_size = options_.page_size, .share = mode != BenchMode::kNone},
        c.forest);
    PlannerOptions planner = {.machine_model_path = options_.machine_model_path};
    planner.force_sharing = mode == BenchMode::kAllShared;
    if (mode == BenchMode::kStore || mode == BenchMode::kNone) planner.policy = SharePolicy::kStore;
    COPPICE_ASSIGN_OR_RETURN(c.plan, AttentionPlan::Create(device_.backend(), c.spec, c.forest.Capacity(), planner));
  }
  const auto shape_of = [&](const Contestant& c) {
    return KvPoolShape{.num_pages = static_cast<int32_t>(c.forest.num_pages()),
                       .page_size = options_.page_size,
                       .num_kv_heads = spec.num_kv_heads,
                       .head_dim = spec.head_dim,
                       .dtype = spec.kv_dtype};
  };
  int64_t kv_bytes = device_.flushes_caches() ? 0 : options_.working_set_bytes;
  for (Contestant& c : contestants) {
    c.layer_bytes = static_cast<int64_t>(shape_of(c).bytes());
    kv_bytes = std::max(kv_bytes, c.layer_bytes);
  }
  COPPICE_RETURN_IF_ERROR(ReserveKv(kv_bytes, spec.kv_dtype));
  for (Contestant& c : contestants) {  // the forests no longer move
    const int64_t layers = device_.flushes_caches() ? 1 : kv_bytes / c.layer_bytes;
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::byte* data = static_cast<std::byte*>(kv_->data()) + layer * c.layer_bytes;
      COPPICE_ASSIGN_OR_RETURN(c.layers.emplace_back(), device_.backend().BindKv(c.spec, shape_of(c).View(data)));
    }
    COPPICE_RETURN_IF_ERROR(c.plan->Update(c.forest.Forest()));
    COPPICE_RETURN_IF_ERROR(c.plan->Upload());
  }

  const int64_t row = int64_t{spec.num_qo_heads} * spec.head_dim;
  const size_t row_bytes = contestants[0].forest.num_queries() * row * SizeOf(spec.q_dtype);
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<BenchMemory> q, RandomBenchMemory(device_, row_bytes, spec.q_dtype, 99));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<BenchMemory> out, device_.Allocate(row_bytes));
  const RunArgs args = {.q = q->data(), .q_row_stride = row, .out = out->data(), .out_row_stride = row, .lse = nullptr};

  int64_t turn_layers = 1;
  int64_t position = 0;  // where in the KV memory the next turn goes on, whoever's it is
  const auto take_turn = [&](Contestant& c) -> Result<double> {
    const int64_t layers = static_cast<int64_t>(c.layers.size()), count = std::min(turn_layers, layers);
    const int64_t first = CeilDiv(position, c.layer_bytes);
    COPPICE_ASSIGN_OR_RETURN(const double seconds, device_.Time([&](Stream stream) {
      for (int64_t i = first; i < first + count; ++i) {
        COPPICE_RETURN_IF_ERROR(c.plan->Run(*c.layers[i % layers], args, stream));
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
                      .predicted_s = stats.predicted_ns * 1e-9,
                      .roofline_s = std::max(least_bytes / device_.read_bytes_per_s(),
                                             static_cast<double>(stats.flops) / device_.product_flops_per_s()),
                      .over_planned = timed[i].over_first,
                      .same_work = c.may_equal_planned() && SameWork(*c.plan, *contestants.front().plan)});
  }
  return result;
}

}  // namespace coppice::attention
