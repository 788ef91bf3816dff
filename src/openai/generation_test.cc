#include "openai/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "engine/testing/engine_harness.h"

namespace coppice::openai {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Plays a list of steps, each a list of events; the first step is prefill, the others decode. Cancel ends what is unfinished. With
// `late_events` each step's events come during the next one, on a thread of their own.
class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(std::vector<std::vector<StreamEvent>> steps, bool late_events = false)
      : steps_(std::move(steps)), late_events_(late_events) {}

  Result<RequestId> Submit(Request request) override {
    if (request.prompt_ids.empty()) return InvalidArgument("the prompt is empty");
    request_ = std::move(request);
    return RequestId{7};
  }
  Status Unpin(const std::string&) override { return OkStatus(); }
  Status SavePrefix(const std::string&, const std::string&) override { return OkStatus(); }
  Status LoadPrefix(const std::string&, const std::string&, const CacheTenant&) override { return OkStatus(); }
  Status Cancel(RequestId id) override {
    cancelled_ = id == RequestId{7};
    return OkStatus();
  }
  Result<std::vector<SampleId>> Fork(SampleId, const ForkOptions&) override { std::abort(); }
  Result<Extension> Extend(SampleId, std::span<const int32_t>) override { std::abort(); }
  Status Prune(SampleId) override { std::abort(); }
  Status Release(RequestId) override { std::abort(); }
  Result<SampleInfo> Describe(SampleId) override { std::abort(); }
  Result<bool> Step() override {
    if (late_events_) std::jthread([this] { Send(std::exchange(events_, {})); });
    if (fail_at_ == metrics_.steps) return Internal("the step broke");
    if (cancelled_) {
      request_.on_event({.index = 1, .finish_reason = FinishReason::kCancelled, .request_done = true});
      return true;
    }
    if (metrics_.steps == static_cast<int64_t>(steps_.size())) return false;
    events_ = steps_[metrics_.steps];
    for (const StreamEvent& event : events_) metrics_.generated_tokens += static_cast<int64_t>(event.token_ids.size());
    if (!late_events_) Send(events_);
    ++metrics_.steps;
    if (metrics_.steps > 1) ++metrics_.decode_steps;
    return true;
  }
  EngineMetrics Metrics() const override { return metrics_; }
  const Tokenizer* tokenizer() const override { return nullptr; }
  Status Run(std::stop_token) override { std::abort(); }
  EngineLoad Load() const override { std::abort(); }
  Result<WeightVersion> UpdateWeights(std::span<const WeightTensor>, const UpdateOptions&) override { std::abort(); }
  Status Pause(const PauseOptions&) override { std::abort(); }
  Status Resume() override { std::abort(); }
  Status Sleep(const SleepOptions&) override { std::abort(); }
  Status Wake(const WakeOptions&) override { std::abort(); }
  WeightVersion weight_version() const override { return {}; }
  Result<std::vector<WeightInfo>> Weights() override { std::abort(); }
  Result<int32_t> DropCache() override { std::abort(); }
  const ModelInfo& model_info() const override { std::abort(); }

  int64_t fail_at_ = -1;

 private:
  void Send(const std::vector<StreamEvent>& events) {
    for (const StreamEvent& event : events) request_.on_event(event);
  }

  std::vector<std::vector<StreamEvent>> steps_;
  std::vector<StreamEvent> events_;  // of the last step
  bool late_events_ = false;
  Request request_;
  EngineMetrics metrics_;
  bool cancelled_ = false;
};

StreamEvent Token(int32_t index, int32_t id, float logprob, std::string text, std::optional<FinishReason> reason = {},
                  bool done = false) {
  return {.index = index,
          .token_ids = {id},
          .logprobs = {logprob},
          .text = std::move(text),
          .finish_reason = reason,
          .request_done = done};
}

std::vector<std::vector<StreamEvent>> TwoSamples() {
  return {{{.index = -1, .prompt_logprobs = {std::nullopt, -0.5f}}, Token(0, 10, -1.0f, "a"), Token(1, 20, -0.5f, "x")},
          {Token(0, 11, -3.0f, "b", FinishReason::kStop), Token(1, 21, -0.5f, "y")},
          {Token(1, 22, -0.5f, "z", FinishReason::kLength, /*done=*/true)}};
}

const Request kRequest{.prompt_ids = {1, 2}, .n = 2, .max_tokens = 3};

