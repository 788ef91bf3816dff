// An engine around a FakeRunner, with what came out of each request, checked after every step. Layer: engine, tests only.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "coppice/engine/engine.h"
#include "engine/engine_parts.h"
#include "engine/model_drafter.h"
#include "engine/ngram_drafter.h"
#include "engine/testing/fake_tokenizer.h"
#include "runner/testing/fake_runner.h"
#include "runner/testing/late_runner.h"

namespace coppice {

// The output of one sample.
struct Output {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<int32_t> ranks;
  std::string text;
  std::optional<FinishReason> reason;
  std::optional<int32_t> stop;
  std::optional<float> beam_score;
  Status status;
};

struct EngineConfig {
  FakeRunner::Options model;
  int32_t max_running = 8, max_batch_tokens = 32, max_waiting = 0;
  int32_t chunk = 0;  // 0: max_batch_tokens
  SchedulePolicy schedule = SchedulePolicy::kMixed;
  double target_tbt = 0;  // with a chunk_probe and step_seconds
  std::vector<ChunkSpeed> chunk_probe;
  std::function<double(const StepSums&)> step_seconds;
  SharingMode sharing = SharingMode::kTree;
  std::vector<std::string> texts;  // of tokens; empty: no tokenizer
  DraftMode draft = DraftMode::kNone;
  int32_t draft_tokens = 4, draft_branches = 1;
  DraftPolicy draft_policy = DraftPolicy::kAlways;  // the other one goes by the clock
  uint64_t draft_seed = 0;                          // kModel: of the draft's FakeRunner
  bool exact_drafts = false;                        // kModel
  int32_t steps_ahead = 0;
  bool late_runner = false;   // around a LateRunner
  bool event_thread = false;  // outputs may be read when RunToEnd has returned
  std::shared_ptr<ForestListener> forest_listener;
};

// Letters, with a two-letter token and one that holds a stop string's middle.
inline std::vector<std::string> Letters(int32_t count) {
  std::vector<std::string> texts;
  for (int32_t i = 0; i < count; ++i) texts.push_back(std::string(1, static_cast<char>('a' + i % 26)));
  return texts;
}

class EngineHarness {
 public:
  explicit EngineHarness(const EngineConfig& config) {
    EngineParts parts;
    parts.options = {
        .sharing = config.sharing,
        .page_size = config.model.page_size,
        .max_running = config.max_running,
        .max_batch_tokens = config.max_batch_tokens,
        .chunk = config.chunk == 0 ? config.max_batch_tokens : config.chunk,
        .target_tbt = config.target_tbt,
        .max_context = config.model.max_position,
        .max_waiting = config.max_waiting,
        .event_thread = config.event_thread,
        .forest_listener = config.forest_listener,
        .steps_ahead = config.steps_ahead,
        .draft = config.draft,
        .draft_tokens = config.draft_tokens,
        .experiment = {.schedule = config.schedule, .draft_branches = config.draft_branches, .draft_policy = config.draft_policy}};
    if (config.target_tbt > 0) parts.predictor.emplace(config.chunk_probe);
    parts.step_seconds = config.step_seconds;
    if (!config.texts.empty()) parts.tokenizer = std::make_unique<FakeTokenizer>(config.texts);
    parts.threads = std::make_unique<ThreadPool>(1);
    parts.context = attention::Context::CreateCpu(parts.threads.get()).value();
    parts.cache = MakeCache(config);
    const auto distributions = std::make_shared<DraftDistributions>(config.model.vocab_size);
    auto model = std::make_unique<FakeRunner>(config.model, MakePlan(config, *parts.context), parts.threads.get(), distributions);
    model_ = model.get();
    loaded_seed_ = static_cast<float>(config.model.seed);
    cache_ = parts.cache.get();
    parts.runner = std::move(model);
    if (config.late_runner) {
      auto late = std::make_unique<LateRunner>(std::move(parts.runner));
      late_ = late.get();
      parts.runner = std::move(late);
    }
    if (config.draft == DraftMode::kNgram)
      parts.drafter = std::make_unique<NgramDrafter>(NgramDrafter::Options{config.draft_branches});
    if (config.draft == DraftMode::kModel) {
      FakeRunner::Options draft_model = config.model;
      draft_model.seed = config.draft_seed;
      auto fake = std::make_unique<FakeRunner>(draft_model, MakePlan(config, *parts.context), parts.threads.get(), distributions);
      draft_model_ = fake.get();
      auto drafter = std::make_unique<ModelDrafter>(ModelDrafterParts{.cache = MakeCache(config),
                                                                      .runner = std::move(fake),
                                                                      .max_batch_tokens = config.max_batch_tokens,
                                                                      .max_context = config.model.max_position,
                                                                      .exact = config.exact_drafts});
      draft_cache_ = &drafter->cache();
      parts.drafter = std::move(drafter);
    }
    parts.open_weights = [this] {
      const auto bytes = std::as_bytes(std::span(&loaded_seed_, 1));
      TensorMap loaded;
      for (const auto& [name, weight] : model_->Weights())
        loaded.emplace(name, StoredTensor{.type = StoredType::kF32, .shape = weight.shape, .data = bytes});
      return model_->PrepareUpdate(std::move(loaded));
    };
    engine_ = MakeEngine(std::move(parts));
  }

