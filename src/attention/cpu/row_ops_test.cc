#include "attention/cpu/row_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace coppice::attention::cpu {
namespace {

// Each instruction set that this machine has, and every head_dim.
template <class F>
void ForEachIsaAndDim(F check) {
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > DetectIsa()) break;
    for (int32_t dim = 8; dim <= 256; dim += dim < 40 ? 1 : 8) {
      SCOPED_TRACE(std::string(Name(isa)) + ", head_dim " + std::to_string(dim));
      check(RowKernelsOf(isa), dim);
    }
  }
}

// Ordinary values, and at the front what rounding may get wrong.
std::vector<float> Values(int32_t dim) {
  std::mt19937 rng(static_cast<uint32_t>(dim));
  std::normal_distribution<float> normal;
  std::vector<float> values(dim);
  for (float& x : values) x = normal(rng);
  const uint32_t odd[] = {0x3f808000u, 0x3f818000u, 0x3f808001u, 0x7f7fffffu, 0x7f800000u, 0xff800000u, 0x7fffffffu, 0x80000001u};
  for (int i = 0; i < 8; ++i) values[i] = std::bit_cast<float>(odd[i]);
  return values;
}

TEST(RowOps, FoldIsTheWeightedSum) {
  ForEachIsaAndDim([](const RowKernels& kernels, int32_t dim) {
    std::vector<float> from = Values(dim);
    std::copy_n(from.rbegin(), 8, from.begin());  // finite ones
    if (dim < 16) std::iota(from.begin(), from.end(), 0.3f);
    const std::vector<float> into(from.rbegin(), from.rend());
    std::vector<float> got = into;
    got.push_back(42);
    kernels.fold(got.data(), 0.75f, from.data(), 0.3f, dim);
    for (int32_t e = 0; e < dim; ++e) {
      const double want = static_cast<double>(into[e]) * 0.75f + static_cast<double>(from[e]) * 0.3f;
      EXPECT_NEAR(got[e], want, 2e-7 * (std::abs(into[e]) + std::abs(from[e]))) << e;
    }
    EXPECT_EQ(got[dim], 42) << "wrote past the row";
  });
}

TEST(RowOps, StoresWhatTheScalarConversionGives) {
  ForEachIsaAndDim([](const RowKernels& kernels, int32_t dim) {
    const std::vector<float> acc = Values(dim);
    constexpr float kScale = 1.0f;
    std::vector<BF16> bf16(dim + 1, BF16{0x1234});
    std::vector<F16> f16(dim);
    std::vector<float> f32(dim);
    kernels.store_bf16(acc.data(), kScale, dim, bf16.data());
    StoreRow(acc.data(), kScale, dim, DType::kF16, reinterpret_cast<std::byte*>(f16.data()));
    kernels.store_f32(acc.data(), kScale, dim, f32.data());
    for (int32_t e = 0; e < dim; ++e) {
      EXPECT_EQ(bf16[e].bits, BF16::FromFloat(acc[e]).bits) << e;
      EXPECT_EQ(f16[e].bits, F16::FromFloat(acc[e]).bits) << e;
      EXPECT_TRUE(f32[e] == acc[e] || (std::isnan(f32[e]) && std::isnan(acc[e]))) << e;
    }
    EXPECT_EQ(bf16[dim].bits, 0x1234) << "wrote past the row";

    kernels.store_f32(acc.data(), 0.5f, dim, f32.data());
    EXPECT_EQ(f32[0], acc[0] * 0.5f);
  });
}

TEST(RowOps, LoadsWhatWasStored) {
  ForEachIsaAndDim([](const RowKernels& kernels, int32_t dim) {
    const std::vector<float> values = Values(dim);
    std::vector<BF16> stored(dim);
    kernels.store_bf16(values.data(), 1.0f, dim, stored.data());
    std::vector<float> loaded(dim + 1, 42);
    kernels.load_bf16(stored.data(), dim, loaded.data());
    for (int32_t e = 0; e < dim; ++e) EXPECT_EQ(std::bit_cast<uint32_t>(loaded[e]), uint32_t{stored[e].bits} << 16) << e;
    EXPECT_EQ(loaded[dim], 42) << "wrote past the row";
  });
}

// The functions that the library calls, which take the best of the kernels.
TEST(RowOps, EveryDtypeThereAndBack) {
  const std::vector<float> values = Values(72);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::vector<std::byte> stored(72 * SizeOf(dtype)), again(72 * SizeOf(dtype));
    StoreRow(values.data(), 1.0f, 72, dtype, stored.data());
    std::vector<float> loaded(72);
    LoadRow(stored.data(), 72, dtype, loaded.data());
    StoreRow(loaded.data(), 1.0f, 72, dtype, again.data());
    EXPECT_EQ(std::memcmp(stored.data(), again.data(), stored.size()), 0);
    EXPECT_NEAR(loaded[20], values[20], std::abs(values[20]) * 0.004f + 1e-7f);
  }
}

}  // namespace
}  // namespace coppice::attention::cpu