TEST(Generate, GathersSamplesInOrderOfTheirEvents) {
  for (const bool late_events : {false, true}) {
    FakeEngine engine(TwoSamples(), late_events);
    std::vector<int32_t> finished;
    int64_t last_finished_seen = -1;
    const Result<Generation> generation =
        Generate(engine, kRequest,
                 {.on_sample = [&](const Sample& sample) { finished.push_back(sample.index); },
                  .on_step = [&](const GenerationProgress& progress) { last_finished_seen = progress.samples_finished; }});
    ASSERT_TRUE(generation.ok()) << generation.status().ToString();
    EXPECT_THAT(finished, ElementsAre(0, 1));
    EXPECT_EQ(last_finished_seen, 2);
    EXPECT_THAT(generation->prompt_ids, ElementsAre(1, 2));
    EXPECT_THAT(generation->prompt_logprobs, ElementsAre(std::nullopt, -0.5f));
    EXPECT_EQ(generation->samples[0].text, "ab");
    EXPECT_THAT(generation->samples[1].token_ids, ElementsAre(20, 21, 22));
    EXPECT_EQ(generation->samples[0].finish_reason, FinishReason::kStop);
    EXPECT_EQ(generation->samples[1].finish_reason, FinishReason::kLength);
    EXPECT_DOUBLE_EQ(*generation->samples[0].mean_logprob(), -2.0);
    EXPECT_EQ(generation->decode_tokens, 3);  // the first token of each sample comes from the prefill step
    EXPECT_FALSE(generation->interrupted);
  }
}

TEST(Generate, RanksByMeanLogProbability) {
  FakeEngine engine(TwoSamples());
  const Result<Generation> generation = Generate(engine, kRequest, {});
  ASSERT_TRUE(generation.ok());
  const std::vector<const Sample*> ranked = Select(generation->samples, {.rank = true});
  ASSERT_EQ(ranked.size(), 2u);
  EXPECT_EQ(ranked[0]->index, 1);
  EXPECT_EQ(ranked[1]->index, 0);
  const std::vector<const Sample*> best = Select(generation->samples, {.best = 1});
  ASSERT_EQ(best.size(), 1u);
  EXPECT_EQ(best[0]->index, 1);
  EXPECT_EQ(Select(generation->samples, {})[0]->index, 0);
}

TEST(Generate, SelectsAndVotesAmongFinishedSamples) {
  Generation generation;
  generation.samples = {
      {.index = 0, .text = "it is 4", .token_ids = {1}, .logprobs = {-3}, .finish_reason = FinishReason::kStop},
      {.index = 1, .text = "it is 5", .token_ids = {2}, .logprobs = {-1}, .finish_reason = FinishReason::kCancelled},
      {.index = 2, .text = "it is 4", .token_ids = {3}, .logprobs = {-2}, .finish_reason = FinishReason::kLength},
      {.index = 3, .text = "it is 5", .token_ids = {4}, .logprobs = {-4}, .finish_reason = FinishReason::kStop},
  };
  const std::vector<const Sample*> distinct = Select(generation.samples, {.deduplicate = true});
  ASSERT_EQ(distinct.size(), 2u);
  EXPECT_EQ(distinct[0]->index, 2);  // the likelier of the two equal ones
  EXPECT_EQ(distinct[1]->index, 3);
  const auto votes = Vote(generation.samples, "[0-9]+");
  ASSERT_TRUE(votes.ok());
  ASSERT_EQ(votes->size(), 2u);
  EXPECT_EQ((*votes)[0].answer, "4");
  EXPECT_THAT((*votes)[0].voters, ElementsAre(0, 2));
  EXPECT_THAT((*votes)[1].voters, ElementsAre(3));  // indices of samples, not places in a list
}

TEST(Generate, StopKeepsWhatIsFinished) {
  FakeEngine engine(TwoSamples());
  int asked = 0;
  const Result<Generation> generation = Generate(engine, kRequest, {.should_stop = [&] { return ++asked > 2; }});
  ASSERT_TRUE(generation.ok()) << generation.status().ToString();
  EXPECT_TRUE(generation->interrupted);
  EXPECT_TRUE(generation->samples[0].finished());
  EXPECT_FALSE(generation->samples[1].finished());
  EXPECT_THAT(generation->samples[1].token_ids, ElementsAre(20, 21));
  ASSERT_EQ(Select(generation->samples, {}).size(), 1u);
}

