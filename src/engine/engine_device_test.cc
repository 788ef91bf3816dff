// The whole engine in bf16 on every device, in f16 on GPUs: random models against transformers' float32 within what bf16 costs,
// random traces with the cache's integrity after every step, warm against cold bit by bit in deterministic mode, and a long run
// that must not grow. One body for CPU and CUDA; the latter skips itself where there is no device. Layer: engine.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "engine/engine_parts.h"
#include "engine/open_device.h"
#include "engine/testing/changed_model.h"
#include "engine/testing/fixture_models.h"

namespace coppice {
namespace {

// Of log-probabilities in bf16 against float32. The largest logits of these models are near 7, and one rounding to 8 bits moves
// such a one by 0.027: weights, KV and the inputs of each product are rounded. f16 has 11 bits.
constexpr float kOneRounding = 7.0f / 256;
constexpr float kSureMargin = 0.1f;  // between the two most probable tokens: closer ones may go either way

// An engine, and the cache that it uses.
struct TestedEngine {
  std::unique_ptr<Engine> engine;
  const KvCache* cache = nullptr;
};

class EngineDevice : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ThreadPool threads(1);
    const std::vector<Executor*> executors(ParseDeviceNames(GetParam())->size(), &threads);
    const auto devices = OpenDevices({.device = GetParam(), .dtype = DType::kBF16}, executors);
    if (!devices.ok()) GTEST_SKIP() << devices.status().ToString();
    on_gpu_ = devices->front()->kind() == DeviceKind::kCuda;
  }

  TestedEngine Make(const std::string& model, EngineOptions options) const {
    options.model_path = ModelPath(model);
    options.device = GetParam();
    options.num_threads = 2;
    if (options.kv_cache_bytes == 0) options.kv_cache_bytes = 64 << 20;
    options.kv_cache_bytes *= static_cast<int64_t>(ParseDeviceNames(GetParam())->size());  // they are those of all ranks
    Result<EngineParts> parts = LoadEngineParts(options);
    EXPECT_TRUE(parts.ok()) << parts.status().ToString();
    const KvCache* const cache = parts->cache.get();
    return {MakeEngine(*std::move(parts)), cache};
  }

  // Outputs of the fixture `model` in `dtype`, one rounding of which moves logits by so much, against transformers' float32.
  void ExpectWhatTransformersSays(const std::string& model, DType dtype, float one_rounding,
                                  const EngineOptions& options = {}) const;

  bool on_gpu_ = false;
};

INSTANTIATE_TEST_SUITE_P(On, EngineDevice, ::testing::Values("cpu", "cuda", "cuda:0,cuda:1"),
                         [](const auto& info) { return ParseDeviceNames(info.param)->size() > 1 ? "two_gpus" : info.param; });

// How far the best token of each place was ahead of the second, in float32 on the CPU.
std::vector<float> GreedyMargins(const std::string& model, const Expected& expected) {
  const auto engine = Engine::Create({.model_path = ModelPath(model),
                                      .device = "cpu",
                                      .dtype = DType::kF32,
                                      .kv_cache_bytes = 64 << 20,
                                      .max_running = 1,
                                      .max_context = 512,
                                      .num_threads = 2})
                          .value();
  Request request = Greedy(expected.prompt, static_cast<int32_t>(expected.greedy.size()));
  request.top_logprobs = 2;
  std::vector<float> margins;
  request.on_event = [&](const StreamEvent& event) {
    for (const auto& top : event.top_logprobs) margins.push_back(top[0].logprob - top[1].logprob);
  };
  EXPECT_TRUE(engine->Submit(request).ok());
  RunToEnd(*engine);
  return margins;
}

void EngineDevice::ExpectWhatTransformersSays(const std::string& model, DType dtype, float one_rounding,
                                              const EngineOptions& options) const {
  const float mean_tolerance = 1.5f * one_rounding, max_tolerance = 8 * one_rounding;
  const Expected expected = LoadExpected(model);
  const std::vector<float> margins = GreedyMargins(model, expected);
  for (const SharingMode sharing : {SharingMode::kTree, SharingMode::kStore}) {
    SCOPED_TRACE(model + ", " + std::string(Name(dtype)) + ", " + std::string(Name(sharing)));
    const TestedEngine tested = Make(model, {.kv_split = options.kv_split,
                                             .dtype = dtype,
                                             .sharing = sharing,
                                             .max_running = 8,
                                             .max_batch_tokens = 100,
                                             .max_context = 512,
                                             .tune = options.tune,
                                             .experiment = {.force_sharing = true}});
    Request request = Greedy(expected.prompt, static_cast<int32_t>(expected.greedy.size()), 5);
    request.prompt_logprobs = true;
    const Outcome outcome = Generate(*tested.engine, request);
    double sum = 0;
    float most = 0;
    for (size_t i = 1; i < expected.prompt.size(); ++i) {
      const float error = std::abs(*outcome.prompt_logprobs[i] - expected.Logprob(i - 1, expected.prompt[i]));
      sum += error;
      most = std::max(most, error);
    }
    EXPECT_LT(sum / static_cast<double>(expected.prompt.size() - 1), mean_tolerance);
    EXPECT_LT(most, max_tolerance);
    for (const Output& sample : outcome.samples) {
      for (size_t t = 0; t < sample.tokens.size(); ++t) {
        if (sample.tokens[t] != expected.greedy[t]) {
          EXPECT_LE(margins[t], kSureMargin) << "token " << t;
          break;  // the texts are others from here on
        }
        EXPECT_NEAR(sample.logprobs[t], expected.greedy_logprobs[t], max_tolerance);
      }
    }
    EXPECT_TRUE(tested.cache->CheckIntegrity().ok());
  }
}

