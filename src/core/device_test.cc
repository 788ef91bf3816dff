#include "core/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "core/device_tensor.h"
#include "core/thread_pool.h"

namespace coppice {
namespace {

TEST(CpuDevice, MemoryIsZeroAlignedAndTheHosts) {
  ThreadPool threads(1);
  const auto device = Device::CreateCpu(&threads);
  EXPECT_EQ(device->kind(), DeviceKind::kCpu);
  EXPECT_EQ(device->executor(), &threads);
  for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kHostPinned}) {
    Result<DeviceMemory> memory = device->Allocate(1000, kind);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(memory->size(), 1000u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 64, 0u);
    EXPECT_TRUE(std::all_of(memory->data(), memory->data() + 1000, [](std::byte b) { return b == std::byte{0}; }));
    const DeviceMemory moved = *std::move(memory);
    std::vector<float> values(250, 1.5f), back(250);
    ASSERT_TRUE(device->Copy(moved.data(), values.data(), 1000, nullptr).ok());
    ASSERT_TRUE(device->Copy(back.data(), moved.data(), 1000, nullptr).ok());
    EXPECT_EQ(back, values);
    ASSERT_TRUE(device->Zero(moved.data(), 500, nullptr).ok());
    EXPECT_EQ(moved.As<float>()[124], 0.0f);
    EXPECT_EQ(moved.As<float>()[125], 1.5f);
  }
}

TEST(CpuDevice, ReleasedMemoryKeepsItsAddressAndLosesItsContentUnlessThatIsKept) {
  const auto device = Device::CreateCpu(nullptr);
  constexpr size_t kBytes = size_t{8} << 20;
  const DeviceMemory kv = device->Allocate(kBytes, MemoryKind::kKv).value();
  const DeviceMemory weights = device->Allocate(1000, MemoryKind::kWeights).value();
  const auto fill = [](const DeviceMemory& memory) { std::fill_n(memory.data(), memory.size(), std::byte{7}); };
  const auto holds = [](const DeviceMemory& memory, int value) {
    return std::all_of(memory.data(), memory.data() + memory.size(), [=](std::byte b) { return b == std::byte(value); });
  };
  fill(kv);
  fill(weights);
  ASSERT_TRUE(device->Release(MemoryKind::kKv, /*keep_content=*/false).ok());
  ASSERT_TRUE(device->Release(MemoryKind::kWeights, /*keep_content=*/true).ok());
  ASSERT_TRUE(device->Restore(MemoryKind::kKv).ok());
  EXPECT_TRUE(holds(kv, 0));
  EXPECT_TRUE(holds(weights, 7));
  fill(kv);
  ASSERT_TRUE(device->Release(MemoryKind::kWeights, /*keep_content=*/false).ok());
  EXPECT_TRUE(holds(weights, 0));
  EXPECT_TRUE(holds(kv, 7));
}

TEST(CpuDevice, WhatCannotBeIsAStatus) {
  const auto device = Device::CreateCpu(nullptr);
  EXPECT_EQ(device->Allocate(std::numeric_limits<size_t>::max() / 2).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(device->Allocate(0)->data(), nullptr);
  EXPECT_EQ(device->BeginCapture(nullptr).code(), StatusCode::kUnimplemented);
  const Result<Device::MemoryInfo> info = device->GetMemoryInfo();
  ASSERT_TRUE(info.ok());
  EXPECT_GT(info->free_bytes, 0);
  EXPECT_LE(info->free_bytes, info->total_bytes);
}

TEST(DeviceTensor, RowsAndColumnsAreViews) {
  std::vector<float> values(6 * 8);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const DeviceTensor tensor{.data = values.data(), .dtype = DType::kF32, .rows = 6, .cols = 5, .stride = 8};
  const MatrixView<float> part = HostView<float>(tensor.Rows(2, 3).Cols(1, 4));
  EXPECT_EQ(part.rows, 3);
  EXPECT_EQ(part.cols, 4);
  EXPECT_EQ(part(0, 0), 17.0f);
  EXPECT_EQ(part(2, 3), 36.0f);
  const ConstDeviceTensor constant = tensor;
  EXPECT_EQ(HostView<float>(constant.Rows(5, 1))(0, 4), 44.0f);
}

}  // namespace
}  // namespace coppice
