// Sampling on a CUDA device: what is wanted and what came out go through page-locked memory used in turn, draws stay in one place
// on the device for the step after. Layer: runner/cuda.
#include "runner/device_sampler.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/cuda/cuda_status.h"
#include "runner/cuda/draw.h"
#include "runner/cuda/slot_memory.h"

namespace coppice {
namespace {

using cuda::DeviceGuard;
using cuda::DrawnRow;
using cuda::DrawnToken;
using cuda::DrawSpec;
using cuda::ScoreSpec;
using cuda::SelectSpec;
using cuda::SlotMemory;
using cuda::TokenScore;

constexpr int32_t kMaxPath = 64;  // tokens of a draft's path, 63 at most

cudaStream_t Of(Stream stream) { return static_cast<cudaStream_t>(stream); }

cuda::LogitMatrix MatrixOf(const ConstDeviceTensor& logits, int32_t first) {
  COPPICE_DCHECK(logits.dtype == DType::kF32);
  return {.data = static_cast<const float*>(logits.data),
          .first = first,
          .rows = static_cast<int32_t>(logits.rows),
          .stride = logits.stride,
          .vocab = static_cast<int32_t>(logits.cols)};
}

// An array in device memory, and its three places in page-locked memory on the way there or back.
template <class T>
class Staged {
 public:
  Status Initialise(Device* device, int64_t count) {
    COPPICE_ASSIGN_OR_RETURN(device_memory_, device->Allocate(count * sizeof(T)));
    for (DeviceMemory& host : host_) {
      COPPICE_ASSIGN_OR_RETURN(host, device->Allocate(count * sizeof(T), MemoryKind::kHostPinned));
    }
    return OkStatus();
  }
  // Room for `count` of them in this step, whatever was initialised; on_device() may move. Elements of earlier steps on the host
  // stay.
  Status Reserve(Device* device, int64_t step, size_t count, Stream stream) {
    const size_t bytes = count * sizeof(T);
    if (bytes > device_memory_.size()) {
      COPPICE_RETURN_IF_ERROR(device->Synchronize(stream));  // the steps before read it
      COPPICE_ASSIGN_OR_RETURN(device_memory_, device->Allocate(2 * bytes));
    }
    DeviceMemory& host = host_[step % kSteps];
    if (bytes > host.size()) {
      COPPICE_ASSIGN_OR_RETURN(host, device->Allocate(2 * bytes, MemoryKind::kHostPinned));
    }
    return OkStatus();
  }
  T* on_device() const { return device_memory_.As<T>(); }
  std::span<T> on_host(int64_t step) const {
    const DeviceMemory& host = host_[step % kSteps];
    return {host.template As<T>(), host.size() / sizeof(T)};
  }
  Status Upload(Device* device, int64_t step, size_t count, Stream stream) const {
    COPPICE_CHECK(count * sizeof(T) <= std::min(device_memory_.size(), host_[step % kSteps].size()));
    return count == 0 ? OkStatus() : device->Copy(on_device(), on_host(step).data(), count * sizeof(T), stream);
  }
  Status Download(Device* device, int64_t step, size_t count, Stream stream) const {
    COPPICE_CHECK(count * sizeof(T) <= std::min(device_memory_.size(), host_[step % kSteps].size()));
    return count == 0 ? OkStatus() : device->Copy(on_host(step).data(), on_device(), count * sizeof(T), stream);
  }

 private:
  static constexpr int64_t kSteps = 3;  // a step's place is used again when the step has long been waited for
  DeviceMemory device_memory_;
  std::array<DeviceMemory, kSteps> host_;
};

class CudaSampler final : public DeviceSampler {
 public:
  CudaSampler(Device* device, const Limits& limits, std::shared_ptr<DraftDistributions> distributions)
      : device_(device), limits_(limits), distributions_(std::move(distributions)) {}