// Outputs of a beam search are different, in the order of their scores, score what the engine itself says of their tokens, and no
// worse than the greedy one; beside other samples, which take their steps ahead.
TEST_P(EngineDevice, BeamsScoreWhatTheEngineItselfSays) {
  for (const char* const model : {"llama-gqa", "llama-hd128-long"}) {
    for (const bool stochastic : {false, true}) {
      SCOPED_TRACE(std::string(model) + (stochastic ? ", stochastic" : ""));
      const TestedEngine tested =
          Make(model, {.dtype = DType::kBF16, .max_running = 24, .max_batch_tokens = 100, .max_context = 512});
      const Expected expected = LoadExpected(model);
      Request request{.prompt_ids = expected.prompt, .n = 8, .max_tokens = 30, .beams = {.width = 16}, .ignore_eos = true};
      request.beams.stochastic = stochastic;
      request.sampling.seed = 3;
      const Request greedy = Greedy(expected.prompt, 30, 3);
      Outcome found, beside;
      Submit(*tested.engine, greedy, &beside);
      Submit(*tested.engine, request, &found);
      RunToEnd(*tested.engine);
      const float tolerance = 2 * kOneRounding;  // of a token, in the mean
      const auto mean = [](const std::vector<float>& logprobs) {
        return std::accumulate(logprobs.begin(), logprobs.end(), 0.0) / static_cast<double>(logprobs.size());
      };
      for (size_t i = 0; i < found.samples.size(); ++i) {
        const Output& output = found.samples[i];
        ASSERT_EQ(output.tokens.size(), 30u);
        if (i > 0) {
          EXPECT_GE(*found.samples[i - 1].beam_score, *output.beam_score);
          EXPECT_NE(found.samples[i - 1].tokens, output.tokens);
        }
        Request again{.prompt_ids = expected.prompt, .max_tokens = 0, .prompt_logprobs = true};
        again.prompt_ids.insert(again.prompt_ids.end(), output.tokens.begin(), output.tokens.end());
        const Outcome scored = Generate(*tested.engine, again);
        std::vector<float> logprobs;
        for (size_t t = expected.prompt.size(); t < again.prompt_ids.size(); ++t) logprobs.push_back(*scored.prompt_logprobs[t]);
        EXPECT_NEAR(mean(logprobs), mean(output.logprobs), tolerance);
        if (!stochastic) {
          EXPECT_NEAR(*output.beam_score, mean(output.logprobs), 1e-4);
        }
      }
      if (!stochastic) {
        EXPECT_GE(*found.samples[0].beam_score, mean(beside.samples[0].logprobs) - tolerance);
      }
      EXPECT_TRUE(tested.cache->CheckIntegrity().ok());
      EXPECT_EQ(tested.cache->usage().pages_in_use, 0);
    }
  }
}

TEST_P(EngineDevice, SaysWhatTransformersSays) {
  for (const char* model :
       {"llama-gqa", "llama3-rope", "llama-hd64-long", "llama-hd128-long", "llama-yarn-a", "mistral-sw", "mistral-hd64-sw-long",
        "qwen2-a", "qwen3", "gemma3-long-a", "starcoder-long-a", "phi2-a", "codegen-a"}) {
    ExpectWhatTransformersSays(model, DType::kBF16, kOneRounding);
    if (on_gpu_) ExpectWhatTransformersSays(model, DType::kF16, kOneRounding / 8);
  }
}

TEST_P(EngineDevice, SaysTheSameWithMeasuredProducts) {
  const char* const variable = std::getenv("COPPICE_CACHE_DIR");
  const std::optional<std::string> before = variable != nullptr ? std::optional<std::string>(variable) : std::nullopt;
  const std::string folder = ::testing::TempDir() + "/coppice-tuned-" + std::to_string(std::random_device()());
  ASSERT_EQ(setenv("COPPICE_CACHE_DIR", folder.c_str(), /*overwrite=*/1), 0);
  ExpectWhatTransformersSays("llama-hd64-long", DType::kBF16, kOneRounding, {.tune = true});
  EXPECT_EQ(std::filesystem::exists(folder), on_gpu_) << "a CPU has no choice";
  if (before) {
    setenv("COPPICE_CACHE_DIR", before->c_str(), /*overwrite=*/1);
  } else {
    unsetenv("COPPICE_CACHE_DIR");
  }
  std::filesystem::remove_all(folder);
}

