#include "attention/cpu/attention_bench.h"

#include <algorithm>
#include <functional>
#include <random>
#include <utility>

#include "core/buffer.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

// The tree as a forest; `share_pages` false gives each request a root and pages of its own.
struct BenchForest {
  std::vector<int32_t> node_parent, node_begin, node_end, branch_node, query_begin, query_count, kv_len, page_begin, page_capacity;
  std::vector<int32_t> pages;
  int32_t page_size, num_pages = 0;

  BenchForest(const BenchTree& tree, int32_t page_size, bool share_pages) : page_size(page_size) {
    for (int32_t root = 0; root < tree.levels[0].fanout; ++root) Grow(tree, 0, kNoParent, 0, {}, share_pages);
    num_pages = 0;
    for (const int32_t page : pages) num_pages = std::max(num_pages, page + 1);
  }

  void Grow(const BenchTree& tree, size_t level, int32_t parent, int32_t begin, std::vector<int32_t> row, bool share_pages) {
    const bool leaf = level + 1 == tree.levels.size();
    const int32_t end = begin + tree.levels[level].tokens, node = static_cast<int32_t>(node_parent.size());
    const int32_t whole_pages = begin / page_size;  // what the path above shares; a straddling page is copied
    if (share_pages || leaf) {
      node_parent.push_back(share_pages ? parent : kNoParent);
      node_begin.push_back(share_pages ? begin : 0);
      node_end.push_back(leaf ? kLive : end);
    }
    row.resize(share_pages ? whole_pages : 0);
    while (static_cast<int32_t>(row.size()) * page_size < end) row.push_back(num_pages++);
    if (!leaf) {
      for (int32_t child = 0; child < tree.levels[level + 1].fanout; ++child) Grow(tree, level + 1, node, end, row, share_pages);
      return;
    }
    query_begin.push_back(static_cast<int32_t>(branch_node.size()) * tree.queries);
    branch_node.push_back(node_parent.empty() ? 0 : static_cast<int32_t>(node_parent.size()) - 1);
    query_count.push_back(tree.queries);
    kv_len.push_back(end);
    page_begin.push_back(static_cast<int32_t>(pages.size()));
    page_capacity.push_back(static_cast<int32_t>(row.size()));
    pages.insert(pages.end(), row.begin(), row.end());
  }

  PrefixForestView View() const {
    return {.page_size = page_size,
            .version = 1,
            .node_parent = node_parent,
            .node_begin = node_begin,
            .node_end = node_end,
            .branch_node = branch_node,
            .branch_query_begin = query_begin,
            .branch_query_count = query_count,
            .branch_kv_len = kv_len,
            .branch_page_begin = page_begin,
            .branch_page_capacity = page_capacity,
            .page_indices = pages,
            .query_tree_mask = {}};
  }
};

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

// One mode: its forest, plan and pools.
struct Contestant {
  BenchMode mode;
  BenchForest forest;
  std::unique_ptr<AttentionPlan> plan;
  std::vector<std::unique_ptr<BenchMemory>> pools;
  std::vector<std::unique_ptr<BoundKv>> layers;
  std::vector<double> seconds;  // by repeat
};

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

}  // namespace

int32_t BenchTree::num_requests() const {
  int32_t n = 1;
  for (const Level& level : levels) n *= level.fanout;
  return n;
}

std::string_view Name(BenchMode mode) {
  switch (mode) {
    case BenchMode::kPlanned: return "planned";
    case BenchMode::kAllShared: return "all-shared";
    case BenchMode::kStore: return "store";
    case BenchMode::kNone: return "none";
  }
  return "?";
}

Result<std::vector<BenchRow>> RunAttentionBench(BenchDevice& device, const AttentionSpec& spec, const BenchTree& tree,
                                                const BenchOptions& options) {
  std::vector<Contestant> contestants;
  for (const BenchMode mode : options.modes) {
    Contestant c = {.mode = mode, .forest = BenchForest(tree, options.page_size, mode != BenchMode::kNone)};
    const int32_t requests = tree.num_requests();
    const PlanCapacity capacity = {.max_branches = requests,
                                   .max_queries = requests * tree.queries,
                                   .max_nodes = std::max<int32_t>(2 * requests, static_cast<int32_t>(c.forest.node_parent.size())),
                                   .max_page_slots = static_cast<int32_t>(c.forest.pages.size()),
                                   .page_size = options.page_size};
    PlannerOptions planner = {.machine_model_path = options.machine_model_path};
    planner.force_sharing = mode == BenchMode::kAllShared;
    if (mode == BenchMode::kStore || mode == BenchMode::kNone) planner.policy = SharePolicy::kStore;
    COPPICE_ASSIGN_OR_RETURN(c.plan, AttentionPlan::Create(device.backend(), spec, capacity, planner));
    const KvPoolShape shape = {.num_pages = c.forest.num_pages,
                               .page_size = options.page_size,
                               .num_kv_heads = spec.num_kv_heads,
                               .head_dim = spec.head_dim,
                               .dtype = spec.kv_dtype};
    const int64_t working_set = device.flushes_caches() ? 0 : options.working_set_bytes;
    const int64_t layers = std::max<int64_t>(1, (working_set + static_cast<int64_t>(shape.bytes()) - 1) / shape.bytes());
    for (int64_t layer = 0; layer < layers; ++layer) {
      COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<BenchMemory> pool, RandomMemory(device, shape.bytes(), spec.kv_dtype, layer));
      COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<BoundKv> bound, device.backend().BindKv(spec, shape.View(pool->data())));
      c.pools.push_back(std::move(pool));
      c.layers.push_back(std::move(bound));
    }
    contestants.push_back(std::move(c));
  }

  const int64_t row = int64_t{spec.num_qo_heads} * spec.head_dim, rows = int64_t{tree.num_requests()} * tree.queries;
  const size_t row_bytes = rows * row * SizeOf(spec.q_dtype);
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<BenchMemory> q, RandomMemory(device, row_bytes, spec.q_dtype, 99));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<BenchMemory> out, device.Allocate(row_bytes));
  for (Contestant& c : contestants) {  // the forests no longer move
    COPPICE_RETURN_IF_ERROR(c.plan->Update(c.forest.View()));
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
                      .over_planned = Median(ratios)});
  }
  return result;
}

}  // namespace coppice::attention