  Status Initialise() {
    const int32_t mask_words = MaskWords(limits_.vocab_size);
    COPPICE_RETURN_IF_ERROR(specs_.Initialise(device_, limits_.max_draws));
    COPPICE_RETURN_IF_ERROR(drawn_.Initialise(device_, limits_.max_draws));
    COPPICE_RETURN_IF_ERROR(tops_.Initialise(device_, int64_t{limits_.max_draws + limits_.max_rows} * kMaxTopLogprobs));
    COPPICE_RETURN_IF_ERROR(score_tops_.Initialise(device_, limits_.max_rows));
    COPPICE_ASSIGN_OR_RETURN(unused_draws_, device_->Allocate(limits_.max_rows * sizeof(DrawnToken)));
    COPPICE_RETURN_IF_ERROR(score_specs_.Initialise(device_, limits_.max_rows));
    COPPICE_RETURN_IF_ERROR(scores_.Initialise(device_, limits_.max_rows));
    COPPICE_RETURN_IF_ERROR(rows_.Initialise(device_, limits_.max_rows));
    COPPICE_RETURN_IF_ERROR(masks_.Initialise(device_, int64_t{limits_.max_slots} * mask_words));
    COPPICE_RETURN_IF_ERROR(draft_tokens_.Initialise(device_, int64_t{limits_.max_draws} * kMaxPath));
    COPPICE_RETURN_IF_ERROR(select_specs_.Initialise(device_, limits_.max_slots));
    COPPICE_RETURN_IF_ERROR(selected_.Initialise(device_, cuda::kMaxSelected));
    COPPICE_ASSIGN_OR_RETURN(continuations_, device_->Allocate(static_cast<size_t>(limits_.max_slots) * cuda::kMaxContinuations *
                                                               sizeof(SelectedToken)));
    for (std::unique_ptr<Event>& done : done_) {
      COPPICE_ASSIGN_OR_RETURN(done, device_->CreateEvent());
    }
    COPPICE_ASSIGN_OR_RETURN(slots_, SlotMemory::Create(device_, limits_.max_slots, limits_.vocab_size));
    memory_ = {.slots = slots_->tables(),
               .masks = masks_.on_device(),
               .mask_words = mask_words,
               .draft_tokens = draft_tokens_.on_device(),
               .distributions = distributions_ ? distributions_->device_rows() : nullptr,
               .tops = tops_.on_device(),
               .continuations = continuations_.As<SelectedToken>()};
    return OkStatus();
  }

  Status EditSlots(const StepBatch& batch, Stream stream) override { return slots_->Edit(batch, drawn_.on_device(), stream); }

  Status TakeDrawn(int64_t step, std::span<const StepBatch::DrawnToken> rows, DeviceSpan<int32_t> token_ids,
                   Stream stream) override {
    const std::span<DrawnRow> host = rows_.on_host(step);
    COPPICE_CHECK(rows.size() <= host.size());
    for (size_t i = 0; i < rows.size(); ++i) host[i] = {.row = rows[i].row, .draw = rows[i].draw.index};
    COPPICE_RETURN_IF_ERROR(rows_.Upload(device_, step, rows.size(), stream));
    const DeviceGuard guard(device_->ordinal());
    return cuda::LaunchTakeDrawn(rows_.on_device(), static_cast<int32_t>(rows.size()), drawn_.on_device(), token_ids.data,
                                 Of(stream));
  }

  Status SetWanted(int64_t step, const StepBatch& batch, const LogitRows& rows, int32_t count, Stream stream) override {
    const std::span<DrawSpec> specs = specs_.on_host(step);
    COPPICE_CHECK(std::ssize(batch.draws) <= count && std::cmp_less_equal(count, specs.size()));
    draws_plainly_ = true;
    for (size_t i = 0; i < batch.draws.size(); ++i) {
      specs[i] = SpecOf(batch, batch.draws[i]);
      specs[i].row = rows.of_draws()[i];
      draws_plainly_ = draws_plainly_ && batch.draws[i].beam < 0;
      // Draws of one row and slot have one place for the most probable tokens.
      if (i > 0 && batch.draws[i - 1].top_logprobs > 0 && batch.draws[i - 1].top_begin == batch.draws[i].top_begin)
        specs[i].top_count = 0;
      draws_plainly_ = draws_plainly_ && specs[i].is_plain();
    }
    std::fill(specs.begin() + std::ssize(batch.draws), specs.begin() + count, DrawSpec{});
    COPPICE_RETURN_IF_ERROR(SetSelections(step, batch, specs, stream));
    COPPICE_RETURN_IF_ERROR(specs_.Upload(device_, step, count, stream));
    COPPICE_RETURN_IF_ERROR(SetScores(step, batch, rows, stream));
    COPPICE_RETURN_IF_ERROR(UploadCopy(masks_, step, std::span(batch.masks), stream));
    return UploadCopy(draft_tokens_, step, std::span(batch.draft_tokens), stream);
  }

  bool draws_plainly() const override { return draws_plainly_; }

  Status Draw(const ConstDeviceTensor& logits, int32_t first, int32_t count, Stream stream) override {
    const DeviceGuard guard(device_->ordinal());
    return cuda::LaunchDraw(MatrixOf(logits, first), memory_, specs_.on_device(), count, draws_plainly_, drawn_.on_device(),
                            Of(stream));
  }

  Status Score(const ConstDeviceTensor& logits, int32_t first, Stream stream) override {
    const DeviceGuard guard(device_->ordinal());
    const cuda::LogitMatrix matrix = MatrixOf(logits, first);
    COPPICE_RETURN_IF_ERROR(cuda::LaunchDraw(matrix, memory_, score_tops_.on_device(), num_score_tops_, /*plain=*/false,
                                             unused_draws_.As<DrawnToken>(), Of(stream)));
    return cuda::LaunchScore(matrix, score_specs_.on_device(), num_scores_, scores_.on_device(), Of(stream));
  }

