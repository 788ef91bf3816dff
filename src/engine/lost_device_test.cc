// An engine whose GPU fails under it. A program of its own, since the process has no device afterwards. Layer: engine.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/cuda/testing/lose_device.h"
#include "core/device.h"
#include "engine/testing/fixture_models.h"

namespace coppice {
namespace {

TEST(LostDevice, EndsAllRequestsAndEveryLaterStepSaysSo) {
  if (const auto device = Device::CreateCuda(0); !device.ok()) GTEST_SKIP() << device.status().ToString();
  const auto engine = Engine::Create({.model_path = ModelPath("llama-hd64-long"),
                                      .device = "cuda",
                                      .kv_cache_bytes = 64 << 20,
                                      .max_running = 3,
                                      .max_context = 400,
                                      .num_threads = 1})
                          .value();
  int32_t ended = 0;
  const auto submit = [&] {
    Request request = Greedy({1, 2, 3, 4, 5}, 300, 2);
    request.on_event = [&ended](const StreamEvent& event) {
      if (!event.finish_reason) return;
      EXPECT_EQ(event.finish_reason, FinishReason::kError);
      EXPECT_EQ(event.status.code(), StatusCode::kUnavailable) << event.status.ToString();
      ++ended;
    };
    ASSERT_TRUE(engine->Submit(std::move(request)).ok());
  };
  for (int32_t i = 0; i < 4; ++i) submit();  // more than run at a time
  for (int32_t step = 0; step < 10; ++step) ASSERT_TRUE(engine->Step().ok());
  EXPECT_EQ(ended, 0);

  cuda::LoseDevice(0);
  Result<bool> step = engine->Step();
  for (int32_t more = 0; step.ok() && more < 3; ++more) step = engine->Step();  // reports what had been done before
  ASSERT_EQ(step.status().code(), StatusCode::kUnavailable) << step.status().ToString();
  EXPECT_NE(step.status().message().find("lost"), std::string::npos) << step.status().message();
  EXPECT_EQ(ended, 8);

  submit();  // and no request gets anywhere afterwards
  step = engine->Step();
  EXPECT_EQ(step.status().code(), StatusCode::kUnavailable) << step.status().ToString();
  EXPECT_EQ(ended, 10);
}

}  // namespace
}  // namespace coppice