// A request of a random trace: one of few texts, so that requests share prefixes of any length.
Request RandomRequest(std::mt19937& random) {
  Request request;
  const auto text = static_cast<int32_t>(random() % 3);
  request.prompt_ids.resize(1 + random() % (random() % 6 == 0 ? 300 : 60));
  for (size_t t = 0; t < request.prompt_ids.size(); ++t)
    request.prompt_ids[t] = static_cast<int32_t>((t * t + 7 * t * text + text) % 300);
  if (random() % 2 == 0) request.prompt_ids.back() = static_cast<int32_t>(random() % 300);
  request.n = static_cast<int32_t>(1 + random() % 3);
  request.max_tokens = static_cast<int32_t>(1 + random() % 40);
  request.ignore_eos = true;
  request.sampling.seed = random();
  if (random() % 4 == 0) request.sampling.temperature = 0;
  if (random() % 4 == 0) request.sampling.top_p = 0.9f;
  return request;
}

// With all that sampling knows.
Request RandomSampling(std::mt19937& random) {
  Request request = RandomRequest(random);
  if (random() % 3 == 0) request.sampling.presence_penalty = 0.5f;
  if (random() % 3 == 0) request.sampling.repetition_penalty = 1.2f;
  if (random() % 3 == 0) request.sampling.logit_bias = {{static_cast<int32_t>(random() % 300), 5.0f}};
  if (random() % 4 == 0) request.top_logprobs = 3;
  if (random() % 4 == 0) request.prompt_logprobs = true;
  return request;
}

// 32 of them, some of which soon say what they said before, as drafts need it.
std::vector<Request> RandomRequests(std::mt19937& random) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 32; ++i) {
    requests.push_back(RandomSampling(random));
    if (i % 4 == 0) requests.back() = Greedy(std::vector<int32_t>(200, 5), 40, 2);
  }
  return requests;
}

// Steps of an engine by what they computed, and those of them that ran as graphs.
struct StepCounts {
  struct Kind {
    int64_t all = 0, graphs = 0;
  };
  Kind prompts, hybrid, decoding, drafting;  // prompts alone; beside samples that decode; those alone; with drafts, no prompts

  int64_t all() const { return prompts.all + hybrid.all + decoding.all + drafting.all; }
  int64_t graphs() const { return prompts.graphs + hybrid.graphs + decoding.graphs + drafting.graphs; }
};

// Counts the last step unless `before` has it.
void CountStep(const EngineMetrics& before, const EngineMetrics& now, StepCounts* counts) {
  const StepMetrics& step = now.last_step;
  if (step.step == before.last_step.step) return;
  const bool drafts = now.drafted_tokens > before.drafted_tokens;
  StepCounts::Kind& kind = step.prefill_rows > 0 ? (step.decode_rows > 0 ? counts->hybrid : counts->prompts)
                           : drafts              ? counts->drafting
                                                 : counts->decoding;
  ++kind.all;
  kind.graphs += step.ran_as_graph;
}

// Submits the requests a few steps apart.
std::vector<Outcome> Play(Engine& engine, const std::vector<Request>& requests, StepCounts* counts) {
  std::mt19937 random(7);
  std::vector<Outcome> outcomes(requests.size());
  const auto step = [&] {
    const EngineMetrics before = engine.Metrics();
    const Result<bool> worked = engine.Step();
    EXPECT_TRUE(worked.ok()) << worked.status().ToString();
    CountStep(before, engine.Metrics(), counts);
    return worked.ok() && *worked;
  };
  for (size_t i = 0; i < requests.size(); ++i) {
    Submit(engine, requests[i], &outcomes[i]);
    for (uint32_t steps = random() % 8; steps > 0; --steps) step();
  }
  while (step()) {
  }
  return outcomes;
}

