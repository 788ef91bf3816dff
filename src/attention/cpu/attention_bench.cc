#include "attention/cpu/attention_bench.h"

#include <algorithm>
#include <functional>
#include <random>
#include <utility>

#include "core/buffer.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

Result<std::unique_ptr<BenchMemory>> RandomMemory(BenchDevice& device, size_t bytes, DType dtype, uint64_t seed) {
  COPPICE_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(bytes));
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  float values[4096];
  for (float& x : values) x = normal(rng);
  const size_t count = buffer.size() / SizeOf(dtype);
  for (size_t i = 0; i < count; ++i) {
    const float x = values[(i ^ (i >> 12)) % 4096];
    switch (dtype) {
      case DType::kF32: buffer.As<float>()[i] = x; break;
      case DType::kBF16: buffer.As<BF16>()[i] = BF16::FromFloat(x); break;
      case DType::kF16: buffer.As<F16>()[i] = F16::FromFloat(x); break;
    }
  }
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<BenchMemory> memory, device.Allocate(bytes));
  COPPICE_RETURN_IF_ERROR(memory->CopyFrom({buffer.data(), bytes}));
  return Result<std::unique_ptr<BenchMemory>>(std::move(memory));
}

// One mode: its forest, plan and KV.
struct Contestant {
  BenchMode mode;
  AttentionSpec spec;
  OwnedForest forest;
  std::unique_ptr<AttentionPlan> plan;
  std::unique_ptr<BenchMemory> pool;  // of all layers, as in an engine: large enough for huge pages however small the tree
  std::vector<std::unique_ptr<BoundKv>> layers;
  std::vector<double> seconds;  // by repeat
};

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

// Whether two plans over one forest execute the same items in the same order.
bool SameWork(const PlanView& a, const PlanView& b) {
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

Result<std::vector<BenchRow>> RunAttentionBench(BenchDevice& device, const AttentionSpec& spec, const BenchTree& tree,
                                                const BenchOptions& options) {
  std::vector<Contestant> contestants;
  for (const BenchMode mode : options.modes) {
    Contestant c = {.mode = mode, .spec = spec};
    c.spec.deterministic = mode == BenchMode::kDeterministic;
    AddUniformTree(
        {.levels = tree.levels, .queries = tree.queries, .page_size = options.page_size, .share = mode != BenchMode::kNone},
        c.forest);
    PlannerOptions planner = {.machine_model_path = options.machine_model_path};
    planner.force_sharing = mode == BenchMode::kAllShared;
    if (mode == BenchMode::kStore || mode == BenchMode::kNone) planner.policy = SharePolicy::kStore;
    COPPICE_ASSIGN_OR_RETURN(c.plan, AttentionPlan::Create(device.backend(), c.spec, c.forest.Capacity(), planner));
    const KvPoolShape shape = {.num_pages = c.forest.num_pages(),
                               .page_size = options.page_size,
                               .num_kv_heads = spec.num_kv_heads,
                               .head_dim = spec.head_dim,
                               .dtype = spec.kv_dtype};
    const int64_t working_set = device.flushes_caches() ? 0 : options.working_set_bytes;
    const int64_t layers = std::max<int64_t>(1, (working_set + static_cast<int64_t>(shape.bytes()) - 1) / shape.bytes());
    COPPICE_ASSIGN_OR_RETURN(c.pool, RandomMemory(device, layers * shape.bytes(), spec.kv_dtype, /*seed=*/0));
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::byte* data = static_cast<std::byte*>(c.pool->data()) + layer * shape.bytes();
      COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<BoundKv> bound, device.backend().BindKv(c.spec, shape.View(data)));
      c.layers.push_back(std::move(bound));
    }
    contestants.push_back(std::move(c));
  }

  const int64_t row = int64_t{spec.num_qo_heads} * spec.head_dim;
  const size_t row_bytes = contestants[0].forest.num_queries() * row * SizeOf(spec.q_dtype);
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<BenchMemory> q, RandomMemory(device, row_bytes, spec.q_dtype, 99));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<BenchMemory> out, device.Allocate(row_bytes));
  for (Contestant& c : contestants) {  // the forests no longer move
    COPPICE_RETURN_IF_ERROR(c.plan->Update(c.forest.Forest()));
    COPPICE_RETURN_IF_ERROR(c.plan->Upload());
  }
  const RunArgs args = {.q = q->data(), .q_row_stride = row, .out = out->data(), .out_row_stride = row, .lse = nullptr};
  for (int repeat = -1; repeat < options.repeats; ++repeat) {  // the first one warms up
    for (size_t turn = 0; turn < contestants.size(); ++turn) {
      // Another one begins each time: whoever comes next finds the caches as the one before left them.
      Contestant& c = contestants[(turn + repeat + 1) % contestants.size()];
      COPPICE_ASSIGN_OR_RETURN(const double seconds, device.Time([&](Stream stream) {
        for (const auto& layer : c.layers) COPPICE_RETURN_IF_ERROR(c.plan->Run(*layer, args, stream));
        return OkStatus();
      }));
      if (repeat >= 0) c.seconds.push_back(seconds / static_cast<double>(c.layers.size()));
    }
  }

  std::vector<BenchRow> result;
  std::vector<double> ratios(options.repeats);
  for (const Contestant& c : contestants) {
    std::ranges::transform(c.seconds, contestants.front().seconds, ratios.begin(), std::divides());
    const auto [fastest, slowest] = std::ranges::minmax(c.seconds);
    const PlanStats stats = c.plan->Stats();
    result.push_back({.mode = c.mode,
                      .median_s = Median(c.seconds),
                      .fastest_s = fastest,
                      .slowest_s = slowest,
                      .kv_bytes = static_cast<double>(stats.kv_bytes_read),
                      .flops = static_cast<double>(stats.flops),
                      .predicted_s = stats.predicted_ns * 1e-9,
                      .roofline_s = std::max(static_cast<double>(stats.kv_bytes_read) / device.read_bytes_per_s(),
                                             static_cast<double>(stats.flops) / device.product_flops_per_s()),
                      .over_planned = Median(ratios),
                      .same_work = c.mode != BenchMode::kNone && !c.spec.deterministic &&
                                   SameWork(c.plan->View(), contestants.front().plan->View())});
  }
  return result;
}

}  // namespace coppice::attention
