#include "engine/open_device.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

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

TEST(DeviceNames, SeveralAreRanks) {
  EXPECT_EQ(ParseDeviceNames("auto")->size(), 1u);
  EXPECT_EQ(ParseDeviceNames("cuda:1")->size(), 1u);
  EXPECT_EQ(ParseDeviceNames("cpu,cpu,cpu")->size(), 3u);
  const auto gpus = ParseDeviceNames("cuda:3,cuda");
  ASSERT_TRUE(gpus.ok()) << gpus.status().ToString();
  ASSERT_EQ(gpus->size(), 2u);
  EXPECT_EQ((*gpus)[0].ordinal, 3);
  EXPECT_EQ((*gpus)[1].ordinal, 0);
  const auto message = [](const std::string& text) { return ParseDeviceNames(text).status().message(); };
  const auto refused = [](const std::string& text, const std::string& why) {
    return "device is \"" + text + "\", " + why +
           ": expected one device, several GPUs (cuda:0,cuda:1) or cpu several times (cpu,cpu)";
  };
  for (const char* text : {"cpu,cuda", "auto,cpu", "cpu,auto", "auto,auto", "cuda:0,auto"}) {
    EXPECT_EQ(message(text), refused(text, "whose ranks are not of one kind"));
  }
  EXPECT_EQ(message("cuda,cuda"), refused("cuda,cuda", "which names cuda:0 twice"));
  EXPECT_EQ(message("cuda:1,cuda:2,cuda:1"), refused("cuda:1,cuda:2,cuda:1", "which names cuda:1 twice"));
  const std::string nine = "cuda:0,cuda:1,cuda:2,cuda:3,cuda:4,cuda:5,cuda:6,cuda:7,cuda:8";
  EXPECT_EQ(message(nine), refused(nine, "9 GPUs, of at most 8"));
  EXPECT_EQ(message("cpu,"), "device is \"\", expected auto, cpu, cuda or cuda:0");
  EXPECT_EQ(message("cpu, cpu"), "device is \" cpu\", expected auto, cpu, cuda or cuda:0");
  std::string many = "cpu";
  for (int rank = 1; rank < 65; ++rank) many += ",cpu";
  EXPECT_EQ(message(many), refused(many, "65 ranks, of at most 64"));
}

TEST(OpenDevices, OneForEachRank) {
  ThreadPool first(1), second(1);
  const std::vector<Executor*> executors = {&first, &second};
  const auto devices = OpenDevices({.device = "cpu,cpu"}, executors);
  ASSERT_TRUE(devices.ok()) << devices.status().ToString();
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ((*devices)[1]->executor(), &second);
  EXPECT_EQ(NamesOf(*devices), "cpu,cpu");
  EXPECT_TRUE(IsOnCpus(NamesOf(*devices)));
  EXPECT_EQ(CheckDevice({.device = "cpu,cpu", .dtype = DType::kF16}).message(),
            "dtype is f16 and device cpu,cpu: expected dtype bf16 or f32, or a CUDA device, since CPUs compute in these two");
}

constexpr DType kDTypes[] = {DType::kBF16, DType::kF16, DType::kF32};
constexpr WeightForm kWeightForms[] = {WeightForm::kFastest, WeightForm::kStored, WeightForm::kBF16, WeightForm::kF32};

TEST(CheckComputesOn, FormsOfWeightsAndDTypesOfEachKind) {
  for (const WeightForm weights : kWeightForms) {
    for (const DType dtype : kDTypes) {
      const EngineOptions options{.dtype = dtype, .weights = weights};
      const bool exact = weights == WeightForm::kF32 || dtype == DType::kF32;
      EXPECT_EQ(CheckComputesOn(DeviceKind::kCuda, options).ok(), !exact && weights != WeightForm::kStored)
          << Name(weights) << " " << Name(dtype);
      // f32 products leave the dtype to KV, which may be f16.
      EXPECT_EQ(CheckComputesOn(DeviceKind::kCpu, options).ok(), dtype != DType::kF16 || weights == WeightForm::kF32)
          << Name(weights) << " " << Name(dtype);
    }
    EXPECT_TRUE(CheckComputesOn(DeviceKind::kCpu, {.weights = weights}).ok());
  }
}

