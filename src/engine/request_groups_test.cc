// Groups of requests: which requests end once enough of a group are answered, and for how long a group is known.
#include "engine/request_groups.h"

#include <gtest/gtest.h>

#include <memory_resource>
#include <string>
#include <utility>
#include <vector>

#include "engine/testing/engine_harness.h"

namespace coppice {
namespace {

Request Member(const std::string& group, int32_t min_answered, int32_t max_tokens, int32_t n = 1) {
  Request request = Greedy(Prompt(20), max_tokens, n);
  request.group = {.name = group, .min_answered = min_answered};
  return request;
}

TEST(RequestGroups, TheRestEndsOnceEnoughAreAnswered) {
  for (const int32_t steps_ahead : {0, 1}) {
    EngineHarness harness(
        {.model = {.num_pages = 128}, .max_running = 4, .steps_ahead = steps_ahead, .late_runner = steps_ahead > 0});
    for (const int32_t tokens : {5, 9, 100, 100, 100, 100}) harness.Submit(Member("g", 2, tokens));  // the last two wait for places
    harness.Submit(Member("other", 2, 30));
    harness.RunToEnd();
    for (size_t i = 0; i < 7; ++i) {
      const Output& output = harness.outputs(i)[0];
      const bool finishes = i < 2 || i == 6;
      EXPECT_EQ(output.reason, finishes ? FinishReason::kLength : FinishReason::kCancelled) << i;
      EXPECT_TRUE(output.status.ok());
      EXPECT_TRUE(harness.done(i));
    }
    EXPECT_EQ(harness.outputs(6)[0].tokens.size(), 30u);
    EXPECT_GE(harness.outputs(2)[0].tokens.size(), 8u);
    EXPECT_LE(harness.outputs(2)[0].tokens.size(), 11u);  // those that steps under way gave
    EXPECT_EQ(harness.cache().usage().pages_in_use, 0);

    // Later ones too, of this name alone, and nothing is computed for them.
    const int64_t computed = harness.model().tokens_computed();
    harness.Submit(Member("g", 2, 10));
    harness.RunToEnd();
    EXPECT_EQ(harness.outputs(7)[0].reason, FinishReason::kCancelled);
    EXPECT_EQ(harness.model().tokens_computed(), computed);
    Request of_other = Member("g", 2, 10);
    of_other.share_of = "another name";
    harness.Submit(of_other);
    harness.RunToEnd();
    EXPECT_EQ(harness.outputs(8)[0].reason, FinishReason::kLength);
  }
}

TEST(RequestGroups, SamplesCountAndTheSmallestNumberHolds) {
  EngineHarness harness({.model = {.num_pages = 128}});
  harness.Submit(Member("g", 0, 4, 3));  // names no number
  harness.RunToEnd();
  harness.Submit(Member("g", 9, 4));
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(1)[0].reason, FinishReason::kLength);
  harness.Submit(Member("g", 5, 4));  // the fifth
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(2)[0].reason, FinishReason::kLength);
  harness.Submit(Member("g", 9, 4));
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(3)[0].reason, FinishReason::kCancelled);
}

TEST(RequestGroups, CancelledOnesAreNoAnswers) {
  EngineHarness harness({.model = {.num_pages = 128}});
  const RequestId id = harness.Submit(Member("g", 1, 50));
  harness.Submit(Member("g", 1, 20));
  harness.Step(3);
  ASSERT_TRUE(harness.engine().Cancel(id).ok());
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(1)[0].reason, FinishReason::kLength);
}

TEST(RequestGroups, RefusesWhatMakesNoSense) {
  EngineHarness harness({});
  Request request = Member("", 3, 4);
  EXPECT_EQ(harness.engine().Submit(request).status().message(),
            "min_answered is 3, but the request has no group: name one (group_id)");
  request.group = {.name = "g", .min_answered = -1};
  EXPECT_EQ(harness.engine().Submit(request).status().message(), "min_answered is -1, expected at least 0");
  request.group = {.name = std::string(257, 'g'), .min_answered = 1};
  EXPECT_EQ(harness.engine().Submit(request).status().message(), "group_id has 257 bytes, expected at most 256");
}

TEST(RequestGroups, AreForgottenOldestFirst) {
  RequestGroups groups;
  const std::vector<int32_t> no_eos;
  const auto make = [&](const std::string& name) {
    return MakeRequest(Member(name, 1, 4), no_eos, nullptr, std::pmr::get_default_resource());
  };
  const auto answer = [&](const std::string& name) {
    const RequestPtr request = make(name);
    groups.Join(request.get());
    request->group->Note(FinishReason::kStop);
    request->unfinished = 0;
    groups.Leave(request.get());
  };
  const auto is_over = [&](const std::string& name) {
    const RequestPtr request = make(name);
    groups.Join(request.get());
    const bool over = !groups.FindOver().empty();
    groups.Leave(request.get());
    return over;
  };
  for (size_t i = 0; i < RequestGroups::kMostIdle; ++i) answer("g" + std::to_string(i));
  EXPECT_EQ(groups.size(), RequestGroups::kMostIdle);
  EXPECT_TRUE(is_over("g0"));  // and it is the youngest now
  answer("new");
  EXPECT_EQ(groups.size(), RequestGroups::kMostIdle);
  EXPECT_TRUE(is_over("g0"));
  EXPECT_TRUE(is_over("g2"));
  EXPECT_FALSE(is_over("g1"));
  EXPECT_TRUE(groups.FindOver().empty());
}

}  // namespace
}  // namespace coppice
