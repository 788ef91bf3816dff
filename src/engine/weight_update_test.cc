// Weights replaced while requests run, wait, are pinned and fail: every token is what the weights of its version say, after KV of
// the same version but for samples that an update lets go on. Around a FakeRunner, whose weight is its seed, and which checks that
// all KV that it reads is of that seed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <initializer_list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/testing/engine_harness.h"

namespace coppice {
namespace {

// Events of one request.
struct Received {
  std::map<int32_t, std::vector<int32_t>> tokens;    // by sample
  std::map<int32_t, std::vector<int64_t>> versions;  // of its tokens
  std::map<int32_t, FinishReason> reasons;
  int32_t cached_tokens = 0;
  Status status;
  bool done = false;
};

// An engine whose model is given the next of `kSeeds` by each update.
class UpdateHarness {
 public:
  static constexpr std::array<uint64_t, 4> kSeeds = {0, 11, 12, 13};

  explicit UpdateHarness(EngineConfig config) : harness_(config) {
    for (const uint64_t seed : kSeeds) {
      config.model.seed = seed;
      models_.push_back(std::make_unique<EngineHarness>(config));
    }
  }

  size_t Submit(Request request) {
    received_.push_back(std::make_unique<Received>());
    Received* const received = received_.back().get();
    request.on_event = [received](const StreamEvent& event) {
      std::vector<int32_t>& tokens = received->tokens[event.index];
      tokens.insert(tokens.end(), event.token_ids.begin(), event.token_ids.end());
      received->versions[event.index].resize(tokens.size(), event.weight_version);
      if (event.finish_reason) received->reasons[event.index] = *event.finish_reason;
      if (!event.status.ok()) received->status = event.status;
      received->cached_tokens = std::max(received->cached_tokens, event.cached_tokens);
      received->done |= event.request_done;
    };
    ids_.push_back(harness_.engine().Submit(std::move(request)).value());
    return received_.size() - 1;
  }

  // Steps the engine until `call`, of another thread, returns, where that waits for what runs.
  template <class Call>
  auto StepUntilReturn(const Call& call) {
    auto returned = std::async(std::launch::async, call);
    while (returned.wait_for(std::chrono::microseconds(100)) != std::future_status::ready) {
      if (!harness_.engine().Load().draining) continue;
      const Result<bool> step = harness_.engine().Step();  // its cache is not looked at: the call may be changing it
      EXPECT_TRUE(step.ok()) << step.status().ToString();
    }
    CheckCache();
    return returned.get();
  }
  Result<WeightVersion> Update(PauseMode when) {
    const size_t model = (harness_.engine().weight_version().number + 1) % kSeeds.size();
    const auto seed = static_cast<float>(kSeeds[model]);
    const Result<WeightVersion> updated = StepUntilReturn([&] {
      return harness_.engine().UpdateWeights(
          std::vector<WeightTensor>{
              {.name = std::string(FakeRunner::kSeedTensor), .dtype = DType::kF32, .shape = {1}, .data = &seed}},
          {.when = when, .label = "step"});
    });
    NoteVersion(model, when == PauseMode::kKeep);
    return updated;
  }
  Status Pause(const PauseOptions& options) {
    return StepUntilReturn([&] { return harness_.engine().Pause(options); });
  }
  Status Sleep(SleepLevel level, PauseMode mode) {
    const Status slept = StepUntilReturn([&] { return harness_.engine().Sleep({.level = level, .pause = {.mode = mode}}); });
    EXPECT_TRUE(!slept.ok() || harness_.cache().usage().pages_owned == 0);
    return slept;
  }
  Status Wake(const WakeOptions& options) {
    const Status woken = harness_.engine().Wake(options);
    NoteVersion(/*model=*/0, /*was_kept=*/true);  // where it read the seed that was loaded
    return woken;
  }

  // Its integrity, and that what the tree finds was computed with the weights that there are.
  void CheckCache() {
    const KvCache& cache = harness_.cache();
    const Status status = cache.CheckIntegrity();
    ASSERT_TRUE(status.ok()) << status.message();
    const int32_t page_size = cache.options().page_size;
    for (NodeId id = 1; id < cache.tree().node_capacity(); ++id) {
      const PrefixTree::Node& node = cache.tree().node(id);
      if (!node.in_tree || !cache.tree().IsCurrent(id)) continue;
      for (int32_t kv = node.begin; kv < node.ready_end; ++kv) {
        const int64_t page = node.pages[kv / page_size - node.begin / page_size];
        ASSERT_EQ(harness_.model().VersionAt(page * page_size + kv % page_size), harness_.model().weight_version());
      }
    }
  }

