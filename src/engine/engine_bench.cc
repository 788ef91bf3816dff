// Host work of a step at 1,024 running samples, around a model that costs nothing: schedule, forest, plan, commit, events. Sampling
// is reported apart. With a small vocabulary the step is its host work and little else; with SmolLM2's, the 40 ms that sampling
// takes in between let go of what the processor's caches held, as a forward pass would. One iteration is one decode step; counters
// are medians over steps. BM_Fork: a thousand children of one sample, and the step of them all. BM_Beams: a step of beam search
// beside one of as many samples.
//   build/src/engine/engine_bench
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "core/check.h"
#include "engine/engine_parts.h"
#include "runner/host_runner.h"
#include "runner/null_runner.h"

namespace coppice {
namespace {

constexpr int32_t kRunning = 1024, kPrompt = 512, kPageSize = 16, kContext = 8192;
constexpr int32_t kSmallVocab = 2048, kSmolLm2Vocab = 49152;

RunnerInfo InfoOf(int32_t vocab) {
  RunnerInfo info{.fingerprint = "null", .kv_dtype = DType::kF32, .kv_bytes_per_token = 1};
  info.model.architecture = "null";
  info.model.num_layers = 30;
  info.model.vocab_size = vocab;
  info.model.max_position = kContext;
  return info;
}

// Plans and samples as a real runner, with logits at no cost: row r is the same run of numbers from its r-th on, so that each row
// has another maximum and samples go different ways.
class ConstantLogitsRunner final : public HostRunner {
 public:
  ConstantLogitsRunner(int32_t vocab, std::unique_ptr<attention::AttentionPlan> plan, Executor* executor)
      : HostRunner({.info = InfoOf(vocab),
                    .plans = LayerPlans::Single(std::move(plan), InfoOf(vocab).model.num_layers),
                    .executor = executor}),
        logits_(vocab + 2 * kRunning) {
    for (size_t v = 0; v < logits_.size(); ++v) logits_[v] = static_cast<float>((v * 2654435761u) >> 20 & 0xfff) * 1e-3f;
    logits_[vocab / 2] = 10.0f;
  }
  Status ReadKv(std::span<const int32_t>, int32_t, std::span<std::byte>) const override { return OkStatus(); }
  Status WriteKv(std::span<const int32_t>, int32_t, int32_t, std::span<const std::byte>) override { return OkStatus(); }

 private:
  Status MoveSlots(std::span<const attention::SlotMove>) override { return OkStatus(); }
  Status CopyPages(std::span<const attention::PageCopy>) override { return OkStatus(); }
  Result<MatrixView<const float>> Forward(const ForwardBatch& batch) override {
    return MatrixView<const float>(logits_.data(), static_cast<int64_t>(batch.logit_rows.size()), info().model.vocab_size,
                                   /*stride=*/1);
  }

