// Dense tiles of integers beside the portable tile, at any scale; values that are not finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attention/cpu/cpu_features.h"
#include "attention/cpu/kernel_table.h"

namespace coppice::attention::cpu {
namespace {

class IntegerTileTest : public ::testing::TestWithParam<Isa> {
 protected:
  static constexpr int32_t kTokens = 200, kRows = 21, kPageSize = 16;

  void SetUp() override {
    if (!HasIsa(GetParam())) GTEST_SKIP() << "this machine lacks " << Name(GetParam());
    if (GetParam() == Isa::kAvx512 && !CpuHasAvx512Vnni()) GTEST_SKIP() << "no VNNI";
    ASSERT_NE(std::string(KernelsOf(GetParam()).dense.name).find("int16"), std::string::npos);
  }

  static TileKernels KernelsOf(Isa isa, int32_t head_dim = 64) {
    return SelectKernels(isa, {.num_qo_heads = 1, .num_kv_heads = 1, .head_dim = head_dim});
  }

  struct Problem {
    Problem(int32_t head_dim, float q_scale, float k_scale, float v_scale) : d(head_dim) {
      std::mt19937 rng(static_cast<uint32_t>(d));
      std::normal_distribution<float> normal;
      const auto fill = [&](std::vector<BF16>& to, int32_t rows, float scale) {
        for (int32_t i = 0; i < rows * d; ++i) to.push_back(BF16::FromFloat(scale * normal(rng)));
      };
      fill(q, kRows, q_scale);
      fill(k, kTokens + kPageSize, k_scale);
      fill(v, kTokens + kPageSize, v_scale);
      for (int32_t page = 0; page <= kTokens / kPageSize; ++page) pages.push_back(page);
      for (int32_t row = 0; row < kRows; ++row) {  // some see all, some a part
        queries.push_back({.q_row = row, .begin = row % 3 * 10, .end = kTokens - row % 4 * 17, .span_begin = INT32_MAX});
      }
    }
    // [row][d], normalised.
    std::vector<float> Run(Isa isa, float soft_cap = 0) const {
      const int64_t row_bytes = int64_t{d} * 2;
      const TileTask task = {.kv = {.k = reinterpret_cast<const std::byte*>(k.data()),
                                    .v = reinterpret_cast<const std::byte*>(v.data()),
                                    .page_bytes = kPageSize * row_bytes,
                                    .slot_bytes = row_bytes,
                                    .pages = pages.data(),
                                    .page_size = kPageSize},
                             .kv_begin = 0,
                             .kv_end = kTokens,
                             .queries = queries,
                             .group_size = 1,
                             .head_dim = d,
                             .q = reinterpret_cast<const std::byte*>(q.data()),
                             .q_row_bytes = row_bytes,
                             .score_scale = (soft_cap == 0 ? 1.442695f : 1.0f) / std::sqrt(static_cast<float>(d)),
                             .soft_cap = soft_cap};
      const TileKernel kernel = KernelsOf(isa, d).dense;
      std::vector<std::byte> memory(kernel.scratch_bytes(d, kRows) + 64);
      auto* scratch = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
      std::vector<float> out(int64_t{kRows} * d), m(kRows), l(kRows);
      kernel.run(task, {.acc = out.data(), .acc_stride = d, .m = m.data(), .l = l.data()}, scratch);
      for (size_t i = 0; i < out.size(); ++i) out[i] /= l[i / d];
      return out;
    }
    int32_t d;
    std::vector<BF16> q, k, v;
    std::vector<int32_t> pages;
    std::vector<TileQuery> queries;
  };
};

INSTANTIATE_TEST_SUITE_P(Isa, IntegerTileTest, ::testing::Values(Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(IntegerTileTest, FollowFloatsAtAnyScale) {
  for (const int32_t d : {8, 64, 72, 128, 256}) {
    for (const float k_scale : {1e-18f, 1.0f, 1e18f}) {
      for (const float v_scale : {1e-18f, 1.0f, 1e18f}) {
        const Problem problem(d, 1.5f / k_scale, k_scale, v_scale);
        for (const float soft_cap : {0.0f, 2.0f}) {
          const std::vector<float> got = problem.Run(GetParam(), soft_cap), want = problem.Run(Isa::kBaseline, soft_cap);
          float worst = 0, largest = 0;
          for (size_t i = 0; i < got.size(); ++i) {
            worst = std::max(worst, std::abs(got[i] - want[i]));
            largest = std::max(largest, std::abs(want[i]));
          }
          EXPECT_LE(worst, 2e-3f * largest) << "head_dim " << d << ", K " << k_scale << ", V " << v_scale << ", cap " << soft_cap;
        }
      }
    }
  }
}

TEST_P(IntegerTileTest, ValuesThatAreNotFiniteAreNotHidden) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Problem problem(64, 1, 1, 1);
    problem.v[64 * 18 + 5] = BF16::FromFloat(bad);
    const std::vector<float> out = problem.Run(GetParam());
    for (int32_t row = 0; row < kRows; ++row) {
      if (problem.queries[row].begin <= 18) {
        EXPECT_TRUE(std::isnan(out[row * 64])) << "row " << row;
      }
    }
  }
}

}  // namespace
}  // namespace coppice::attention::cpu
