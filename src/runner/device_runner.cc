#include "runner/device_runner.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/check.h"
#include "core/math.h"
#include "runner/lap_timer.h"

namespace coppice {
namespace {

// Rows of a graph for a step of `rows`. Few sizes, so that few graphs are captured; close ones, so that little is computed in vain.
int32_t RowsOfGraph(int32_t rows) {
  if (rows <= 8) return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(rows)));
  return RoundUp(rows, rows <= 256 ? 8 : 32);
}

}  // namespace

Result<std::unique_ptr<DeviceRunner>> DeviceRunner::Create(ModelParts parts, const Limits& limits) {
  const int32_t vocab = parts.transformer->config().vocab_size;
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<OwnedStream> stream, parts.device->CreateStream());
  COPPICE_ASSIGN_OR_RETURN(
      std::unique_ptr<DeviceSampler> sampler,
      DeviceSampler::Create(parts.device.get(), {.max_draws = limits.max_draws, .max_rows = limits.max_rows, .vocab_size = vocab}));
  std::unique_ptr<DeviceRunner> runner(new DeviceRunner(std::move(parts), limits));
  runner->stream_ = std::move(stream);
  runner->sampler_ = std::move(sampler);
  return runner;
}

DeviceRunner::DeviceRunner(ModelParts parts, const Limits& limits)
    : info_(InfoOf(parts)),
      limits_(limits),
      device_(std::move(parts.device)),
      transformer_(std::move(parts.transformer)),
      pool_(std::move(parts.pool)),
      inputs_(std::move(parts.inputs)),
      plans_(GroupsOf(*transformer_, std::move(parts.plans))),
      host_sampler_(parts.executor, transformer_->config().vocab_size, std::move(parts.distributions)) {}

// What the stream still does writes into memory that goes now.
DeviceRunner::~DeviceRunner() {
  if (stream_) (void)device_->Synchronize(stream_->get());
}

Result<StepTicket> DeviceRunner::Launch(const StepBatch& batch, const attention::PrefixForestView& forest) {
  COPPICE_CHECK(launched_ - waited_ < 2);
  Step& step = At(++launched_);
  step.number = launched_;
  step.stats = {};
  step.draws_come = false;
  step.sampled.Reset(batch);
  step.status = Begin(batch, forest, &step);  // told by Wait
  if (!step.status.ok()) step.sampled.Reset(batch);
  step.launched = Clock::now();
  return StepTicket{launched_};
}

Result<StepResult> DeviceRunner::Wait(StepTicket ticket) {
  COPPICE_CHECK(ticket.step == ++waited_ && waited_ <= launched_);
  Step& step = At(ticket.step);
  const Clock::time_point begin = std::max(step.launched, At(ticket.step - 1).done);
  if (step.status.ok() && step.draws_come) step.status = Complete(&step);
  step.done = Clock::now();
  step.stats.forward_seconds += std::chrono::duration<double>(step.done - begin).count();
  if (!step.status.ok()) return std::exchange(step.status, OkStatus());
  return StepResult{
      .draws = step.sampled.draws, .scores = step.sampled.scores, .top_logprobs = step.sampled.top_logprobs, .stats = step.stats};
}

Status DeviceRunner::Complete(Step* step) {
  step->draws_come = false;
  return sampler_->Wait(step->number, step->sampled.draws);
}

Status DeviceRunner::Begin(const StepBatch& batch, const attention::PrefixForestView& forest, Step* step) {
  LapTimer timer;
  const Stream stream = stream_->get();
  Step& before = At(step->number - 1);
  const bool follows_untold = launched_ - waited_ == 2;
  const auto adds_draw = [](const SlotEdit& edit) { return edit.kind == SlotEdit::Kind::kAddDraw; };
  if (before.status.ok() && before.draws_come && std::ranges::any_of(batch.slot_edits, adds_draw))
    before.status = Complete(&before);  // penalties count on the host
  COPPICE_RETURN_IF_ERROR(pool_->MoveSlots(batch.moves, stream));
  if (!batch.copies.empty()) COPPICE_RETURN_IF_ERROR(pool_->CopyPages(batch.copies, stream));
  slots_.Edit(batch, before.sampled.draws);
  timer.Lap(&step->stats.forward_seconds);
  if (batch.num_rows() == 0) return OkStatus();
  if (follows_untold && !before.status.ok()) return Internal("the step before it failed");
  COPPICE_RETURN_IF_ERROR(plans_.Prepare(forest, stream, &step->stats));
  timer.Lap(&step->stats.plan_seconds);

  const bool on_device = DeviceSampler::Takes(batch, slots_);
  FillRows(batch, on_device, before);
  COPPICE_ASSIGN_OR_RETURN(const DeviceBatch rows, inputs_->Upload({.token_ids = rows_.token_ids,
                                                                    .positions = rows_.positions,
                                                                    .slot_mapping = rows_.slot_mapping,
                                                                    .logit_rows = rows_.logit_rows},
                                                                   stream));
  if (!batch.drawn_tokens.empty() && before.draws_come) {
    COPPICE_RETURN_IF_ERROR(sampler_->TakeDrawn(step->number, batch.drawn_tokens, inputs_->token_ids(), stream));
  }
  timer.Lap(&step->stats.forward_seconds);
  return on_device ? RunOnDevice(batch, rows, step) : RunOnHost(batch, rows, step);
}