  Status Select(Stream stream) override {
    const DeviceGuard guard(device_->ordinal());
    return cuda::LaunchSelect(continuations_.As<SelectedToken>(), select_specs_.on_device(), num_selections_, selected_.on_device(),
                              Of(stream));
  }

  Status Fetch(int64_t step, const StepBatch& batch, Stream stream) override {
    COPPICE_RETURN_IF_ERROR(selected_.Download(device_, step, batch.num_selected, stream));
    COPPICE_RETURN_IF_ERROR(drawn_.Download(device_, step, batch.draws.size(), stream));
    COPPICE_RETURN_IF_ERROR(tops_.Download(device_, step, batch.num_top_logprobs, stream));
    COPPICE_RETURN_IF_ERROR(scores_.Download(device_, step, batch.scores.size(), stream));
    return device_->Record(*done_[step % std::ssize(done_)], stream);
  }

  Status Wait(int64_t step, SampledStep* sampled) override {
    COPPICE_RETURN_IF_ERROR(device_->Synchronize(*done_[step % std::ssize(done_)]));
    const std::span<const DrawnToken> drawn = drawn_.on_host(step);
    for (size_t i = 0; i < sampled->draws.size(); ++i) {
      sampled->draws[i].token = drawn[i].token;
      sampled->draws[i].logprob = drawn[i].logprob;
      sampled->draws[i].rank = drawn[i].rank;
    }
    std::ranges::copy(tops_.on_host(step).first(sampled->top_logprobs.size()), sampled->top_logprobs.begin());
    std::ranges::copy(selected_.on_host(step).first(sampled->selected.size()), sampled->selected.begin());
    const std::span<const TokenScore> scores = scores_.on_host(step);
    for (size_t i = 0; i < sampled->scores.size(); ++i) {
      sampled->scores[i] = scores[i].logprob;
      sampled->score_ranks[i] = scores[i].rank;
    }
    return OkStatus();
  }

 private:
  // Continuations of a selection's beams lie one after the other.
  Status SetSelections(int64_t step, const StepBatch& batch, std::span<DrawSpec> draws, Stream stream) {
    const size_t count = batch.selections.size();
    COPPICE_RETURN_IF_ERROR(selected_.Reserve(device_, step, static_cast<size_t>(batch.num_selected), stream));
    num_selections_ = static_cast<int32_t>(count);
    int32_t begin = 0;
    for (size_t s = 0; s < count; ++s) {
      const Selection& selection = batch.selections[s];
      COPPICE_CHECK(selection.wanted <= cuda::kMaxSelected && selection.wanted_of_beam <= cuda::kMaxContinuations);
      select_specs_.on_host(step)[s] = {.begin = begin,
                                        .count = selection.beam_count * selection.wanted_of_beam,
                                        .wanted = selection.wanted,
                                        .selected_begin = selection.selected_begin};
      for (int32_t b = selection.beam_begin; b < selection.beam_begin + selection.beam_count; ++b) {
        const Beam& beam = batch.beams[b];
        DrawSpec& spec = draws[beam.draw];
        spec.continuation_begin = begin;
        spec.continuation_count = selection.wanted_of_beam;
        spec.beam = b;
        spec.stochastic = selection.stochastic;
        spec.beam_score = beam.score;
        spec.beam_perturbed = beam.perturbed;
        spec.processed = false;
        begin += selection.wanted_of_beam;
      }
    }
    COPPICE_CHECK(static_cast<size_t>(begin) * sizeof(SelectedToken) <= continuations_.size());
    return select_specs_.Upload(device_, step, count, stream);
  }

  // A row has any number of scores. The most probable tokens of scored rows come with draws without a reader.
  Status SetScores(int64_t step, const StepBatch& batch, const LogitRows& rows, Stream stream) {
    const size_t count = batch.scores.size();
    COPPICE_RETURN_IF_ERROR(score_specs_.Reserve(device_, step, count, stream));
    COPPICE_RETURN_IF_ERROR(scores_.Reserve(device_, step, count, stream));
    const std::span<ScoreSpec> specs = score_specs_.on_host(step);
    const std::span<DrawSpec> tops = score_tops_.on_host(step);
    num_score_tops_ = 0;
    num_scores_ = static_cast<int32_t>(count);
    for (size_t i = 0; i < count; ++i) {
      const coppice::Score& score = batch.scores[i];
      specs[i] = {
          .row = rows.of_scores()[i], .token = score.token, .wants_rank = score.wants_rank, .temperature = score.temperature};
      if (score.top_logprobs == 0 || (i > 0 && batch.scores[i - 1].row == score.row)) continue;
      COPPICE_CHECK(std::cmp_less(num_score_tops_, tops.size()));
      tops[num_score_tops_++] = {.row = specs[i].row,
                                 .temperature = score.temperature == 1 ? 0 : score.temperature,
                                 .top_begin = score.top_begin,
                                 .top_count = score.top_logprobs,
                                 .processed = score.temperature != 1};
    }
    COPPICE_RETURN_IF_ERROR(score_tops_.Upload(device_, step, num_score_tops_, stream));
    return score_specs_.Upload(device_, step, count, stream);
  }

