#include "simulate/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "attention/backend.h"
#include "attention/cpu/cpu_backend.h"
#include "attention/cpu/cpu_features.h"
#include "attention/cuda/lower/kernel_choice.h"
#include "attention/machine_model.h"
#include "core/check.h"
#include "core/thread_pool.h"
#include "model/kv_split.h"
#include "model/window_layers.h"

namespace coppice::simulate {
namespace {

using attention::AttentionSpec;
using attention::MachineModel;

// Of a number of workers that do nothing.
class NoWork final : public Executor {
 public:
  explicit NoWork(int workers) : workers_(workers) {}
  int num_workers() const override { return workers_; }
  void ParallelFor(int64_t, TaskRef) override { COPPICE_CHECK(false); }

 private:
  int workers_;
};

// Of a rank: the fullest one's heads, with whole groups of query heads; of `sharers` ranks that divide the tokens of a KV head, the
// query heads of all.
std::vector<LayerKind> KindsOf(const ModelConfig& config, DType dtype, int ranks, int sharers) {
  const int32_t kv_heads = CeilDiv(config.num_kv_heads, ranks);
  const int32_t group = config.num_qo_heads / config.num_kv_heads;
  const int32_t qo_heads = ranks > config.num_kv_heads ? CeilDiv(config.num_qo_heads, ranks) : kv_heads * group;
  const AttentionSpec spec{.num_qo_heads = qo_heads * sharers,
                           .num_kv_heads = kv_heads,
                           .head_dim = config.head_dim,
                           .q_dtype = dtype,
                           .kv_dtype = dtype,
                           .sm_scale = config.sm_scale,
                           .soft_cap = config.soft_cap};
  std::vector<LayerKind> kinds;
  for (const WindowLayers& alike : WindowLayersOf(config)) {
    kinds.push_back({.spec = spec,
                     .traits = {},
                     .layers = alike.layers,
                     .token_ranks = sharers,
                     .exchange = sharers > 1 ? KvExchangeOf(config, ranks, dtype, DeviceKind::kCuda) : KvExchange()});
    kinds.back().spec.window = alike.window;
  }
  return kinds;
}

// Time of a layer on a GPU beside its attention and beyond its weights' reading: the starts and ends of its kernels in a
// captured step of more than kGpuFewRows rows. From steps without attention of Llama shapes of 7 B and 13 B on an H100, 32 to 256
// samples (bench/results/paper_hydragen/2026-11-28_h100.jsonl): 41 and 43 us.
constexpr double kGpuLayerSeconds = 42e-6;
// Up to kGpuFewRows rows our kernels multiply, and begin to read weights while those before them end: 3.78 to 3.94 ms of
// Llama-3-8B's step on an H200 at 1 to 8 rows, where its weights take 3.83 (bench/results/forecast/2026-11-29_h200.txt).
constexpr int32_t kGpuFewRows = 16;
constexpr double kGpuFewRowsLayerSeconds = 10e-6;

// Time of a sum over ranks on GPUs that read each other's memory, H200s: 4.1 us, and the time of each further rank's f32 rows
// (docs/ranks.md, the times of AddNorm). There are two a layer.
constexpr double kSumSeconds = 4.1e-6, kSumBytesPerSecond = 385e9;
constexpr int kSumsOfLayer = 2;

StepTimes RooflineOf(const ModelConfig& config, const CostOptions& options, const MachineModel& machine) {
  const double embedding = static_cast<double>(config.vocab_size) * config.hidden_size;
  const double layers = std::max(0.0, static_cast<double>(options.parameters) - embedding * (config.tie_embeddings ? 1 : 2));
  const auto bytes = static_cast<double>(SizeOf(options.dtype));
  const bool is_gpu = machine.sm.num_sms > 0;
  const double ranks = options.ranks, f32_row_s = sizeof(float) * (ranks - 1) / kSumBytesPerSecond;
  const double sums_s = options.ranks > 1 ? kSumsOfLayer * kSumSeconds : 0;
  return StepTimes::FromRoofline({.layer_bytes = bytes * layers / ranks,
                                  .layer_flops = 2 * layers / ranks,
                                  .layer_row_s = kSumsOfLayer * config.num_layers * config.hidden_size * f32_row_s,
                                  .head_bytes = bytes * embedding / ranks,
                                  .head_flops = 2 * embedding / ranks,
                                  .head_row_s = config.vocab_size / ranks * f32_row_s,  // the first rank gathers logits
                                  .bytes_per_s = machine.read_bytes_per_s,
                                  .flops_per_s = machine.dense_flops_per_s,
                                  .few_rows = is_gpu ? kGpuFewRows : 0,
                                  .fixed_s = is_gpu ? (kGpuLayerSeconds + sums_s) * config.num_layers : 0,
                                  .few_fixed_s = is_gpu ? (kGpuFewRowsLayerSeconds + sums_s) * config.num_layers : 0});
}

Result<AttentionTimes> TimesOf(const ModelConfig& config, const CostOptions& options, const MachineModel& machine, int workers,
                               int sharers) {
  std::vector<LayerKind> kinds = KindsOf(config, options.dtype, options.ranks, sharers);
  for (LayerKind& kind : kinds) {
    if (machine.sm.num_sms > 0) {  // as Hopper's kernels run it
      COPPICE_ASSIGN_OR_RETURN(const attention::cuda::KernelChoice kernel,
                               attention::cuda::ChooseKernel(attention::CudaKernels::kAuto, 9, 0, kind.spec, options.page_size));
      kind.traits = attention::cuda::TraitsOf(kernel, kind.spec, machine.sm.num_sms);
    } else {
      NoWork executor(workers);
      COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<attention::Backend> backend, attention::MakeCpuBackend(&executor));
      COPPICE_ASSIGN_OR_RETURN(kind.traits, backend->Traits(kind.spec, {}));
    }
  }
  return AttentionTimes(kinds, machine);
}

// As an engine chooses; `by_heads` has the times of the one way.
Result<KvSplitChoice> ChooseSplit(const ModelConfig& config, const CostOptions& options, const MachineModel& machine, int workers,
                                  const AttentionTimes& by_heads) {
  const int32_t max_context = options.max_context > 0 ? options.max_context : config.max_position;
  const int64_t kv_tokens = options.kv_bytes > 0 ? options.kv_bytes / by_heads.kv_bytes_per_token() : INT64_MAX;
  const TypicalStep step = TypicalStepOf(options.max_running, max_context, kv_tokens);
  const auto seconds_of = [&](const AttentionTimes& times) {
    AttentionTimes::Decoding decoding = times.Nothing();
    times.ChangeSamples(step.samples, 0, &decoding);
    return times.Step(decoding, int64_t{step.samples} * step.tokens, {}).seconds / config.num_layers;
  };
  return ChooseKvSplit(config, options.ranks, options.kv_split, /*why_not=*/"", step, [&](int sharers) -> Result<KvSplitTimes> {
    COPPICE_ASSIGN_OR_RETURN(const AttentionTimes by_tokens, TimesOf(config, options, machine, workers, sharers));
    return KvSplitTimes{.heads_s = seconds_of(by_heads), .tokens_s = seconds_of(by_tokens)};
  });
}

}  // namespace