// A captured step launches what the same step launches without a graph, so that its bits are the same: prompts alone and beside
// samples that decode, linear drafts and trees, with few graphs that take each other's place.
TEST_P(EngineDevice, GraphsChangeNoToken) {
  struct Mode {
    DraftMode draft = DraftMode::kNone;
    int32_t branches = 1;
    bool deterministic = false;
  };
  const Mode modes[] = {{},
                        {.deterministic = true},
                        {.draft = DraftMode::kNgram, .deterministic = true},
                        {.draft = DraftMode::kNgram, .branches = 3},
                        {.draft = DraftMode::kModel}};
  for (const char* model : {"llama-hd64-long", "llama-hd128-long"}) {
    for (const Mode& mode : modes) {
      SCOPED_TRACE(std::string(model) + ", drafts " + std::string(Name(mode.draft)) +
                   (mode.deterministic ? ", deterministic" : ""));
      std::mt19937 random(41);
      const std::vector<Request> requests = RandomRequests(random);
      std::vector<Outcome> expected;
      for (const int32_t max_graphs : {0, 256, 3}) {
        EngineOptions options{
            .max_running = 8,
            .max_batch_tokens = 48,
            .max_context = 400,
            .steps_ahead = 1,
            .deterministic = mode.deterministic,
            .draft = mode.draft,
            .experiment = {.draft_branches = mode.branches, .draft_policy = DraftPolicy::kAlways, .max_graphs = max_graphs}};
        if (mode.draft == DraftMode::kModel) options.draft_model_path = ModelPath(model);
        const TestedEngine tested = Make(model, options);
        StepCounts counts;
        const std::vector<Outcome> outcomes = Play(*tested.engine, requests, &counts);
        EXPECT_EQ(counts.all(), tested.engine->Metrics().steps);
        EXPECT_EQ(counts.graphs(), tested.engine->Metrics().graph_steps);
        EXPECT_GT(counts.hybrid.all, 20);
        if (mode.draft != DraftMode::kNone) {
          EXPECT_GT(counts.drafting.all, 20);
        }
        if (on_gpu_ && max_graphs == 256) {
          EXPECT_GT(counts.hybrid.graphs, 5);
          EXPECT_GT(counts.decoding.graphs + counts.drafting.graphs, 20);
          if (mode.draft != DraftMode::kNone) {
            EXPECT_GT(counts.drafting.graphs, 5);
          }
        } else if (on_gpu_ && max_graphs == 3) {
          EXPECT_GT(counts.graphs(), 5);
        } else {
          EXPECT_EQ(counts.graphs(), 0);
        }
        if (expected.empty()) {
          expected = outcomes;
          if (!on_gpu_) break;
          continue;
        }
        for (size_t i = 0; i < outcomes.size(); ++i) {
          ASSERT_EQ(outcomes[i].samples, expected[i].samples) << "request " << i << ", " << max_graphs << " graphs";
          ASSERT_EQ(outcomes[i].prompt_logprobs, expected[i].prompt_logprobs) << "request " << i << ", " << max_graphs << " graphs";
        }
      }
    }
  }
}

// A KV head that both ranks have, its tokens divided: what transformers says; without graphs and with them the same bits, while
// requests come and go, with drafts and in chunks; and in deterministic mode those of each request alone.
TEST_P(EngineDevice, RanksThatDivideTokensSayTheSame) {
  if (ParseDeviceNames(GetParam())->size() < 2) GTEST_SKIP() << "one rank has all tokens";
  for (const char* const model : {"starcoder-a", "starcoder-long-a"}) {
    ExpectWhatTransformersSays(model, DType::kBF16, kOneRounding, {.kv_split = KvSplit::kTokens});
    if (on_gpu_) ExpectWhatTransformersSays(model, DType::kF16, kOneRounding / 8, {.kv_split = KvSplit::kTokens});
  }
  constexpr const char* kModel = "starcoder-long-a";
  std::mt19937 random(43);
  const std::vector<Request> requests = RandomRequests(random);
  struct Mode {
    DraftMode draft = DraftMode::kNone;
    bool deterministic = false;
  };
  for (const Mode& mode : {Mode{}, Mode{.deterministic = true}, Mode{.draft = DraftMode::kNgram, .deterministic = true}}) {
    std::vector<Outcome> expected;
    for (const int32_t max_graphs : {0, 256}) {
      SCOPED_TRACE("drafts " + std::string(Name(mode.draft)) + (mode.deterministic ? ", deterministic, " : ", ") +
                   std::to_string(max_graphs) + " graphs");
      const EngineOptions options = {.kv_split = KvSplit::kTokens,
                                     .max_running = 8,
                                     .max_batch_tokens = 48,
                                     .max_context = 400,
                                     .steps_ahead = 1,
                                     .deterministic = mode.deterministic,
                                     .draft = mode.draft,
                                     .experiment = {.draft_policy = DraftPolicy::kAlways, .max_graphs = max_graphs}};
      const TestedEngine tested = Make(kModel, options);
      EXPECT_EQ(tested.engine->model_info().kv_split, KvSplit::kTokens);
      StepCounts counts;
      const std::vector<Outcome> outcomes = Play(*tested.engine, requests, &counts);
      EXPECT_TRUE(tested.cache->CheckIntegrity().ok());
      EXPECT_EQ(tested.cache->usage().pages_in_use, 0);
      if (on_gpu_ && max_graphs > 0) {
        EXPECT_GT(counts.graphs(), 20);
      }
      if (expected.empty()) expected = outcomes;
      for (size_t i = 0; i < outcomes.size(); ++i) {
        ASSERT_EQ(outcomes[i].samples, expected[i].samples) << "request " << i;
        ASSERT_EQ(outcomes[i].prompt_logprobs, expected[i].prompt_logprobs) << "request " << i;
      }
      if (!mode.deterministic) continue;
      const TestedEngine cold = Make(kModel, {.kv_split = KvSplit::kTokens,
                                              .sharing = SharingMode::kNone,
                                              .max_running = 3,
                                              .max_context = 400,
                                              .deterministic = true});
      for (size_t i = 0; i < requests.size(); i += 5) {
        ASSERT_EQ(Generate(*cold.engine, requests[i]).samples, outcomes[i].samples) << "request " << i << " alone";
      }
    }
  }
}

