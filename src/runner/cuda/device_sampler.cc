// Sampling on a CUDA device: parameters and results go through page-locked memory used in turn, draws stay in one place on the
// device for the step after. Layer: runner/cuda.
#include "runner/device_sampler.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/cuda/cuda_status.h"
#include "runner/cuda/draw.h"

namespace coppice {
namespace {

using cuda::DeviceGuard;
using cuda::DrawnRow;
using cuda::DrawnToken;
using cuda::DrawSpec;

cudaStream_t Of(Stream stream) { return static_cast<cudaStream_t>(stream); }

class CudaSampler final : public DeviceSampler {
 public:
  CudaSampler(Device* device, const Limits& limits) : device_(device), limits_(limits) {}

  Status Initialise() {
    COPPICE_ASSIGN_OR_RETURN(specs_, device_->Allocate(limits_.max_draws * sizeof(DrawSpec)));
    COPPICE_ASSIGN_OR_RETURN(drawn_, device_->Allocate(limits_.max_draws * sizeof(DrawnToken)));
    COPPICE_ASSIGN_OR_RETURN(rows_, device_->Allocate(limits_.max_rows * sizeof(DrawnRow)));
    for (Staging& staging : staging_) {
      COPPICE_ASSIGN_OR_RETURN(staging.specs, device_->Allocate(limits_.max_draws * sizeof(DrawSpec), MemoryKind::kHostPinned));
      COPPICE_ASSIGN_OR_RETURN(staging.rows, device_->Allocate(limits_.max_rows * sizeof(DrawnRow), MemoryKind::kHostPinned));
      COPPICE_ASSIGN_OR_RETURN(staging.drawn, device_->Allocate(limits_.max_draws * sizeof(DrawnToken), MemoryKind::kHostPinned));
      COPPICE_ASSIGN_OR_RETURN(staging.done, device_->CreateEvent());
    }
    return OkStatus();
  }

  Status TakeDrawn(int64_t step, std::span<const StepBatch::DrawnToken> rows, DeviceSpan<int32_t> token_ids,
                   Stream stream) override {
    const auto host = At(step).rows.As<DrawnRow>();
    for (size_t i = 0; i < rows.size(); ++i) host[i] = {.row = rows[i].row, .draw = rows[i].draw.index};
    COPPICE_RETURN_IF_ERROR(device_->Copy(rows_.data(), host, rows.size() * sizeof(DrawnRow), stream));
    const DeviceGuard guard(device_->ordinal());
    return cuda::LaunchTakeDrawn(rows_.As<DrawnRow>(), static_cast<int32_t>(rows.size()), drawn_.As<DrawnToken>(), token_ids.data,
                                 Of(stream));
  }

  Status SetDraws(int64_t step, const StepBatch& batch, std::span<const int32_t> draw_rows, int32_t count,
                  const SamplingSlots& slots, Stream stream) override {
    COPPICE_CHECK(draw_rows.size() == batch.draws.size() && std::ssize(batch.draws) <= count && count <= limits_.max_draws);
    const auto host = At(step).specs.As<DrawSpec>();
    for (size_t i = 0; i < batch.draws.size(); ++i) {
      const Draw& draw = batch.draws[i];
      const SamplingParams& params = slots[draw.slot].sampling.params;
      host[i] = {.row = draw_rows[i],
                 .sample = static_cast<uint32_t>(draw.sample),
                 .position = static_cast<uint32_t>(draw.position),
                 .top_k = params.top_k,
                 .seed = params.seed,
                 .temperature = params.temperature,
                 .top_p = params.top_p,
                 .min_p = params.min_p};
    }
    std::fill(host + batch.draws.size(), host + count, DrawSpec{});
    return device_->Copy(specs_.data(), host, count * sizeof(DrawSpec), stream);
  }

  Status DrawTokens(const ConstDeviceTensor& logits, int32_t count, Stream stream) override {
    COPPICE_DCHECK(logits.dtype == DType::kF32 && logits.cols == limits_.vocab_size);
    const DeviceGuard guard(device_->ordinal());
    return cuda::LaunchDraw(
        {.data = static_cast<const float*>(logits.data), .stride = logits.stride, .vocab = static_cast<int32_t>(logits.cols)},
        specs_.As<DrawSpec>(), count, drawn_.As<DrawnToken>(), Of(stream));
  }
  Status Fetch(int64_t step, int32_t count, Stream stream) override {
    Staging& staging = At(step);
    COPPICE_RETURN_IF_ERROR(device_->Copy(staging.drawn.data(), drawn_.data(), count * sizeof(DrawnToken), stream));
    return device_->Record(*staging.done, stream);
  }
  Status Wait(int64_t step, std::span<TokenDraw> draws) override {
    const Staging& staging = At(step);
    COPPICE_RETURN_IF_ERROR(device_->Synchronize(*staging.done));
    for (size_t i = 0; i < draws.size(); ++i) {
      const DrawnToken& drawn = staging.drawn.As<DrawnToken>()[i];
      draws[i].token = drawn.token;
      draws[i].logprob = drawn.logprob;
    }
    return OkStatus();
  }

 private:
  // A step's page-locked memory. It is used again three steps later, when the step's event has long been waited for.
  struct Staging {
    DeviceMemory specs, rows, drawn;
    std::unique_ptr<Event> done;
  };
  static constexpr int64_t kSteps = 3;
  Staging& At(int64_t step) { return staging_[static_cast<size_t>(step % kSteps)]; }

  Device* const device_;
  const Limits limits_;
  DeviceMemory specs_, drawn_, rows_;
  std::array<Staging, kSteps> staging_;
};

}  // namespace

Result<std::unique_ptr<DeviceSampler>> DeviceSampler::Create(Device* device, const Limits& limits) {
  if (limits.vocab_size > cuda::kMaxDrawVocab)
    return Unimplemented("the model has " + std::to_string(limits.vocab_size) + " tokens; a GPU draws from at most " +
                         std::to_string(cuda::kMaxDrawVocab) + ": run it on the CPU");
  auto sampler = std::make_unique<CudaSampler>(device, limits);
  COPPICE_RETURN_IF_ERROR(sampler->Initialise());
  return std::unique_ptr<DeviceSampler>(std::move(sampler));
}

}  // namespace coppice