TEST(CheckDevice, WhatNoDeviceOfTheNameComputesIsRefusedByName) {
  for (const WeightForm weights : kWeightForms) {
    for (const DType dtype : kDTypes) {
      const auto ok = [&](const char* device) {
        const Status status = CheckDevice({.device = device, .dtype = dtype, .weights = weights});
        return status.ok() || status.code() != StatusCode::kInvalidArgument;
      };
      EXPECT_EQ(ok("auto"), ok("cpu") || ok("cuda")) << Name(weights) << " " << Name(dtype);
    }
  }
  const auto message = [](const EngineOptions& options) { return CheckDevice(options).message(); };
  EXPECT_EQ(message({.device = "cuda:1", .weights = WeightForm::kStored}),
            "weights is stored and device cuda:1: expected device cpu or weights fastest, since only CPUs multiply with a file's "
            "blocks");
  EXPECT_EQ(
      message({.device = "cuda", .weights = WeightForm::kF32}),
      "weights is f32 and device cuda: expected device cpu, or weights fastest or bf16, since CUDA devices compute in bf16 and "
      "f16");
  EXPECT_EQ(message({.device = "cuda", .dtype = DType::kF32}),
            "dtype is f32 and device cuda: expected device cpu, or dtype bf16 or f16, since CUDA devices compute in bf16 and f16");
  EXPECT_EQ(message({.device = "cpu", .dtype = DType::kF16}),
            "dtype is f16 and device cpu: expected dtype bf16 or f32, or a CUDA device, since CPUs compute in these two");
  EXPECT_EQ(
      message({.device = "auto", .dtype = DType::kF16, .weights = WeightForm::kStored}),
      "weights is stored and dtype f16: expected dtype bf16 or f32, or weights fastest, since only CPUs multiply with a file's "
      "blocks");
  EXPECT_EQ(message({.device = "gpu"}), "device is \"gpu\", expected auto, cpu, cuda or cuda:0");
}

TEST(OpenDevice, AutoIsTheCpuWhereAGpuDoesNotComputeSo) {
  ThreadPool threads(1);
  // f32 is for exactness, which a GPU's matrix units do not have, and blocks of a file are multiplied by CPUs alone.
  for (const EngineOptions& options : {EngineOptions{.dtype = DType::kF32}, EngineOptions{.weights = WeightForm::kF32},
                                       EngineOptions{.weights = WeightForm::kStored}, EngineOptions{.device = "cpu"}}) {
    const auto device = OpenDevice(options, &threads);
    ASSERT_TRUE(device.ok()) << device.status().ToString();
    EXPECT_EQ((*device)->kind(), DeviceKind::kCpu);
    EXPECT_EQ(NameOf(**device), "cpu");
  }
  for (const EngineOptions& options :
       {EngineOptions{.device = "cuda", .dtype = DType::kF32}, EngineOptions{.device = "cuda", .weights = WeightForm::kStored},
        EngineOptions{.device = "cpu", .dtype = DType::kF16}}) {
    EXPECT_EQ(OpenDevice(options, &threads).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(OpenDevice(options, &threads).status().message(), CheckDevice(options).message());
  }
}

TEST(OpenDevice, ADeviceThatIsNotThereIsNamedUnlessOptional) {
  ThreadPool threads(1);
  EXPECT_EQ(OpenDevice({.device = "cuda:4000"}, &threads).status().code(), StatusCode::kUnavailable);
  const auto device = OpenDevice({.device = "auto"}, &threads);
  ASSERT_TRUE(device.ok()) << device.status().ToString();
  // f16 is what GPUs alone compute in: without one it is refused, and the message says that there is none.
  const Status f16 = OpenDevice({.device = "auto", .dtype = DType::kF16}, &threads).status();
  if ((*device)->kind() == DeviceKind::kCuda) {
    EXPECT_TRUE(f16.ok()) << f16.ToString();
  } else {
    EXPECT_EQ(
        f16.message(),
        "dtype is f16 and device auto, the CPU here: expected dtype bf16 or f32, or a CUDA device, since CPUs compute in these "
        "two");
  }
}

}  // namespace
}  // namespace coppice
