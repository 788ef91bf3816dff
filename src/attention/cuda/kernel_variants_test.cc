// Which kernel serves a spec: host code, needs no device.
#include "attention/cuda/kernel_variants.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace coppice::attention::cuda {
namespace {

constexpr AttentionSpec kSpec{.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128};

KernelPath PathOf(CudaKernels kernels, int major, int minor, const AttentionSpec& spec, int32_t page_size = 16) {
  const auto kernel = SelectKernel(kernels, major, minor, spec, page_size);
  EXPECT_TRUE(kernel.ok()) << kernel.status().ToString();
  return (*kernel)->path;
}

AttentionSpec With(int32_t AttentionSpec::*field, int32_t value) {
  AttentionSpec spec = kSpec;
  spec.*field = value;
  return spec;
}

TEST(SelectKernel, HopperWhereItCanElseMmaSync) {
  AttentionSpec deterministic = kSpec;
  deterministic.deterministic = true;
  EXPECT_EQ(PathOf(CudaKernels::kAuto, 9, 0, kSpec), KernelPath::kHopper);
  EXPECT_EQ(PathOf(CudaKernels::kAuto, 9, 0, With(&AttentionSpec::head_dim, 200)), KernelPath::kMmaSync);
  EXPECT_EQ(PathOf(CudaKernels::kAuto, 9, 0, kSpec, 100), KernelPath::kMmaSync);
  EXPECT_EQ(PathOf(CudaKernels::kAuto, 9, 0, kSpec, 3), KernelPath::kMmaSync);
  EXPECT_EQ(PathOf(CudaKernels::kAuto, 9, 0, kSpec, 1), KernelPath::kHopper);
  EXPECT_EQ(PathOf(CudaKernels::kAuto, 9, 0, deterministic), KernelPath::kHopper);
  EXPECT_EQ(PathOf(CudaKernels::kAuto, 9, 0, deterministic, 4), KernelPath::kMmaSync);
  EXPECT_EQ(PathOf(CudaKernels::kAuto, 8, 9, kSpec), KernelPath::kMmaSync);
  EXPECT_EQ(PathOf(CudaKernels::kAuto, 10, 0, kSpec), KernelPath::kMmaSync);
  EXPECT_EQ(PathOf(CudaKernels::kMmaSync, 9, 0, kSpec), KernelPath::kMmaSync);
}

// Small pages have kernels of their own, of the same tiles.
TEST(SelectKernel, SmallPagesAreGathered) {
  for (const int32_t head_dim : {64, 128}) {
    const AttentionSpec spec = With(&AttentionSpec::head_dim, head_dim);
    const KernelVariant& usual = *SelectKernel(CudaKernels::kAuto, 9, 0, spec, kBoxedPageSize).value();
    EXPECT_FALSE(usual.gathers);
    for (const int32_t page_size : {1, 2, 4}) {
      const KernelVariant& small = *SelectKernel(CudaKernels::kAuto, 9, 0, spec, page_size).value();
      EXPECT_TRUE(small.gathers);
      EXPECT_NE(small.function, usual.function);
      EXPECT_EQ(small.head_dim, usual.head_dim);
      EXPECT_EQ(small.kv_tile, usual.kv_tile);
      EXPECT_EQ(small.overlapped, nullptr);
    }
  }
}

TEST(SelectKernel, ForcedHopperSaysWhatItCannotDo) {
  const auto message = [](int major, const AttentionSpec& spec, int32_t page_size) {
    return SelectKernel(CudaKernels::kHopper, major, 0, spec, page_size).status().message();
  };
  EXPECT_TRUE(SelectKernel(CudaKernels::kHopper, 9, 0, kSpec, 16).ok());
  EXPECT_NE(message(8, kSpec, 16).find("compute capability 8.0"), std::string::npos);
  EXPECT_NE(message(9, With(&AttentionSpec::head_dim, 200), 16).find("head_dim = 200"), std::string::npos);
  EXPECT_NE(message(9, kSpec, 100).find("page_size = 100"), std::string::npos);
  AttentionSpec deterministic = kSpec;
  deterministic.deterministic = true;
  EXPECT_NE(message(9, deterministic, 4).find("page_size = 4 in deterministic mode"), std::string::npos);
}

TEST(SelectKernel, PadsHeadDimUpwards) {
  for (const int32_t head_dim : {8, 64, 72, 128, 136, 256}) {
    const auto kernel = SelectKernel(CudaKernels::kMmaSync, 8, 0, With(&AttentionSpec::head_dim, head_dim), 16);
    ASSERT_TRUE(kernel.ok());
    EXPECT_GE((*kernel)->head_dim, head_dim);
    EXPECT_LT((*kernel)->head_dim, 2 * std::max(head_dim, 33));
  }
  EXPECT_EQ(SelectKernel(CudaKernels::kAuto, 9, 0, With(&AttentionSpec::head_dim, 264), 16).status().code(),
            StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace coppice::attention::cuda