  // All but the row.
  DrawSpec SpecOf(const StepBatch& batch, const coppice::Draw& draw) const {
    const SlotMemory::Slot& slot = (*slots_)[draw.slot];
    const SamplingParams& params = slot.sampling.params;
    DrawSpec spec = {.sample = static_cast<uint32_t>(draw.sample),
                     .position = static_cast<uint32_t>(draw.position),
                     .top_k = params.top_k,
                     .seed = params.seed,
                     .temperature = params.temperature,
                     .top_p = params.top_p,
                     .min_p = params.min_p,
                     .presence_penalty = params.presence_penalty,
                     .frequency_penalty = params.frequency_penalty,
                     .repetition_penalty = params.repetition_penalty,
                     .slot = draw.slot,
                     .has_counts = HasPenalties(params) || (draw.bans_end_ids && !slot.sampling.end_ids.empty()),
                     .has_biases = slot.has_biases,
                     .bans_ends = draw.bans_end_ids,
                     .mask = draw.mask,
                     .top_begin = draw.top_begin,
                     .top_count = draw.top_logprobs,
                     .wants_rank = draw.wants_rank};
    // Where the parameters leave the model's distribution as it is, it is the one that is reported, by the faster kernel.
    const bool filters = params.temperature != 1 || params.top_k > 0 || params.top_p < 1 || params.min_p > 0;
    spec.processed = params.logprobs_mode == LogprobsMode::kProcessed &&
                     (spec.has_counts || spec.has_biases || spec.mask >= 0 || (params.temperature != 0 && filters));
    if (draw.drafting < 0) return spec;
    const Drafting& drafting = batch.drafting[draw.drafting];
    COPPICE_CHECK(drafting.path_count < kMaxPath);
    if (HasPenalties(params)) {
      spec.path_begin = drafting.path_begin;
      spec.path_count = drafting.path_count;
    }
    spec.distribution = drafting.distribution;
    spec.proposal = drafting.proposal;
    spec.draft = drafting.token;
    if (const int32_t row = std::max(spec.distribution, spec.proposal); row >= 0)
      COPPICE_CHECK(distributions_ != nullptr && row < distributions_->num_device_rows());
    return spec;
  }

  template <class T>
  Status UploadCopy(const Staged<T>& staged, int64_t step, std::span<const T> values, Stream stream) const {
    COPPICE_CHECK(values.size() <= staged.on_host(step).size());
    std::ranges::copy(values, staged.on_host(step).begin());
    return staged.Upload(device_, step, values.size(), stream);
  }

  Device* const device_;
  const Limits limits_;
  std::shared_ptr<DraftDistributions> distributions_;
  std::unique_ptr<SlotMemory> slots_;
  Staged<DrawSpec> specs_;
  Staged<DrawnToken> drawn_;
  Staged<TokenLogprob> tops_;
  Staged<ScoreSpec> score_specs_;
  Staged<TokenScore> scores_;
  Staged<DrawSpec> score_tops_;
  int32_t num_score_tops_ = 0, num_scores_ = 0;  // of the last SetWanted
  DeviceMemory unused_draws_;
  Staged<SelectSpec> select_specs_;
  Staged<SelectedToken> selected_;
  DeviceMemory continuations_;
  int32_t num_selections_ = 0;  // of the last SetWanted
  Staged<DrawnRow> rows_;
  Staged<uint32_t> masks_;
  Staged<int32_t> draft_tokens_;
  cuda::DrawMemory memory_;
  bool draws_plainly_ = true;
  std::array<std::unique_ptr<Event>, 3> done_;  // of a step's downloads
};

}  // namespace

Result<std::unique_ptr<DeviceSampler>> DeviceSampler::Create(Device* device, const Limits& limits,
                                                             std::shared_ptr<DraftDistributions> distributions) {
  if (limits.vocab_size > cuda::kMaxDrawVocab)
    return Unimplemented("the model has " + std::to_string(limits.vocab_size) + " tokens; a GPU draws from at most " +
                         std::to_string(cuda::kMaxDrawVocab) + ": run it on the CPU");
  auto sampler = std::make_unique<CudaSampler>(device, limits, std::move(distributions));
  COPPICE_RETURN_IF_ERROR(sampler->Initialise());
  return std::unique_ptr<DeviceSampler>(std::move(sampler));
}

}  // namespace coppice
