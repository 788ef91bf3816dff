#include "attention_tools/calibrate.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "attention/cpu/cpu_backend.h"
#include "attention/cpu/cpu_features.h"
#include "attention/cpu/kernel_table.h"
#include "attention/owned_forest.h"
#include "attention_tools/cpu/roofline.h"
#include "core/buffer.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

constexpr int32_t kHeadDim = 128, kPageSize = 16;
constexpr int kRepeats = 41;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The shortest of some runs: interference only adds.
template <class F>
double BestTime(const F& body) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRepeats; ++i) {
    const double begin = Seconds();
    body();
    best = std::min(best, Seconds() - begin);
  }
  return best;
}

// `branches` requests that share nothing, kv_len tokens each, one query; each path is cut into `cuts` items.
struct Problem {
  AttentionSpec spec;
  OwnedForest forest;
  std::vector<int32_t> members, queue;
  std::vector<WorkItem> items;
  std::vector<MergeSet> sets;
  std::vector<Contribution> contributions;
  Buffer pool, q, out;
  KvLayerView kv;

  static Result<Problem> Make(const AttentionSpec& spec, int32_t branches, int32_t kv_len, int32_t cuts, ItemKind kind) {
    Problem p;
    p.spec = spec;
    AddUniformTree({.levels = {{.tokens = kv_len, .fan_out = branches}}, .page_size = kPageSize}, p.forest);
    for (int32_t b = 0; b < branches; ++b) {
      p.sets.push_back({.branch = b,
                        .query_begin = 0,
                        .query_count = 1,
                        .contribution_begin = static_cast<int32_t>(p.contributions.size()),
                        .contribution_count = cuts});
      for (int32_t c = 0; c < cuts; ++c) {
        const int32_t id = static_cast<int32_t>(p.items.size()), rows = spec.group_size();
        p.contributions.push_back({.state_begin = cuts == 1 ? -1 : id * rows, .head_stride = 0, .item = id});
        p.queue.push_back(id);
        p.members.push_back(b);
        p.items.push_back({.kind = kind,
                           .flags = 0,
                           .heads_per_task = 1,
                           .page_row = b,
                           .kv_begin = kv_len * c / cuts,
                           .kv_end = kv_len * (c + 1) / cuts,
                           .member_begin = id,
                           .member_count = 1,
                           .state_begin = cuts == 1 ? -1 : id * rows,
                           .predicted_ns = 0});
      }
    }
    const KvPoolShape shape = {.num_pages = static_cast<int32_t>(p.forest.num_pages()),
                               .page_size = kPageSize,
                               .num_kv_heads = spec.num_kv_heads,
                               .head_dim = spec.head_dim,
                               .dtype = spec.kv_dtype};
    COPPICE_ASSIGN_OR_RETURN(p.pool, Buffer::Allocate(shape.bytes()));
    const size_t rows_bytes = static_cast<size_t>(branches) * spec.num_qo_heads * spec.head_dim * SizeOf(spec.q_dtype);
    COPPICE_ASSIGN_OR_RETURN(p.q, Buffer::Allocate(rows_bytes));
    COPPICE_ASSIGN_OR_RETURN(p.out, Buffer::Allocate(rows_bytes));
    std::ranges::fill(p.pool.Span<BF16>(), BF16::FromFloat(0.5f));
    std::ranges::fill(p.q.Span<BF16>(), BF16::FromFloat(0.25f));
    p.kv = shape.View(p.pool.data());
    return p;
  }

  // Seconds of one Run.
  Result<double> Time(Backend& backend) {
    const PlanView plan = {.spec = spec,
                           .page_size = kPageSize,
                           .items = items,
                           .members = members,
                           .merge_sets = sets,
                           .contributions = contributions,
                           .compute_queue = items[0].kind == ItemKind::kDenseTile ? queue : std::span<const int32_t>(),
                           .bandwidth_queue = items[0].kind == ItemKind::kStreamTile ? queue : std::span<const int32_t>(),
                           .num_states = static_cast<int32_t>(items.size()) * spec.group_size()};
    const PlanSizes sizes = {.max_items = static_cast<int32_t>(items.size()),
                             .max_members = static_cast<int32_t>(members.size()),
                             .max_merge_sets = static_cast<int32_t>(sets.size()),
                             .max_contributions = static_cast<int32_t>(contributions.size()),
                             .max_states = plan.num_states};
    COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<PlanExecutor> executor, backend.MakeExecutor(spec, forest.Capacity(), sizes));
    COPPICE_RETURN_IF_ERROR(executor->Upload(plan, forest.Forest(), nullptr));
    COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<BoundKv> bound, backend.BindKv(spec, kv));
    const int64_t row = int64_t{spec.num_qo_heads} * spec.head_dim;
    const RunArgs args = {.q = q.data(), .q_row_stride = row, .out = out.data(), .out_row_stride = row, .lse = nullptr};
    Status status;
    const double seconds = BestTime([&] { status = executor->Run(*bound, args, nullptr); });
    COPPICE_RETURN_IF_ERROR(status);
    return seconds;
  }
};

AttentionSpec Spec(int32_t group, int32_t head_dim) {
  return {.num_qo_heads = group, .num_kv_heads = 1, .head_dim = head_dim, .q_dtype = DType::kBF16, .kv_dtype = DType::kBF16};
}

}  // namespace

