// A two-level forest with the installed library alone: three requests share a 32-token prefix, each adds tokens of its own, and
// one call attends for all of them, reading the prefix once. Checked against a plain softmax loop. Exit status 1 on a difference.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "coppice/attention/attention.h"

using namespace coppice;
using namespace coppice::attention;

// The library runs on the caller's threads; this caller has one.
struct Serial : Executor {
  int num_workers() const override { return 1; }
  void ParallelFor(int64_t count, TaskRef task) override {
    for (int64_t i = 0; i < count; ++i) task.Run(i, 0);
  }
};

template <class T>
T OrDie(Result<T> result) {
  if (result.ok()) return *std::move(result);
  std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
  std::exit(1);
}
void OrDie(const Status& status) { OrDie(status.ok() ? Result<int>(0) : Result<int>(status)); }

// NaN counts as the largest difference there is.
float Difference(double a, double b) { return std::isnan(a) ? INFINITY : static_cast<float>(std::fabs(a - b)); }

int main() {
  const AttentionSpec spec{.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64, .q_dtype = DType::kF32, .kv_dtype = DType::kF32};
  const KvPoolShape shape{.num_pages = 8, .page_size = 16, .num_kv_heads = 2, .head_dim = 64, .dtype = DType::kF32};
  std::vector<float> pool(shape.bytes() / sizeof(float)), q(3 * 4 * 64), out(q.size());
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = std::sin(0.7f * static_cast<float>(i % 9973));
  for (size_t i = 0; i < q.size(); ++i) q[i] = std::cos(0.3f * static_cast<float>(i));

  // Node 0 is the prefix [0, 32); nodes 1-3 are the requests' own tokens. Each page row begins with the shared pages 0 and 1.
  const std::vector<int32_t> parent{kNoParent, 0, 0, 0}, begin{0, 32, 32, 32}, end{32, kLive, kLive, kLive};
  const std::vector<int32_t> leaf{1, 2, 3}, query_begin{0, 1, 2}, query_count{1, 1, 1}, kv_len{33, 47, 64};
  const std::vector<int32_t> row_begin{0, 4, 8}, row_capacity{4, 4, 4}, pages{0, 1, 2, 3, 0, 1, 4, 5, 0, 1, 6, 7};
  const PrefixForestView forest{.page_size = 16,
                                .version = 1,
                                .node_parent = parent,
                                .node_begin = begin,
                                .node_end = end,
                                .branch_node = leaf,
                                .branch_query_begin = query_begin,
                                .branch_query_count = query_count,
                                .branch_kv_len = kv_len,
                                .branch_page_begin = row_begin,
                                .branch_page_capacity = row_capacity,
                                .page_indices = pages};

  Serial executor;
  auto context = OrDie(Context::CreateCpu(&executor));
  // Sharing a prefix this short saves no time; a real engine leaves that to the cost model.
  const PlannerOptions options{.force_sharing = true};
  auto plan = OrDie(AttentionPlan::Create(*context, spec, {.max_branches = 3, .max_queries = 3, .max_page_slots = 12}, options));
  const KvLayerView kv = shape.View(pool.data());
  auto bound = OrDie(context->BindKv(spec, kv));
  OrDie(plan->Update(forest));
  OrDie(plan->Upload());
  OrDie(plan->Run(*bound, {.q = q.data(), .q_row_stride = 256, .out = out.data(), .out_row_stride = 256}));

  float worst = 0;
  for (int row = 0; row < 3 * 4; ++row) {  // one query per request, four heads each
    const int branch = row / 4, kv_head = row % 4 / 2;
    std::vector<double> expected(64);
    double sum = 0;
    for (int t = 0; t < kv_len[branch]; ++t) {
      const int64_t at = pages[branch * 4 + t / 16] * kv.page_stride + kv_head * kv.head_stride + t % 16 * kv.slot_stride;
      double score = 0;
      for (int d = 0; d < 64; ++d) score += q[row * 64 + d] * static_cast<const float*>(kv.k)[at + d];
      const double weight = std::exp(score / 8);  // 1 / sqrt(head_dim)
      sum += weight;
      for (int d = 0; d < 64; ++d) expected[d] += weight * static_cast<const float*>(kv.v)[at + d];
    }
    for (int d = 0; d < 64; ++d) worst = std::max(worst, Difference(out[row * 64 + d], expected[d] / sum));
  }
  std::printf("%s\nlargest difference from the plain loop: %.2g\n", plan->Explain().c_str(), worst);
  return worst < 1e-4f ? 0 : 1;
}