  // That each of a request's tokens is what its version says after those before it, and that versions change by updates alone that
  // let samples go on; its number of finished samples.
  int CheckTokens(size_t slot, const Request& request) {
    const Received& received = *received_[slot];
    EXPECT_TRUE(received.done);
    int finished = 0;
    int64_t first = -1;  // version
    for (const auto& [sample, tokens] : received.tokens) {
      if (tokens.empty()) continue;
      const std::vector<int64_t>& versions = received.versions.at(sample);
      if (first < 0) first = versions.front();
      std::vector<int32_t> text = request.prompt_ids;
      for (size_t i = 0; i < tokens.size(); ++i) {
        EXPECT_EQ(tokens[i], models_[versions_[versions[i]].model]->model().GreedyAfter(text)) << "version " << versions[i];
        text.push_back(tokens[i]);
        for (int64_t v = i == 0 ? std::min(first, versions[0]) : versions[i - 1]; v < std::max(first, versions[i]); ++v)
          EXPECT_TRUE(versions_[v + 1].was_kept) << "the update to version " << v + 1;
        EXPECT_GE(versions[i], versions[std::max<size_t>(i, 1) - 1]);
      }
      finished += received.reasons.at(sample) == FinishReason::kLength;
    }
    return finished;
  }

  EngineHarness& harness() { return harness_; }
  Engine& engine() { return harness_.engine(); }
  const Received& received(size_t slot) const { return *received_[slot]; }
  RequestId id(size_t slot) const { return ids_[slot]; }

 private:
  struct Version {
    size_t model = 0;       // of kSeeds
    bool was_kept = false;  // what ran went on
  };

  void NoteVersion(size_t model, bool was_kept) {
    if (harness_.engine().weight_version().number == std::ssize(versions_)) versions_.push_back({model, was_kept});
  }

