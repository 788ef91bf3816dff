// The attention benchmark on a CUDA device. Skips itself where there is none.
#include <gtest/gtest.h>

#include <iterator>

#include "attention_tools/attention_bench.h"

namespace coppice::attention {
namespace {

// The benchmark that `coppice bench attention --device cuda` runs.
TEST(CudaBenchDevice, MeasuresEveryMode) {
  const auto device = MakeCudaBenchDevice(0);
  if (!device.ok()) GTEST_SKIP() << device.status().ToString();
  const BenchTree tree = {.name = "1024,32x16", .levels = {{1024, 1}, {32, 16}}, .queries = 1};
  const AttentionSpec spec = {.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  const auto rows = RunAttentionBench(**device, spec, tree, {.rounds = {.repeats = 3}});
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  ASSERT_EQ(rows->size(), std::size(kAllBenchModes));
  for (const BenchRow& row : *rows) {
    EXPECT_GT(row.fastest_s, row.roofline_s) << Name(row.mode);
    EXPECT_LT(row.median_s, 1e-3) << Name(row.mode);
  }
}

}  // namespace
}  // namespace coppice::attention
