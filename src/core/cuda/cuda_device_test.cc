// A CUDA device: memory, copies, events and graphs. Skips itself where there is none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "core/check.h"
#include "core/device.h"

namespace coppice {
namespace {

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Device>> device = Device::CreateCuda(0);
    if (!device.ok()) GTEST_SKIP() << device.status().ToString();
    device_ = *std::move(device);
  }
  std::unique_ptr<Device> device_;
};

TEST_F(CudaDeviceTest, CopiesGoThroughStreamsAndEvents) {
  const auto first = device_->CreateStream().value(), second = device_->CreateStream().value();
  const auto event = device_->CreateEvent().value();
  const size_t bytes = size_t{1} << 20;
  const DeviceMemory from = device_->Allocate(bytes, MemoryKind::kHostPinned).value();
  const DeviceMemory on_device = device_->Allocate(bytes).value(), back = device_->Allocate(bytes, MemoryKind::kHostPinned).value();
  for (size_t i = 0; i < bytes / 4; ++i) from.As<uint32_t>()[i] = static_cast<uint32_t>(i * 2654435761u);
  ASSERT_TRUE(device_->Copy(on_device.data(), from.data(), bytes, first->get()).ok());
  ASSERT_TRUE(device_->Record(*event, first->get()).ok());
  ASSERT_TRUE(device_->Wait(second->get(), *event).ok());
  ASSERT_TRUE(device_->Copy(back.data(), on_device.data(), bytes, second->get()).ok());
  ASSERT_TRUE(device_->Synchronize(second->get()).ok());
  for (size_t i = 0; i < bytes / 4; ++i) ASSERT_EQ(back.As<uint32_t>()[i], from.As<uint32_t>()[i]);
}

TEST_F(CudaDeviceTest, AGraphReplaysWhatWasCaptured) {
  const auto stream = device_->CreateStream().value();
  const DeviceMemory from = device_->Allocate(4, MemoryKind::kHostPinned).value(), to = device_->Allocate(4).value();
  const DeviceMemory back = device_->Allocate(4, MemoryKind::kHostPinned).value();
  const auto copy_there_and_back = [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(device_->Copy(to.data(), from.data(), 4, stream->get()));
    return device_->Copy(back.data(), to.data(), 4, stream->get());
  };
  const std::unique_ptr<Graph> graph = CaptureGraph(*device_, stream->get(), copy_there_and_back).value();
  for (const uint32_t value : {7u, 8u}) {
    *from.As<uint32_t>() = value;
    ASSERT_TRUE(device_->Launch(*graph, stream->get()).ok());
    ASSERT_TRUE(device_->Synchronize(stream->get()).ok());
    EXPECT_EQ(*back.As<uint32_t>(), value);
  }
}

// Memory of several sizes, small and large, that a captured graph reads and writes.
TEST_F(CudaDeviceTest, GraphsOutliveReleasedMemory) {
  const auto stream = device_->CreateStream().value();
  const auto free_bytes = [&] { return device_->GetMemoryInfo().value().free_bytes; };
  for (const bool keeps : {true, false}) {
    const int64_t before = free_bytes();
    std::vector<DeviceMemory> memory;
    for (const size_t bytes : {size_t{1000}, size_t{3} << 20, size_t{300} << 20}) {
      memory.push_back(device_->Allocate(bytes, MemoryKind::kWeights).value());
      ASSERT_EQ(reinterpret_cast<uintptr_t>(memory.back().data()) % 256, 0u);
    }
    const DeviceMemory kv = device_->Allocate(size_t{64} << 20, MemoryKind::kKv).value();
    const DeviceMemory host = device_->Allocate(size_t{300} << 20, MemoryKind::kHostPinned).value();
    const auto fill = [&](uint8_t value) {
      std::memset(host.data(), value, host.size());
      for (const DeviceMemory& part : memory) ASSERT_TRUE(device_->Copy(part.data(), host.data(), part.size(), stream->get()).ok());
      ASSERT_TRUE(device_->Synchronize(stream->get()).ok());
    };
    const auto holds = [&](const DeviceMemory& part, uint8_t value) {
      EXPECT_TRUE(device_->Copy(host.data(), part.data(), part.size(), stream->get()).ok());
      EXPECT_TRUE(device_->Synchronize(stream->get()).ok());
      return std::all_of(host.data(), host.data() + part.size(), [&](std::byte b) { return b == std::byte{value}; });
    };
    fill(7);
    const std::unique_ptr<Graph> graph =
        CaptureGraph(*device_, stream->get(), [&] {
          return device_->Copy(memory[1].data(), memory[2].data(), memory[1].size(), stream->get());
        }).value();
    const int64_t used = free_bytes();
    ASSERT_TRUE(device_->Release(MemoryKind::kWeights, keeps).ok());
    EXPECT_GT(free_bytes(), used + (int64_t{300} << 20));
    EXPECT_EQ(device_->Allocate(1, MemoryKind::kWeights).status().code(), StatusCode::kFailedPrecondition);
    ASSERT_TRUE(device_->Restore(MemoryKind::kWeights).ok());
    for (const DeviceMemory& part : memory) EXPECT_TRUE(holds(part, keeps ? 7 : 0)) << part.size();
    EXPECT_TRUE(holds(kv, 0));
    fill(9);
    ASSERT_TRUE(device_->Zero(memory[1].data(), memory[1].size(), stream->get()).ok());
    ASSERT_TRUE(device_->Launch(*graph, stream->get()).ok());
    EXPECT_TRUE(holds(memory[1], 9));
    memory.clear();
    EXPECT_GE(free_bytes(), before - (int64_t{80} << 20)) << "all but what is still there";
  }
}

TEST_F(CudaDeviceTest, AfterAnErrorTheStreamHasLeftTheCapture) {
  const auto stream = device_->CreateStream().value();
  EXPECT_EQ(CaptureGraph(*device_, stream->get(), [] { return InvalidArgument("no step"); }).status().message(), "no step");
  const auto run_out = []() -> Status { throw std::bad_alloc(); };
  EXPECT_EQ(CaptureGraph(*device_, stream->get(), run_out).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(device_->Synchronize(stream->get()).ok()) << "which no stream that captures can";
  EXPECT_TRUE(CaptureGraph(*device_, stream->get(), [] { return OkStatus(); }).ok());
}

TEST_F(CudaDeviceTest, WhatIsNotThereIsRefusedWithFigures) {
  const Result<DeviceMemory> memory = device_->Allocate(size_t{1} << 50);
  ASSERT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(memory.status().message().find("are free"), std::string::npos) << memory.status().message();
  EXPECT_TRUE(device_->Allocate(1000).ok()) << "the device goes on";
  EXPECT_EQ(Device::CreateCuda(10000).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace coppice