  std::vector<std::unique_ptr<EngineHarness>> models_;  // what each seed says
  std::vector<std::unique_ptr<Received>> received_;     // outlives the engine
  std::vector<RequestId> ids_;
  std::vector<Version> versions_ = {{}};
  EngineHarness harness_;
};

const EngineConfig kConfig = {
    .model = {.vocab_size = 64, .max_position = 64, .num_pages = 60, .page_size = 4}, .max_running = 4, .max_batch_tokens = 16};

// Where one sample runs and the next one waits.
EngineConfig OneByOne() {
  EngineConfig config = kConfig;
  config.max_running = 1;
  return config;
}

TEST(WeightUpdate, AbortEndsWhatRunsAndWhatWaitsIsComputedWithTheNewWeights) {
  UpdateHarness harness(OneByOne());
  const Request request = Greedy(Prompt(9), 12);
  const size_t runs = harness.Submit(request), waits = harness.Submit(request);
  harness.harness().Step(3);
  const Result<WeightVersion> version = harness.Update(PauseMode::kAbort);
  ASSERT_TRUE(version.ok()) << version.status().ToString();
  EXPECT_EQ(version->number, 1);
  EXPECT_EQ(version->label, "step");
  harness.harness().RunToEnd();
  for (const auto& [sample, reason] : harness.received(runs).reasons) EXPECT_EQ(reason, FinishReason::kCancelled) << sample;
  EXPECT_EQ(harness.CheckTokens(runs, request), 0);
  EXPECT_EQ(harness.CheckTokens(waits, request), 1);
  EXPECT_EQ(harness.received(waits).versions.at(0).front(), 1);
  EXPECT_EQ(harness.engine().Metrics().last_step.weight_version, 1);
}

TEST(WeightUpdate, WaitLetsWhatRunsFinishAndNothingElseBegins) {
  UpdateHarness harness(OneByOne());
  const Request request = Greedy(Prompt(9), 12);
  const size_t runs = harness.Submit(request), waits = harness.Submit(request);
  harness.harness().Step(3);
  EXPECT_FALSE(harness.received(runs).done);
  ASSERT_TRUE(harness.Update(PauseMode::kWait).ok());
  EXPECT_TRUE(harness.received(runs).done);
  EXPECT_TRUE(harness.received(waits).versions.empty());
  EXPECT_FALSE(harness.engine().Load().draining);
  harness.harness().RunToEnd();
  for (const size_t slot : {runs, waits}) {
    EXPECT_EQ(harness.CheckTokens(slot, request), 1);
    EXPECT_EQ(harness.received(slot).versions.at(0).front(), slot == waits ? 1 : 0);
  }
}

TEST(WeightUpdate, KeepLetsWhatRunsGoOnWithTheKvThatItHasAlone) {
  UpdateHarness harness(kConfig);
  const Request request = Greedy(Prompt(21), 16, /*n=*/2);
  const size_t runs = harness.Submit(request);
  harness.harness().Step(6);
  ASSERT_TRUE(harness.Update(PauseMode::kKeep).ok());
  EXPECT_GT(harness.engine().Metrics().running, 0);
  const size_t comes = harness.Submit(request);
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.CheckTokens(runs, request), 2);
  EXPECT_EQ(harness.CheckTokens(comes, request), 2);
  for (const auto& [sample, versions] : harness.received(runs).versions) {
    EXPECT_EQ(versions.front(), 0) << sample;
    EXPECT_EQ(versions.back(), 1) << sample;
  }
  EXPECT_EQ(harness.received(comes).versions.at(0).front(), 1);
  EXPECT_EQ(harness.received(comes).cached_tokens, 0) << "of a prompt whose KV other weights made";
  harness.CheckCache();
  // KV that the samples of two versions made is gone with them.
  harness.harness().cache().DropCached();
  EXPECT_EQ(harness.harness().cache().usage().pages_owned, 0);
}

// A prompt that is computed in part before an update is pinned when it was computed anew.
TEST(WeightUpdate, KeepPinsNoPromptOfTwoVersions) {
  UpdateHarness harness(kConfig);
  Request pin = Greedy(Prompt(40), 0);
  pin.pin_prompt_as = "pinned";
  harness.Submit(pin);
  harness.harness().Step(1);
  ASSERT_TRUE(harness.Update(PauseMode::kKeep).ok());
  harness.harness().RunToEnd();
  ASSERT_TRUE(harness.harness().cache().pins().Find("pinned").has_value());
  EXPECT_EQ(harness.harness().cache().pins().Find("pinned")->tokens, Prompt(40));
  harness.CheckCache();
  ASSERT_TRUE(harness.Update(PauseMode::kKeep).ok());
  harness.harness().Step(1);  // of the prompt that is computed anew
  ASSERT_TRUE(harness.Update(PauseMode::kAbort).ok());
  harness.harness().RunToEnd();
  EXPECT_TRUE(harness.harness().cache().pins().Find("pinned").has_value());
  harness.CheckCache();
}

TEST(WeightUpdate, NothingCachedOutlivesIt) {
  UpdateHarness harness(kConfig);
  const Request request = Greedy(Prompt(40), 4);
  const auto cached = [&] {
    const int64_t before = harness.engine().Metrics().cached_tokens;
    const size_t slot = harness.Submit(request);
    harness.harness().RunToEnd();
    EXPECT_EQ(harness.CheckTokens(slot, request), 1);
    return harness.engine().Metrics().cached_tokens - before;
  };
  EXPECT_EQ(cached(), 0);
  EXPECT_GT(cached(), 30);
  ASSERT_TRUE(harness.Update(PauseMode::kWait).ok());
  harness.harness().Step();
  EXPECT_EQ(harness.engine().Metrics().pages_used, 0);
  EXPECT_EQ(cached(), 0);
  EXPECT_GT(cached(), 30);
}

TEST(WeightUpdate, APinnedPromptIsComputedAnew) {
  UpdateHarness harness(kConfig);
  const std::string path = (std::filesystem::temp_directory_path() / "coppice_weight_update_test.prefix").string();
  for (const char* name : {"kept", "let go", "taken"}) {
    Request pin = Greedy(Prompt(20, name[0]), 0);
    pin.pin_prompt_as = name;
    harness.Submit(pin);
  }
  harness.harness().RunToEnd();
  ASSERT_TRUE(harness.engine().SavePrefix("kept", path).ok());
  ASSERT_TRUE(harness.Update(PauseMode::kWait).ok());
  EXPECT_EQ(harness.engine().LoadPrefix("old", path, {}).code(), StatusCode::kInvalidArgument) << "KV of other weights";
  EXPECT_EQ(harness.engine().SavePrefix("kept", path).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(harness.engine().Unpin("let go").ok());
  Request other = Greedy(Prompt(12, 77), 0);
  other.pin_prompt_as = "taken";
  harness.Submit(other);
  harness.harness().RunToEnd();

  EXPECT_TRUE(harness.engine().SavePrefix("kept", path).ok());
  EXPECT_TRUE(harness.engine().LoadPrefix("again", path, {}).ok());
  EXPECT_EQ(harness.engine().Unpin("let go").code(), StatusCode::kNotFound);
  const auto pinned = harness.harness().cache().pins().Find("taken");
  ASSERT_TRUE(pinned.has_value());
  EXPECT_EQ(pinned->tokens, Prompt(12, 77));
  const Request request = Greedy(Prompt(20, 'k'), 4);
  const size_t slot = harness.Submit(request);
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.CheckTokens(slot, request), 1);
  std::filesystem::remove(path);
}

TEST(WeightUpdate, WhatIsNoUpdateChangesNothing) {
  UpdateHarness harness(kConfig);
  const Request request = Greedy(Prompt(9), 12);
  const size_t slot = harness.Submit(request);
  harness.harness().Step(3);
  const float value = 1;
  const auto refused = [&](const WeightTensor& tensor) {
    const auto update = [&](bool check_only) {
      return harness.engine().UpdateWeights(std::vector{tensor}, {.when = PauseMode::kAbort, .check_only = check_only});
    };
    EXPECT_EQ(update(true).status().ToString(), update(false).status().ToString());
    return update(true).status().message();
  };
  const WeightTensor taken = {.name = "seed", .dtype = DType::kF32, .shape = {1}, .data = &value};
  EXPECT_TRUE(harness.engine().UpdateWeights(std::vector{taken}, {.when = PauseMode::kAbort, .check_only = true}).ok());
  EXPECT_EQ(harness.engine().UpdateWeights({}, {}).status().message(), "an update of weights has no tensors: give it at least one");
  EXPECT_EQ(refused({.name = "other", .dtype = DType::kF32, .shape = {1}, .data = &value}),
            "a fake model has one weight, its seed");
  EXPECT_EQ(refused({.name = "seed", .dtype = DType::kF32, .shape = {1, 0}, .data = &value}),
            "tensor \"seed\" has shape [1, 0], expected sizes of at least 1 whose product fits into memory");
  EXPECT_EQ(refused({.name = "seed", .dtype = DType::kF32, .shape = {1}}), "tensor \"seed\" has no data");
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.CheckTokens(slot, request), 1);
  EXPECT_EQ(harness.engine().weight_version().number, 0);
}

