// The benchmark of one attention layer over a forest of its caller's, on the CPU.
#include "attention_tools/attention_bench.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "attention/cpu/cpu_features.h"
#include "attention_tools/forest_trace.h"
#include "core/thread_pool.h"

namespace coppice::attention {
namespace {

// Four samples of a prompt of 300 tokens, a chunk of 40 tokens of another prompt, and a branch that waits.
OwnedForest Forest() {
  TracedForest traced = {
      .nodes = {{.parent = kNoParent, .tokens = 300}, {.parent = kNoParent, .tokens = kLive}, {.parent = 0, .tokens = kLive}},
      .branches = {{.node = 1, .kv_len = 90, .queries = 40}, {.node = 2, .kv_len = 310, .queries = 0}}};
  for (int32_t i = 0; i < 4; ++i) {
    traced.branches.push_back({.node = static_cast<int32_t>(traced.nodes.size()), .kv_len = 301 + 20 * i, .queries = 1});
    traced.nodes.push_back({.parent = 0, .tokens = kLive});
  }
  return LayOutPages(traced, 16).value();
}

TEST(AttentionBench, AForestIsMeasuredAndChecked) {
  constexpr BenchMode kModes[] = {BenchMode::kPlanned, BenchMode::kAllShared, BenchMode::kOneLevel, BenchMode::kStore,
                                  BenchMode::kDeterministic};
  const auto threads = ThreadPool::Create(2).value();
  const auto device = MakeCpuBenchDevice(*threads, cpu::DetectIsa()).value();
  AttentionBench bench(*device, {.rounds = {.repeats = 1}, .modes = kModes});
  for (const int32_t window : {0, 70}) {
    SCOPED_TRACE(window);
    const AttentionSpec spec = {.num_qo_heads = 9, .num_kv_heads = 3, .head_dim = 64, .window = window};
    const Result<double> error = bench.Check(spec, Forest());
    ASSERT_TRUE(error.ok()) << error.status().message();
    EXPECT_GT(*error, 0) << "nothing was compared";
    const std::vector<BenchRow> rows = bench.Run(spec, Forest()).value();
    ASSERT_EQ(rows.size(), std::size(kModes));
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].mode, kModes[i]);
      EXPECT_GT(rows[i].median_s, 0);
      EXPECT_LE(rows[i].kv_bytes, rows[i].kv_bytes_unshared);
    }
    EXPECT_EQ(rows[3].kv_bytes, rows[3].kv_bytes_unshared) << "store reads for each branch";
    EXPECT_LT(rows[1].kv_bytes, rows[3].kv_bytes) << "the prompt is read once";
  }
}

}  // namespace
}  // namespace coppice::attention
