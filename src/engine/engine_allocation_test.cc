// Heap allocations of a warm decode step, counted by tests/support/heap.h. Samples' texts, and the tree that
// they are published to, must grow; nothing else may.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_parts.h"
#include "runner/null_runner.h"
#include "tests/support/heap.h"

namespace coppice {
namespace {

constexpr int32_t kSamples = 64, kPageSize = 16, kContext = 8192;

std::unique_ptr<Engine> MakeNullEngine(int32_t steps_ahead) {
  RunnerInfo info{.fingerprint = "null", .kv_dtype = DType::kF32, .kv_bytes_per_token = 1};
  info.model.vocab_size = 2048;
  info.model.max_position = kContext;
  EngineParts parts;
  parts.options = {.page_size = kPageSize,
                   .max_running = kSamples,
                   .max_batch_tokens = 2 * kSamples,
                   .chunk = 2 * kSamples,
                   .max_context = kContext,
                   .steps_ahead = steps_ahead};
  parts.cache =
      KvCache::Create({.num_pages = 1 << 15, .page_size = kPageSize, .max_branches = kSamples, .max_context = kContext}).value();
  parts.runner = std::make_unique<NullRunner>(info);
  return MakeEngine(std::move(parts));
}

struct Allocations {
  int64_t total = 0;
  int32_t steps = 0;  // with at least one
};

// Of `steps` steps in which every sample decodes, the first of them `before` tokens into its text.
Allocations AllocationsOf(int32_t steps_ahead, int32_t before, int32_t steps) {
  const std::unique_ptr<Engine> engine = MakeNullEngine(steps_ahead);
  int64_t tokens = 0;
  for (int32_t r = 0; r < 8; ++r) {
    Request request{.prompt_ids = std::vector<int32_t>(40, 100 + r), .n = kSamples / 8, .max_tokens = 4096, .ignore_eos = true};
    request.on_event = [&](const StreamEvent& event) { tokens += static_cast<int64_t>(event.token_ids.size()); };
    EXPECT_TRUE(engine->Submit(std::move(request)).ok());
  }
  while (tokens < int64_t{kSamples} * before) EXPECT_TRUE(*engine->Step());
  const int64_t begin = tokens;
  Allocations taken;
  for (int32_t step = 0; step < steps; ++step) {
    const int64_t earlier = heap::NumAllocations();
    EXPECT_TRUE(*engine->Step());
    const int64_t allocations = heap::NumAllocations() - earlier;
    taken.total += allocations;
    taken.steps += allocations > 0;
  }
  EXPECT_EQ(tokens - begin, int64_t{kSamples} * steps);
  return taken;
}

TEST(EngineAllocations, AWarmStepTakesNothingFromTheHeapButWhatTextsGrowBy) {
  for (const int32_t steps_ahead : {0, 1}) {
    SCOPED_TRACE("steps ahead " + std::to_string(steps_ahead));
    const Allocations taken = AllocationsOf(steps_ahead, /*before=*/200, /*steps=*/1000);
    // Texts double at 256, 512 and 1,024 tokens; so do the tokens and the pages of each sample's node, somewhat earlier. All
    // samples grow at about the same time, and the prefixes of EngineMetrics are gathered ten times a second.
    EXPECT_LE(taken.total, 10 * kSamples);
    EXPECT_LE(taken.steps, 50);
  }
}

}  // namespace
}  // namespace coppice