TEST(WeightUpdate, HalfAnUpdateEndsAllUntilAWholeOne) {
  UpdateHarness harness(OneByOne());
  Request request = Greedy(Prompt(9), 12);
  request.pin_prompt_as = "pinned";
  const size_t runs = harness.Submit(request), waits = harness.Submit(request);
  harness.harness().Step(3);
  harness.harness().model().FailNextUpdate(Internal("the source is gone"));
  EXPECT_EQ(harness.Update(PauseMode::kAbort).status().message(), "the source is gone");
  harness.harness().RunToEnd();
  EXPECT_TRUE(harness.received(runs).done && harness.received(waits).done);
  EXPECT_EQ(harness.received(waits).status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(harness.engine().Submit(request).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(harness.harness().cache().usage().pages_in_use, 0);

  ASSERT_TRUE(harness.Update(PauseMode::kAbort).ok());
  harness.harness().RunToEnd();
  EXPECT_TRUE(harness.harness().cache().pins().Find("pinned").has_value());
  const size_t after = harness.Submit(request);
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.CheckTokens(after, request), 1);
  EXPECT_EQ(harness.received(after).versions.at(0).front(), 2);
}

// Samples that a sleep keeps are computed again, several of one prompt in the same step: those that compute a page of their own of
// what they have in common stay apart if the weights change meanwhile.
TEST(WeightUpdate, KeepWhileSamplesAreComputedAgain) {
  EngineConfig config = kConfig;
  config.model.num_pages = 96;
  config.max_running = 8;
  config.max_batch_tokens = 32;
  for (uint32_t round = 0; round < 100; ++round) {
    std::mt19937 random(round);
    UpdateHarness harness(config);
    std::vector<Request> requests;
    for (int event = 0; event < 60; ++event) {
      if (random() % 2 == 0) {
        std::vector<int32_t> prompt(1 + random() % 20);
        const uint32_t stride = 1 + random() % 2;
        for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * stride % 64);
        requests.push_back(Greedy(prompt, static_cast<int32_t>(1 + random() % 24), /*n=*/1 + static_cast<int32_t>(random() % 2)));
        harness.Submit(requests.back());
      }
      if (random() % 3 == 0) harness.harness().Step(1 + static_cast<int>(random() % 6));
      if (random() % 8 == 0) (void)harness.Update(PauseMode::kKeep);
      if (random() % 8 == 0) (void)harness.Sleep(SleepLevel::kKeepWeights, PauseMode::kKeep);
      if (random() % 3 == 0) {
        ASSERT_TRUE(harness.Wake({}).ok());
      }
      if (HasFatalFailure()) return;
    }
    ASSERT_TRUE(harness.Wake({}).ok());
    harness.harness().RunToEnd();
    for (size_t slot = 0; slot < requests.size(); ++slot)
      EXPECT_EQ(harness.CheckTokens(slot, requests[slot]), requests[slot].n) << "round " << round;
  }
}

// A model of two weights, updated a part at a time.
class PartsTest : public ::testing::Test {
 protected:
  PartsTest() : harness_(Padded()) {}

  Result<WeightVersion> Update(UpdatePart part, std::initializer_list<std::string_view> names, const std::string& label = "") {
    std::vector<WeightTensor> tensors;
    for (const std::string_view name : names)
      tensors.push_back({.name = std::string(name), .dtype = DType::kF32, .shape = {1}, .data = &kValue});
    return harness_.engine().UpdateWeights(tensors, {.when = PauseMode::kKeep, .label = label, .part = part});
  }
  std::vector<std::string> Missing() {
    std::vector<std::string> missing;
    for (const WeightInfo& weight : harness_.engine().Weights().value()) {
      if (weight.missing) missing.push_back(weight.name);
    }
    return missing;
  }
  // The outputs are those of the model of `kValue` if `updated`, else those of the loaded one.
  void CheckTokens(bool updated) {
    const Request request = Greedy(Prompt(9), 6);
    const size_t slot = submitted_++;
    harness_.Submit(request);
    harness_.RunToEnd();
    std::vector<int32_t> text = request.prompt_ids;
    for (const int32_t token : harness_.outputs(slot)[0].tokens) {
      EXPECT_EQ(token, (updated ? updated_ : harness_).model().GreedyAfter(text));
      text.push_back(token);
    }
    EXPECT_EQ(text.size(), 15u);
  }