// A GPU has logits of 512 rows at a time.
TEST_P(EngineDevice, StepsMayWantMoreRowsOfLogitsThanThereIsRoomFor) {
  std::vector<int32_t> prompt(1300);
  for (size_t t = 0; t < prompt.size(); ++t) prompt[t] = static_cast<int32_t>(t * t % 300);
  std::vector<Request> requests(2);
  requests[0] = Greedy(prompt, 1);
  requests[0].prompt_logprobs = true;
  requests[0].top_logprobs = 2;
  requests[1] = {.prompt_ids = {7, 8, 9}, .n = 700, .max_tokens = 8, .ignore_eos = true};
  requests[1].sampling.seed = 5;
  std::vector<std::vector<Outcome>> outcomes;
  for (const int32_t rows : {1500, 400}) {
    const TestedEngine tested =
        Make("llama-hd64-long", {.max_running = 700, .max_batch_tokens = rows, .max_context = 1400, .deterministic = true});
    outcomes.emplace_back();
    for (const Request& request : requests) outcomes.back().push_back(Generate(*tested.engine, request));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(outcomes[0][i].samples, outcomes[1][i].samples) << i;
    ASSERT_EQ(outcomes[0][i].prompt_logprobs, outcomes[1][i].prompt_logprobs) << i;
  }
}

// A chunk of a prompt runs without a graph the first time that there is one of its size.
TEST_P(EngineDevice, ChunksOfAPromptAreGraphsFromTheSecondOn) {
  const TestedEngine tested = Make("llama-hd64-long", {.max_running = 4, .max_batch_tokens = 48, .max_context = 500});
  std::vector<int32_t> prompt(8 * 48 + 20);
  for (size_t t = 0; t < prompt.size(); ++t) prompt[t] = static_cast<int32_t>(t * t % 300);
  StepCounts counts;
  Play(*tested.engine, {Greedy(prompt, 10)}, &counts);
  EXPECT_EQ(counts.prompts.all, 9);
  EXPECT_EQ(counts.prompts.graphs, on_gpu_ ? 7 : 0);
}

