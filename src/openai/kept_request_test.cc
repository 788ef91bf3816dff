// Samples that are kept, over an engine with a fake model: each call has the events of those that it began, and of all that came of
// them.
#include "openai/kept_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/testing/engine_harness.h"

namespace coppice::openai {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The events of one call.
struct Heard {
  std::map<int32_t, std::vector<int32_t>> tokens;
  std::vector<int32_t> ended;  // in their order
  int done = 0;

  KeptRequest::OnEvent Taker() {
    return [this](const StreamEvent& event) {
      EXPECT_EQ(done, 0) << "an event after the last one";
      std::vector<int32_t>& own = tokens[event.index];
      own.insert(own.end(), event.token_ids.begin(), event.token_ids.end());
      if (event.finish_reason) ended.push_back(event.index);
      done += event.request_done;
    };
  }
};

class KeptRequestTest : public ::testing::Test {
 protected:
  std::shared_ptr<KeptRequest> Submit(int32_t n, int32_t max_tokens, Heard* heard) {
    Request request = Greedy({1, 2, 3, 4, 5, 6, 7, 8, 9}, max_tokens, n);
    request.ignore_eos = true;
    request.on_event = heard->Taker();
    auto kept = KeptRequest::Keep(&request);
    const Result<RequestId> id = harness_.engine().Submit(std::move(request));
    EXPECT_TRUE(id.ok());
    kept->SetId(*id);
    return kept;
  }
  Engine& engine() { return harness_.engine(); }

  EngineHarness harness_{{.model = {.max_position = 64}, .max_running = 8}};
};

TEST_F(KeptRequestTest, ChildrenAreReportedToTheForkThatBeganThem) {
  Heard first, forked;
  const auto kept = Submit(/*n=*/2, /*max_tokens=*/8, &first);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine().Step().ok());
  const auto group = kept->Fork(engine(), 1, {.n = 3, .keep_tokens = 1});
  ASSERT_TRUE(group.ok());
  EXPECT_THAT((*group)->samples(), ElementsAre(kept->sample(2), kept->sample(3), kept->sample(4)));
  harness_.RunToEnd();
  EXPECT_THAT(first.ended, ElementsAre(0, 1));
  EXPECT_EQ(first.done, 1);
  // They have ended before the call listens: nothing is lost.
  EXPECT_TRUE(forked.tokens.empty());
  kept->Listen(group->get(), forked.Taker());
  EXPECT_THAT(forked.ended, ElementsAre(0, 1, 2));
  EXPECT_EQ(forked.done, 1);
  const std::vector<int32_t> behind(first.tokens[1].begin() + 1, first.tokens[1].end());
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(forked.tokens[i], behind);
}

TEST_F(KeptRequestTest, AnExtendedSampleIsReportedToTheExtension) {
  Heard first, on, again;
  const auto kept = Submit(/*n=*/1, /*max_tokens=*/3, &first);
  harness_.RunToEnd();
  int32_t num_tokens = 9 + 3;
  for (Heard* const heard : {&on, &again}) {
    const auto extended = kept->Extend(engine(), 0, std::vector<int32_t>{7});
    ASSERT_TRUE(extended.ok());
    EXPECT_EQ(extended->num_tokens, num_tokens += 1);
    ASSERT_TRUE(extended->group);
    kept->Listen(extended->group.get(), heard->Taker());
    harness_.RunToEnd();
    EXPECT_EQ(heard->tokens[0].size(), 3u);
    EXPECT_EQ(heard->done, 1);
    num_tokens += 3;
  }
  EXPECT_EQ(first.tokens[0].size(), 3u);
}