Result<MachineCosts> MakeCosts(const ModelConfig& config, const CostOptions& options) {
  const NoWork workers(options.threads > 0 ? options.threads : AvailableCores());
  MachineModel machine;
  if (options.machine.empty()) {
    COPPICE_ASSIGN_OR_RETURN(machine, attention::ShippedMachineModel(attention::cpu::HostCpuModelName(), workers.num_workers()));
  } else {
    COPPICE_ASSIGN_OR_RETURN(machine, attention::LoadMachineModel(options.machine, workers.num_workers()));
  }
  if (options.ranks > 1 && machine.sm.num_sms == 0)
    return InvalidArgument(
        fmt::format("{} ranks on {}: a forecast has ranks of GPUs alone, give --machine one", options.ranks, machine.name));
  if (options.ranks > config.num_qo_heads)
    return InvalidArgument(
        fmt::format("{} ranks divide {} query heads, expected no more ranks", options.ranks, config.num_qo_heads));
  COPPICE_ASSIGN_OR_RETURN(AttentionTimes attention, TimesOf(config, options, machine, workers.num_workers(), /*sharers=*/1));
  COPPICE_ASSIGN_OR_RETURN(KvSplitChoice choice, ChooseSplit(config, options, machine, workers.num_workers(), attention));
  if (choice.sharers > 1) {
    COPPICE_ASSIGN_OR_RETURN(attention, TimesOf(config, options, machine, workers.num_workers(), choice.sharers));
  }
  return MachineCosts{
      .costs = {.steps = options.steps ? *options.steps : RooflineOf(config, options, machine), .attention = std::move(attention)},
      .machine = machine.name,
      .ranks = options.ranks,
      .kv_split = choice.split,
      .kv_split_reason = std::move(choice.reason),
      .has_step_times = options.steps.has_value()};
}

}  // namespace coppice::simulate
