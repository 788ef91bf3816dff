// A CUDA device: memory, copies, events and graphs. Skips itself where there is none.
#include <gtest/gtest.h>

#include <cstdint>
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
