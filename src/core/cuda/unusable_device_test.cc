// Errors of Device::CreateCuda and of an opened device where a GPU cannot be used, over stand-ins for the CUDA runtime's functions:
// runs without a GPU. Layer: core/cuda, tests.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "core/device.h"

namespace coppice {
namespace {

struct FakeMachine {
  int driver = 13000, runtime = 13000, devices = 1, major = 9, minor = 0;
  cudaError_t count_error = cudaSuccess, malloc_error = cudaSuccess, synchronize_error = cudaSuccess;
  size_t free_bytes = 1000, total_bytes = 4000;
};
FakeMachine machine;

class UnusableDevice : public ::testing::Test {
 protected:
  void SetUp() override { machine = {}; }
  static Status Open(int ordinal = 0) { return Device::CreateCuda(ordinal).status(); }
  static void ExpectUnavailable(const Status& status, const std::string& words) {
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  }
};

TEST_F(UnusableDevice, TheMachineOfTheseTestsIsUsable) { EXPECT_TRUE(Open().ok()) << Open().ToString(); }

TEST_F(UnusableDevice, NoDriver) {
  machine.driver = 0;
  ExpectUnavailable(Open(), "no NVIDIA driver was found: install one, or use the CPU");
}

TEST_F(UnusableDevice, ADriverOlderThanTheToolkit) {
  machine.driver = 12080;
  ExpectUnavailable(Open(), "the NVIDIA driver supports CUDA 12.8, this build needs 13.0: update the driver");
  machine.driver = 13000, machine.runtime = 13010;  // a minor version does not matter
  EXPECT_TRUE(Open().ok()) << Open().ToString();
}

TEST_F(UnusableDevice, NoDeviceThatTheDriverShows) {
  machine.count_error = cudaErrorNoDevice;
  ExpectUnavailable(Open(), "no CUDA device can be used: no CUDA-capable device");
}

TEST_F(UnusableDevice, AnOrdinalBeyondTheLast) {
  ExpectUnavailable(Open(1), "there is no CUDA device 1: this machine has 1");
  ExpectUnavailable(Open(-1), "there is no CUDA device -1: this machine has 1");
}

TEST_F(UnusableDevice, AnOlderComputeCapability) {
  machine.major = 7, machine.minor = 5;
  ExpectUnavailable(Open(), "Stand-in has compute capability 7.5, expected 8.0 or newer");
  machine.major = 8, machine.minor = 0;
  EXPECT_TRUE(Open().ok()) << Open().ToString();
}

TEST_F(UnusableDevice, TooLittleMemoryIsReportedWithFigures) {
  const auto device = Device::CreateCuda(0).value();
  machine.malloc_error = cudaErrorMemoryAllocation;
  const Status status = device->Allocate(3000).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_EQ(status.message(), "cannot allocate 3000 bytes of memory of Stand-in, of which 1000 of 4000 are free");
}

TEST_F(UnusableDevice, ALostDeviceIsUnavailable) {
  const auto device = Device::CreateCuda(0).value();
  machine.synchronize_error = cudaErrorIllegalAddress;
  ExpectUnavailable(device->Synchronize(Stream{nullptr}), "lost");
}

}  // namespace
}  // namespace coppice

using coppice::machine;

extern "C" {
cudaError_t cudaDriverGetVersion(int* version) { return *version = machine.driver, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = machine.runtime, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = machine.devices, machine.count_error; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "Stand-in");
  properties->major = machine.major;
  properties->minor = machine.minor;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "an error";
}
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaMalloc(void**, size_t) { return machine.malloc_error; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return *free = machine.free_bytes, *total = machine.total_bytes, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return machine.synchronize_error; }
}
