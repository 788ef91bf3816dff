// An engine from its parts, for Engine::Create (create_engine.cc) and for tests and benches that bring a model of their own.
// Layer: engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "coppice/attention/attention.h"
#include "coppice/engine/engine.h"
#include "core/thread_pool.h"
#include "engine/draft.h"
#include "engine/step_predictor.h"
#include "model/weight_source.h"
#include "runner/runner.h"
#include "tokenizer/tokenizer.h"

namespace coppice {

// Threads and attention context of a rank, beside its device.
struct RankParts {
  std::unique_ptr<ThreadPool> threads;
  std::unique_ptr<attention::Context> context;
};

// In order of dependence: the last is destroyed first.
struct EngineParts {
  EngineOptions options;                   // complete: no zeros or kAutoChunk that stand for a default, but max_waiting
  std::vector<ChunkSpeed> chunk_probe;     // if the chunk was measured, or there is a target_tbt
  std::optional<StepPredictor> predictor;  // with a target_tbt
  std::unique_ptr<Tokenizer> tokenizer;    // may be null
  Status tokenizer_status;                 // this and the two below: of ModelInfo
  SamplingParams sampling;
  std::vector<std::string> notes;
  std::string kv_split_reason;  // of ModelInfo
  std::unique_ptr<ThreadPool> threads;
  std::unique_ptr<attention::Context> context;  // may be null if the runner does not need one
  std::vector<RankParts> other_ranks;           // threads and context above are the first rank's
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<Runner> runner;
  std::unique_ptr<Drafter> drafter;                     // null: no speculative decoding
  std::function<double(const StepSums&)> step_seconds;  // tests: what a step took, in place of the clock
  // The weights as they were loaded; null: there are none to be read again.
  std::function<Result<std::unique_ptr<WeightSource>>()> open_weights;
};

std::unique_ptr<Engine> MakeEngine(EngineParts parts);

// Bytes of the model that are loaded, of all. Called on the threads that load, one at a time.
using LoadProgress = std::function<void(int64_t done, int64_t total)>;

// Those of Engine::Create, for tests that look at them. REQUIRES: ValidateOptions(options).
Result<EngineParts> LoadEngineParts(const EngineOptions& options, LoadProgress progress = {});

// Engine::Create, which reports how far it is.
Result<std::unique_ptr<Engine>> CreateEngine(const EngineOptions& options, LoadProgress progress);

// Engine::Create without weights and without KV: tokens come at once, each a piece of text that means nothing (NullRunner). The
// model's tokenizer, limits and cache are real, for measuring all that lies around a model. A step takes `step_time` at least.
Result<std::unique_ptr<Engine>> CreateNullEngine(const EngineOptions& options, std::chrono::nanoseconds step_time = {});

}  // namespace coppice
