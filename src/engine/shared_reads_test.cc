// Requests' shares of reads saved: as much as the plans shared, split evenly, and nothing where they did not.
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "engine/testing/engine_harness.h"

namespace coppice {
namespace {

// Requests that run together, and what the last event of each says.
class Shared {
 public:
  explicit Shared(EngineConfig config) : harness_(config) {}

  void Submit(Request request) {
    const size_t slot = reads_.size();
    reads_.emplace_back();
    request.on_event = [this, slot](const StreamEvent& event) {
      const std::lock_guard lock(mutex_);
      if (event.request_done) {
        reads_[slot] = event.shared_reads;
      } else {
        EXPECT_EQ(event.shared_reads.sharers, 0);  // the last event has them
      }
    };
    ASSERT_TRUE(harness_.engine().Submit(std::move(request)).ok());
  }
  const std::vector<SharedReads>& Run() {
    harness_.RunToEnd();
    return reads_;
  }
  // Reads that the steps' plans saved, of all requests.
  int64_t saved() {
    const EngineMetrics metrics = harness_.engine().Metrics();
    return metrics.kv_bytes_read_unshared - metrics.kv_bytes_read;
  }

 private:
  EngineHarness harness_;
  std::mutex mutex_;
  std::vector<SharedReads> reads_;
};

Request Sampled(std::vector<int32_t> prompt, int32_t max_tokens, int32_t n = 1) {
  return {.prompt_ids = std::move(prompt), .n = n, .max_tokens = max_tokens};
}

constexpr int64_t kTokenBytes = 2 * 3 * 64 * sizeof(float);  // of EngineHarness' plan

TEST(SharedReads, SamplesOfOnePrompt) {
  for (const SharingMode sharing : {SharingMode::kTree, SharingMode::kOneLevel}) {
    Shared shared({.sharing = sharing});
    shared.Submit(Sampled(Prompt(40), 6, 4));
    const SharedReads reads = shared.Run().front();
    EXPECT_EQ(reads.sharers, 4);
    EXPECT_EQ(reads.tokens, 40);
    // The first token of each comes with the prompt; then five steps read the prompt once for all four.
    EXPECT_EQ(reads.kv_bytes_not_read, 5 * 3 * 40 * kTokenBytes);
    EXPECT_EQ(reads.kv_bytes_not_read, shared.saved());
  }
}

TEST(SharedReads, PromptsWithACommonPrefix) {
  Shared shared({.max_batch_tokens = 64});
  std::vector<int32_t> one = Prompt(32), other = one;
  one.insert(one.end(), {1, 2, 3});
  other.insert(other.end(), {4, 5, 6, 7, 8});
  shared.Submit(Sampled(Prompt(32), 1));  // computes what they have in common
  shared.Run();
  const int64_t before = shared.saved();
  shared.Submit(Sampled(one, 9));
  shared.Submit(Sampled(other, 9));
  const std::vector<SharedReads>& reads = shared.Run();
  EXPECT_EQ(reads[0].sharers, 0);
  EXPECT_EQ(reads[0].kv_bytes_not_read, 0);
  for (const size_t i : {1, 2}) {
    EXPECT_EQ(reads[i].sharers, 2);
    EXPECT_EQ(reads[i].tokens, 32);
    EXPECT_EQ(reads[i].kv_bytes_not_read, 9 * 32 * kTokenBytes / 2);  // in each of nine steps half of it
  }
  EXPECT_EQ(reads[1].kv_bytes_not_read + reads[2].kv_bytes_not_read, shared.saved() - before);
}

TEST(SharedReads, NoOtherRequestOrAModeThatReadsApart) {
  Shared alone({});
  alone.Submit(Sampled(Prompt(40), 12));
  EXPECT_EQ(alone.Run().front().kv_bytes_not_read, 0);
  EXPECT_EQ(alone.Run().front().sharers, 0);
  for (const SharingMode sharing : {SharingMode::kStore, SharingMode::kNone}) {
    Shared apart({.sharing = sharing});
    apart.Submit(Sampled(Prompt(40), 6, 4));
    const SharedReads reads = apart.Run().front();
    EXPECT_EQ(reads.kv_bytes_not_read, 0) << Name(sharing);
    EXPECT_EQ(reads.tokens, 0) << Name(sharing);
    EXPECT_EQ(reads.sharers, 0) << Name(sharing);
  }
}

TEST(SharedReads, AllTogetherAreReportedNoMoreThanWasSaved) {
  for (const int32_t steps_ahead : {0, 1}) {
    for (const bool late : {false, true}) {
      Shared shared({.model = {.num_pages = 256},
                     .max_batch_tokens = 48,
                     .steps_ahead = steps_ahead,
                     .late_runner = late,
                     .event_thread = late});
      std::mt19937 random(7);
      for (int i = 0; i < 40; ++i) {
        std::vector<int32_t> prompt = Prompt(20 + static_cast<int32_t>(random() % 60), static_cast<int32_t>(random() % 3));
        prompt.push_back(static_cast<int32_t>(random() % 64));
        shared.Submit(Sampled(prompt, 1 + static_cast<int32_t>(random() % 20), 1 + static_cast<int32_t>(random() % 3)));
      }
      int64_t received = 0;
      for (const SharedReads& reads : shared.Run()) received += reads.kv_bytes_not_read;
      EXPECT_LE(received, shared.saved());
      EXPECT_GT(received, shared.saved() * 8 / 10);  // the rest: steps of samples that had ended, and what evens out among tiles
    }
  }
}

}  // namespace
}  // namespace coppice
