#include "engine/open_device.h"

#include <gtest/gtest.h>

#include "core/thread_pool.h"

namespace coppice {
namespace {

TEST(DeviceName, NamesADeviceOrIsRefused) {
  EXPECT_EQ(ParseDeviceName("cpu")->kind, DeviceKind::kCpu);
  EXPECT_EQ(ParseDeviceName("cuda")->kind, DeviceKind::kCuda);
  EXPECT_EQ(ParseDeviceName("cuda")->ordinal, 0);
  EXPECT_FALSE(ParseDeviceName("cuda")->optional);
  EXPECT_EQ(ParseDeviceName("cuda:7")->ordinal, 7);
  EXPECT_TRUE(ParseDeviceName("auto")->optional);
  for (const char* text : {"", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:1x", "cuda: 1", "cuda1", "cuda:99999999999", "cpu:0"}) {
    const Result<DeviceName> name = ParseDeviceName(text);
    ASSERT_EQ(name.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(name.status().message().find(std::string("\"") + text + "\""), std::string::npos);
  }
}

TEST(OpenDevice, TheCpuComputesInBf16AndF32) {
  ThreadPool threads(1);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_EQ(OpenDevice({}, dtype, &threads).value()->kind(), DeviceKind::kCpu);
  }
  // f32 is for exactness, which a GPU's matrix units do not have: auto takes the CPU.
  EXPECT_EQ(OpenDevice(ParseDeviceName("auto").value(), DType::kF32, &threads).value()->kind(), DeviceKind::kCpu);
  EXPECT_EQ(OpenDevice(ParseDeviceName("cuda").value(), DType::kF32, &threads).status().code(), StatusCode::kInvalidArgument);
}

TEST(OpenDevice, TheCpuDoesNotComputeInF16) {
  ThreadPool threads(1);
  const Status status = OpenDevice(ParseDeviceName("cpu").value(), DType::kF16, &threads).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("f16 was asked for"), std::string::npos) << status.message();
}

TEST(OpenDevice, ADeviceThatIsNotThereIsNamedUnlessOptional) {
  ThreadPool threads(1);
  EXPECT_EQ(OpenDevice(ParseDeviceName("cuda:4000").value(), DType::kBF16, &threads).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(OpenDevice(ParseDeviceName("auto").value(), DType::kBF16, &threads).ok());
}

}  // namespace
}  // namespace coppice