  std::vector<float> logits_;
};

// `samples`: around a runner that plans and samples; else around one that draws at once.
std::unique_ptr<Engine> MakeEngineAroundNothing(int32_t vocab, bool samples) {
  EngineParts parts;
  parts.options = {.page_size = kPageSize,
                   .max_running = kRunning,
                   .max_batch_tokens = 2 * kRunning,
                   .chunk = 2 * kRunning,
                   .max_context = kContext,
                   .steps_ahead = 0};
  parts.threads = std::make_unique<ThreadPool>(1);
  parts.context = attention::Context::CreateCpu(parts.threads.get()).value();
  constexpr int32_t kPages = 1 << 18;
  parts.cache =
      KvCache::Create({.num_pages = kPages, .page_size = kPageSize, .max_branches = kRunning, .max_context = kContext}).value();
  if (samples) {
    auto plan = attention::AttentionPlan::Create(*parts.context, {.num_qo_heads = 9, .num_kv_heads = 3, .head_dim = 64},
                                                 {.max_branches = kRunning,
                                                  .max_queries = parts.options.max_batch_tokens,
                                                  .max_page_slots = kRunning * (kContext / kPageSize),
                                                  .page_size = kPageSize})
                    .value();
    parts.runner = std::make_unique<ConstantLogitsRunner>(vocab, std::move(plan), parts.threads.get());
  } else {
    parts.runner = std::make_unique<NullRunner>(InfoOf(vocab));
  }
  return MakeEngine(std::move(parts));
}

// A decode step an iteration.
void MeasureSteps(benchmark::State& state, Engine& engine) {
  std::vector<double> host, plan, sample;
  EngineMetrics before = engine.Metrics();
  for (auto _ : state) {
    COPPICE_CHECK(*engine.Step());
    const EngineMetrics after = engine.Metrics();
    host.push_back(after.host_seconds - before.host_seconds);
    plan.push_back(after.plan_seconds - before.plan_seconds);
    sample.push_back(after.sample_seconds - before.sample_seconds);
    before = after;
  }
  const auto median_us = [](std::vector<double>& seconds) {
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    return seconds[seconds.size() / 2] * 1e6;
  };
  state.counters["host_us"] = median_us(host);
  state.counters["host_min_us"] = *std::min_element(host.begin(), host.end()) * 1e6;
  state.counters["plan_us"] = median_us(plan);
  state.counters["sample_us"] = median_us(sample);
}

// range(0): requests; they share their first half, and each has kRunning / requests samples. range(1): the vocabulary.
void DecodeSteps(benchmark::State& state, bool samples) {
  const int32_t requests = static_cast<int32_t>(state.range(0));
  const std::unique_ptr<Engine> engine = MakeEngineAroundNothing(static_cast<int32_t>(state.range(1)), samples);
  int64_t tokens = 0;
  for (int32_t r = 0; r < requests; ++r) {
    Request request{.n = kRunning / requests, .max_tokens = kContext - kPrompt, .ignore_eos = true};
    request.sampling.temperature = 0;
    request.prompt_ids.assign(kPrompt, 7);
    for (int32_t i = kPrompt / 2; i < kPrompt; ++i) request.prompt_ids[i] = 100 + r;
    request.on_event = [&](const StreamEvent& event) { tokens += static_cast<int64_t>(event.token_ids.size()); };
    COPPICE_CHECK(engine->Submit(std::move(request)).ok());
  }
  while (engine->Metrics().running < kRunning || engine->Metrics().decode_steps < 2) COPPICE_CHECK(*engine->Step());
  MeasureSteps(state, *engine);
  state.SetItemsProcessed(tokens);
}
void BM_DecodeStep(benchmark::State& state) { DecodeSteps(state, /*samples=*/true); }
void BM_NullRunner(benchmark::State& state) { DecodeSteps(state, /*samples=*/false); }
// range(0): beams of one search, or as many samples where range(1) is 0. Half of the beams are forks of others in each step.
void BM_Beams(benchmark::State& state) {
  const std::unique_ptr<Engine> engine = MakeEngineAroundNothing(kSmallVocab, /*samples=*/false);
  Request request{.prompt_ids = std::vector<int32_t>(kPrompt, 7), .max_tokens = kContext - kPrompt, .ignore_eos = true};
  const int32_t count = static_cast<int32_t>(state.range(0));
  (state.range(1) != 0 ? request.beams.width : request.n) = count;
  COPPICE_CHECK(engine->Submit(std::move(request)).ok());
  while (engine->Metrics().running < count || engine->Metrics().decode_steps < 40) COPPICE_CHECK(*engine->Step());
  MeasureSteps(state, *engine);
}
// range(0): calls of Fork that make the children. An iteration is those calls; what the next step takes stands beside.
void BM_Fork(benchmark::State& state) {
  constexpr int32_t kChildren = 1000;
  const int64_t calls = state.range(0);
  const std::unique_ptr<Engine> engine = MakeEngineAroundNothing(kSmolLm2Vocab, /*samples=*/true);
  Request request{.prompt_ids = std::vector<int32_t>(kPrompt, 7), .max_tokens = kContext - kPrompt, .ignore_eos = true};
  const SampleId parent{.request = engine->Submit(std::move(request)).value()};
  for (int step = 0; step < 8; ++step) COPPICE_CHECK(*engine->Step());
  std::vector<double> steps;
  for (auto _ : state) {
    std::vector<SampleId> children;
    for (int64_t call = 0; call < calls; ++call) {
      const auto made = engine->Fork(parent, {.n = static_cast<int32_t>(kChildren / calls)}).value();
      children.insert(children.end(), made.begin(), made.end());
    }
    state.PauseTiming();
    const auto begin = std::chrono::steady_clock::now();
    COPPICE_CHECK(*engine->Step());
    steps.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    for (const SampleId child : children) COPPICE_CHECK(engine->Prune(child).ok());
    COPPICE_CHECK(*engine->Step());
    state.ResumeTiming();
  }
  std::nth_element(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2), steps.end());
  state.counters["next_step_us"] = steps[steps.size() / 2] * 1e6;
}
BENCHMARK(BM_Fork)->Arg(1)->Arg(1000)->ArgName("calls")->Iterations(20)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Beams)
    ->ArgsProduct({{4, 16, 64, 256}, {0, 1}})
    ->ArgNames({"count", "beams"})
    ->Iterations(200)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_NullRunner)
    ->ArgsProduct({{1, 64, 1024}, {kSmallVocab}})
    ->ArgNames({"requests", "vocab"})
    ->Iterations(100)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_DecodeStep)
    ->ArgsProduct({{1, 64, 1024}, {kSmallVocab, kSmolLm2Vocab}})
    ->ArgNames({"requests", "vocab"})
    ->Iterations(100)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace coppice

BENCHMARK_MAIN();
