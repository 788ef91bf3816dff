#include "attention_tools/calibrate_gpu.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attention/owned_forest.h"
#include "core/buffer.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

constexpr int32_t kHeadDim = 128, kPageSize = 16;
constexpr int kRuns = 41, kWarmUps = 3;
// Far more than any L2; longer requests take its pages in turn.
constexpr size_t kPoolBytes = size_t{1} << 30;
constexpr int32_t kMostRows = 16384, kMostQoHeads = 32;

// A step to time: a tree under a policy.
struct Step {
  int32_t qo_heads, kv_heads;
  std::vector<TreeLevel> levels;
  PlannerOptions options = {};
};

// Times steps over one pool of random keys and values.
class Stopwatch {
 public:
  static Result<Stopwatch> Create(BenchDevice& device) {
    Stopwatch self(device);
    COPPICE_ASSIGN_OR_RETURN(Buffer host, Buffer::Allocate(kPoolBytes));
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::vector<BF16> period(4093);  // a prime: rows are not alike
    std::ranges::generate(period, [&] { return BF16::FromFloat(normal(rng)); });
    const std::span<BF16> values = host.Span<BF16>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = period[i % period.size()];
    COPPICE_ASSIGN_OR_RETURN(self.kv_, device.Allocate(kPoolBytes));
    COPPICE_RETURN_IF_ERROR(self.kv_->CopyFrom({host.data(), kPoolBytes}));
    constexpr size_t kRowBytes = size_t{kMostRows} * kMostQoHeads * kHeadDim * sizeof(BF16);
    COPPICE_ASSIGN_OR_RETURN(self.q_, device.Allocate(kRowBytes));
    COPPICE_RETURN_IF_ERROR(self.q_->CopyFrom({host.data(), kRowBytes}));
    COPPICE_ASSIGN_OR_RETURN(self.out_, device.Allocate(kRowBytes));
    return Result<Stopwatch>(std::move(self));
  }

  // The median, in nanoseconds.
  Result<double> Ns(const Step& step) const {
    const AttentionSpec spec{.num_qo_heads = step.qo_heads, .num_kv_heads = step.kv_heads, .head_dim = kHeadDim};
    KvPoolShape pool{.page_size = kPageSize, .num_kv_heads = step.kv_heads, .head_dim = kHeadDim};
    pool.num_pages = static_cast<int32_t>(kPoolBytes / (pool.elements_per_page() * SizeOf(pool.dtype)));
    OwnedForest forest;
    AddUniformTree({.levels = step.levels, .page_size = kPageSize}, forest);
    for (int32_t& page : forest.page_indices) page %= pool.num_pages;
    COPPICE_CHECK(forest.num_queries() <= kMostRows);
    Backend& backend = device_->backend();
    COPPICE_ASSIGN_OR_RETURN(const auto plan, AttentionPlan::Create(backend, spec, forest.Capacity(), step.options));
    COPPICE_RETURN_IF_ERROR(plan->Update(forest.Forest()));
    COPPICE_RETURN_IF_ERROR(plan->Upload());
    COPPICE_ASSIGN_OR_RETURN(const auto bound, backend.BindKv(spec, pool.View(kv_->data())));
    const int64_t row = int64_t{step.qo_heads} * kHeadDim;
    const RunArgs args{.q = q_->data(), .q_row_stride = row, .out = out_->data(), .out_row_stride = row};
    std::vector<double> ns;
    for (int i = 0; i < kWarmUps + kRuns; ++i) {
      COPPICE_ASSIGN_OR_RETURN(const double seconds, device_->Time([&](Stream stream) { return plan->Run(*bound, args, stream); }));
      if (i >= kWarmUps) ns.push_back(seconds * 1e9);
    }
    std::ranges::nth_element(ns, ns.begin() + kRuns / 2);
    return ns[kRuns / 2];
  }

  // How much longer the second takes.
  Result<double> AddedNs(const Step& less, const Step& more) const {
    COPPICE_ASSIGN_OR_RETURN(const double before, Ns(less));
    COPPICE_ASSIGN_OR_RETURN(const double after, Ns(more));
    if (after > before) return after - before;
    return Internal("calibration: a step with more work took " + std::to_string(after) + " ns, the one with less " +
                    std::to_string(before) + "; is the device busy with something else?");
  }