void DeviceRunner::FillRows(const StepBatch& batch, bool on_device, const Step& before) {
  const std::span<const int32_t> logit_rows = host_sampler_.FindLogitRows(batch);
  rows_.token_ids.assign(batch.token_ids.begin(), batch.token_ids.end());
  for (const auto& [row, draw] : batch.drawn_tokens) {
    COPPICE_CHECK(draw.step == before.number);
    rows_.token_ids[row] = before.draws_come ? 0 : std::max(before.sampled.draws[draw.index].token, 0);  // 0: the device has it
  }
  rows_.positions.assign(batch.positions.begin(), batch.positions.end());
  rows_.slot_mapping.assign(batch.slot_mapping.begin(), batch.slot_mapping.end());
  rows_.logit_rows.assign(logit_rows.begin(), logit_rows.end());
  rows_.draw_rows.assign(host_sampler_.draw_rows().begin(), host_sampler_.draw_rows().end());
  const int32_t num_rows = batch.num_rows(), rounded = RowsOfGraph(num_rows);
  rows_.decodes = on_device && std::ssize(batch.draws) == num_rows && std::ssize(logit_rows) == num_rows &&
                  rounded <= std::min(limits_.max_rows, limits_.max_draws);
  if (!rows_.decodes) return;
  rows_.token_ids.resize(rounded, 0);
  rows_.positions.resize(rounded, 0);
  rows_.slot_mapping.resize(rounded, -1);
  for (int32_t row = num_rows; row < rounded; ++row) rows_.logit_rows.push_back(row);
}

Status DeviceRunner::RunOnDevice(const StepBatch& batch, const DeviceBatch& rows, Step* step) {
  const Stream stream = stream_->get();
  const int32_t num_draws = rows_.decodes ? static_cast<int32_t>(rows_.token_ids.size()) : static_cast<int32_t>(batch.draws.size());
  LapTimer timer;
  COPPICE_RETURN_IF_ERROR(sampler_->SetDraws(step->number, batch, rows_.draw_rows, num_draws, slots_, stream));
  COPPICE_RETURN_IF_ERROR(rows_.decodes ? RunGraph(rows) : Compute(rows, num_draws));
  COPPICE_RETURN_IF_ERROR(sampler_->Fetch(step->number, num_draws, stream));
  step->draws_come = true;
  timer.Lap(&step->stats.forward_seconds);
  return OkStatus();
}

Status DeviceRunner::RunGraph(const DeviceBatch& rows) {
  const Stream stream = stream_->get();
  const int32_t num_rows = static_cast<int32_t>(rows.token_ids.size);
  SizeClass& size = classes_[num_rows];
  if (!std::exchange(size.ran, true)) return Compute(rows, num_rows);
  if (!size.graph) {
    COPPICE_RETURN_IF_ERROR(device_->BeginCapture(stream));
    const Status captured = Compute(rows, num_rows);
    Result<std::unique_ptr<Graph>> graph = device_->EndCapture(stream);  // also after an error: the stream must leave the capture
    COPPICE_RETURN_IF_ERROR(captured);
    COPPICE_ASSIGN_OR_RETURN(size.graph, std::move(graph));
  }
  return device_->Launch(*size.graph, stream);
}

Status DeviceRunner::Compute(const DeviceBatch& rows, int32_t num_draws) {
  const Stream stream = stream_->get();
  COPPICE_ASSIGN_OR_RETURN(const ConstDeviceTensor logits, transformer_->Forward(rows, plans_.plans(), pool_->layers(), stream));
  return sampler_->DrawTokens(logits, num_draws, stream);
}

Status DeviceRunner::RunOnHost(const StepBatch& batch, const DeviceBatch& rows, Step* step) {
  const Stream stream = stream_->get();
  LapTimer timer;
  COPPICE_ASSIGN_OR_RETURN(const ConstDeviceTensor logits, transformer_->Forward(rows, plans_.plans(), pool_->layers(), stream));
  COPPICE_CHECK(logits.stride == logits.cols);
  const size_t bytes = logits.rows * logits.cols * sizeof(float);
  if (host_logits_.size() < bytes) {
    COPPICE_ASSIGN_OR_RETURN(host_logits_, device_->Allocate(bytes, MemoryKind::kHostPinned));
  }
  if (bytes > 0) COPPICE_RETURN_IF_ERROR(device_->Copy(host_logits_.data(), logits.data, bytes, stream));
  COPPICE_RETURN_IF_ERROR(device_->Synchronize(stream));
  timer.Lap(&step->stats.forward_seconds);
  host_sampler_.Sample(MatrixView<const float>(host_logits_.As<const float>(), logits.rows, logits.cols), batch, slots_,
                       &step->sampled);
  timer.Lap(&step->stats.sample_seconds);
  return OkStatus();
}

Status DeviceRunner::ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const {
  return pool_->ReadKv(pages, num_tokens, kv, stream_->get());
}

Status DeviceRunner::WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) {
  return pool_->WriteKv(pages, begin, num_tokens, kv, stream_->get());
}

}  // namespace coppice
