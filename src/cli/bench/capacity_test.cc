// The search of the highest rate within limits, and what is recorded of a load.
#include "cli/bench/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/bench/load_recorder.h"

namespace coppice::cli {
namespace {

using ::testing::ElementsAre;

// A system that keeps its limits up to `limit` requests a second.
Capacity Search(double start, double limit, double precision = 0.05) {
  const auto found = FindCapacity(start, precision, [=](double rate) -> Result<RateVerdict> {
    return rate <= limit ? RateVerdict::kWithin : RateVerdict::kBeyond;
  });
  EXPECT_TRUE(found.ok());
  return *found;
}

TEST(FindCapacity, FromBelowAndFromAbove) {
  for (const double start : {0.1, 1.0, 3.3, 50.0, 1000.0}) {
    const Capacity capacity = Search(start, 7.3);
    EXPECT_LE(capacity.rate, 7.3) << start;
    EXPECT_GT(capacity.beyond, 7.3) << start;
    EXPECT_LE(capacity.beyond, 1.05 * capacity.rate) << start;
    EXPECT_LE(capacity.rates.size(), 20) << start;
  }
  EXPECT_THAT(Search(4, 7.3, 1.0).rates, ElementsAre(4, 8));
}

TEST(FindCapacity, NoRateIsWithinOrNoneBeyond) {
  const Capacity none = Search(1, 0);
  EXPECT_EQ(none.rate, 0);
  EXPECT_EQ(none.rates.size(), 11);
  const auto saturated = FindCapacity(
      1, 0.05, [](double rate) -> Result<RateVerdict> { return rate < 30 ? RateVerdict::kWithin : RateVerdict::kSaturated; });
  EXPECT_EQ(saturated->rate, 32);
  EXPECT_EQ(saturated->beyond, 0);
  const auto failed = FindCapacity(1, 0.05, [](double) -> Result<RateVerdict> { return Unavailable("gone"); });
  EXPECT_EQ(failed.status().message(), "gone");
}

TEST(LoadRecorder, Times) {
  const std::vector<WorkloadRequest> requests = {{.prompt_ids = {1, 2}, .samples = 2, .output_tokens = 3},
                                                 {.prompt_ids = {1}, .samples = 1, .output_tokens = 1},
                                                 {.prompt_ids = {1}, .samples = 1, .output_tokens = 1}};
  LoadRecorder recorder(requests, std::vector<double>{1, 1.5, 2});
  recorder.Refuse(1);
  recorder.AddTokens(0, 0, 1, 1.25);
  recorder.AddTokens(0, 1, 2, 1.5);  // two come together
  recorder.AddTokens(0, 0, 1, 1.75);
  recorder.AddUntimed(0, 2);
  recorder.End(0, 2);
  recorder.Arrive(2, 3);  // held back
  recorder.AddTokens(2, 0, 1, 3.5);
  recorder.End(2, 3.5);
  EXPECT_EQ(recorder.done(), 3);
  const LoadResult result = recorder.Take();
  EXPECT_EQ(result.requests, 2);
  EXPECT_EQ(result.prompt_tokens, 3);
  EXPECT_EQ(result.output_tokens, 7);
  EXPECT_EQ(result.seconds, 2.5);
  EXPECT_THAT(result.ttft, ElementsAre(0.25, 0.5));
  EXPECT_THAT(result.tbt, ElementsAre(0, 0.5, 0, 0));
  EXPECT_THAT(result.latency, ElementsAre(1, 0.5));
  EXPECT_THAT(result.normalized_latency, ElementsAre(1.0 / 3, 0.5));
  EXPECT_EQ(result.stalled_200ms, 1);
  EXPECT_EQ(result.stalled_500ms, 0);
  const nlohmann::ordered_json json = ToJson(result);
  EXPECT_EQ(json["ttft"]["mean"], 0.375);
  EXPECT_FALSE(json.contains("kv_bytes_read"));
}

}  // namespace
}  // namespace coppice::cli