 private:
  explicit Stopwatch(BenchDevice& device) : device_(&device) {}

  BenchDevice* device_;
  std::unique_ptr<BenchMemory> kv_, q_, out_;
};

Step Unshared(int32_t requests, int32_t tokens, int32_t qo_heads = 32, int32_t kv_heads = 8) {
  return {.qo_heads = qo_heads,
          .kv_heads = kv_heads,
          .levels = {{.tokens = tokens, .fan_out = requests}},
          .options = {.policy = SharePolicy::kStore}};
}
// Prefixes that are shared, or that each request reads for itself.
Step Prefixes(int32_t prefixes, int32_t tokens, int32_t requests, bool shared, int32_t qo_heads = 32, int32_t kv_heads = 8) {
  return {.qo_heads = qo_heads,
          .kv_heads = kv_heads,
          .levels = {{.tokens = tokens, .fan_out = prefixes}, {.tokens = 16, .fan_out = requests}},
          .options = {.policy = shared ? SharePolicy::kTree : SharePolicy::kStore, .force_sharing = shared}};
}
double KvBytes(double tokens) { return tokens * 2 * 8 * kHeadDim * sizeof(BF16); }

// A number of a model and the rate that it follows. Steps of stream warps follow none: they are latencies of the SM, while an
// H100's memory bounds the lone warps of the probe (15 us for 512 tokens; an H200's take 10).
struct Follows {
  double MachineModel::*value;
  double GpuProbe::*rate;
};
constexpr Follows kFollows[] = {{&MachineModel::read_bytes_per_s, &GpuProbe::memory_bytes_per_s},
                                {&MachineModel::cache_bytes_per_s, &GpuProbe::cache_bytes_per_s},
                                {&MachineModel::dense_flops_per_s, &GpuProbe::dense_flops_per_s},
                                {&MachineModel::item_fixed_ns, &GpuProbe::stream_task_ns},
                                {&MachineModel::state_bytes_per_s, &GpuProbe::cache_bytes_per_s},
                                {&MachineModel::merge_fixed_ns, &GpuProbe::fold_ns},
                                {&MachineModel::launch_ns, &GpuProbe::launch_ns},
                                {&MachineModel::dense_task_ns, &GpuProbe::dense_task_ns},
                                {&MachineModel::stream_task_ns, &GpuProbe::stream_task_ns}};
struct SmFollows {
  double SmRates::*value;
  double GpuProbe::*rate;
};
constexpr SmFollows kSmFollows[] = {{&SmRates::dense_flops_per_s, &GpuProbe::dense_flops_per_s},
                                    {&SmRates::memory_bytes_per_s, &GpuProbe::memory_bytes_per_s},
                                    {&SmRates::launch_ns, &GpuProbe::launch_ns},
                                    {&SmRates::dense_task_ns, &GpuProbe::dense_task_ns},
                                    {&SmRates::stream_task_ns, &GpuProbe::stream_task_ns},
                                    {&SmRates::stream_task_with_dense_ns, &GpuProbe::stream_task_ns},
                                    {&SmRates::stream_price_ns, &GpuProbe::stream_task_ns},
                                    {&SmRates::fold_pass_ns, &GpuProbe::fold_ns},
                                    {&SmRates::cooperative_launch_ns, &GpuProbe::launch_ns},
                                    {&SmRates::cooperative_step_ns, &GpuProbe::cooperative_step_ns},
                                    {&SmRates::cooperative_two_column_step_ns, &GpuProbe::cooperative_step_ns},
                                    {&SmRates::cooperative_two_column_task_ns, &GpuProbe::cooperative_step_ns},
                                    {&SmRates::cooperative_short_step_ns, &GpuProbe::cooperative_step_ns},
                                    {&SmRates::cooperative_merge_ns, &GpuProbe::fold_ns}};

}  // namespace