  FakeRunner& model() { return *model_; }
  Engine& engine() { return *engine_; }
  KvCache& cache() { return *cache_; }
  const KvCache* draft_cache() const { return draft_cache_; }  // kModel
  FakeRunner& draft_model() { return *draft_model_; }
  const LateRunner* late() const { return late_; }  // null without one

  RequestId Submit(Request request) {
    size_t slot;
    {
      const std::lock_guard lock(mutex_);
      slot = outputs_.size();
      outputs_.emplace_back(request.n);
      prompt_logprobs_.emplace_back();
      done_.push_back(false);
    }
    request.on_event = [this, slot](const StreamEvent& event) {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(done_[slot]) << "an event after the last one";
      done_[slot] = event.request_done;
      if (event.index < 0) {
        prompt_logprobs_[slot] = event.prompt_logprobs;
        return;
      }
      Output& output = outputs_[slot][event.index];
      EXPECT_FALSE(output.reason.has_value()) << "an event after the sample's end";
      output.tokens.insert(output.tokens.end(), event.token_ids.begin(), event.token_ids.end());
      output.logprobs.insert(output.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
      output.text += event.text;
      output.ranks.insert(output.ranks.end(), event.ranks.begin(), event.ranks.end());
      output.reason = event.finish_reason;
      output.stop = event.stop;
      output.beam_score = event.beam_score;
      output.status = event.status;
    };
    return engine_->Submit(std::move(request)).value();
  }
  void Step(int count = 1) {
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(engine_->Step().ok());
      const Status status = cache_->CheckIntegrity();
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  void RunToEnd() {
    for (int step = 0; step < 100000; ++step) {
      const Result<bool> worked = engine_->Step();
      ASSERT_TRUE(worked.ok()) << worked.status().ToString();
      const Status status = cache_->CheckIntegrity();
      ASSERT_TRUE(status.ok()) << status.message();
      if (draft_cache_) {
        const Status draft_status = draft_cache_->CheckIntegrity();
        ASSERT_TRUE(draft_status.ok()) << "draft model: " << draft_status.message();
      }
      if (!*worked) return;
    }
    FAIL() << "the engine does not come to an end";
  }
  const std::vector<Output>& outputs(size_t slot) const { return outputs_[slot]; }
  const std::vector<std::optional<float>>& prompt_logprobs(size_t slot) const { return prompt_logprobs_[slot]; }
  bool done(size_t slot) const { return done_[slot]; }

  std::vector<int32_t> GreedyAfter(std::vector<int32_t> tokens, int32_t count) const {
    std::vector<int32_t> generated;
    for (int32_t i = 0; i < count; ++i) {
      generated.push_back(model_->GreedyAfter(tokens));
      tokens.push_back(generated.back());
    }
    return generated;
  }

 private:
  static std::unique_ptr<KvCache> MakeCache(const EngineConfig& config) {
    return KvCache::Create({.num_pages = config.model.num_pages,
                            .page_size = config.model.page_size,
                            .max_branches = config.max_running,
                            .max_context = config.model.max_position,
                            .share = config.sharing != SharingMode::kNone})
        .value();
  }
  static std::unique_ptr<attention::AttentionPlan> MakePlan(const EngineConfig& config, attention::Context& context) {
    const int32_t row = (config.model.max_position + config.model.page_size - 1) / config.model.page_size;
    return attention::AttentionPlan::Create(
               context, {.num_qo_heads = 9, .num_kv_heads = 3, .head_dim = 64, .q_dtype = DType::kF32, .kv_dtype = DType::kF32},
               {.max_branches = config.max_running,
                .max_queries = config.max_batch_tokens,
                .max_page_slots = config.max_running * row,
                .page_size = config.model.page_size},
               {.policy = config.sharing == SharingMode::kTree       ? attention::SharePolicy::kTree
                          : config.sharing == SharingMode::kOneLevel ? attention::SharePolicy::kOneLevel
                                                                     : attention::SharePolicy::kStore,
                .force_sharing = true})
        .value();
  }

  float loaded_seed_ = 0;  // what its "file" holds
  FakeRunner* model_;
  KvCache* cache_;
  const KvCache* draft_cache_ = nullptr;
  FakeRunner* draft_model_ = nullptr;
  const LateRunner* late_ = nullptr;
  std::unique_ptr<Engine> engine_;
  std::mutex mutex_;  // events may come from a thread of the engine's
  std::vector<std::vector<Output>> outputs_;
  std::vector<std::vector<std::optional<float>>> prompt_logprobs_;
  std::vector<bool> done_;
};

inline std::vector<int32_t> Prompt(int32_t length, int32_t seed = 0) {
  std::mt19937 random(seed + 1);
  std::vector<int32_t> tokens(length);
  for (int32_t& token : tokens) token = random() % 64;
  return tokens;
}

inline Request Greedy(std::vector<int32_t> prompt, int32_t max_tokens, int32_t n = 1) {
  Request request{.prompt_ids = std::move(prompt), .n = n, .max_tokens = max_tokens};
  request.sampling.temperature = 0;
  return request;
}

}  // namespace coppice
