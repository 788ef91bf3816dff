// Trees that callers grow: samples forked, extended, pruned and kept, whatever they do at that moment. Around a FakeRunner, so that
// each sample must say what a fresh request with the same tokens says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "engine/testing/engine_harness.h"
#include "engine/testing/fake_constraint.h"

namespace coppice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Tokens = std::vector<int32_t>;

Tokens Joined(Tokens first, std::span<const int32_t> second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::span<const int32_t> First(const Tokens& tokens, size_t count) { return std::span(tokens).first(count); }

// Events of the samples of all requests, children included.
class Family {
 public:
  struct Received {
    Tokens tokens;
    std::string text;
    std::vector<FinishReason> reasons;  // one for each time that it ended
    Status status;
    int32_t cached_tokens = 0;
  };

  explicit Family(const EngineConfig& config) : harness_(config) {}

  RequestId Submit(Request request) {
    request.on_event = [this](const StreamEvent& event) {
      const std::lock_guard lock(mutex_);
      Received& received = received_[{event.request, event.index}];
      received.tokens.insert(received.tokens.end(), event.token_ids.begin(), event.token_ids.end());
      received.text += event.text;
      received.status = event.status;
      received.cached_tokens = event.cached_tokens;
      if (event.finish_reason) received.reasons.push_back(*event.finish_reason);
      done_[event.request] += event.request_done;
    };
    return harness_.engine().Submit(std::move(request)).value();
  }
  std::vector<SampleId> Fork(SampleId sample, const ForkOptions& options = {}) {
    const Result<std::vector<SampleId>> children = harness_.engine().Fork(sample, options);
    EXPECT_TRUE(children.ok()) << children.status().ToString();
    CheckCache();
    return children.ok() ? *children : std::vector<SampleId>();
  }
  // Whether the sample had ended.
  bool Extend(SampleId sample, const Tokens& tokens) {
    const Result<Extension> extension = harness_.engine().Extend(sample, tokens);
    EXPECT_TRUE(extension.ok()) << extension.status().ToString();
    CheckCache();
    if (!extension.ok()) return false;
    const Tokens now = harness_.engine().Describe(sample).value().token_ids;
    EXPECT_EQ(extension->num_tokens, std::ssize(now));
    EXPECT_TRUE(std::equal(tokens.rbegin(), tokens.rend(), now.rbegin()));
    return extension->had_ended;
  }
  void CheckCache() {
    const Status status = harness_.cache().CheckIntegrity();
    ASSERT_TRUE(status.ok()) << status.message();
  }
  const Received& received(SampleId sample) { return received_[sample]; }
  int done(RequestId id) { return done_[id]; }
  EngineHarness& harness() { return harness_; }
  Engine& engine() { return harness_.engine(); }
  int32_t pages_in_use() { return harness_.cache().usage().pages_in_use; }

 private:
  EngineHarness harness_;
  std::mutex mutex_;
  std::map<SampleId, Received> received_;
  std::map<RequestId, int> done_;
};

Request Kept(Request request) {
  request.keep = true;
  return request;
}

TEST(Samples, AForkOfASampleThatDecodesCostsARowAndACopyOfAPage) {
  for (const SharingMode sharing : {SharingMode::kTree, SharingMode::kNone}) {
    for (const int32_t steps_ahead : {0, 1}) {
      Family family({.model = {.page_size = 4}, .sharing = sharing, .steps_ahead = steps_ahead, .late_runner = true});
      const RequestId request = family.Submit(Greedy(Prompt(18), 14));
      family.harness().Step(4);
      const int32_t pages = family.pages_in_use();
      const SampleId parent{request, 0};
      const std::vector<SampleId> children = family.Fork(parent, {.n = 3});
      ASSERT_THAT(children, ElementsAre(SampleId{request, 1}, SampleId{request, 2}, SampleId{request, 3}));
      const Tokens begun = family.engine().Describe(parent).value().token_ids;
      if (sharing == SharingMode::kTree) {
        EXPECT_LE(family.pages_in_use(), pages + 3 + 1);  // the step under way may have taken one
      }
      const int64_t computed = family.harness().model().tokens_computed();
      family.harness().Step(1 + steps_ahead);
      EXPECT_EQ(family.harness().model().tokens_computed() - computed, 4 * (1 + steps_ahead));
      EXPECT_EQ(family.engine().Metrics().last_step.prefill_rows, 0);
      family.harness().RunToEnd();
      const Tokens all = family.harness().GreedyAfter(Prompt(18), 14);
      EXPECT_EQ(family.received(parent).tokens, all);
      const size_t generated = begun.size() - 18;
      EXPECT_GE(generated, 4u);
      for (const SampleId child : children) {
        EXPECT_EQ(family.received(child).tokens, Tokens(all.begin() + static_cast<std::ptrdiff_t>(generated), all.end()));
        EXPECT_THAT(family.received(child).reasons, ElementsAre(FinishReason::kLength));
      }
      EXPECT_EQ(family.done(request), 1);
      EXPECT_EQ(family.pages_in_use(), 0);
    }
  }
}

TEST(Samples, AThousandForksComputeNothingAndCopyAPageEach) {
  Family family({.model = {.num_pages = 2000}, .max_running = 1001, .max_batch_tokens = 1001});
  const SampleId parent{family.Submit(Greedy(Prompt(100), 20)), 0};
  family.harness().Step(3);
  const int64_t computed = family.harness().model().tokens_computed(), steps = family.engine().Metrics().steps;
  const int32_t pages = family.pages_in_use();
  ASSERT_EQ(family.Fork(parent, {.n = 1000}).size(), 1000u);
  EXPECT_EQ(family.pages_in_use(), pages + 1000);
  EXPECT_EQ(family.harness().model().tokens_computed(), computed);
  family.harness().Step();
  EXPECT_EQ(family.harness().model().tokens_computed(), computed + 1001);
  EXPECT_EQ(family.engine().Metrics().steps, steps + 1);
  family.harness().RunToEnd();
  EXPECT_EQ(family.engine().Metrics().preemptions, 0);
}

TEST(Samples, ChildrenOfASeedAreTheSamplesOfAFreshRequest) {
  Family family({.model = {.num_pages = 200, .page_size = 4}, .max_running = 16});
  Request sampled = Kept(Greedy(Prompt(9), 12));
  sampled.sampling = {.temperature = 1, .seed = 5};
  const RequestId request = family.Submit(sampled);
  family.harness().Step(8);
  const SampleId parent{request, 0};
  std::vector<std::vector<SampleId>> forks;
  for (const int32_t kept : {0, 3, 7})
    forks.push_back(family.Fork(parent, {.n = 2, .keep_tokens = kept, .seed = 77, .max_tokens = 6}));
  const SamplingParams cooler{.temperature = 0.5f, .top_k = 8};
  forks.push_back(family.Fork(parent, {.n = 2, .keep_tokens = 3, .seed = 78, .params = cooler, .max_tokens = 6}));
  family.harness().RunToEnd();
  forks.push_back(family.Fork(parent, {.n = 2, .keep_tokens = 11, .seed = 77, .max_tokens = 6}));  // of a kept one
  family.harness().RunToEnd();
  const Tokens parents = family.received(parent).tokens;
  ASSERT_EQ(parents.size(), 12u);
  const size_t kept[] = {0, 3, 7, 3, 11};
  for (size_t i = 0; i < forks.size(); ++i) {
    Family fresh({.model = {.page_size = 4}});
    Request same{.prompt_ids = Joined(Prompt(9), First(parents, kept[i])), .n = 2, .max_tokens = 6};
    same.sampling = i == 3 ? cooler : sampled.sampling;
    same.sampling.seed = i == 3 ? 78 : 77;
    const RequestId id = fresh.Submit(same);
    fresh.harness().RunToEnd();
    for (int32_t c = 0; c < 2; ++c)
      EXPECT_EQ(family.received(forks[i][c]).tokens, fresh.received({id, c}).tokens) << i << ", " << c;
  }
}

TEST(Samples, ChildrenWithoutASeedDrawApart) {
  Family family({.model = {.num_pages = 200}, .max_running = 16});
  Request sampled = Greedy(Prompt(9), 12, 2);
  sampled.sampling = {.temperature = 1, .seed = 5};
  const RequestId request = family.Submit(sampled);
  family.harness().Step(3);
  (void)family.Fork({request, 0}, {.n = 4, .keep_tokens = 0});
  (void)family.Fork({request, 1}, {.n = 4, .keep_tokens = 0, .params = SamplingParams{.temperature = 1, .seed = 99}});
  family.harness().RunToEnd();
  std::set<Tokens> texts;
  for (int32_t i = 0; i < 10; ++i) texts.insert(family.received({request, i}).tokens);
  EXPECT_EQ(texts.size(), 10u);
}

TEST(Samples, SamplesAreForkedBeforeTheirPromptIsComputed) {
  for (const int steps : {0, 1, 2}) {  // it waits, computes its first and its second chunk
    SCOPED_TRACE(steps);
    Family family({.max_batch_tokens = 8});
    Request request = Greedy(Prompt(30), 6, 2);
    request.prompt_logprobs = true;
    const RequestId id = family.Submit(request);
    family.harness().Step(steps);
    EXPECT_THAT(family.engine().Fork({id, 1}, {.keep_tokens = 1}).status().message(),
                HasSubstr("keep_tokens is 1, expected a number in 0..0, the tokens that the sample has"));
    EXPECT_EQ(family.engine().Extend({id, 1}, Tokens{1}).status().code(), StatusCode::kFailedPrecondition);
    const std::vector<SampleId> children = family.Fork({id, 1}, {.n = 2, .max_tokens = 3});
    family.harness().RunToEnd();
    const Tokens all = family.harness().GreedyAfter(Prompt(30), 6);
    for (const int32_t index : {0, 1}) EXPECT_EQ(family.received({id, index}).tokens, all);
    for (const SampleId child : children) EXPECT_EQ(family.received(child).tokens, Tokens(all.begin(), all.begin() + 3));
    EXPECT_EQ(family.done(id), 1);
  }
}

TEST(Samples, AChildOfAPromptWithoutTokensHasItsOwn) {
  for (const bool forks_first : {true, false}) {
    Family family({});
    const RequestId id = family.Submit(Kept(Greedy(Prompt(20), 0)));
    std::vector<SampleId> children;
    if (forks_first) children = family.Fork({id, 0}, {.n = 2, .max_tokens = 4});
    family.harness().RunToEnd();
    EXPECT_THAT(family.received({id, 0}).reasons, ElementsAre(FinishReason::kLength));
    EXPECT_THAT(family.engine().Fork({id, 0}, {}).status().message(), HasSubstr("max_tokens of the request is 0"));
    if (!forks_first) children = family.Fork({id, 0}, {.n = 2, .max_tokens = 4});
    family.harness().RunToEnd();
    for (const SampleId child : children) EXPECT_EQ(family.received(child).tokens, family.harness().GreedyAfter(Prompt(20), 4));
  }
}

TEST(Samples, APrunedSampleComputesThePromptForTheOthers) {
  for (const int32_t steps_ahead : {0, 1}) {
    for (const int steps : {0, 1, 2}) {
      for (const bool all : {false, true}) {
        SCOPED_TRACE(std::to_string(steps_ahead) + ", " + std::to_string(steps) + (all ? ", all" : ""));
        Family family({.max_batch_tokens = 8, .steps_ahead = steps_ahead, .late_runner = true});
        const RequestId id = family.Submit(Greedy(Prompt(30), 6, 3));
        family.harness().Step(steps);
        const SampleId child = family.Fork({id, 0})[0];
        for (int32_t index = 0; index < (all ? 3 : 1); ++index) ASSERT_TRUE(family.engine().Prune({id, index}).ok());
        family.harness().Step();
        EXPECT_THAT(family.received({id, 0}).reasons, ElementsAre(FinishReason::kCancelled));
        EXPECT_EQ(family.engine().Fork({id, 0}, {}).status().code(), StatusCode::kNotFound);
        family.harness().RunToEnd();
        const Tokens tokens = family.harness().GreedyAfter(Prompt(30), 6);
        EXPECT_TRUE(family.received({id, 0}).tokens.empty());
        for (int32_t index = 1; index < 3; ++index) EXPECT_EQ(family.received({id, index}).tokens, all ? Tokens() : tokens);
        EXPECT_EQ(family.received(child).tokens, tokens);
        EXPECT_EQ(family.done(id), 1);
        EXPECT_EQ(family.pages_in_use(), 0);
      }
    }
  }
}

TEST(Samples, AKeptSampleHoldsNoPagesAndGoesOnWhetherItIsCachedOrNot) {
  for (const bool cached : {true, false}) {
    Family family({.model = {.page_size = 4}});
    const RequestId id = family.Submit(Kept(Greedy(Prompt(13), 6)));
    family.harness().RunToEnd();
    EXPECT_EQ(family.done(id), 1);
    EXPECT_EQ(family.pages_in_use(), 0);
    if (!cached) family.harness().cache().DropCached();
    const int64_t computed = family.harness().model().tokens_computed();
    const std::vector<SampleId> children = family.Fork({id, 0}, {.n = 2, .keep_tokens = 5});
    family.harness().RunToEnd();
    // Of equal samples the first computes what is not cached.
    EXPECT_EQ(family.harness().model().tokens_computed() - computed, (cached ? 1 : 18) + 1 + 2 * 5);
    const Tokens begun = Joined(Prompt(13), First(family.received({id, 0}).tokens, 5));
    for (const SampleId child : children) EXPECT_EQ(family.received(child).tokens, family.harness().GreedyAfter(begun, 6));
    const Tokens question = Prompt(7, 3);
    EXPECT_TRUE(family.Extend({id, 0}, question));
    EXPECT_FALSE(family.engine().Describe({id, 0}).value().finished);
    family.harness().RunToEnd();
    const Tokens first_turn = family.harness().GreedyAfter(Prompt(13), 6);
    const Tokens turns = Joined(Joined(Prompt(13), first_turn), question);
    EXPECT_EQ(family.received({id, 0}).tokens, Joined(first_turn, family.harness().GreedyAfter(turns, 6)));
    EXPECT_THAT(family.received({id, 0}).reasons, ElementsAre(FinishReason::kLength, FinishReason::kLength));
    EXPECT_EQ(family.done(id), 3);  // each time that its last sample had ended
    const SampleInfo info = family.engine().Describe({id, 0}).value();
    EXPECT_TRUE(info.finished);
    EXPECT_EQ(info.prompt_tokens, 13);
    EXPECT_EQ(info.token_ids, Joined(turns, family.harness().GreedyAfter(turns, 6)));
  }
}

TEST(Samples, ASampleThatRunsIsExtended) {
  for (const int32_t steps_ahead : {0, 1}) {
    Family family({.model = {.page_size = 4}, .steps_ahead = steps_ahead, .late_runner = true});
    const RequestId id = family.Submit(Greedy(Prompt(13), 10));
    family.harness().Step(4);
    const Tokens observation = Prompt(30, 4);
    EXPECT_FALSE(family.Extend({id, 0}, observation));
    const Tokens before = family.engine().Describe({id, 0}).value().token_ids;
    family.harness().RunToEnd();
    const size_t generated = before.size() - 13 - 30;
    EXPECT_EQ(Tokens(before.end() - 30, before.end()), observation);
    const Tokens& received = family.received({id, 0}).tokens;
    ASSERT_EQ(received.size(), 10u);  // what was added does not count
    EXPECT_EQ(Tokens(received.begin() + static_cast<std::ptrdiff_t>(generated), received.end()),
              family.harness().GreedyAfter(before, static_cast<int32_t>(10 - generated)));
    EXPECT_EQ(family.done(id), 1);
  }
}

TEST(Samples, WhatPrunedSamplesHeldIsFreeInTheSameStep) {
  Family family({.model = {.num_pages = 12, .page_size = 4}});
  const RequestId id = family.Submit(Greedy(Prompt(8), 20));
  family.harness().Step(3);
  const std::vector<SampleId> children = family.Fork({id, 0}, {.n = 4});
  family.harness().Step(2);
  const RequestId other = family.Submit(Greedy(Prompt(20, 9), 2));
  family.harness().Step();
  EXPECT_TRUE(family.received({other, 0}).tokens.empty());  // no room
  for (const SampleId child : children) ASSERT_TRUE(family.engine().Prune(child).ok());
  family.harness().Step();
  EXPECT_EQ(family.received({other, 0}).tokens.size(), 1u);
  EXPECT_EQ(family.pages_in_use(), 4 + 5);  // 14 and 20 tokens
  for (const SampleId child : children) EXPECT_THAT(family.received(child).reasons, ElementsAre(FinishReason::kCancelled));
  family.harness().RunToEnd();
  EXPECT_EQ(family.received({id, 0}).tokens, family.harness().GreedyAfter(Prompt(8), 20));
  EXPECT_TRUE(family.engine().Prune(children[0]).code() == StatusCode::kNotFound);  // its request is done
}

TEST(Samples, ReleasedRequestsAreForgotten) {
  Family family({});
  const RequestId kept = family.Submit(Kept(Greedy(Prompt(8), 3)));
  family.harness().RunToEnd();
  ASSERT_TRUE(family.engine().Cancel(kept).ok());  // nothing runs that it could end
  family.harness().Step();
  ASSERT_TRUE(family.engine().Describe({kept, 0}).ok());
  ASSERT_TRUE(family.engine().Release(kept).ok());
  EXPECT_EQ(family.engine().Fork({kept, 0}, {}).status().code(), StatusCode::kNotFound);  // at once
  family.harness().Step();
  EXPECT_EQ(family.engine().Describe({kept, 0}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(family.engine().Release(kept).code(), StatusCode::kNotFound);
  EXPECT_EQ(family.done(kept), 1);

  const RequestId running = family.Submit(Kept(Greedy(Prompt(8), 6, 2)));
  family.harness().Step(2);
  ASSERT_TRUE(family.engine().Release(running).ok());
  family.harness().RunToEnd();
  EXPECT_EQ(family.received({running, 1}).tokens.size(), 6u);
  EXPECT_EQ(family.engine().Describe({running, 1}).status().code(), StatusCode::kNotFound);

  const RequestId pruned = family.Submit(Kept(Greedy(Prompt(8), 3, 2)));
  family.harness().RunToEnd();
  for (const int32_t index : {0, 1}) ASSERT_TRUE(family.engine().Prune({pruned, index}).ok());
  family.harness().Step();
  EXPECT_EQ(family.engine().Cancel(pruned).code(), StatusCode::kNotFound);

  const RequestId cancelled = family.Submit(Kept(Greedy(Prompt(8), 3)));
  ASSERT_TRUE(family.engine().Cancel(cancelled).ok());
  EXPECT_THAT(family.engine().Fork({cancelled, 0}, {}).status().message(), HasSubstr("is not known"));
  family.harness().Step();
  EXPECT_EQ(family.engine().Cancel(cancelled).code(), StatusCode::kNotFound);
}

TEST(Samples, RefusalsSayWhatIsWrongAndChangeNothing) {
  Family family({.model = {.max_position = 40, .num_pages = 20}, .max_running = 4});
  const RequestId id = family.Submit(Greedy(Prompt(20), 18, 2));
  family.harness().Step(3);
  const auto fork = [&](SampleId sample, const ForkOptions& options) {
    return family.engine().Fork(sample, options).status().ToString();
  };
  EXPECT_THAT(fork({RequestId{99}, 0}, {}), HasSubstr("request 99 is not known or is done already"));
  EXPECT_THAT(fork({id, 7}, {}), HasSubstr("sample 7 of request 1 is not known"));
  EXPECT_THAT(fork({id, 0}, {.n = 0}), HasSubstr("n is 0, expected at least 1"));
  EXPECT_THAT(fork({id, 0}, {.n = 21}), HasSubstr("n is 21, expected at most 20, the pages of the KV cache"));
  EXPECT_THAT(fork({id, 0}, {.keep_tokens = 4}), HasSubstr("keep_tokens is 4, expected a number in 0..3"));
  EXPECT_THAT(fork({id, 0}, {.keep_tokens = -1}), HasSubstr("keep_tokens is -1, expected a number in 0..3"));
  EXPECT_THAT(fork({id, 0}, {.max_tokens = 0}), HasSubstr("max_tokens is 0, expected at least 1"));
  EXPECT_THAT(fork({id, 0}, {.params = SamplingParams{.top_p = 0}}), HasSubstr("top_p is 0, expected a number above 0"));
  const auto extend = [&](const Tokens& tokens) { return family.engine().Extend({id, 0}, tokens).status().ToString(); };
  EXPECT_THAT(extend({}), HasSubstr("tokens are none: give at least one"));
  EXPECT_THAT(extend({64}), HasSubstr("tokens[0] is 64, expected a token id in 0..63"));
  EXPECT_THAT(extend(Prompt(17)), HasSubstr("the sample would have 40 tokens, the context length is 40"));
  family.harness().RunToEnd();
  for (const int32_t index : {0, 1}) EXPECT_EQ(family.received({id, index}).tokens, family.harness().GreedyAfter(Prompt(20), 18));
  EXPECT_THAT(fork({id, 0}, {}), HasSubstr("request 1 is not known"));

  const RequestId unkept = family.Submit(Greedy(Prompt(4), 9, 2));
  family.harness().Step(2);
  ASSERT_TRUE(family.engine().Prune({unkept, 1}).ok());
  EXPECT_THAT(fork({unkept, 1}, {}), HasSubstr("sample 1 of request 2 is not known: it was pruned"));
}

TEST(Samples, OtherSaltsFindNothingOfChildren) {
  Family family({.model = {.page_size = 4}});
  Request mine = Kept(Greedy(Prompt(12), 8));
  mine.cache_salt = "mine";
  const RequestId id = family.Submit(mine);
  family.harness().Step(4);
  const SampleId child = family.Fork({id, 0}, {.keep_tokens = 2})[0];
  family.harness().RunToEnd();
  const Tokens all = Joined(Prompt(12), First(family.received({id, 0}).tokens, 8));
  for (const char* salt : {"mine", "theirs", ""}) {
    Request request = Greedy(all, 2);
    request.cache_salt = salt;
    const RequestId other = family.Submit(request);
    family.harness().RunToEnd();
    EXPECT_EQ(family.received({other, 0}).cached_tokens > 0, salt == mine.cache_salt) << salt;
  }
  EXPECT_EQ(family.received(child).tokens.size(), 6u);
}

TEST(Samples, WhatAChildOfThePromptSaysIsFoundByOthers) {
  Family family({.model = {.page_size = 4}});
  const RequestId id = family.Submit(Greedy(Prompt(9), 8));
  family.harness().Step(4);
  const SamplingParams hot{.temperature = 1};
  const SampleId child = family.Fork({id, 0}, {.keep_tokens = 0, .seed = 3, .params = hot, .max_tokens = 8})[0];
  family.harness().RunToEnd();
  ASSERT_NE(family.received(child).tokens, family.received({id, 0}).tokens);
  const Tokens all = Joined(Prompt(9), family.received(child).tokens);
  const RequestId other = family.Submit(Greedy(all, 3));
  family.harness().RunToEnd();
  EXPECT_EQ(family.received({other, 0}).cached_tokens, 16);  // all that was computed
  EXPECT_EQ(family.received({other, 0}).tokens, family.harness().GreedyAfter(all, 3));
}

TEST(Samples, AChildsTextGoesOnWhereItsTokensDo) {
  for (const bool event_thread : {false, true}) {
    for (const bool stops : {false, true}) {
      SCOPED_TRACE(std::string(event_thread ? "event thread" : "") + (stops ? ", stops" : ""));
      Family family({.model = {.vocab_size = 26}, .texts = Letters(26), .event_thread = event_thread});
      Request request = Kept(Greedy({1, 2, 3}, 8));
      const Tokens all = family.harness().GreedyAfter({1, 2, 3}, 8);
      const auto letter = [](int32_t token) { return static_cast<char>('a' + token); };
      if (stops) request.stop = {std::string{letter(all[3]), letter(all[4]), letter(all[5]), '!'}};  // held back, never complete
      const RequestId id = family.Submit(request);
      family.harness().Step(5);
      const SampleId child = family.Fork({id, 0})[0], cut = family.Fork({id, 0}, {.keep_tokens = 2})[0];
      family.harness().RunToEnd();
      std::string text;
      for (const int32_t token : all) text += letter(token);
      EXPECT_EQ(family.received({id, 0}).text, text);
      const size_t held = stops ? 2 : 0;  // tokens 3 and 4, which its parent had not said yet
      EXPECT_EQ(family.received(child).text, text.substr(5 - held));
      EXPECT_EQ(family.received(cut).text, text.substr(2));
      family.Extend({id, 0}, {7, 8, 9});
      family.harness().RunToEnd();
      std::string more;
      const Tokens after = family.harness().GreedyAfter(Joined(Joined({1, 2, 3}, all), Tokens{7, 8, 9}), 8);
      for (const int32_t token : after) more += letter(token);
      EXPECT_EQ(family.received({id, 0}).text, text + more);
    }
  }
}

TEST(Samples, AStopStringMayBeginBeforeAFork) {
  Family family({.model = {.vocab_size = 26}, .texts = Letters(26)});
  const Tokens all = family.harness().GreedyAfter({1, 2, 3}, 8);
  Request request = Greedy({1, 2, 3}, 8);
  request.stop = {std::string{static_cast<char>('a' + all[3]), static_cast<char>('a' + all[4])}};
  const RequestId id = family.Submit(request);
  family.harness().Step(4);
  const SampleId child = family.Fork({id, 0})[0];
  family.harness().RunToEnd();
  EXPECT_EQ(family.received(child).text, "");
  EXPECT_THAT(family.received(child).tokens, ElementsAre(all[4]));
  EXPECT_THAT(family.received(child).reasons, ElementsAre(FinishReason::kStop));
}

TEST(Samples, ConstraintsHoldForChildrenAndForWhatIsAdded) {
  const auto constraint = std::make_shared<ParityConstraint>(64, 40);
  for (const int32_t steps_ahead : {0, 1}) {
    Family family({.model = {.num_pages = 100}, .max_running = 16, .steps_ahead = steps_ahead, .late_runner = true});
    Request request = Kept(Greedy(Prompt(10), 9));
    request.sampling = {.temperature = 1, .seed = 4};
    request.constraint = constraint;
    const RequestId id = family.Submit(request);
    std::vector<SampleId> children = family.Fork({id, 0}, {.n = 2});  // before it begins
    family.harness().Step(7);
    for (const int32_t kept : {0, 2}) children = family.Fork({id, 0}, {.n = 2, .keep_tokens = kept});
    (void)family.Fork({id, 0});
    family.harness().RunToEnd();
    (void)family.Fork({id, 0}, {.keep_tokens = 5});  // its state is found again
    const Tokens parent = family.received({id, 0}).tokens;
    EXPECT_THAT(family.engine().Extend({id, 0}, Tokens{parent.back() + 1, parent.back() + 3}).status().message(),
                HasSubstr("tokens[1] is " + std::to_string(parent.back() + 3) + ", which the constraint does not allow there"));
    const Tokens added{(parent.back() + 1) % 40, (parent.back() + 2) % 40};
    family.Extend({id, 0}, added);
    family.harness().RunToEnd();
    const int32_t count = children.back().index + 3;
    for (int32_t index = 0; index < count; ++index) {
      const SampleInfo info = family.engine().Describe({id, index}).value();
      ASSERT_GT(std::ssize(info.token_ids), info.prompt_tokens) << index;
      int32_t before = -1;
      for (size_t i = 10; i < info.token_ids.size(); ++i) {
        EXPECT_TRUE(constraint->Allows(before, info.token_ids[i])) << index << ": " << before << ", " << info.token_ids[i];
        before = info.token_ids[i];
      }
    }
  }
}

TEST(Samples, ChildrenOfKeptSamplesAreOfTheWeightsThatAreThere) {
  for (const PauseMode mode : {PauseMode::kAbort, PauseMode::kKeep}) {
    Family family({.model = {.page_size = 4}});
    const RequestId id = family.Submit(Kept(Greedy(Prompt(13), 6, 2)));
    family.harness().RunToEnd();
    const float seed = 7;
    const WeightTensor tensor{.name = std::string(FakeRunner::kSeedTensor), .dtype = DType::kF32, .shape = {1}, .data = &seed};
    ASSERT_TRUE(family.engine().UpdateWeights(std::vector{tensor}, {.when = mode}).ok());
    const SampleId child = family.Fork({id, 1})[0];
    family.harness().RunToEnd();
    const Tokens begun = Joined(Prompt(13), family.received({id, 1}).tokens);
    EXPECT_EQ(family.received(child).tokens, family.harness().GreedyAfter(begun, 6));  // of the new model
  }
}

TEST(Samples, VerbsComeFromManyThreads) {
  Family family({.model = {.num_pages = 300}, .max_running = 16, .steps_ahead = 1, .event_thread = true});
  std::jthread steps([&](const std::stop_token& stop) { EXPECT_TRUE(family.engine().Run(stop).ok()); });
  std::atomic<int> forked = 0;
  const auto grow = [&](uint32_t seed) {
    std::mt19937 random(seed);
    for (int round = 0; round < 10; ++round) {
      const RequestId id = family.Submit(Kept(Greedy(Prompt(10, static_cast<int32_t>(seed)), 8, 2)));
      std::vector<SampleId> samples{{id, 0}, {id, 1}};
      for (int i = 0; i < 6; ++i) {
        const SampleId sample = samples[random() % samples.size()];
        switch (random() % 4) {
          case 0: (void)family.engine().Extend(sample, Tokens{1, 2}); break;
          case 1: (void)family.engine().Prune(sample); break;
          case 2: (void)family.engine().Describe(sample); break;
          default:
            if (const auto children = family.engine().Fork(sample, {.n = 2}); children.ok()) {
              ++forked;
              samples.insert(samples.end(), children->begin(), children->end());
            }
        }
      }
      (void)family.engine().Release(id);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (const uint32_t seed : {1u, 2u, 3u}) threads.emplace_back(grow, seed);
  }
  steps.request_stop();
  steps.join();
  family.harness().RunToEnd();
  EXPECT_GT(forked, 0);
  EXPECT_EQ(family.pages_in_use(), 0);
}

// ---------------------------------------------------------------------------------------------------------------- random events

// Tokens that are known of a sample, and how many its events have reported: the next step reports tokens that a call commits.
struct Line {
  Tokens tokens;
  std::vector<bool> is_added;  // by Extend, by token
  size_t received = 0;
  bool is_greedy = false;

  // `model`, if not null, must say `token` next.
  void Receive(int32_t token, const FakeRunner* model) {
    while (received < tokens.size() && is_added[received]) ++received;
    if (received == tokens.size()) {
      tokens.push_back(token);
      is_added.push_back(false);
    }
    EXPECT_EQ(token, tokens[received]);
    if (model != nullptr) {
      EXPECT_EQ(token, model->GreedyAfter(First(tokens, received)));
    }
    ++received;
  }
};

struct Played {
  std::vector<std::string> events;
  int64_t forks = 0, extensions = 0, prunes = 0, preemptions = 0, checked = 0, searches = 0;
};

struct Trouble {
  bool updates = false, fails = false, sleeps = false;
};

// A random life of trees. The events of a greedy sample must follow from its tokens, as long as nothing else happens to it.
Played Play(EngineConfig config, int seed, int num_events, const Trouble& trouble) {
  Played played;
  EngineHarness harness(config);
  Engine& engine = harness.engine();
  std::mt19937 random(static_cast<uint32_t>(seed));
  if (trouble.fails) {
    harness.model().FailWhen([&](int64_t step) { return std::mt19937(static_cast<uint32_t>(step * 7919 + seed))() % 200 == 0; });
  }
  std::map<SampleId, Line> lines;
  std::vector<RequestId> trees;
  std::vector<SampleId> samples;
  float model_seed = static_cast<float>(config.model.seed);
  const WeightTensor tensor{.name = std::string(FakeRunner::kSeedTensor), .dtype = DType::kF32, .shape = {1}, .data = &model_seed};
  const auto check = [&] {
    const Status status = harness.cache().CheckIntegrity();
    ASSERT_TRUE(status.ok()) << status.message();
  };
  const auto submit = [&] {
    Request request{.prompt_ids = Prompt(1 + random() % 30, static_cast<int32_t>(random() % 3)),
                    .n = 1 + static_cast<int32_t>(random() % 3)};
    for (int32_t& token : request.prompt_ids) token %= 16;
    request.max_tokens = static_cast<int32_t>(random() % 10);
    request.keep = random() % 2 == 0;
    request.sampling = {.temperature = random() % 3 == 0 ? 1.0f : 0.0f, .seed = random()};
    if (random() % 4 == 0) request.stop = {std::string(1, static_cast<char>('a' + random() % 16))};
    if (random() % 4 == 0) request.stop_token_ids = {static_cast<int32_t>(random() % 16)};
    if (random() % 5 == 0) request.cache_salt = "x";
    if (random() % 2 == 0) request.share_of = random() % 2 == 0 ? "a" : "b";
    if (random() % 8 == 0) request.prompt_logprobs = true;
    if (random() % 5 == 0) request.constraint = std::make_shared<ParityConstraint>(16, 4 + random() % 13);
    if (random() % 5 == 0) {  // a beam search beside them
      request.beams.width = request.n + static_cast<int32_t>(random() % 5);
      request.beams.stochastic = request.sampling.temperature > 0;
      request.keep = false;
      request.stop.clear();
      request.constraint = nullptr;
      ++played.searches;
    }
    const bool greedy =
        request.beams.width == 0 && request.sampling.temperature == 0 && request.constraint == nullptr && !trouble.updates;
    request.on_event = [&](const StreamEvent& event) {
      std::string text = std::to_string(static_cast<uint64_t>(event.request)) + "." + std::to_string(event.index) + ":";
      for (const int32_t token : event.token_ids) text += " " + std::to_string(token);
      text += " \"" + event.text + "\"";
      if (event.finish_reason) text += " " + std::string(Name(*event.finish_reason)) + " " + event.status.message();
      played.events.push_back(text + (event.request_done ? " done" : ""));
      if (event.index < 0) return;
      Line& line = lines.at({event.request, event.index});
      for (const int32_t token : event.token_ids) {
        line.Receive(token, line.is_greedy ? &harness.model() : nullptr);
        ++played.checked;
      }
    };
    const Line line{.tokens = request.prompt_ids,
                    .is_added = std::vector<bool>(request.prompt_ids.size()),
                    .received = request.prompt_ids.size(),
                    .is_greedy = greedy};
    const int32_t n = request.n;
    const RequestId id = engine.Submit(std::move(request)).value();
    for (int32_t i = 0; i < n; ++i) {
      samples.push_back({id, i});
      lines[samples.back()] = line;
    }
    trees.push_back(id);
  };
  const auto any_sample = [&] { return samples[samples.size() - 1 - random() % std::min<size_t>(samples.size(), 24)]; };
  const auto any_tree = [&] { return trees[trees.size() - 1 - random() % std::min<size_t>(trees.size(), 6)]; };
  for (int event = 0; event < num_events; ++event) {
    const uint32_t kind = trees.empty() ? 0 : random() % 16;
    if (kind < 2) {
      submit();
    } else if (kind < 5) {
      const SampleId sample = any_sample();
      ForkOptions options{.n = 1 + static_cast<int32_t>(random() % 3)};
      if (random() % 2 == 0) options.keep_tokens = static_cast<int32_t>(random() % 8);
      if (random() % 3 == 0) options.seed = random() % 4;
      if (random() % 3 == 0) options.max_tokens = 1 + static_cast<int32_t>(random() % 12);
      if (random() % 4 == 0) options.params = SamplingParams{.frequency_penalty = 0.5f, .repetition_penalty = 1.2f};
      const Result<SampleInfo> parent = engine.Describe(sample);
      const Result<std::vector<SampleId>> children = engine.Fork(sample, options);
      if (children.ok()) {
        ++played.forks;
        for (const SampleId child : *children) {
          samples.push_back(child);
          const Result<SampleInfo> info = engine.Describe(child);
          EXPECT_TRUE(info.ok());
          if (parent.ok() && options.keep_tokens) {
            EXPECT_EQ(std::ssize(info->token_ids), parent->prompt_tokens + *options.keep_tokens);
          }
          lines[child] = {.tokens = info->token_ids,
                          .is_added = std::vector<bool>(info->token_ids.size()),
                          .received = info->token_ids.size(),
                          .is_greedy = lines[sample].is_greedy && !options.params};
        }
      }
    } else if (kind < 7) {
      const SampleId sample = any_sample();
      Tokens tokens(1 + random() % 9);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 16);
      if (engine.Extend(sample, tokens).ok()) {
        ++played.extensions;
        Line& line = lines[sample];
        line.tokens = engine.Describe(sample).value().token_ids;
        line.is_added.resize(line.tokens.size() - tokens.size());
        line.is_added.resize(line.tokens.size(), true);
      }
    } else if (kind == 7) {
      played.prunes += engine.Prune(any_sample()).ok();
    } else if (kind == 8) {
      (void)engine.Release(any_tree());
    } else if (kind == 9 && random() % 4 == 0) {
      (void)engine.Cancel(any_tree());
    } else if (kind == 10 && trouble.updates && random() % 16 == 0) {
      model_seed = static_cast<float>(random() % 5);
      EXPECT_TRUE(
          engine.UpdateWeights(std::vector{tensor}, {.when = random() % 2 == 0 ? PauseMode::kKeep : PauseMode::kAbort}).ok());
    } else if (kind == 10 && trouble.sleeps && random() % 32 == 0) {
      EXPECT_TRUE(engine.Sleep({.pause = {.mode = PauseMode::kKeep}}).ok());
      EXPECT_TRUE(engine.Wake({}).ok());
    } else {
      const Result<bool> step = engine.Step();
      EXPECT_TRUE(step.ok() || trouble.fails) << step.status().ToString();
    }
    check();
    if (::testing::Test::HasFailure()) return played;
  }
  for (const RequestId tree : trees) (void)engine.Release(tree);
  for (int steps = 0; steps < 100000; ++steps) {
    const Result<bool> step = engine.Step();
    EXPECT_TRUE(step.ok() || trouble.fails) << step.status().ToString();
    check();
    if (step.ok() && !*step) break;
  }
  for (const RequestId tree : trees) EXPECT_EQ(engine.Cancel(tree).code(), StatusCode::kNotFound);  // all are forgotten
  EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
  harness.cache().DropCached();
  EXPECT_EQ(harness.cache().usage().pages_owned, 0);
  played.preemptions = engine.Metrics().preemptions;
  return played;
}

TEST(Samples, RandomTreesMatchTheirHistories) {
  const bool is_long = std::getenv("COPPICE_LONG_TEST") != nullptr;
  constexpr int kEvents = 400;
  Played sum;
  for (int round = 0; round < (is_long ? 2500 : 25); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    EngineConfig config{
        .model = {.vocab_size = 16, .max_position = 64, .num_pages = 34, .page_size = 4, .memory = round % 2 == 0 ? 3 : 0},
        .max_running = 6,
        .max_batch_tokens = 12,
        .chunk = round % 3 == 0 ? 5 : 0,
        .sharing = round % 5 != 4 ? SharingMode::kTree : SharingMode::kNone,
        .texts = Letters(16),
        .steps_ahead = 1};
    if (round % 4 == 2) {
      config.draft = DraftMode::kNgram;
      config.draft_branches = 1 + round % 3;
    }
    if (round % 8 == 7) {
      config.draft = DraftMode::kModel;
      config.draft_seed = 9;
      config.exact_drafts = true;
    }
    const Trouble trouble{.updates = round % 3 == 1, .fails = round % 3 == 2, .sleeps = round % 6 == 0};
    const Played at_once = Play(config, round, kEvents, trouble);
    if (testing::Test::HasFailure()) return;
    config.late_runner = true;
    const Played late = Play(config, round, kEvents, trouble);
    if (testing::Test::HasFailure()) return;
    ASSERT_EQ(late.events, at_once.events);
    sum.forks += late.forks;
    sum.extensions += late.extensions;
    sum.prunes += late.prunes;
    sum.preemptions += late.preemptions;
    sum.checked += late.checked;
    sum.searches += late.searches;
  }
  EXPECT_GT(sum.forks, 100);
  EXPECT_GT(sum.extensions, 50);
  EXPECT_GT(sum.prunes, 100);
  EXPECT_GT(sum.preemptions, 0);
  EXPECT_GT(sum.checked, 1000);
  EXPECT_GT(sum.searches, 100);
}

}  // namespace
}  // namespace coppice
