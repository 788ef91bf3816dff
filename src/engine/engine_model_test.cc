// The whole engine on random models against what Hugging Face transformers computed (float32), in all sharing modes and at page
// boundaries; the bytes it reports against the formula; deterministic mode: what was cached, chunked or crowded gives the same
// bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coppice/engine/engine.h"
#include "engine/testing/changed_model.h"
#include "engine/testing/fixture_models.h"
#include "tests/support/tiny_model.h"

namespace coppice {
namespace {

constexpr SharingMode kModes[] = {SharingMode::kTree, SharingMode::kOneLevel, SharingMode::kStore, SharingMode::kNone};
constexpr float kTolerance = 1e-3f;  // of log-probabilities against transformers; closer choices may go either way

std::unique_ptr<Engine> MakeEngine(const std::string& name, EngineOptions options) {
  options.model_path = ModelPath(name);
  options.dtype = DType::kF32;
  options.num_threads = 2;
  if (options.kv_cache_bytes == 0) options.kv_cache_bytes = 64 << 20;
  Result<std::unique_ptr<Engine>> engine = Engine::Create(options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return std::move(engine).value();
}

// Greedy tokens of n samples, their log-probabilities and those of the prompt.
void ExpectWhatTransformersSays(Engine& engine, const Expected& expected, int32_t n) {
  Request request = Greedy(expected.prompt, static_cast<int32_t>(expected.greedy.size()), n);
  request.prompt_logprobs = true;
  const Outcome result = Generate(engine, request);
  for (const Output& output : result.samples) {
    ASSERT_EQ(output.tokens, expected.greedy);
    for (size_t i = 0; i < output.logprobs.size(); ++i) EXPECT_NEAR(output.logprobs[i], expected.greedy_logprobs[i], kTolerance);
  }
  ASSERT_EQ(result.prompt_logprobs.size(), expected.prompt.size());
  for (size_t i = 1; i < expected.prompt.size(); ++i) {
    EXPECT_NEAR(*result.prompt_logprobs[i], expected.Logprob(i - 1, expected.prompt[i]), kTolerance);
  }
}

// One rank and two, these also with the tokens of KV divided where the model has one KV head and no window.
std::vector<std::pair<std::string, KvSplit>> RankSplits(const std::string& model) {
  std::vector<std::pair<std::string, KvSplit>> splits = {{"cpu", KvSplit::kHeads}, {"cpu,cpu", KvSplit::kHeads}};
  if (model.starts_with("starcoder")) splits.emplace_back("cpu,cpu", KvSplit::kTokens);
  return splits;
}

class FixtureModel : public ::testing::TestWithParam<const char*> {};

TEST_P(FixtureModel, GreedyTokensAndLogprobsInEveryMode) {
  const Expected expected = LoadExpected(GetParam());
  for (const SharingMode sharing : kModes) {
    for (const int32_t page_size : {1, 16, 64}) {
      SCOPED_TRACE(std::string(Name(sharing)) + ", page size " + std::to_string(page_size));
      const auto engine = MakeEngine(GetParam(), {.sharing = sharing,
                                                  .page_size = page_size,
                                                  .max_running = 64,
                                                  .max_batch_tokens = 100,
                                                  .max_context = 512,
                                                  .experiment = {.force_sharing = true}});
      const int32_t n = page_size == 16 ? 64 : 1;
      ASSERT_NO_FATAL_FAILURE(ExpectWhatTransformersSays(*engine, expected, n));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FixtureModel,
                         ::testing::Values("llama-gqa", "llama3-rope", "llama-hd64-long", "llama-hd128-long", "llama-yarn-a",
                                           "mistral-sw", "mistral-hd64-sw-long", "qwen2-a", "qwen3", "phi2-a", "starcoder-a",
                                           "starcoder-long-a", "codegen-a", "gemma3-a", "gemma3-long-a"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// tests/data/models/beams.py has written what transformers' beam search finds; where noise of the tolerance changes that, an engine
// may find something else.
TEST_P(FixtureModel, BeamsAreThoseOfTransformers) {
  std::ifstream file(std::string(COPPICE_TEST_DATA) + "/models/beams.json");
  const nlohmann::json all = nlohmann::json::parse(file);
  const Expected expected = LoadExpected(GetParam());
  const auto prompt_tokens = std::min(expected.prompt.size(), all["prompt_tokens"].get<size_t>());
  const std::map<std::string, EarlyStopping> stopping = {
      {"false", EarlyStopping::kFalse}, {"true", EarlyStopping::kTrue}, {"never", EarlyStopping::kNever}};
  int compared = 0;
  for (const SharingMode sharing : kModes) {
    const auto engine = MakeEngine(GetParam(), {.sharing = sharing,
                                                .page_size = sharing == SharingMode::kOneLevel ? 4 : 16,
                                                .max_running = 16,
                                                .max_batch_tokens = 100,
                                                .max_context = 512,
                                                .experiment = {.force_sharing = true}});
    for (const nlohmann::json& each : all["cases"]) {
      if (each["model"] != GetParam() || !each["stable"]) continue;
      SCOPED_TRACE(std::string(Name(sharing)) + ", beam_width " + each["beam_width"].dump() + ", stop " +
                   each["stop_token_ids"].dump());
      Request request{.prompt_ids = {expected.prompt.begin(), expected.prompt.begin() + static_cast<std::ptrdiff_t>(prompt_tokens)},
                      .n = each["n"],
                      .max_tokens = all["max_tokens"],
                      .beams = {.width = each["beam_width"],
                                .length_penalty = each["length_penalty"],
                                .early_stopping = stopping.at(each["early_stopping"])},
                      .stop_token_ids = each["stop_token_ids"],
                      .ignore_eos = true};
      const Outcome result = Generate(*engine, std::move(request));
      for (size_t i = 0; i < result.samples.size(); ++i) {
        EXPECT_EQ(result.samples[i].tokens, each["outputs"][i].get<std::vector<int32_t>>()) << "output " << i;
        EXPECT_NEAR(*result.samples[i].beam_score, each["scores"][i].get<float>(), 2e-3f);
      }
      ++compared;
    }
  }
  EXPECT_GE(compared, 4 * std::ssize(kModes));
}

// Ranks in every sharing mode; KV heads of some families are fewer than ranks, others are not divided evenly.
TEST_P(FixtureModel, RanksSayWhatOneSaysInEveryMode) {
  const Expected expected = LoadExpected(GetParam());
  for (const SharingMode sharing : kModes) {
    const char* const device = sharing == SharingMode::kOneLevel ? "cpu,cpu,cpu" : "cpu,cpu";
    SCOPED_TRACE(std::string(Name(sharing)) + " on " + device);
    const auto engine = MakeEngine(GetParam(), {.device = device,
                                                .sharing = sharing,
                                                .max_running = 4,
                                                .max_batch_tokens = 100,
                                                .max_context = 512,
                                                .experiment = {.force_sharing = true}});
    ASSERT_NO_FATAL_FAILURE(ExpectWhatTransformersSays(*engine, expected, 4));
  }
}

// KV heads that several ranks have, with their tokens divided among these: of the fixtures without windows, those of one KV head on
// two and three ranks, of two on four.
TEST_P(FixtureModel, RanksThatDivideTokensSayWhatOneSays) {
  const Expected expected = LoadExpected(GetParam());
  for (const char* const device : {"cpu,cpu", "cpu,cpu,cpu", "cpu,cpu,cpu,cpu"}) {
    const auto ranks = static_cast<int32_t>(std::string(device).size() + 1) / 4;
    EngineOptions options = {.device = device,
                             .kv_split = KvSplit::kTokens,
                             .max_running = 8,
                             .max_batch_tokens = 100,
                             .max_context = 512,
                             .experiment = {.force_sharing = true}};
    options.model_path = ModelPath(GetParam());
    const Result<std::unique_ptr<Engine>> made = Engine::Create(options);
    if (!made.ok()) {
      EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument) << made.status().ToString();
      options.kv_split = KvSplit::kAuto;
      EXPECT_EQ(MakeEngine(GetParam(), options)->model_info().kv_split, KvSplit::kHeads);
      continue;
    }
    EXPECT_EQ((*made)->model_info().kv_split, KvSplit::kTokens);
    for (const SharingMode sharing : kModes) {
      for (const int32_t page_size : {1, 16, 64}) {
        if (page_size != 16 && sharing != SharingMode::kTree) continue;
        SCOPED_TRACE(std::string(Name(sharing)) + " on " + device + ", page size " + std::to_string(page_size));
        options.sharing = sharing;
        options.page_size = page_size;
        const auto engine = MakeEngine(GetParam(), options);
        EXPECT_EQ(engine->model_info().page_size, page_size * ranks / engine->model_info().num_kv_heads);
        ASSERT_NO_FATAL_FAILURE(ExpectWhatTransformersSays(*engine, expected, 4));
      }
    }
  }
}

// Pages are shared and copied in all layers and on all ranks.
TEST_P(FixtureModel, ForkedSamplesGoOnAsTheirParentDoes) {
  const Expected expected = LoadExpected(GetParam());
  const std::vector<int32_t>& all = expected.greedy;
  ASSERT_GT(all.size(), 4u);
  for (const SharingMode sharing : kModes) {
    for (const auto& [device, split] : RankSplits(GetParam())) {
      SCOPED_TRACE(std::string(Name(sharing)) + " on " + device + " by " + std::string(Name(split)));
      const auto engine = MakeEngine(GetParam(), {.device = device,
                                                  .kv_split = split,
                                                  .sharing = sharing,
                                                  .max_running = 8,
                                                  .max_batch_tokens = 100,
                                                  .max_context = 512,
                                                  .experiment = {.force_sharing = true}});
      std::map<int32_t, std::vector<int32_t>> received;
      Request request = Greedy(expected.prompt, static_cast<int32_t>(all.size()));
      request.on_event = [&](const StreamEvent& event) {
        received[event.index].insert(received[event.index].end(), event.token_ids.begin(), event.token_ids.end());
      };
      const SampleId parent{.request = engine->Submit(std::move(request)).value()};
      while (received[0].size() < 3) ASSERT_TRUE(engine->Step().ok());
      ASSERT_TRUE(engine->Fork(parent, {.n = 3}).ok());
      ASSERT_TRUE(engine->Fork(parent, {.keep_tokens = 1}).ok());
      while (engine->Step().value()) {
      }
      EXPECT_EQ(received[0], all);
      for (const int32_t child : {1, 2, 3}) EXPECT_EQ(received[child], std::vector<int32_t>(all.begin() + 3, all.end()));
      EXPECT_EQ(received[4], std::vector<int32_t>(all.begin() + 1, all.end()));
    }
  }
}

// An engine updated to other weights says what one that loaded them says, bit for bit in the deterministic mode, on any ranks.
TEST_P(FixtureModel, UpdatedWeightsSayWhatLoadedOnesSay) {
  const ChangedModel changed(GetParam());
  Request request = Greedy(LoadExpected(GetParam()).prompt, 12, 2);
  request.prompt_logprobs = true;
  for (const char* device : {"cpu", "cpu,cpu"}) {
    const EngineOptions options = {
        .device = device, .max_running = 8, .max_batch_tokens = 64, .max_context = 512, .deterministic = true};
    const auto updated = MakeEngine(GetParam(), options);
    const Outcome before = Generate(*updated, request);
    const Result<WeightVersion> version = updated->UpdateWeights(changed.tensors(), {});
    ASSERT_TRUE(version.ok()) << version.status().ToString();
    EngineOptions of_other = options;
    of_other.model_path = changed.path();
    of_other.dtype = DType::kF32;
    of_other.num_threads = 2;
    of_other.kv_cache_bytes = 64 << 20;
    const auto loaded = Engine::Create(of_other).value();
    const Outcome after = Generate(*updated, request), expected = Generate(*loaded, request);
    EXPECT_EQ(after.samples, expected.samples);
    EXPECT_EQ(after.prompt_logprobs, expected.prompt_logprobs);
    EXPECT_NE(after.prompt_logprobs, before.prompt_logprobs);
  }
}

// Log-probabilities kept with cached tokens are, bit for bit, those of a prompt computed for the first time in the deterministic
// mode.
TEST_P(FixtureModel, KeptLogprobsAreThoseOfAComputation) {
  const std::vector<int32_t> prompt = LoadExpected(GetParam()).prompt;
  const EngineOptions options = {.max_running = 8, .max_batch_tokens = 24, .max_context = 512, .deterministic = true};
  const auto warm = MakeEngine(GetParam(), options), cold = MakeEngine(GetParam(), options);
  Request request = Greedy({}, 4);
  request.prompt_logprobs = true;
  request.top_logprobs = 1;
  for (const size_t length : {prompt.size() / 3, prompt.size() / 2, prompt.size(), prompt.size()}) {
    request.prompt_ids.assign(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(length));
    const int64_t before = warm->Metrics().prefilled_tokens;
    const Outcome found = Generate(*warm, request);
    if (before > 0) {
      EXPECT_LT(warm->Metrics().prefilled_tokens - before, static_cast<int64_t>(length)) << length;
    }
    ASSERT_TRUE(cold->DropCache().ok());
    const Outcome computed = Generate(*cold, request);
    EXPECT_EQ(found.prompt_logprobs, computed.prompt_logprobs) << length;
    EXPECT_EQ(found.samples, computed.samples) << length;
  }
}

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A prefix file knows no ranks: what one number of ranks saved another loads, and saves again byte by byte.
TEST(EngineModel, PrefixesGoFromOneNumberOfRanksToAnother) {
  for (const char* name : {"llama-gqa", "gemma3-a", "starcoder-a"}) {
    SCOPED_TRACE(name);
    const Expected expected = LoadExpected(name);
    const testing::TemporaryFolder folder;
    Request pinned = Greedy(expected.prompt, 1);
    pinned.pin_prompt_as = "prompt";
    const char* const ranks[] = {"cpu", "cpu,cpu", "cpu,cpu", "cpu,cpu,cpu", "cpu,cpu,cpu", "cpu"};
    std::string before;
    for (size_t i = 0; i < std::size(ranks); ++i) {
      // Of one KV head the second engine of as many ranks divides the tokens.
      const bool by_tokens = std::string(name) == "starcoder-a" && (i == 2 || i == 4);
      const auto engine = MakeEngine(
          name,
          {.device = ranks[i], .kv_split = by_tokens ? KvSplit::kTokens : KvSplit::kHeads, .max_running = 2, .max_context = 512});
      const std::string path = folder.path() + "/" + std::to_string(i);
      if (i == 0) {
        Generate(*engine, pinned);
      } else {
        const Status loaded = engine->LoadPrefix("prompt", folder.path() + "/" + std::to_string(i - 1), CacheTenant());
        ASSERT_TRUE(loaded.ok()) << loaded.ToString();
      }
      const Outcome greedy = Generate(*engine, Greedy(expected.prompt, static_cast<int32_t>(expected.greedy.size())));
      EXPECT_EQ(greedy.samples[0].tokens, expected.greedy) << ranks[i];
      EXPECT_GT(engine->Metrics().cached_tokens, 0);
      ASSERT_TRUE(engine->SavePrefix("prompt", path).ok());
      const std::string saved = ReadWhole(path);
      if (i > 0) {
        EXPECT_EQ(saved, before) << ranks[i];
      }
      before = saved;
    }
  }
}

// Mean difference of the prompt's log-probabilities from transformers' in float32.
double MeanError(const char* name, EngineOptions options) {
  const Expected expected = LoadExpected(name);
  options.model_path = ModelPath(name);
  options.num_threads = 2;
  options.kv_cache_bytes = 64 << 20;
  const Result<std::unique_ptr<Engine>> engine = Engine::Create(options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  Request request = Greedy(expected.prompt, 1);
  request.prompt_logprobs = true;
  const Outcome result = Generate(**engine, request);
  double sum = 0;
  for (size_t i = 1; i < expected.prompt.size(); ++i)
    sum += std::abs(*result.prompt_logprobs[i] - expected.Logprob(i - 1, expected.prompt[i]));
  return sum / static_cast<double>(expected.prompt.size() - 1);
}

TEST(EngineModel, ProductsInF32OverKvInBf16LieBetweenAllF32AndAllBf16) {
  for (const char* name : {"llama-gqa", "gemma3-a", "starcoder-a"}) {
    const double f32 = MeanError(name, {.device = "cpu", .dtype = DType::kF32});
    const double f32_products = MeanError(name, {.device = "cpu", .weights = WeightForm::kF32});
    const double bf16 = MeanError(name, {.device = "cpu", .weights = WeightForm::kBF16});
    EXPECT_LT(f32, 1e-4) << name;
    EXPECT_GT(f32_products, f32) << name;  // the KV is rounded
    EXPECT_LT(f32_products, 0.7 * bf16) << name;
  }
}

TEST(EngineModel, PromptsAroundPageBoundariesAgreeInEveryMode) {
  constexpr const char* kModel = "llama-hd64-long";
  const Expected expected = LoadExpected(kModel);
  for (const int32_t page_size : {1, 16, 64}) {
    for (const int32_t length : {1, page_size - 1, page_size, page_size + 1}) {
      if (length < 1) continue;
      const std::vector<int32_t> prompt(expected.prompt.begin(), expected.prompt.begin() + length);
      for (const int32_t n : {1, 64}) {
        std::vector<Output> first;
        for (const SharingMode sharing : kModes) {
          SCOPED_TRACE(std::string(Name(sharing)) + ", page size " + std::to_string(page_size) + ", prompt " +
                       std::to_string(length) + ", n " + std::to_string(n));
          const auto engine = MakeEngine(kModel, {.sharing = sharing,
                                                  .page_size = page_size,
                                                  .max_running = 64,
                                                  .max_context = 128,
                                                  .experiment = {.force_sharing = true}});
          Request request = Greedy(prompt, 8, n);
          const Outcome greedy = Generate(*engine, request);
          EXPECT_NEAR(greedy.samples[0].logprobs[0], expected.Logprob(length - 1, greedy.samples[0].tokens[0]), kTolerance);
          request.sampling.temperature = 1;
          request.sampling.seed = 5;
          std::vector<Output> samples = greedy.samples;
          const Outcome sampled = Generate(*engine, request);
          samples.insert(samples.end(), sampled.samples.begin(), sampled.samples.end());
          if (first.empty()) first = samples;
          ASSERT_EQ(samples.size(), first.size());
          for (size_t i = 0; i < samples.size(); ++i) {
            EXPECT_EQ(samples[i].tokens, first[i].tokens);
            for (size_t t = 0; t < samples[i].logprobs.size(); ++t)
              EXPECT_NEAR(samples[i].logprobs[t], first[i].logprobs[t], kTolerance);
          }
        }
      }
    }
  }
}

// Layers with windows read less of a shared prompt the further samples are, and local and global layers go by plans of their own.
TEST(EngineModel, SharedReadsOfLayersWithWindows) {
  for (const char* name : {"mistral-sw", "gemma3-a"}) {
    SCOPED_TRACE(name);
    const Expected expected = LoadExpected(name);
    const auto engine =
        MakeEngine(name, {.max_running = 8, .max_batch_tokens = 128, .max_context = 128, .experiment = {.force_sharing = true}});
    Request request = Greedy(expected.prompt, 12, 6);
    request.sampling.temperature = 1;
    const SharedReads reads = Generate(*engine, request).shared_reads;
    const EngineMetrics metrics = engine->Metrics();
    const int64_t saved = metrics.kv_bytes_read_unshared - metrics.kv_bytes_read;
    EXPECT_EQ(reads.sharers, 6);
    EXPECT_LE(reads.kv_bytes_not_read, saved);
    EXPECT_GE(reads.kv_bytes_not_read, saved * 99 / 100);  // each read is rounded down
    EXPECT_GT(reads.kv_bytes_not_read, 0);
  }
}

// Bifurcated Attention equations 5 and 6: with sharing a step reads P + sum of own tokens per layer, without n P + the same sum.
void ExpectBytesOfTheFormula(const char* model, const EngineOptions& of_ranks) {
  const Expected expected = LoadExpected(model);
  for (const SharingMode sharing : kModes) {
    for (const int32_t n : {1, 6, 64}) {
      for (const int32_t length : {16, 33, 50}) {  // the samples, all equal, must not fill a page: it would be merged
        SCOPED_TRACE(std::string(Name(sharing)) + ", n " + std::to_string(n) + ", prompt " + std::to_string(length));
        EngineOptions options = of_ranks;
        options.sharing = sharing;
        options.max_running = 64;
        options.max_batch_tokens = 128;
        options.max_context = 128;
        options.experiment.force_sharing = true;
        const auto engine = MakeEngine(model, options);
        const std::vector<int32_t> prompt(expected.prompt.begin(), expected.prompt.begin() + length);
        constexpr int32_t kSteps = 9;
        const SharedReads reads = Generate(*engine, Greedy(prompt, kSteps + 1, n)).shared_reads;
        const EngineMetrics metrics = engine->Metrics();
        const ModelInfo& config = engine->model_info();
        const int64_t token_bytes = int64_t{2} * config.num_kv_heads * config.head_dim * sizeof(float) * config.num_layers;
        int64_t shared = 0, unshared = 0;
        for (int32_t own = 1; own <= kSteps; ++own) {
          shared += token_bytes * (length + n * own);
          unshared += token_bytes * (n * length + n * own);
        }
        EXPECT_EQ(metrics.decode_steps, kSteps);
        EXPECT_EQ(metrics.decode_kv_bytes_read_unshared, unshared);
        const bool shares = sharing == SharingMode::kTree || sharing == SharingMode::kOneLevel;
        EXPECT_EQ(metrics.decode_kv_bytes_read, shares ? shared : unshared);
        EXPECT_EQ(reads.kv_bytes_not_read, shares ? unshared - shared : 0);  // reported to the request
        EXPECT_EQ(reads.sharers, shares && n > 1 ? n : 0);
        EXPECT_EQ(reads.tokens, shares && n > 1 ? length : 0);
        // Stored: distinct tokens, and apart from them what whole pages round up to.
        const bool stores_once = sharing != SharingMode::kNone;
        const int64_t tokens = stores_once ? length + n * kSteps : n * (length + kSteps);
        EXPECT_EQ(metrics.kv_bytes_stored - metrics.kv_page_rounding_bytes, token_bytes * tokens);
        EXPECT_EQ(metrics.kv_bytes_stored_unshared, token_bytes * n * ((length + kSteps + 15) / 16 * 16));
      }
    }
  }
}

TEST(EngineModel, BytesReadAreThoseOfTheFormula) { ExpectBytesOfTheFormula("llama-gqa", {.device = "cpu"}); }

// Each token is read by the rank that has it. A page of both has 16 tokens.
TEST(EngineModel, BytesThatRanksReadOfDividedTokensAreThoseOfTheFormula) {
  ExpectBytesOfTheFormula("starcoder-a", {.device = "cpu,cpu", .kv_split = KvSplit::kTokens, .page_size = 8});
}

// Warm equals cold: bits of a request depend on the request alone.
TEST(EngineModel, DeterministicModeGivesTheSameBitsWarmColdChunkedAndCrowded) {
  const Expected expected = LoadExpected("llama-hd64-long");
  Request request = Greedy(expected.prompt, 8, 3);
  request.sampling.temperature = 1;
  request.sampling.seed = 11;
  const EngineOptions options{
      .max_running = 16, .max_batch_tokens = 300, .max_context = 512, .deterministic = true, .experiment = {.force_sharing = true}};
  const auto engine = MakeEngine("llama-hd64-long", options);
  const Outcome cold = Generate(*engine, request);
  const auto expect_equal = [&](const Outcome& other, const char* what) {
    for (size_t i = 0; i < cold.samples.size(); ++i) {
      EXPECT_EQ(other.samples[i].tokens, cold.samples[i].tokens) << what;
      EXPECT_EQ(other.samples[i].logprobs, cold.samples[i].logprobs) << what;  // bit for bit
    }
  };
  expect_equal(Generate(*engine, request), "the prompt was cached");

  EngineOptions chunked = options;
  chunked.max_batch_tokens = 37;
  expect_equal(Generate(*MakeEngine("llama-hd64-long", chunked), request), "the prompt was computed in chunks");

  EngineOptions small_pages = options;
  small_pages.page_size = 1;
  small_pages.sharing = SharingMode::kStore;
  expect_equal(Generate(*MakeEngine("llama-hd64-long", small_pages), request), "other pages, no shared reads");

  const auto crowded = MakeEngine("llama-hd64-long", options);
  std::vector<Outcome> others(4);
  for (size_t i = 0; i < others.size(); ++i) {
    const size_t own = 20 + 30 * i;
    Request other = Greedy({expected.prompt.begin(), expected.prompt.begin() + own}, 12, 2);
    other.prompt_ids.push_back(static_cast<int32_t>(7 + i));
    Submit(*crowded, other, &others[i]);
  }
  Outcome among;
  Submit(*crowded, request, &among);
  RunToEnd(*crowded);
  expect_equal(among, "other requests shared parts of the prompt in flight");
}

TEST(EngineModel, AutoChunkIsTheSmallestNearTheBestAndLeavesNothingBehind) {
  const auto engine = MakeEngine("llama-gqa", {.max_running = 8, .max_batch_tokens = 100, .chunk = kAutoChunk, .max_context = 512});
  const EngineMetrics metrics = engine->Metrics();
  std::vector<int32_t> sizes;
  double best = 0;
  for (const ChunkSpeed& speed : metrics.chunk_probe) {
    sizes.push_back(speed.tokens);
    best = std::max(best, speed.tokens_per_second);
  }
  EXPECT_EQ(sizes, (std::vector<int32_t>{16, 32, 64, 100}));
  for (const ChunkSpeed& speed : metrics.chunk_probe) {
    EXPECT_GT(speed.tokens_per_second, 0);
    if (speed.tokens <= metrics.chunk) {
      EXPECT_EQ(speed.tokens_per_second >= 0.95 * best, speed.tokens == metrics.chunk) << speed.tokens;
    }
  }
  EXPECT_EQ(metrics.pages_used, 0);
  const Expected expected = LoadExpected("llama-gqa");
  const int32_t count = static_cast<int32_t>(expected.greedy.size());
  EXPECT_EQ(Generate(*engine, Greedy(expected.prompt, count)).samples[0].tokens, expected.greedy);
}

// The options with drafts of n-grams, and with drafts of `model`.
std::vector<EngineOptions> WithDrafts(EngineOptions options, const char* model) {
  options.draft = DraftMode::kNgram;
  std::vector<EngineOptions> forms(2, options);
  forms[1].draft = DraftMode::kModel;
  forms[1].draft_model_path = ModelPath(model);
  return forms;
}

// Drafts are rows of the same forward pass: what the model says, and in deterministic mode its bits, is as without them.
TEST(EngineModel, DraftsLeaveGreedyTextAloneInEveryMode) {
  constexpr const char* kModel = "llama-hd64-long";
  const Expected expected = LoadExpected(kModel);
  const std::vector<int32_t> prompt(expected.prompt.begin(), expected.prompt.begin() + 63);
  const auto request = [&](int32_t n) {  // few words, so that text repeats itself and lookup finds something
    Request few_words = Greedy(prompt, 48, n);
    for (int32_t token = 0; token < 5; ++token) few_words.sampling.logit_bias.emplace_back(token, 100.0f);
    return few_words;
  };
  for (const SharingMode sharing : kModes) {
    for (const int32_t n : {1, 6}) {
      EngineOptions options{
          .sharing = sharing, .max_running = 8, .max_batch_tokens = 200, .max_context = 256, .experiment = {.force_sharing = true}};
      const Outcome plain = Generate(*MakeEngine(kModel, options), request(n));
      options.experiment.draft_policy = DraftPolicy::kAlways;
      std::vector<EngineOptions> forms = WithDrafts(options, kModel);
      forms.insert(forms.begin() + 1, forms.front())->experiment.draft_branches = 4;
      for (const EngineOptions& drafting : forms) {
        SCOPED_TRACE(std::string(Name(sharing)) + ", n " + std::to_string(n) + ", " + std::string(Name(drafting.draft)) + " x " +
                     std::to_string(drafting.experiment.draft_branches));
        const auto engine = MakeEngine(kModel, drafting);
        const Outcome drafted = Generate(*engine, request(n));
        for (int32_t i = 0; i < n; ++i) {
          EXPECT_EQ(drafted.samples[i].tokens, plain.samples[i].tokens);
          for (size_t t = 0; t < plain.samples[i].logprobs.size(); ++t)
            EXPECT_NEAR(drafted.samples[i].logprobs[t], plain.samples[i].logprobs[t], kTolerance);
        }
        const EngineMetrics metrics = engine->Metrics();
        EXPECT_GT(metrics.accepted_draft_tokens, 0);
        EXPECT_EQ(metrics.sample_steps + metrics.accepted_draft_tokens, 47 * n);
        if (drafting.draft == DraftMode::kModel) {
          EXPECT_GT(metrics.accepted_draft_tokens, 30 * n);  // it is the same model
        }
      }
    }
  }
}

TEST(EngineModel, DeterministicModeGivesTheSameBitsWithDrafts) {
  constexpr const char* kModel = "llama-hd64-long";
  const Expected expected = LoadExpected(kModel);
  Request request = Greedy({expected.prompt.begin(), expected.prompt.begin() + 100}, 40, 3);
  request.sampling.temperature = 0.4f;
  request.sampling.seed = 12;
  for (int32_t token = 0; token < 5; ++token) request.sampling.logit_bias.emplace_back(token, 100.0f);
  for (const char* device : {"cpu", "cpu,cpu"}) {
    EngineOptions options{.device = device, .max_running = 4, .max_batch_tokens = 128, .max_context = 256, .deterministic = true};
    const Outcome plain = Generate(*MakeEngine(kModel, options), request);
    for (const EngineOptions& drafting : WithDrafts(options, kModel)) {
      const auto engine = MakeEngine(kModel, drafting);
      EXPECT_EQ(Generate(*engine, request).samples, plain.samples) << Name(drafting.draft) << " on " << device;  // bit for bit
      EXPECT_GT(engine->Metrics().accepted_draft_tokens, 0);
    }
  }
}

// Queries of drafts and chunks see as many of a rank's tokens as those before them, or more: bits are those of single queries.
TEST(EngineModel, RanksThatDivideTokensGiveTheSameBitsWithDraftsChunksAndACache) {
  constexpr const char* kModel = "starcoder-long-a";
  const Expected expected = LoadExpected(kModel);
  for (const char* const device : {"cpu,cpu", "cpu,cpu,cpu"}) {
    Request request = Greedy(expected.prompt, 40, 3);
    request.sampling.temperature = 0.4f;
    request.sampling.seed = 12;
    request.prompt_logprobs = true;
    for (int32_t token = 0; token < 5; ++token) request.sampling.logit_bias.emplace_back(token, 100.0f);
    EngineOptions options{.device = device,
                          .kv_split = KvSplit::kTokens,
                          .max_running = 4,
                          .max_batch_tokens = 400,
                          .max_context = 512,
                          .deterministic = true};
    const auto engine = MakeEngine(kModel, options);
    const Outcome plain = Generate(*engine, request);
    const auto expect_equal = [&](const Outcome& other, const std::string& what) {
      EXPECT_EQ(other.samples, plain.samples) << what << " on " << device;  // bit for bit
      EXPECT_EQ(other.prompt_logprobs, plain.prompt_logprobs) << what << " on " << device;
    };
    expect_equal(Generate(*engine, request), "the prompt was cached");
    for (const int32_t chunk : {1, 7, 64, 65}) {
      EngineOptions chunked = options;
      chunked.chunk = chunk;
      expect_equal(Generate(*MakeEngine(kModel, chunked), request), "chunks of " + std::to_string(chunk));
    }
    for (const EngineOptions& drafting : WithDrafts(options, kModel)) {
      const auto drafts = MakeEngine(kModel, drafting);
      expect_equal(Generate(*drafts, request), std::string(Name(drafting.draft)));
      EXPECT_GT(drafts->Metrics().accepted_draft_tokens, 0);
    }
  }
}

TEST(EngineModel, KvIsSplitByTokensWhereItCanBe) {
  const auto split = [](const char* model, EngineOptions options) {
    options.model_path = ModelPath(model);
    options.max_context = 512;
    options.kv_cache_bytes = 1 << 20;
    const auto engine = Engine::Create(options);
    if (!engine.ok()) return engine.status().message();
    const ModelInfo& info = (*engine)->model_info();
    return std::string(Name(info.kv_split)) + ", " + std::to_string(int64_t{(*engine)->Metrics().pages_total} * info.page_size) +
           ", " + info.kv_split_reason;
  };
  using ::testing::EndsWith;
  using ::testing::HasSubstr;
  // One KV head of 16 elements in two layers: 256 bytes a token in f32, once or on both ranks.
  EXPECT_THAT(split("starcoder-a", {.device = "cpu,cpu", .kv_split = KvSplit::kHeads, .dtype = DType::kF32}),
              "heads, 2048, as asked for");
  EXPECT_THAT(split("starcoder-a", {.device = "cpu,cpu", .kv_split = KvSplit::kTokens, .dtype = DType::kF32}),
              "tokens, 4096, as asked for");
  EXPECT_THAT(split("starcoder-a", {.device = "cpu,cpu"}), HasSubstr("is predicted to take"));
  EXPECT_THAT(split("llama-gqa", {.device = "cpu,cpu"}), EndsWith(", "));
  EXPECT_THAT(split("llama-gqa", {.device = "cpu,cpu", .kv_split = KvSplit::kTokens}),
              HasSubstr("kv_split is tokens, but 2 KV heads are divided among 2 ranks"));
  EXPECT_THAT(split("llama-gqa", {.device = "cpu,cpu,cpu"}), HasSubstr("2 KV heads are not on equally many of 3 ranks"));
  EXPECT_THAT(split("gemma3-a", {.device = "cpu,cpu", .kv_split = KvSplit::kTokens}), HasSubstr("layers have a window"));
  EXPECT_THAT(split("starcoder-a", {.device = "cpu,cpu", .kv_split = KvSplit::kTokens, .page_size = 129}),
              HasSubstr("pages would have 258 tokens"));
  EXPECT_THAT(split("starcoder-a", {.device = "cpu,cpu", .draft = DraftMode::kNgram, .experiment = {.draft_branches = 2}}),
              HasSubstr("accepted of a draft tree"));
}

TEST(EngineModel, CreateRefusesByName) {
  const auto message = [](EngineOptions options) {
    if (options.model_path.empty()) options.model_path = ModelPath("llama-gqa");
    const auto engine = Engine::Create(options);
    EXPECT_FALSE(engine.ok());
    return engine.ok() ? std::string() : engine.status().message();
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message({.model_path = "no/such/model.gguf"}), HasSubstr("no/such/model.gguf"));
  EXPECT_THAT(message({.page_size = 0}), HasSubstr("page_size is 0, expected 1..256"));
  EXPECT_THAT(message({.max_running = 0}), HasSubstr("max_running is 0"));
  EXPECT_THAT(message({.chunk = -2}), HasSubstr("chunk is -2"));
  EXPECT_THAT(message({.max_context = 4096}), HasSubstr("max_context is 4096, the model's context length is 2048"));
  EXPECT_THAT(message({.kv_cache_bytes = 100}), HasSubstr("raise kv_cache_bytes"));
  EXPECT_THAT(message({.page_size = 1, .max_running = 2000000}), HasSubstr("max_running is 2000000, expected 1..65536"));
  EXPECT_THAT(message({.draft = DraftMode::kNgram, .draft_tokens = 64}), HasSubstr("draft_tokens is 64, expected 1..63"));
  EXPECT_THAT(message({.draft = DraftMode::kModel}), HasSubstr("draft_model_path"));
  EXPECT_THAT(message({.deterministic = true, .draft = DraftMode::kNgram, .experiment = {.draft_branches = 2}}),
              HasSubstr("deterministic"));
  EXPECT_THAT(message({.draft = DraftMode::kModel, .draft_model_path = ModelPath("llama-hd64-long")}), HasSubstr("vocabulary of"));
}

// Random traffic with eviction, preemption, merged pages, chunks and pages of several sizes and a prefix restored from disk,
// against each request alone on an engine that keeps nothing. COPPICE_LONG_TEST=1 (ctest label `long`) runs 1,000 traces.
void RunDeterministicTraces(const char* model, EngineOptions options, int traces) {
  constexpr int kTracesPerEngine = 20;
  const int32_t ranks = options.kv_split == KvSplit::kTokens ? 2 : 1;
  options.max_running = 6;
  options.max_batch_tokens = 90;
  options.max_context = 800;
  options.deterministic = true;
  std::mt19937 random(5);
  EngineOptions of_cold = options;
  of_cold.sharing = SharingMode::kNone;
  of_cold.kv_cache_bytes = 0;
  of_cold.max_running = 3;
  of_cold.max_batch_tokens = 512;
  auto cold = MakeEngine(model, of_cold);
  const int32_t vocab = std::min(cold->model_info().vocab_size, 320);
  const auto text_token = [&](int32_t text, size_t t) { return static_cast<int32_t>((t * t + 7 * t * text + text) % vocab); };
  const std::string prefix_path = ::testing::TempDir() + "engine_model_test_prefix" + std::to_string(getpid());
  int64_t compared = 0, preemptions = 0, cached = 0, merged = 0;
  std::unique_ptr<Engine> warm;
  for (int trace = 0; trace < traces; ++trace) {
    if (trace % kTracesPerEngine == 0) {
      options.experiment.force_sharing = random() % 2 == 0;
      options.page_size = std::max(std::array{16, 4, 1}[random() % 3] / ranks, 1);
      options.chunk = random() % 2 == 0 ? 0 : 1 + static_cast<int32_t>(random() % 60);
      options.experiment.schedule = random() % 3 == 0 ? SchedulePolicy::kPrefillFirst : SchedulePolicy::kMixed;
      warm = MakeEngine(model, options);
      // Which rank has a token depends on the page size, and so do bits.
      const bool by_tokens = options.kv_split == KvSplit::kTokens;
      if (by_tokens) {
        of_cold.page_size = options.page_size;
        cold = MakeEngine(model, of_cold);
      }
      if (trace == 0 || by_tokens) {  // its KV lives on, on disk
        Request pinned = Greedy({}, 1);
        for (size_t t = 0; t < 50; ++t) pinned.prompt_ids.push_back(text_token(0, t));
        pinned.pin_prompt_as = "text 0";
        Generate(*warm, pinned);
        ASSERT_TRUE(warm->SavePrefix("text 0", prefix_path).ok());
        if (by_tokens) warm = MakeEngine(model, options);
      }
      if (trace > 0 || by_tokens) {
        const Status loaded = warm->LoadPrefix("text 0", prefix_path, CacheTenant());
        ASSERT_TRUE(loaded.ok()) << loaded.ToString();
      }
    }
    SCOPED_TRACE("trace " + std::to_string(trace));
    std::vector<Request> requests(2 + random() % 4);
    std::vector<Outcome> outcomes(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      Request& request = requests[i];
      const int32_t text = random() % 3;  // one of few texts, so that requests share prefixes of any length
      request.prompt_ids.resize(1 + random() % (random() % 6 == 0 ? 600 : 100));
      for (size_t t = 0; t < request.prompt_ids.size(); ++t) request.prompt_ids[t] = text_token(text, t);
      if (random() % 2 == 0) request.prompt_ids.back() = static_cast<int32_t>(random() % vocab);
      request.n = 1 + random() % 3;
      request.max_tokens = 1 + random() % 70;
      request.ignore_eos = true;
      request.sampling.seed = random();
      if (random() % 4 == 0) request.sampling.temperature = 0;  // all samples say the same
      Submit(*warm, request, &outcomes[i]);
      for (uint32_t step = random() % 4; step > 0; --step) ASSERT_TRUE(warm->Step().ok());
    }
    RunToEnd(*warm);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Outcome alone = Generate(*cold, requests[i]);
      for (size_t s = 0; s < alone.samples.size(); ++s) {
        ASSERT_EQ(outcomes[i].samples[s].tokens, alone.samples[s].tokens);
        ASSERT_EQ(outcomes[i].samples[s].logprobs, alone.samples[s].logprobs);  // bit for bit
        ++compared;
      }
    }
    if ((trace + 1) % kTracesPerEngine == 0) {
      preemptions += warm->Metrics().preemptions;
      cached += warm->Metrics().cached_tokens;
      merged += warm->Metrics().merged_pages;
    }
  }
  std::filesystem::remove(prefix_path);
  EXPECT_GT(compared, traces);
  EXPECT_GT(cached, 0);
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(merged, 0);
  ::testing::Test::RecordProperty("preemptions", std::to_string(preemptions));  // how far each lies from 0
  ::testing::Test::RecordProperty("merged_pages", std::to_string(merged));
}

int NumTraces() {
#ifdef __SANITIZE_THREAD__  // takes 50 times as long
  return 20;
#else
  return std::getenv("COPPICE_LONG_TEST") != nullptr ? 1000 : 200;
#endif
}

// 50 pages of 16 tokens: too few for what runs.
TEST(EngineModel, DeterministicTracesWarmEqualsCold) {
  RunDeterministicTraces("llama-gqa", {.kv_cache_bytes = 50 * 16 * 768}, NumTraces());
}

// The same where two ranks divide the tokens of each page.
TEST(EngineModel, DeterministicTracesWarmEqualsColdWithTokensDivided) {
  RunDeterministicTraces("starcoder-a", {.device = "cpu,cpu", .kv_split = KvSplit::kTokens, .kv_cache_bytes = 50 * 16 * 256},
                         NumTraces());
}

}  // namespace
}  // namespace coppice
