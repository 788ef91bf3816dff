// One step ahead: a step is scheduled and launched before the tokens of the one under way are known. Around a runner that does its
// work as late as it may the engine must say what it says around one that does it at once, and each sample must say what it says
// without steps ahead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "engine/testing/engine_harness.h"
#include "engine/testing/fake_constraint.h"
#include "runner/testing/late_runner.h"

namespace coppice {
namespace {

int NumRounds(int usual) { return std::getenv("COPPICE_LONG_TEST") != nullptr ? 10 * usual : usual; }

std::string TextOf(const StreamEvent& event) {
  std::string text = std::to_string(static_cast<uint64_t>(event.request)) + "." + std::to_string(event.index) + ":";
  for (const int32_t token : event.token_ids) text += " " + std::to_string(token);
  for (const float logprob : event.logprobs) text += " " + std::to_string(logprob);
  for (const auto& place : event.top_logprobs) {
    for (const TokenLogprob& top : place) text += " " + std::to_string(top.token) + "=" + std::to_string(top.logprob);
  }
  for (const std::optional<float>& logprob : event.prompt_logprobs) text += logprob ? " " + std::to_string(*logprob) : " -";
  for (const ScoredToken& score : event.prompt_scores) text += " " + std::to_string(score.logprob) + (score.greedy ? "!" : "");
  text += " \"" + event.text + "\"";
  if (event.finish_reason) text += " " + std::string(Name(*event.finish_reason)) + " " + event.status.message();
  return text;
}

// Calls and failures that may come in a round beside requests.
struct Disturbances {
  bool cancels = false, pins = false, fails = false;
};

struct Round {
  std::vector<std::string> events;                // in their order
  std::vector<std::vector<std::string>> samples;  // by request and sample: tokens, text and how it ended
  EngineMetrics metrics;
};

EngineConfig ConfigOf(int round) {
  EngineConfig config{.model = {.vocab_size = 16, .max_position = 64, .num_pages = 30, .page_size = 4, .memory = 3},
                      .max_running = 5,
                      .max_batch_tokens = 11,
                      .chunk = round % 2 == 0 ? 0 : 5,
                      .schedule = round % 5 == 4 ? SchedulePolicy::kPrefillFirst : SchedulePolicy::kMixed,
                      .sharing = round % 4 != 3 ? SharingMode::kTree : SharingMode::kNone,
                      .texts = Letters(16)};
  if (round % 7 == 5) {
    config.draft = DraftMode::kNgram;
    config.draft_branches = 1 + round % 3;
  }
  if (round % 7 == 6) {
    config.draft = DraftMode::kModel;
    config.draft_seed = 9;
    config.exact_drafts = true;
  }
  return config;
}

Request RandomRequest(std::mt19937& random) {
  Request request{.prompt_ids = Prompt(1 + random() % 30, random() % 3), .n = 1 + static_cast<int32_t>(random() % 7)};
  for (int32_t& token : request.prompt_ids) token %= 16;
  request.max_tokens = 1 + static_cast<int32_t>(random() % 12);
  request.sampling.seed = random();
  request.sampling.temperature = random() % 2 == 0 ? 0.0f : 1.0f;
  if (random() % 3 == 0) request.sampling.frequency_penalty = 0.7f;
  if (random() % 4 == 0) request.sampling.repetition_penalty = 1.4f;
  if (random() % 4 == 0) request.stop = {std::string(1, static_cast<char>('a' + random() % 16))};
  if (random() % 4 == 0) request.stop_token_ids = {static_cast<int32_t>(random() % 16)};
  if (random() % 4 == 0) request.min_tokens = static_cast<int32_t>(random() % (request.max_tokens + 1));
  if (random() % 5 == 0) request.cache_salt = "x";
  if (random() % 2 == 0) request.share_of = random() % 2 == 0 ? "a" : "b";
  if (random() % 6 == 0) {
    request.prompt_logprobs = true;
  } else if (random() % 6 == 0) {
    const auto length = static_cast<int32_t>(request.prompt_ids.size());
    for (int32_t position = static_cast<int32_t>(random() % length); position < length; position += 1 + random() % 4) {
      for (uint32_t token = random() % 16; token < 16; token += 5)
        request.prompt_scores.push_back({.position = position, .token = static_cast<int32_t>(token)});
    }
  }
  if (random() % 8 == 0) request.max_tokens = request.min_tokens = 0;
  if (random() % 6 == 0) request.top_logprobs = 3;
  if (random() % 4 == 0) {
    request.constraint =
        std::make_shared<ParityConstraint>(16, 4 + random() % 13, random() % 4, static_cast<int32_t>(random() % 16));
  }
  return request;
}

Round Play(EngineConfig config, int seed, int num_events, const Disturbances& disturbances) {
  Round round;
  EngineHarness harness(config);
  std::mt19937 random(seed), fate(seed + 1);
  if (disturbances.fails) {
    harness.model().FailWhen([&](int64_t step) { return std::mt19937(static_cast<uint32_t>(step * 7919 + seed))() % 200 == 0; });
  }
  std::vector<RequestId> ids;
  const auto check = [&] {
    const Status status = harness.cache().CheckIntegrity();
    ASSERT_TRUE(status.ok()) << status.message();
  };
  for (int event = 0; event < num_events; ++event) {
    if (random() % 4 == 0) {
      Request request = RandomRequest(random);
      const bool pins = random() % 20 == 0 && request.prompt_ids.size() < 12 && config.sharing != SharingMode::kNone;
      if (pins && disturbances.pins) request.pin_prompt_as = random() % 2 == 0 ? "p" : "q";
      const size_t slot = round.samples.size();
      round.samples.emplace_back(request.n);
      request.on_event = [&round, slot](const StreamEvent& said) {
        round.events.push_back(TextOf(said) + (said.request_done ? " done" : ""));
        if (said.index >= 0) round.samples[slot][said.index] += TextOf(said) + "\n";
      };
      ids.push_back(harness.engine().Submit(std::move(request)).value());
    }
    if (disturbances.cancels && fate() % 12 == 0 && !ids.empty()) (void)harness.engine().Cancel(ids[fate() % ids.size()]);
    if (disturbances.pins && fate() % 40 == 0) (void)harness.engine().Unpin(fate() % 2 == 0 ? "p" : "q");
    const Result<bool> step = harness.engine().Step();
    EXPECT_TRUE(step.ok() || disturbances.fails) << step.status().ToString();
    check();
  }
  for (const char* name : {"p", "q"}) (void)harness.engine().Unpin(name);
  for (int steps = 0; steps < 100000; ++steps) {
    const Result<bool> step = harness.engine().Step();
    EXPECT_TRUE(step.ok() || disturbances.fails) << step.status().ToString();
    check();
    for (const char* name : {"p", "q"}) (void)harness.engine().Unpin(name);
    if (step.ok() && !*step) break;
  }
  EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
  harness.cache().DropCached();
  EXPECT_EQ(harness.cache().usage().pages_owned, 0);
  round.metrics = harness.engine().Metrics();
  if (harness.late() != nullptr) {
    EXPECT_EQ(harness.late()->most_under_way(), config.draft == DraftMode::kNone && config.steps_ahead == 1 ? 2u : 1u);
  }
  return round;
}

TEST(StepsAhead, ALateRunnerGivesTheEventsOfOneThatRunsAtOnce) {
  constexpr int kEvents = 1000;
  int64_t bubbles = 0, preemptions = 0, failed = 0;
  for (int round = 0; round < NumRounds(100); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    EngineConfig config = ConfigOf(round);
    config.steps_ahead = 1;
    const Disturbances disturbances{.cancels = true, .pins = true, .fails = true};
    const Round at_once = Play(config, round, kEvents, disturbances);
    config.late_runner = true;
    const Round late = Play(config, round, kEvents, disturbances);
    ASSERT_EQ(late.events, at_once.events);
    bubbles += late.metrics.bubbles;
    preemptions += late.metrics.preemptions;
    for (const std::string& event : late.events) failed += event.find("at random") != std::string::npos;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(bubbles, 0);
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(failed, 0);
}

TEST(StepsAhead, NoStepAheadAndOneGiveTheSameSamples) {
  constexpr int kEvents = 500;
  for (int round = 0; round < NumRounds(60); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    EngineConfig config = ConfigOf(round);
    const Round without = Play(config, round, kEvents, {});
    config.steps_ahead = 1;
    config.late_runner = true;
    const Round with = Play(config, round, kEvents, {});
    ASSERT_EQ(with.samples, without.samples);
  }
}

TEST(StepsAhead, AFailedStepEndsItsRequestsAndThoseLaunchedAfterItAndNoOthers) {
  EngineHarness harness(
      {.model = {.num_pages = 64}, .max_running = 3, .max_batch_tokens = 16, .steps_ahead = 1, .late_runner = true});
  harness.model().FailWhen([](int64_t step) { return step == 3; });
  harness.Submit(Greedy(Prompt(10), 30, 2));
  harness.Step(2);                            // steps 1 and 2 are committed, 3 is under way
  harness.Submit(Greedy(Prompt(40, 3), 10));  // begins its prompt in step 4
  harness.Submit(Greedy(Prompt(40, 3), 10));  // waits for it
  const Result<bool> step = harness.engine().Step();
  ASSERT_FALSE(step.ok());
  for (const Output& output : harness.outputs(0)) EXPECT_EQ(output.reason, FinishReason::kError);
  EXPECT_EQ(harness.outputs(1)[0].reason, FinishReason::kError);
  ASSERT_TRUE(harness.cache().CheckIntegrity().ok());
  EXPECT_EQ(harness.cache().usage().pages_in_use, 0);
  harness.RunToEnd();
  EXPECT_EQ(harness.outputs(2)[0].tokens, harness.GreedyAfter(Prompt(40, 3), 10));
}

TEST(StepsAhead, APrefixIsSavedAndLoadedWhileStepsAreUnderWay) {
  const std::string path = (std::filesystem::temp_directory_path() / ("steps_ahead_" + std::to_string(getpid()))).string();
  const EngineConfig config{.model = {.num_pages = 64}, .steps_ahead = 1, .late_runner = true};
  Request pinned = Greedy(Prompt(40), 20, 2);
  pinned.pin_prompt_as = "system";
  EngineHarness first(config);
  first.Submit(pinned);
  first.Step(4);
  ASSERT_TRUE(first.engine().SavePrefix("system", path).ok());
  first.RunToEnd();
  EngineHarness second(config);
  second.Submit(Greedy(Prompt(30, 5), 20));
  second.Step(3);
  ASSERT_TRUE(second.engine().LoadPrefix("system", path, CacheTenant()).ok());
  second.Submit(Greedy(Prompt(40), 20));
  second.RunToEnd();
  std::filesystem::remove(path);
  EXPECT_EQ(second.engine().Metrics().cached_tokens, 40);
  for (const Output& output : first.outputs(0)) EXPECT_EQ(output.tokens, first.GreedyAfter(Prompt(40), 20));
  EXPECT_EQ(second.outputs(0)[0].tokens, second.GreedyAfter(Prompt(30, 5), 20));
  EXPECT_EQ(second.outputs(1)[0].tokens, second.GreedyAfter(Prompt(40), 20));
}

}  // namespace
}  // namespace coppice