TEST_F(KeptRequestTest, TokensBehindTheExtensionOfARunningSampleGoToTheCallThatBeganIt) {
  Heard first, on;
  const auto kept = Submit(/*n=*/1, /*max_tokens=*/3, &first);
  const auto early = kept->Extend(engine(), 0, std::vector<int32_t>{7});
  EXPECT_EQ(early.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(early.status().message(), HasSubstr("is not computed yet"));
  ASSERT_TRUE(engine().Step().ok());
  const auto running = kept->Extend(engine(), 0, std::vector<int32_t>{7, 8});
  ASSERT_TRUE(running.ok());
  EXPECT_EQ(running->group, nullptr);
  const std::vector<int32_t> before = engine().Describe(kept->sample(0)).value().token_ids;
  EXPECT_EQ(std::ssize(before), running->num_tokens);
  EXPECT_THAT(std::vector(before.end() - 2, before.end()), ElementsAre(7, 8));
  harness_.RunToEnd();
  EXPECT_EQ(first.tokens[0].size(), 3u);
  EXPECT_EQ(first.done, 1);
  const std::vector<int32_t> behind = harness_.GreedyAfter(before, static_cast<int32_t>(3 - (std::ssize(before) - 9 - 2)));
  EXPECT_EQ(std::vector(first.tokens[0].end() - std::ssize(behind), first.tokens[0].end()), behind);
  // It ended with the event of that call, so an extension of it is another's again, which may itself be extended while it runs.
  const auto ended = kept->Extend(engine(), 0, std::vector<int32_t>{7});
  ASSERT_TRUE(ended.ok());
  ASSERT_TRUE(ended->group);
  kept->Listen(ended->group.get(), on.Taker());
  ASSERT_TRUE(engine().Step().ok());
  EXPECT_EQ(kept->Extend(engine(), 0, std::vector<int32_t>{7}).value().group, nullptr);
  harness_.RunToEnd();
  EXPECT_EQ(on.tokens[0].size(), 3u);
  EXPECT_EQ(on.done, 1);
  EXPECT_EQ(first.tokens[0].size(), 3u);
}

TEST_F(KeptRequestTest, AChildDrawsAsItsOwnParentDoes) {
  Heard first;
  const auto kept = Submit(/*n=*/1, /*max_tokens=*/3, &first);
  harness_.RunToEnd();
  ASSERT_TRUE(kept->Fork(engine(), 0, {.params = SamplingParams{.temperature = 0.5F, .top_k = 3}}).ok());
  ASSERT_TRUE(kept->Fork(engine(), 1, {}).ok());
  ASSERT_TRUE(kept->Fork(engine(), 0, {}).ok());
  EXPECT_EQ(kept->SamplingOf(0).temperature, 0);
  EXPECT_EQ(kept->SamplingOf(1).temperature, 0.5F);
  EXPECT_EQ(kept->SamplingOf(2).top_k, 3);
  EXPECT_EQ(kept->SamplingOf(3).temperature, 0);
  kept->Forget(1);
  EXPECT_EQ(kept->SamplingOf(2).top_k, 3);
  const auto group = kept->Fork(engine(), 2, {});
  ASSERT_TRUE(group.ok());
  EXPECT_EQ(kept->SamplingOf(4).top_k, 3);
  kept->Listen(group->get(), [&](const StreamEvent&) { kept->Forget(4); });  // pruned as its event is sent
  harness_.RunToEnd();
  EXPECT_EQ(kept->SamplingOf(4).top_k, 0);
}

TEST_F(KeptRequestTest, ErrorsOfTheEngineChangeNothing) {
  Heard first;
  const auto kept = Submit(/*n=*/1, /*max_tokens=*/3, &first);
  EXPECT_EQ(kept->Fork(engine(), 0, {.n = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(kept->Fork(engine(), 5, {}).status().code(), StatusCode::kNotFound);
  harness_.RunToEnd();
  EXPECT_EQ(first.tokens[0].size(), 3u);
  ASSERT_TRUE(engine().Prune(kept->sample(0)).ok());
  ASSERT_TRUE(engine().Step().ok());
  EXPECT_EQ(kept->Extend(engine(), 0, std::vector<int32_t>{7}).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace coppice::openai