TEST_P(EngineDevice, RandomTracesKeepTheCacheWhole) {
  std::mt19937 random(17);
  int64_t preemptions = 0, tokens = 0;
  for (const DraftMode draft : {DraftMode::kNone, DraftMode::kNgram}) {
    // Room for a few requests. Its three KV heads are four on two ranks.
    const int64_t kv_cache_bytes = ParseDeviceNames(GetParam())->size() > 1 ? (640 << 10) * 4 / 3 / 2 : 640 << 10;
    const TestedEngine tested =
        Make("llama-hd64-long",
             {.kv_cache_bytes = kv_cache_bytes, .max_running = 8, .max_batch_tokens = 80, .max_context = 400, .draft = draft});
    std::vector<std::unique_ptr<Outcome>> outcomes;
    std::vector<Request> requests;
    for (int32_t i = 0; i < 60; ++i) {
      requests.push_back(RandomSampling(random));
      requests.back().max_tokens = static_cast<int32_t>(20 + random() % 60);
      outcomes.push_back(std::make_unique<Outcome>());
      Submit(*tested.engine, requests.back(), outcomes.back().get());
      for (uint32_t step = random() % 6; step > 0; --step) {
        const Result<bool> stepped = tested.engine->Step();
        ASSERT_TRUE(stepped.ok()) << stepped.status().ToString();
        const Status whole = tested.cache->CheckIntegrity();
        ASSERT_TRUE(whole.ok()) << whole.ToString();
      }
    }
    RunToEnd(*tested.engine);
    ASSERT_TRUE(tested.cache->CheckIntegrity().ok());
    EXPECT_EQ(tested.cache->usage().pages_in_use, 0);
    for (size_t i = 0; i < requests.size(); ++i) {
      for (const Output& sample : outcomes[i]->samples) ASSERT_EQ(std::ssize(sample.tokens), requests[i].max_tokens);
    }
    preemptions += tested.engine->Metrics().preemptions;
    tokens += tested.engine->Metrics().generated_tokens;
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(tokens, 1000);
}

TEST_P(EngineDevice, DeterministicModeGivesTheSameBitsWarmAndCold) {
  // On a GPU pages of fewer than 8 tokens are another kernel's, with other bits (docs/numerics.md).
  const auto page_sizes = on_gpu_ ? std::array{16, 8, 64} : std::array{16, 4, 1};
  std::mt19937 random(23);
  const EngineOptions cold_options{.sharing = SharingMode::kNone, .max_running = 3, .max_context = 500, .deterministic = true};
  const TestedEngine cold = Make("llama-hd64-long", cold_options);
  for (int32_t trace = 0; trace < 6; ++trace) {
    const bool force_sharing = random() % 2 == 0;
    const TestedEngine warm = Make("llama-hd64-long", {.page_size = page_sizes[random() % 3],
                                                       .max_running = 8,
                                                       .max_batch_tokens = static_cast<int32_t>(40 + random() % 100),
                                                       .max_context = 500,
                                                       .deterministic = true,
                                                       .experiment = {.force_sharing = force_sharing}});
    std::vector<Request> requests;
    for (int32_t i = 0; i < 6; ++i) requests.push_back(RandomRequest(random));
    std::vector<Outcome> outcomes(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      Submit(*warm.engine, requests[i], &outcomes[i]);
      for (uint32_t step = random() % 4; step > 0; --step) ASSERT_TRUE(warm.engine->Step().ok());
    }
    RunToEnd(*warm.engine);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Outcome alone = Generate(*cold.engine, requests[i]);
      for (size_t s = 0; s < alone.samples.size(); ++s) {
        ASSERT_EQ(outcomes[i].samples[s].tokens, alone.samples[s].tokens) << "trace " << trace << " request " << i;
        ASSERT_EQ(outcomes[i].samples[s].logprobs, alone.samples[s].logprobs) << "trace " << trace << " request " << i;
      }
    }
  }
}

// An engine whose steps are graphs is given other weights, from host memory and from the device's own, as f32 and rounded by the
// caller, whole and tensor by tensor.
TEST_P(EngineDevice, UpdatedWeightsSayWhatLoadedOnesSay) {
  const EngineOptions options = {
      .dtype = DType::kBF16, .max_running = 8, .max_batch_tokens = 64, .max_context = 512, .deterministic = true};
  for (const char* model : {"llama-gqa", "qwen2-a", "gemma3-a", "llama-hd128-long"}) {
    SCOPED_TRACE(model);
    const ChangedModel changed(model);
    Request request = Greedy(LoadExpected(model).prompt, 40, 3);
    request.prompt_logprobs = true;
    EngineOptions of_other = options;
    of_other.model_path = changed.path();
    of_other.device = GetParam();
    of_other.num_threads = 2;
    of_other.kv_cache_bytes = 64 << 20;
    const Outcome expected = Generate(*Engine::Create(of_other).value(), request);
    std::vector<std::vector<BF16>> rounded;
    for (const bool rounds : {false, true}) {
      for (const bool on_device : {false, true}) {
        if (on_device && !on_gpu_) continue;
        std::vector<WeightTensor> tensors = changed.tensors();
        std::vector<DeviceMemory> copies;
        const auto device = OpenDevice({.device = GetParam(), .dtype = DType::kBF16}, nullptr).value();
        for (WeightTensor& tensor : tensors) {
          const size_t count = std::accumulate(tensor.shape.begin(), tensor.shape.end(), size_t{1}, std::multiplies<>());
          const auto* const values = static_cast<const float*>(tensor.data);
          if (rounds && tensor.shape.size() == 2) {
            std::transform(values, values + count, std::back_inserter(rounded.emplace_back()), BF16::FromFloat);
            tensor.dtype = DType::kBF16;
            tensor.data = rounded.back().data();
          }
          if (!on_device) continue;
          copies.push_back(device->Allocate(count * SizeOf(tensor.dtype)).value());
          ASSERT_TRUE(device->Copy(copies.back().data(), tensor.data, count * SizeOf(tensor.dtype), nullptr).ok());
          tensor.data = copies.back().data();
          tensor.device = DeviceKind::kCuda;
        }
        ASSERT_TRUE(device->Synchronize(Stream{nullptr}).ok());
        const TestedEngine tested = Make(model, options);
        const Outcome before = Generate(*tested.engine, request);
        EXPECT_NE(before.prompt_logprobs, expected.prompt_logprobs);
        if (rounds) {
          for (const WeightTensor& tensor : tensors) {
            const Result<WeightVersion> version = tested.engine->UpdateWeights(std::span(&tensor, 1), {});
            ASSERT_TRUE(version.ok()) << version.status().ToString();
          }
        } else {
          const Result<WeightVersion> version = tested.engine->UpdateWeights(tensors, {});
          ASSERT_TRUE(version.ok()) << version.status().ToString();
        }
        const Outcome after = Generate(*tested.engine, request);
        EXPECT_EQ(after.samples, expected.samples) << "on_device " << on_device << ", rounds " << rounds;
        EXPECT_EQ(after.prompt_logprobs, expected.prompt_logprobs);
        EXPECT_TRUE(!on_gpu_ || tested.engine->Metrics().graph_steps > 10);
      }
    }
  }
}