  static EngineConfig Padded() {
    EngineConfig config = kConfig;
    config.model.padded = true;
    return config;
  }
  static EngineConfig Updated() {
    EngineConfig config = Padded();
    config.model.seed = static_cast<uint64_t>(kValue);
    return config;
  }

  static constexpr float kValue = 11;
  EngineHarness harness_, updated_{Updated()};
  size_t submitted_ = 0;
};

TEST_F(PartsTest, MakeOneVersion) {
  EXPECT_EQ(Update(UpdatePart::kNext, {"pad"}).status().message(), "no update of weights is open: begin one with its first part");
  EXPECT_EQ(Update(UpdatePart::kLast, {}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Update(UpdatePart::kFirst, {}).status().message(), "an update of weights has no tensors: give it at least one");
  EXPECT_EQ(Update(UpdatePart::kFirst, {"pad"}, "one").value().number, 1);
  EXPECT_EQ(Update(UpdatePart::kNext, {"seed"}).value().number, 1);
  const WeightVersion version = Update(UpdatePart::kLast, {}).value();
  EXPECT_EQ(version.number, 1);
  EXPECT_EQ(version.label, "one");
  CheckTokens(/*updated=*/true);
}

TEST_F(PartsTest, NeedNotBringAll) {
  ASSERT_TRUE(Update(UpdatePart::kFirst, {"seed"}).ok());
  EXPECT_EQ(Missing(), std::vector<std::string>{"pad"});
  EXPECT_EQ(Update(UpdatePart::kLast, {}, "half").value().label, "half");
  EXPECT_TRUE(Missing().empty());
  CheckTokens(/*updated=*/true);
}

TEST_F(PartsTest, NothingIsComputedBetweenThem) {
  harness_.Submit(Greedy(Prompt(9), 12));
  harness_.Step(3);
  ASSERT_TRUE(Update(UpdatePart::kFirst, {"pad"}).ok());
  harness_.RunToEnd();
  EXPECT_EQ(harness_.outputs(0)[0].status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(harness_.engine().Submit(Greedy(Prompt(9), 12)).status().code(), StatusCode::kUnavailable);

  ASSERT_TRUE(harness_.engine().Pause({.mode = PauseMode::kKeep}).ok());
  EXPECT_EQ(harness_.engine().Resume().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(harness_.engine().Submit(Greedy(Prompt(9), 12)).ok()) << "it waits";
  ASSERT_TRUE(harness_.engine().Pause({.mode = PauseMode::kKeep, .refuse_new = true}).ok());
  EXPECT_THAT(std::string(harness_.engine().Submit(Greedy(Prompt(9), 12)).status().message()),
              ::testing::HasSubstr("an update of weights ended half-way"));
}

// A trainer that dies, and another that comes.
TEST_F(PartsTest, OneThatIsGivenUpNeedsAWholeOne) {
  ASSERT_TRUE(Update(UpdatePart::kFirst, {"pad"}).ok());
  ASSERT_TRUE(Update(UpdatePart::kFirst, {"seed"}).ok());
  EXPECT_EQ(Missing(), std::vector<std::string>{"pad"});
  EXPECT_EQ(Update(UpdatePart::kLast, {}).status().message(),
            "1 weights are missing, \"pad\" first: an earlier update ended half-way, so that this one must bring all of them");
  EXPECT_EQ(harness_.engine().Submit(Greedy(Prompt(9), 12)).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(Update(UpdatePart::kFirst, {"pad", "seed"}).value().number, 3);
  ASSERT_TRUE(Update(UpdatePart::kLast, {}).ok());
  CheckTokens(/*updated=*/true);
}

TEST_F(PartsTest, AWholeUpdateOrTheFileEndsAnOpenOne) {
  ASSERT_TRUE(Update(UpdatePart::kFirst, {"seed"}).ok());
  ASSERT_TRUE(Update(UpdatePart::kWhole, {"pad"}).ok());
  EXPECT_EQ(Missing(), std::vector<std::string>{"seed"}) << "that of the open one counts no more";
  ASSERT_TRUE(Update(UpdatePart::kWhole, {"pad", "seed"}).ok());
  CheckTokens(/*updated=*/true);
  ASSERT_TRUE(Update(UpdatePart::kFirst, {"pad"}).ok());
  ASSERT_TRUE(harness_.engine().Wake({}).ok());
  EXPECT_TRUE(Missing().empty());
  EXPECT_EQ(Update(UpdatePart::kLast, {}).status().code(), StatusCode::kFailedPrecondition);
  CheckTokens(/*updated=*/false);
}

TEST_F(PartsTest, ASleepWithoutWeightsDropsWhatThePartsBrought) {
  ASSERT_TRUE(Update(UpdatePart::kFirst, {"seed"}).ok());
  ASSERT_TRUE(harness_.engine().Sleep({.level = SleepLevel::kDropWeights, .pause = {.mode = PauseMode::kAbort}}).ok());
  ASSERT_TRUE(harness_.engine().Wake({.reload = false, .resume = false}).ok());
  ASSERT_TRUE(Update(UpdatePart::kNext, {"pad"}).ok());
  EXPECT_EQ(Update(UpdatePart::kLast, {}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Missing(), std::vector<std::string>{"seed"});
}

TEST(DropCache, NothingCachedOutlivesIt) {
  UpdateHarness harness(kConfig);
  Request pin = Greedy(Prompt(20, 5), 0);
  pin.pin_prompt_as = "pinned";
  harness.Submit(pin);
  const Request request = Greedy(Prompt(40), 4);
  const size_t before = harness.Submit(request);
  harness.harness().RunToEnd();
  const size_t runs = harness.Submit(request);
  harness.harness().Step(2);
  EXPECT_GT(harness.received(runs).cached_tokens, 0);
  EXPECT_EQ(harness.engine().DropCache().value(), 1);
  const size_t after = harness.Submit(request);
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.received(after).cached_tokens, 0);
  EXPECT_TRUE(harness.harness().cache().pins().Find("pinned").has_value()) << "computed anew";
  for (const size_t slot : {before, runs, after}) EXPECT_EQ(harness.CheckTokens(slot, request), 1);
  EXPECT_EQ(harness.engine().weight_version().number, 0);
}

TEST(Pause, KeepHoldsWhatRunsStill) {
  UpdateHarness harness(kConfig);
  const Request request = Greedy(Prompt(21), 16, /*n=*/2);
  const size_t runs = harness.Submit(request);
  harness.harness().Step(6);
  ASSERT_TRUE(harness.Pause({.mode = PauseMode::kKeep}).ok());
  EXPECT_EQ(harness.engine().Load().state, EngineState::kPaused);
  const int64_t computed = harness.harness().model().tokens_computed();
  const size_t comes = harness.Submit(request);
  Request late = request;
  late.timeout_seconds = 1e-3;
  const size_t ends = harness.Submit(late), cancelled = harness.Submit(request);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_TRUE(harness.engine().Cancel(harness.id(cancelled)).ok());
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.harness().model().tokens_computed(), computed);
  EXPECT_FALSE(harness.received(runs).done || harness.received(comes).done);
  EXPECT_EQ(harness.received(ends).status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(harness.received(cancelled).done);
  EXPECT_EQ(harness.Pause({.mode = PauseMode::kWait}).code(), StatusCode::kFailedPrecondition) << "it would wait for ever";
  EXPECT_EQ(harness.Update(PauseMode::kWait).status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(harness.engine().Resume().ok());
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.CheckTokens(runs, request), 2);
  EXPECT_EQ(harness.CheckTokens(comes, request), 2);
  EXPECT_EQ(harness.engine().Metrics().preemptions, 0);
}

TEST(Pause, NewRequestsAreRefusedWhereThatIsAskedFor) {
  UpdateHarness harness(kConfig);
  const Request request = Greedy(Prompt(9), 12);
  const size_t runs = harness.Submit(request);
  harness.harness().Step(3);
  ASSERT_TRUE(harness.Pause({.mode = PauseMode::kAbort, .refuse_new = true}).ok());
  EXPECT_EQ(harness.engine().Submit(request).status().message(), "the engine is paused and takes no requests: try again later");
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.received(runs).reasons.at(0), FinishReason::kCancelled);
  ASSERT_TRUE(harness.engine().Resume().ok());
  ASSERT_TRUE(harness.engine().Resume().ok());
  const size_t comes = harness.Submit(request);
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.CheckTokens(comes, request), 1);
}

// In all pause modes, samples that run go on after a refusal.
TEST(Sleep, WhatIsRefusedEndsNothing) {
  for (const PauseMode mode : {PauseMode::kWait, PauseMode::kAbort, PauseMode::kKeep}) {
    UpdateHarness harness(kConfig);
    const Request request = Greedy(Prompt(21), 16, /*n=*/2);
    const size_t runs = harness.Submit(request);
    harness.harness().Step(6);
    harness.harness().model().HoldWeights();
    EXPECT_EQ(harness.Sleep(SleepLevel::kDropWeights, mode).message(), "the weights cannot be dropped") << Name(mode);
    EXPECT_EQ(harness.engine().Load().state, EngineState::kRunning);
    EXPECT_FALSE(harness.engine().Load().draining);
    ASSERT_TRUE(harness.Sleep(SleepLevel::kKeepWeights, PauseMode::kKeep).ok());
    EXPECT_EQ(harness.Sleep(SleepLevel::kKeepWeights, mode).message(), "the engine is asleep: wake it first");
    EXPECT_EQ(harness.Update(mode).status().message(), "the engine is asleep: wake it to update its weights");
    EXPECT_EQ(harness.Pause({.mode = mode}).message(), "the engine is asleep: it computes nothing until Wake");
    ASSERT_TRUE(harness.Wake({}).ok());
    harness.harness().RunToEnd();
    EXPECT_EQ(harness.CheckTokens(runs, request), 2) << Name(mode);
  }
}

TEST(Sleep, WhatIsKeptIsComputedAgain) {
  for (const SleepLevel level : {SleepLevel::kKeepWeights, SleepLevel::kDropWeights}) {
    UpdateHarness harness(kConfig);
    Request pin = Greedy(Prompt(30, 9), 0);
    pin.pin_prompt_as = "pinned";
    harness.Submit(pin);
    const Request request = Greedy(Prompt(21), 16, /*n=*/2);
    const size_t runs = harness.Submit(request);
    harness.harness().Step(6);
    ASSERT_TRUE(harness.Sleep(level, PauseMode::kKeep).ok());
    EXPECT_TRUE(harness.harness().model().asleep());
    EXPECT_EQ(harness.engine().Load().state, EngineState::kAsleep);
    EXPECT_EQ(harness.Sleep(level, PauseMode::kKeep).code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(harness.engine().Resume().message(), "the engine is asleep: wake it");
    EXPECT_EQ(harness.engine().SavePrefix("pinned", "/nowhere").code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(harness.Update(PauseMode::kKeep).status().code(), StatusCode::kFailedPrecondition);
    const size_t comes = harness.Submit(request);
    harness.harness().RunToEnd();
    EXPECT_FALSE(harness.received(runs).done || harness.received(comes).done);
    ASSERT_TRUE(harness.Wake({}).ok());
    EXPECT_EQ(harness.engine().weight_version().number, level == SleepLevel::kDropWeights ? 1 : 0);
    harness.harness().RunToEnd();
    EXPECT_EQ(harness.CheckTokens(runs, request), 2);
    EXPECT_EQ(harness.CheckTokens(comes, request), 2);
    EXPECT_TRUE(harness.harness().cache().pins().Find("pinned").has_value());
  }
}

TEST(Sleep, WeightsThatWereDroppedComeByAnUpdate) {
  UpdateHarness harness(kConfig);
  const Request request = Greedy(Prompt(21), 16);
  const size_t runs = harness.Submit(request);
  harness.harness().Step(6);
  ASSERT_TRUE(harness.Sleep(SleepLevel::kDropWeights, PauseMode::kKeep).ok());
  const Status resumed = harness.Wake({.reload = false});
  EXPECT_EQ(resumed.message(), "weights are missing: update all of them, or wake the engine so that it reads the model's file");
  EXPECT_EQ(harness.engine().Load().state, EngineState::kPaused);
  harness.harness().RunToEnd();
  EXPECT_FALSE(harness.received(runs).done);
  ASSERT_TRUE(harness.Update(PauseMode::kKeep).ok());
  ASSERT_TRUE(harness.engine().Resume().ok());
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.CheckTokens(runs, request), 1);
  EXPECT_EQ(harness.received(runs).versions.at(0).back(), 1);
}

TEST(Sleep, WakingAgainReadsTheFileThatTheFirstTimeDidWithout) {
  UpdateHarness harness(kConfig);
  const Request request = Greedy(Prompt(21), 16);
  const size_t runs = harness.Submit(request);
  harness.harness().Step(6);
  ASSERT_TRUE(harness.Sleep(SleepLevel::kDropWeights, PauseMode::kKeep).ok());
  EXPECT_EQ(harness.Wake({.reload = false}).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(harness.Wake({}).ok());
  EXPECT_EQ(harness.engine().Load().state, EngineState::kRunning);
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.CheckTokens(runs, request), 1);
}

TEST(Sleep, WakingReadsTheFileWhereAnUpdateLeftAMixture) {
  UpdateHarness harness(kConfig);
  harness.harness().model().FailNextUpdate(Internal("the source is gone"));
  EXPECT_FALSE(harness.Update(PauseMode::kAbort).ok());
  const Request request = Greedy(Prompt(9), 12);
  EXPECT_EQ(harness.engine().Submit(request).status().code(), StatusCode::kUnavailable);
  ASSERT_TRUE(harness.Wake({}).ok());
  const size_t comes = harness.Submit(request);
  harness.harness().RunToEnd();
  EXPECT_EQ(harness.CheckTokens(comes, request), 1);
}

// Updates, failures among them, pauses and sleeps, amid submissions, cancellations, pins and failing steps, with steps ahead;
// CheckIntegrity after every step. COPPICE_LONG_TEST=1 (ctest label `long`) runs 10^6 events.
TEST(WeightUpdate, RandomTrafficSaysWhatItsVersionsSay) {
  constexpr int kEventsPerRound = 1000;
  const int rounds = std::getenv("COPPICE_LONG_TEST") != nullptr ? 1000 : 10;
  std::mt19937 random(5);
  int64_t finished = 0, updates = 0, pauses = 0;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    EngineConfig config = kConfig;
    config.model.num_pages = 30;
    config.steps_ahead = round % 2;
    config.late_runner = round % 2 == 1;
    config.draft = round % 3 == 2 ? DraftMode::kNgram : DraftMode::kNone;
    UpdateHarness harness(config);
    std::vector<Request> requests;
    bool is_whole = true;
    for (int event = 0; event < kEventsPerRound; ++event) {
      // Fewer than wait for an engine that does not run.
      const bool runs = harness.engine().Load().state == EngineState::kRunning;
      if (runs ? is_whole && random() % 4 == 0 : random() % 16 == 0) {
        Request request = Greedy(Prompt(1 + random() % 30, random() % 3), 1 + random() % 12, 1 + random() % 5);
        if (random() % 3 == 0) request.share_of = std::string(1, static_cast<char>('a' + random() % 3));
        if (random() % 8 == 0) request.max_tokens = 0;
        if (random() % 10 == 0 && request.prompt_ids.size() < 12) request.pin_prompt_as = random() % 2 == 0 ? "p" : "q";
        requests.push_back(request);
        harness.Submit(request);
      }
      if (random() % 12 == 0 && !requests.empty()) (void)harness.engine().Cancel(harness.id(random() % requests.size()));
      if (random() % 40 == 0) (void)harness.engine().Unpin(random() % 2 == 0 ? "p" : "q");
      const PauseMode mode = std::array{PauseMode::kWait, PauseMode::kAbort, PauseMode::kKeep}[random() % 3];
      const EngineState state = harness.engine().Load().state;
      if (random() % 50 == 0 && state != EngineState::kAsleep) {
        const bool fails = random() % 5 == 0;
        if (fails) harness.harness().model().FailNextUpdate(Internal("at random"));
        const Result<WeightVersion> updated = harness.Update(mode);
        harness.harness().model().FailNextUpdate(OkStatus());
        // A paused engine waits for nothing.
        const bool refused = updated.status().code() == StatusCode::kFailedPrecondition;
        ASSERT_TRUE(!refused || (state == EngineState::kPaused && mode == PauseMode::kWait)) << updated.status().ToString();
        if (!refused) {
          is_whole = updated.ok();
          ASSERT_EQ(is_whole, !fails);
        }
        ++updates;
      }
      if (random() % 80 == 0) {
        const Status paused =
            random() % 2 == 0 ? harness.Pause({.mode = mode}) : harness.Sleep(static_cast<SleepLevel>(1 + random() % 2), mode);
        ASSERT_TRUE(paused.ok() || paused.code() == StatusCode::kFailedPrecondition) << paused.ToString();
        is_whole = is_whole && harness.harness().model().weights_are_whole();
        pauses += paused.ok();
      }
      if (random() % 20 == 0) {
        const WakeOptions options = {.reload = random() % 2 == 0, .resume = random() % 2 == 0};
        const Status woken = random() % 4 > 0 || is_whole ? harness.Wake(options) : harness.engine().Resume();
        is_whole = harness.harness().model().weights_are_whole();
        ASSERT_TRUE(woken.ok() || !is_whole || harness.engine().Load().state == EngineState::kAsleep) << woken.ToString();
        if (is_whole && random() % 2 == 0) (void)harness.engine().Resume();
      }
      const bool fails = random() % 300 == 0;
      if (fails) harness.harness().model().FailNext(Internal("at random"));
      const Result<bool> step = harness.engine().Step();
      ASSERT_TRUE(step.ok() || fails) << step.status().ToString();
      harness.harness().model().FailNext(OkStatus());
      ASSERT_NO_FATAL_FAILURE(harness.CheckCache()) << "after event " << event;
    }
    ASSERT_TRUE(harness.Wake({}).ok());
    ASSERT_TRUE(harness.engine().Resume().ok());
    harness.harness().RunToEnd();
    for (size_t i = 0; i < requests.size(); ++i) finished += harness.CheckTokens(i, requests[i]);
    ASSERT_FALSE(HasFailure());
    for (const char* name : {"p", "q"}) (void)harness.engine().Unpin(name);
    harness.harness().RunToEnd();
    ASSERT_EQ(harness.harness().cache().usage().pages_in_use, 0);
  }
  EXPECT_GT(finished, 30 * rounds);
  EXPECT_GT(updates, 10 * rounds);
  EXPECT_GT(pauses, 5 * rounds);
}

}  // namespace
}  // namespace coppice