Result<MachineModel> CalibrateCpu(Executor& executor, cpu::Isa isa) {
  const int32_t workers = executor.num_workers();
  COPPICE_ASSIGN_OR_RETURN(const cpu::CpuRoofline roofline, cpu::MeasureCpuRoofline(executor, isa, DType::kBF16));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, MakeCpuBackend(&executor, isa));
  MachineModel model;
  model.name = "measured " + std::string(cpu::HostCpuModelName()) + ", " + std::to_string(workers) + " workers";
  model.kernels = cpu::Name(isa);
  model.read_bytes_per_s = roofline.read_bytes_per_s;
  model.cache_bytes_per_s = roofline.cache_bytes_per_s;
  model.cache_bytes = 0.6 * static_cast<double>(cpu::CacheBytes(3, 26u << 20));  // the rest is weights and activations

  // Dense: 128 rows over 2,048 tokens on each worker; KV in the cache.
  const auto flops = [](const Problem& p) {
    double sum = 0;
    for (const int32_t n : p.forest.branch_kv_len) sum += 4.0 * n * p.spec.num_qo_heads * p.spec.head_dim;
    return sum;
  };
  COPPICE_ASSIGN_OR_RETURN(Problem dense, Problem::Make(Spec(128, kHeadDim), workers, 2048, 1, ItemKind::kDenseTile));
  COPPICE_ASSIGN_OR_RETURN(const double dense_seconds, dense.Time(*backend));
  model.dense_flops_per_s = flops(dense) / dense_seconds;
  // Stream: few rows and many, KV small enough for the private caches: what a token costs beside its rows, and each row.
  constexpr int32_t kStreamTokens = 1024, kFewStreamRows = 2, kManyStreamRows = 8;
  const auto ns_per_token = [&](int32_t rows) -> Result<double> {
    COPPICE_ASSIGN_OR_RETURN(Problem p, Problem::Make(Spec(rows, kHeadDim), workers, kStreamTokens, 1, ItemKind::kStreamTile));
    COPPICE_ASSIGN_OR_RETURN(const double seconds, p.Time(*backend));
    return 1e9 * seconds / kStreamTokens;
  };
  COPPICE_ASSIGN_OR_RETURN(const double few_rows_ns, ns_per_token(kFewStreamRows));
  COPPICE_ASSIGN_OR_RETURN(const double many_rows_ns, ns_per_token(kManyStreamRows));
  // A tile unit computes 16 rows in the time of one.
  const double row_ns = std::max((many_rows_ns - few_rows_ns) / (kManyStreamRows - kFewStreamRows), many_rows_ns / 64);
  model.stream_flops_per_s = workers * 1e9 * 4 * kHeadDim / row_ns;
  const double token_ns = few_rows_ns - kFewStreamRows * row_ns;
  if (token_ns > 0) model.stream_kv_bytes_per_s = workers * 1e9 * 2 * kHeadDim * sizeof(BF16) / token_ns;

  // Decode steps of many short requests, as they are and cut in two. Twice the tokens give the cost of a token, and the rest is the
  // start of an item; the cut adds one more start, the fold of a set, and two states a row: two group sizes separate them.
  constexpr int32_t kBranches = 256, kTokens = 8;  // stays in the private caches
  const auto ns_per_branch = [&](int32_t group, int32_t tokens, int32_t cuts,
                                 ItemKind kind = ItemKind::kStreamTile) -> Result<double> {
    COPPICE_ASSIGN_OR_RETURN(Problem p, Problem::Make(Spec(group, kHeadDim), kBranches, tokens, cuts, kind));
    COPPICE_ASSIGN_OR_RETURN(const double seconds, p.Time(*backend));
    return 1e9 * seconds * workers / kBranches;
  };
  constexpr int32_t kFewRows = 1, kManyRows = 8;
  COPPICE_ASSIGN_OR_RETURN(const double few, ns_per_branch(kFewRows, kTokens, 1));
  COPPICE_ASSIGN_OR_RETURN(const double few_longer, ns_per_branch(kFewRows, 2 * kTokens, 1));
  COPPICE_ASSIGN_OR_RETURN(const double few_cut, ns_per_branch(kFewRows, 2 * kTokens, 2));
  COPPICE_ASSIGN_OR_RETURN(const double many_longer, ns_per_branch(kManyRows, 2 * kTokens, 1));
  COPPICE_ASSIGN_OR_RETURN(const double many_cut, ns_per_branch(kManyRows, 2 * kTokens, 2));
  const double few_added = few_cut - few_longer, many_added = many_cut - many_longer;
  const double two_states_ns = std::max(1.0, (many_added - few_added) / (kManyRows - kFewRows));
  model.item_fixed_ns = std::max(1.0, 2 * few - few_longer);
  model.merge_fixed_ns = std::max(1.0, few_added - model.item_fixed_ns - kFewRows * two_states_ns);
  // Dense tasks likewise, in whole tiles of rows.
  constexpr int32_t kDenseTokens = 64, kDenseTiles = 4;
  const AttentionSpec spec = Spec(1, kHeadDim);
  COPPICE_ASSIGN_OR_RETURN(const BackendTraits traits, backend->Traits(spec, {}));
  const int32_t dense_rows = kDenseTiles * traits.dense_tile_rows;
  COPPICE_ASSIGN_OR_RETURN(const double dense_few, ns_per_branch(dense_rows, kDenseTokens, 1, ItemKind::kDenseTile));
  COPPICE_ASSIGN_OR_RETURN(const double dense_longer, ns_per_branch(dense_rows, 2 * kDenseTokens, 1, ItemKind::kDenseTile));
  model.dense_task_ns = std::max(0.0, 2 * dense_few - dense_longer - model.item_fixed_ns) / kDenseTiles;
  constexpr double kStateBytes = (kHeadDim + 2) * sizeof(float);
  model.state_bytes_per_s = workers * 1e9 * 2 * (2 * kStateBytes) / two_states_ns;  // each written and read
  return model;
}

}  // namespace coppice::attention