// An engine that slept goes on with the same bits, its graphs too; asleep it has given its memory to others.
TEST_P(EngineDevice, SleepGivesMemoryBack) {
  const auto free_bytes = [this] {
    return OpenDevice({.device = GetParam(), .dtype = DType::kBF16}, nullptr).value()->GetMemoryInfo().value().free_bytes;
  };
  const Request request = Greedy(std::vector<int32_t>(200, 5), 40, 4);
  const TestedEngine tested = Make(
      "llama-hd64-long",
      {.dtype = DType::kBF16, .kv_cache_bytes = int64_t{1} << 30, .max_running = 8, .max_context = 400, .deterministic = true});
  const Outcome expected = Generate(*tested.engine, request);
  for (const SleepLevel level : {SleepLevel::kKeepWeights, SleepLevel::kDropWeights}) {
    Outcome across;
    Submit(*tested.engine, request, &across);
    for (int step = 0; step < 10; ++step) ASSERT_TRUE(tested.engine->Step().ok());
    const int64_t awake = free_bytes();
    const Status slept = tested.engine->Sleep({.level = level, .pause = {.mode = PauseMode::kKeep}});
    ASSERT_TRUE(slept.ok()) << slept.ToString();
    EXPECT_TRUE(!on_gpu_ || free_bytes() > awake + (int64_t{1} << 30) - (int64_t{4} << 20));
    EXPECT_TRUE(tested.cache->CheckIntegrity().ok());
    const Status woken = tested.engine->Wake({});
    ASSERT_TRUE(woken.ok()) << woken.ToString();
    const int64_t graphs = tested.engine->Metrics().graph_steps;
    RunToEnd(*tested.engine);
    EXPECT_EQ(across.samples, expected.samples);
    EXPECT_EQ(Generate(*tested.engine, request).samples, expected.samples);
    EXPECT_TRUE(!on_gpu_ || tested.engine->Metrics().graph_steps > graphs + 20);
  }
}

// A pinned prompt stays cached while others come and go, and its file brings it to another engine: to one GPU and to two.
TEST_P(EngineDevice, PinnedPrefixesOutliveOthersAndTheirEngine) {
  constexpr int32_t kTokens = 200;
  for (const char* model : {"llama-hd64-long", "gemma3-long-a"}) {
    SCOPED_TRACE(model);
    const EngineOptions options = {
        .dtype = DType::kBF16, .kv_cache_bytes = 2 << 20, .max_running = 2, .max_context = 400, .deterministic = true};
    std::vector<int32_t> prompt(kTokens);
    std::mt19937 random(31);
    for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 90) + 3;
    const TestedEngine first = Make(model, options);
    Request pinned = Greedy(prompt, 20, 2);
    pinned.pin_prompt_as = "prompt";
    const Outcome expected = Generate(*first.engine, pinned);
    for (int32_t other = 0; other < 30; ++other) {  // more than there is room for
      Generate(*first.engine, Greedy(std::vector<int32_t>(150, other + 3), 5));
    }
    const int64_t before = first.engine->Metrics().cached_tokens;
    EXPECT_EQ(Generate(*first.engine, Greedy(prompt, 20, 2)).samples, expected.samples);
    EXPECT_GE(first.engine->Metrics().cached_tokens - before, kTokens - 1);

    const testing::TemporaryFolder folder;
    const std::string path = folder.path() + "/prefix";
    const Status saved = first.engine->SavePrefix("prompt", path);
    ASSERT_TRUE(saved.ok()) << saved.ToString();
    std::vector<std::string> devices = {GetParam()};
    if (devices.front() == "cuda:0,cuda:1") devices.push_back("cuda:1");
    for (const std::string& device : devices) {
      EngineOptions of_other = options;
      of_other.model_path = ModelPath(model);
      of_other.device = device;
      of_other.num_threads = 2;
      const auto other = Engine::Create(of_other).value();
      const Status loaded = other->LoadPrefix("prompt", path, CacheTenant());
      ASSERT_TRUE(loaded.ok()) << loaded.ToString();
      const Outcome outcome = Generate(*other, Greedy(prompt, 20, 2));
      EXPECT_GE(other->Metrics().cached_tokens, kTokens - 1);
      // Sums over ranks are rounded otherwise, and a near tie may then end otherwise.
      if (device == GetParam()) {
        EXPECT_EQ(outcome.samples, expected.samples);
      }
    }
    EXPECT_TRUE(first.cache->CheckIntegrity().ok());
  }
}