Result<GpuProbe> ProbeGpu(BenchDevice& device) {
  COPPICE_ASSIGN_OR_RETURN(const Stopwatch watch, Stopwatch::Create(device));
  GpuProbe probe;
  COPPICE_ASSIGN_OR_RETURN(probe.launch_ns, watch.Ns(Unshared(1, 16, 8, 1)));
  // Long requests that share nothing, and the same tokens read by all from one copy.
  constexpr int32_t kRequests = 64, kTokens = 4096;
  COPPICE_ASSIGN_OR_RETURN(const double reading, watch.AddedNs(Unshared(1, 16), Unshared(kRequests, kTokens)));
  probe.memory_bytes_per_s = KvBytes(double{kRequests} * kTokens) / (reading * 1e-9);
  COPPICE_ASSIGN_OR_RETURN(const double rereading, watch.AddedNs(Unshared(1, 16), Prefixes(1, kTokens, kRequests, false)));
  probe.cache_bytes_per_s = KvBytes(double{kRequests} * kTokens) / (rereading * 1e-9);
  // A long prefix under enough rows to fill dense tiles, twice as long.
  constexpr int32_t kPrefix = 16384, kManyRequests = 512;
  COPPICE_ASSIGN_OR_RETURN(const double computing,
                           watch.AddedNs(Prefixes(1, kPrefix, kManyRequests, true), Prefixes(1, 2 * kPrefix, kManyRequests, true)));
  probe.dense_flops_per_s = 4.0 * 32 * kHeadDim * kManyRequests * kPrefix / (computing * 1e-9);
  // Twice as many dense tasks of one step, each under the rows of eight requests; twice as many stream tasks of one step. Times are
  // those of one SM, of one warp.
  const double sms = device.backend().machine().sm.num_sms;
  constexpr int32_t kTasks = 512, kRequestsOfTile = 8;
  COPPICE_ASSIGN_OR_RETURN(const double dense, watch.AddedNs(Prefixes(kTasks, 128, kRequestsOfTile, true, 16, 1),
                                                             Prefixes(2 * kTasks, 128, kRequestsOfTile, true, 16, 1)));
  probe.dense_task_ns = dense * sms / kTasks;
  constexpr int32_t kShortRequests = 4096, kWarps = 8;
  COPPICE_ASSIGN_OR_RETURN(const double stream,
                           watch.AddedNs(Unshared(kShortRequests, 16, 8, 1), Unshared(2 * kShortRequests, 16, 8, 1)));
  probe.stream_task_ns = stream * sms * kWarps / kShortRequests;
  // A lone warp of each SM, and a cooperative task of each of eight, which read more.
  COPPICE_ASSIGN_OR_RETURN(probe.stream_token_ns, watch.AddedNs(Unshared(18, 512), Unshared(18, 1024)));
  COPPICE_ASSIGN_OR_RETURN(probe.cooperative_step_ns, watch.AddedNs(Unshared(8, 256, 8, 1), Unshared(8, 512, 8, 1)));
  // The same tokens in one shared node and in two, whose states are folded too.
  Step folds = Prefixes(64, 512, 16, true);
  folds.levels = {{.tokens = 256, .fan_out = 64}, {.tokens = 256, .fan_out = 2}, {.tokens = 16, .fan_out = 8}};
  COPPICE_ASSIGN_OR_RETURN(probe.fold_ns, watch.AddedNs(Prefixes(64, 512, 16, true), folds));
  return probe;
}

Result<MachineModel> ScaleToProbe(const MachineModel& reference, const GpuProbe& probe) {
  if (reference.probe.launch_ns <= 0) {
    return InvalidArgument("machine model '" + reference.name +
                           "' has no 'probe': nothing says how it would scale; take a shipped one");
  }
  MachineModel model = reference;
  for (const Follows& f : kFollows) model.*f.value *= probe.*f.rate / reference.probe.*f.rate;
  for (const SmFollows& f : kSmFollows) model.sm.*f.value *= probe.*f.rate / reference.probe.*f.rate;
  model.dense_token_ns /= probe.dense_flops_per_s / reference.probe.dense_flops_per_s;
  model.probe = probe;
  return model;
}

Result<MachineModel> CalibrateGpu(BenchDevice& device) {
  COPPICE_ASSIGN_OR_RETURN(const GpuProbe probe, ProbeGpu(device));
  MachineModel reference = device.backend().machine();
  if (reference.probe.launch_ns <= 0) {  // derived for this card, not fitted to one like it
    const int32_t num_sms = reference.sm.num_sms;
    COPPICE_ASSIGN_OR_RETURN(reference, ShippedMachineModel("h200"));
    reference.sm.num_sms = num_sms;
  }
  COPPICE_ASSIGN_OR_RETURN(MachineModel model, ScaleToProbe(reference, probe));
  model.name = "measured " + device.name();
  return model;
}

}  // namespace coppice::attention