// The second request on an engine counts what the same request counts on a fresh one, though the first was larger.
TEST(Generate, CountsItsOwnStepsOnAnEngineThatRanBefore) {
  const EngineConfig config = {.model = {.num_pages = 64, .page_size = 4}};
  const auto request = [](int32_t prompt_tokens, int32_t n, std::string salt) {
    Request result{.n = n, .max_tokens = 6, .ignore_eos = true, .cache_salt = std::move(salt)};
    for (int32_t i = 0; i < prompt_tokens; ++i) result.prompt_ids.push_back(1 + i % 7);
    return result;
  };
  EngineHarness fresh(config), used(config);
  const Result<Generation> expected = Generate(fresh.engine(), request(20, 3, ""), {});
  ASSERT_TRUE(Generate(used.engine(), request(50, 6, "first"), {}).ok());
  const Result<Generation> second = Generate(used.engine(), request(20, 3, "second"), {});
  ASSERT_TRUE(expected.ok() && second.ok());
  EXPECT_EQ(second->decode_tokens, expected->decode_tokens);
  for (const auto count :
       {&EngineMetrics::steps, &EngineMetrics::prompt_tokens, &EngineMetrics::prefilled_tokens, &EngineMetrics::generated_tokens,
        &EngineMetrics::cached_tokens, &EngineMetrics::decode_steps, &EngineMetrics::decode_kv_bytes_read,
        &EngineMetrics::kv_bytes_read_unshared, &EngineMetrics::kv_bytes_stored, &EngineMetrics::kv_bytes_stored_unshared,
        &EngineMetrics::kv_page_rounding_bytes, &EngineMetrics::rows})
    EXPECT_EQ(second->metrics.*count, expected->metrics.*count);
  EXPECT_GT(second->metrics.kv_bytes_stored, 0);
  EXPECT_LT(second->metrics.kv_bytes_stored, used.engine().Metrics().kv_bytes_stored);
}

// 40 samples whose last letter is "a" with 60 % and each of four others with 10 %, 8 at a time; each token is the last one with
// 1 of `mean_length`, or, at 0, there are 50.
Request Undecided(uint64_t seed, int mean_length) {
  Request request{.prompt_ids = {7, 8, 9}, .n = 40, .max_tokens = mean_length > 0 ? 200 : 50, .ignore_eos = true};
  const float end = mean_length > 0 ? 1.0F / static_cast<float>(mean_length) : 1e-9F;
  request.sampling.seed = seed;
  for (int32_t token = 0; token < 64; ++token) request.sampling.logit_bias.emplace_back(token, -1e9F);
  for (int32_t token = 0; token < 5; ++token)
    request.sampling.logit_bias[token].second = std::log((1 - end) * (token == 0 ? 0.6F : 0.1F));
  request.sampling.logit_bias[5].second = std::log(end);
  request.stop_token_ids = {5};
  return request;
}

EngineConfig EightAtATime(bool event_thread = false) {
  return {.model = {.max_position = 256, .num_pages = 256, .logit_range = 0},
          .max_running = 8,
          .texts = Letters(64),
          .event_thread = event_thread};
}

int64_t TokensOf(const Generation& generation) {
  int64_t tokens = 0;
  for (const Sample& sample : generation.samples) tokens += std::ssize(sample.token_ids);
  return tokens;
}

TEST(Generate, AVoteThatStopsSaysWhatTheWholeOneSays) {
  const StoppingVote vote{.pattern = "[a-e]", .max_running = 8};
  for (const int mean_length : {0, 50}) {
    int64_t whole_tokens = 0, voted_tokens = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      EngineHarness whole_engine(EightAtATime()), voted_engine(EightAtATime(/*event_thread=*/seed % 2 == 1));
      const Result<Generation> whole = Generate(whole_engine.engine(), Undecided(seed, mean_length), {});
      const Result<Generation> voted = Generate(voted_engine.engine(), Undecided(seed, mean_length), {}, &vote);
      ASSERT_TRUE(whole.ok() && voted.ok()) << voted.status().message();
      const auto of_whole = Vote(whole->samples, vote.pattern), of_voted = Vote(voted->samples, vote.pattern);
      ASSERT_TRUE(of_whole.ok() && of_voted.ok());
      EXPECT_EQ(of_voted->front().answer, of_whole->front().answer) << "seed " << seed;
      for (const Sample& sample : voted->samples) {
        if (!sample.finished()) continue;
        EXPECT_EQ(sample.token_ids, whole->samples[sample.index].token_ids) << "sample " << sample.index;
      }
      EXPECT_FALSE(voted->interrupted);
      EXPECT_EQ(voted_engine.engine().Load().running, 0);
      whole_tokens += TokensOf(*whole);
      voted_tokens += TokensOf(*voted);
    }
    const double saved = 1 - static_cast<double>(voted_tokens) / static_cast<double>(whole_tokens);
    RecordProperty(mean_length > 0 ? "saved_of_unequal_lengths" : "saved_of_equal_lengths", std::to_string(saved));
    EXPECT_GT(saved, mean_length > 0 ? 0.23 : 0.28) << "mean length " << mean_length;
  }
}