// Children of a sample go on as it does: pages are shared and copied on the device.
TEST_P(EngineDevice, ForkedSamplesGoOnAsTheirParentDoes) {
  const TestedEngine tested =
      Make("llama-hd64-long", {.dtype = DType::kBF16, .max_running = 8, .max_context = 400, .deterministic = true});
  std::map<int32_t, std::vector<int32_t>> received;
  Request request = Greedy(std::vector<int32_t>(77, 5), 40);
  request.on_event = [&](const StreamEvent& event) {
    received[event.index].insert(received[event.index].end(), event.token_ids.begin(), event.token_ids.end());
  };
  const SampleId parent{.request = tested.engine->Submit(std::move(request)).value()};
  while (received[0].size() < 9) ASSERT_TRUE(tested.engine->Step().ok());
  const auto at_fork = static_cast<int32_t>(received[0].size());
  ASSERT_TRUE(tested.engine->Fork(parent, {.n = 3}).ok());
  ASSERT_TRUE(tested.engine->Fork(parent, {.keep_tokens = 4}).ok());
  RunToEnd(*tested.engine);
  const std::vector<int32_t> all = received[0];
  ASSERT_EQ(all.size(), 40u);
  for (const int32_t child : {1, 2, 3}) {
    ASSERT_LE(received[child].size(), all.size() - at_fork);
    EXPECT_TRUE(std::equal(received[child].rbegin(), received[child].rend(), all.rbegin()));
  }
  EXPECT_EQ(received[4], std::vector<int32_t>(all.begin() + 4, all.end()));
  EXPECT_TRUE(tested.cache->CheckIntegrity().ok());
}

// Another process has taken the memory of the device, of the last one where there are several: in the middle of the weights, or
// before the first page.
TEST_P(EngineDevice, TooLittleMemoryIsReportedWithFigures) {
  if (!on_gpu_) GTEST_SKIP() << "the CPU's memory is not ours to take";
  const auto device = Device::CreateCuda(ParseDeviceNames(GetParam())->back().ordinal).value();
  for (const int64_t left : {int64_t{32} << 20, int64_t{400} << 20}) {
    const Device::MemoryInfo before = device->GetMemoryInfo().value();
    const Result<DeviceMemory> taken = device->Allocate(before.free_bytes - left);
    ASSERT_TRUE(taken.ok()) << taken.status().ToString();
    EngineOptions options{.model_path = ModelPath("llama-hd64-long"), .device = GetParam(), .num_threads = 1};
    const Status status = Engine::Create(options).status();
    ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
    EXPECT_NE(status.message().find(" of " + std::to_string(before.total_bytes)), std::string::npos) << status.message();
  }
  EXPECT_TRUE(Engine::Create({.model_path = ModelPath("llama-hd64-long"), .device = GetParam(), .num_threads = 1}).ok());
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// 10^5 steps with COPPICE_LONG_TEST; memory of host and device must be what it was after the first tenth.
TEST_P(EngineDevice, LongRunsDoNotGrow) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps what was freed for a while";
#endif
  const int64_t steps = std::getenv("COPPICE_LONG_TEST") != nullptr ? 100'000 : 2'000;
  ThreadPool threads(1);
  const auto device = OpenDevice({.device = GetParam(), .dtype = DType::kBF16}, &threads).value();
  const TestedEngine tested = Make(
      "llama-hd64-long",
      // Graphs take each other's place all the time.
      {.kv_cache_bytes = 4 << 20, .max_running = 8, .max_batch_tokens = 64, .max_context = 400, .experiment = {.max_graphs = 16}});
  std::mt19937 random(29);
  int64_t waiting = 0, resident = 0, free_bytes = 0;
  for (int64_t step = 0; step < steps; ++step) {
    while (waiting < 6) {
      Request request = RandomSampling(random);
      request.on_event = [&waiting](const StreamEvent& event) { waiting -= event.request_done; };
      ++waiting;
      ASSERT_TRUE(tested.engine->Submit(std::move(request)).ok());
    }
    const Result<bool> stepped = tested.engine->Step();
    ASSERT_TRUE(stepped.ok()) << stepped.status().ToString();
    if (step != steps / 10) continue;
    resident = ResidentBytes();
    free_bytes = device->GetMemoryInfo()->free_bytes;
  }
  ASSERT_TRUE(tested.cache->CheckIntegrity().ok());
  EXPECT_LT(ResidentBytes() - resident, 32 << 20);
  if (device->kind() == DeviceKind::kCuda) {
    EXPECT_GE(device->GetMemoryInfo()->free_bytes, free_bytes - (8 << 20));
  }
}

}  // namespace
}  // namespace coppice