TEST(Generate, AVoteThatNothingSettlesTakesAllSamples) {
  EngineHarness whole_engine(EightAtATime()), voted_engine(EightAtATime());
  Request request = Undecided(/*seed=*/3, /*mean_length=*/20);
  request.n = 9;
  const StoppingVote vote{.pattern = "no such answer", .max_running = 4};
  const Result<Generation> whole = Generate(whole_engine.engine(), request, {});
  const Result<Generation> voted = Generate(voted_engine.engine(), request, {}, &vote);
  ASSERT_TRUE(whole.ok() && voted.ok()) << voted.status().message();
  ASSERT_EQ(voted->samples.size(), 9u);
  for (int32_t i = 0; i < 9; ++i) EXPECT_EQ(voted->samples[i].token_ids, whole->samples[i].token_ids);
}

TEST(Generate, AVoteEndsWithAnInterruptAndWithARefusal) {
  EngineHarness harness(EightAtATime());
  const StoppingVote vote{.pattern = "[a-e]", .max_running = 8};
  int steps = 0;
  const Result<Generation> cut = Generate(harness.engine(), Undecided(1, 50), {.should_stop = [&] { return ++steps > 20; }}, &vote);
  ASSERT_TRUE(cut.ok()) << cut.status().message();
  EXPECT_TRUE(cut->interrupted);
  EXPECT_EQ(harness.engine().Load().running + harness.engine().Load().waiting, 0);
  Request refused = Undecided(1, 50);
  refused.prompt_ids.clear();
  EXPECT_EQ(Generate(harness.engine(), refused, {}, &vote).status().code(), StatusCode::kInvalidArgument);
  const StoppingVote broken{.pattern = "(", .max_running = 8};
  EXPECT_THAT(Generate(harness.engine(), Undecided(1, 50), {}, &broken).status().message(), HasSubstr("answer pattern ("));
}

TEST(Generate, ReturnsTheEnginesErrors) {
  FakeEngine empty_prompt({});
  EXPECT_EQ(Generate(empty_prompt, {}, {}).status().code(), StatusCode::kInvalidArgument);

  FakeEngine broken(TwoSamples());
  broken.fail_at_ = 1;
  EXPECT_EQ(Generate(broken, kRequest, {}).status().message(), "the step broke");

  FakeEngine failed_sample(
      {{{.index = 0, .finish_reason = FinishReason::kError, .request_done = true, .status = ResourceExhausted("no page left")}}});
  EXPECT_EQ(Generate(failed_sample, kRequest, {}).status().message(), "no page left");

  FakeEngine idle({});
  EXPECT_THAT(Generate(idle, kRequest, {}).status().message(), HasSubstr("not done"));
}

TEST(RequestOutput, HasSamplesByTheirIndex) {
  RequestOutput output;
  output.Add({.index = -1, .token_ids = {1, 2}, .text = "say", .prompt_logprobs = {std::nullopt, -0.5f}});
  output.Add(Token(1, 20, -0.5f, "x"));
  output.Add({.index = 0, .finish_reason = FinishReason::kCancelled});
  EXPECT_EQ(output.prompt.text, "say");
  EXPECT_THAT(output.prompt.token_ids, ElementsAre(1, 2));
  EXPECT_THAT(output.prompt.logprobs, ElementsAre(std::nullopt, -0.5f));
  EXPECT_EQ(output.samples[1].index, 1);
  EXPECT_EQ(output.samples[1].text, "x");
  EXPECT_EQ(output.samples[0].finish_reason, FinishReason::kCancelled);
}

TEST(Sample, WithoutTokensHasNoMean) { EXPECT_EQ(Sample().mean_logprob(), std::nullopt); }

}  // namespace
}  // namespace coppice::openai
