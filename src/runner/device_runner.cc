#include "runner/device_runner.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "runner/phase_timer.h"

namespace coppice {

Result<std::unique_ptr<DeviceRunner>> DeviceRunner::Create(ModelParts parts, const Limits& limits) {
  COPPICE_CHECK(parts.sampler != nullptr);
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<OwnedStream> stream, parts.device->CreateStream());
  std::unique_ptr<DeviceRunner> runner(new DeviceRunner(std::move(parts), limits));
  runner->stream_ = std::move(stream);
  COPPICE_ASSIGN_OR_RETURN(runner->uploads_, PlanUploads::Create(runner->device_.get()));
  for (Step& step : runner->steps_.steps()) {
    COPPICE_ASSIGN_OR_RETURN(step.begun, runner->device_->CreateTimedEvent());
    COPPICE_ASSIGN_OR_RETURN(step.ended, runner->device_->CreateTimedEvent());
  }
  return runner;
}

DeviceRunner::DeviceRunner(ModelParts parts, const Limits& limits)
    : info_(InfoOf(parts)),
      limits_(limits),
      device_(std::move(parts.device)),
      transformer_(std::move(parts.transformer)),
      pool_(std::move(parts.pool)),
      inputs_(std::move(parts.inputs)),
      sampler_(std::move(parts.sampler)),
      plans_(GroupsOf(*transformer_, std::move(parts.plans))),
      graphs_(limits.max_graphs) {}

// What the stream still does writes into memory that goes now.
DeviceRunner::~DeviceRunner() {
  if (stream_) (void)device_->Synchronize(stream_->get());
}

Status DeviceRunner::Tune() {
  const int32_t rows = limits_.max_rows;
  std::vector<int32_t> token_ids(rows), logit_rows(rows);
  for (int32_t i = 0; i < rows; ++i) {
    token_ids[i] = static_cast<int32_t>(int64_t{i} * 7919 % info_.model.vocab_size);  // products of equal rows take less power
    logit_rows[i] = i;
  }
  const std::vector<int32_t> positions(rows, 0);
  const std::vector<int64_t> nowhere(rows, -1);
  COPPICE_ASSIGN_OR_RETURN(
      const DeviceBatch batch,
      inputs_->Upload({.token_ids = token_ids, .positions = positions, .slot_mapping = nowhere, .logit_rows = logit_rows},
                      stream_->get()));
  return transformer_->Tune(batch, pool_->layers(), stream_->get());
}

Result<StepTicket> DeviceRunner::Launch(const StepBatch& batch, const attention::PrefixForestView& forest) {
  Step& step = steps_.Prepare(batch);
  step.computes = step.draws_come = false;
  try {
    step.status = Begin(batch, forest, &step);
  } catch (...) {  // the step did not begin: nothing of it may be in the stream
    (void)device_->Synchronize(stream_->get());
    throw;
  }
  if (!step.status.ok()) step.sampled.Reset(batch);
  step.launched = Clock::now();
  return steps_.Enter(step);
}

Result<StepResult> DeviceRunner::Wait(StepTicket ticket) {
  Step& step = steps_.Take(ticket);
  const Clock::time_point begin = std::max(step.launched, steps_.Before(step).done);
  if (step.status.ok() && step.draws_come) {
    const TraceSpan span("wait");
    step.status = Complete(&step);
  }
  step.done = Clock::now();
  step.stats.forward_seconds += std::chrono::duration<double>(step.done - begin).count();
  return ResultOf(&step);
}

Status DeviceRunner::Complete(Step* step) {
  step->draws_come = false;
  COPPICE_RETURN_IF_ERROR(sampler_->Wait(step->number, &step->sampled));
  const Step& before = steps_.Before(*step);
  if (step->number > 1 && before.computes) {
    COPPICE_ASSIGN_OR_RETURN(step->stats.device_idle_seconds, device_->SecondsBetween(*before.ended, *step->begun));
  }
  return OkStatus();
}

Status DeviceRunner::Begin(const StepBatch& batch, const attention::PrefixForestView& forest, Step* step) {
  StepStats& stats = step->stats;
  PhaseTimer phase("edit", &stats.forward_seconds);
  const Stream stream = stream_->get();
  const Step& before = steps_.Before(*step);
  COPPICE_RETURN_IF_ERROR(pool_->MoveSlots(batch.moves, stream));
  if (!batch.copies.empty()) COPPICE_RETURN_IF_ERROR(pool_->CopyPages(batch.copies, stream));
  COPPICE_RETURN_IF_ERROR(sampler_->EditSlots(batch, stream));
  if (batch.num_rows() == 0) return OkStatus();
  if (steps_.StandsOnFailure(*step)) return Internal("the step before it failed");
  phase.Next("plan", &stats.plan_seconds);
  COPPICE_RETURN_IF_ERROR(uploads_->Prepare(&plans_, forest, stream, &stats));
  phase.Set("kv_bytes_read", stats.kv_bytes_read);
  phase.Next("upload", &stats.forward_seconds);
  phase.Set("rows", batch.num_rows());
  FillRows(batch, before);
  COPPICE_ASSIGN_OR_RETURN(const DeviceBatch rows, inputs_->Upload({.token_ids = rows_.token_ids,
                                                                    .positions = rows_.positions,
                                                                    .slot_mapping = rows_.slot_mapping,
                                                                    .logit_rows = rows_.logit_rows},
                                                                   stream));
  if (!batch.drawn_tokens.empty() && before.draws_come) {
    COPPICE_RETURN_IF_ERROR(sampler_->TakeDrawn(step->number, batch.drawn_tokens, inputs_->token_ids(), stream));
  }
  phase.Next("launch", &stats.forward_seconds);
  return Run(batch, rows, step);
}

void DeviceRunner::FillRows(const StepBatch& batch, const Step& before) {
  logit_rows_.Find(batch);
  FillTokens(batch, before, &rows_.token_ids);
  rows_.positions.assign(batch.positions.begin(), batch.positions.end());
  rows_.slot_mapping.assign(batch.slot_mapping.begin(), batch.slot_mapping.end());
  rows_.logit_rows.assign(logit_rows_.rows().begin(), logit_rows_.rows().end());
  rows_.shape = FilledUp({.rows = batch.num_rows(),
                          .logit_rows = static_cast<int32_t>(rows_.logit_rows.size()),
                          .draws = static_cast<int32_t>(batch.draws.size())},
                         {.rows = limits_.max_rows, .logit_rows = limits_.max_rows, .draws = limits_.max_draws},
                         batch.has_drafts ? Filling::kCoarse : Filling::kFine);
  // Rows of no branch write no KV, and nobody reads what comes of them.
  rows_.token_ids.resize(rows_.shape.rows, 0);
  rows_.positions.resize(rows_.shape.rows, 0);
  rows_.slot_mapping.resize(rows_.shape.rows, -1);
  rows_.logit_rows.resize(rows_.shape.logit_rows, rows_.shape.rows - 1);
}

Status DeviceRunner::Run(const StepBatch& batch, const DeviceBatch& rows, Step* step) {
  const Stream stream = stream_->get();
  COPPICE_RETURN_IF_ERROR(sampler_->SetWanted(step->number, batch, logit_rows_, rows_.shape.draws, stream));
  COPPICE_RETURN_IF_ERROR(device_->Record(*step->begun, stream));
  const Status computed = ForwardAndSample(rows, /*has_scores=*/!batch.scores.empty(), &step->stats);
  COPPICE_RETURN_IF_ERROR(uploads_->Launched(plans_, stream));  // some of it, if the rest failed
  COPPICE_RETURN_IF_ERROR(computed);
  COPPICE_RETURN_IF_ERROR(device_->Record(*step->ended, stream));
  COPPICE_RETURN_IF_ERROR(sampler_->Fetch(step->number, batch, stream));
  step->computes = step->draws_come = true;
  return OkStatus();
}

Status DeviceRunner::ForwardAndSample(const DeviceBatch& rows, bool has_scores, StepStats* stats) {
  // How many scores there are, a graph does not say: they follow it, where the logits of all rows are there then.
  const bool scores_follow = has_scores && rows_.shape.logit_rows <= limits_.max_logit_rows;
  const bool may_be_graph = limits_.max_graphs > 0 && (!has_scores || scores_follow);
  StepGraphs::Captured* const captured =
      may_be_graph ? graphs_.Find({.shape = rows_.shape, .draws_plainly = sampler_->draws_plainly()}, plans_.launch_keys())
                   : nullptr;
  stats->new_shape = may_be_graph && (captured == nullptr || !captured->graph);
  if (captured == nullptr) return Compute(rows, has_scores).status();
  if (!captured->graph) COPPICE_RETURN_IF_ERROR(Capture(rows, captured));
  stats->ran_as_graph = true;
  COPPICE_RETURN_IF_ERROR(device_->Launch(*captured->graph, stream_->get()));
  return scores_follow ? sampler_->Score(captured->logits, 0, stream_->get()) : OkStatus();
}

Result<ConstDeviceTensor> DeviceRunner::Compute(const DeviceBatch& rows, bool scores) {
  const Stream stream = stream_->get();
  COPPICE_RETURN_IF_ERROR(transformer_->Forward(rows, plans_.plans(), pool_->layers(), stream));
  ConstDeviceTensor logits;
  for (int32_t first = 0; first < rows_.shape.logit_rows; first += limits_.max_logit_rows) {
    const int32_t count = std::min(limits_.max_logit_rows, rows_.shape.logit_rows - first);
    COPPICE_ASSIGN_OR_RETURN(logits, transformer_->Logits(first, count, stream));
    COPPICE_RETURN_IF_ERROR(sampler_->Draw(logits, first, rows_.shape.draws, stream));
    if (scores) COPPICE_RETURN_IF_ERROR(sampler_->Score(logits, first, stream));
  }
  return logits;
}

Status DeviceRunner::Capture(const DeviceBatch& rows, StepGraphs::Captured* captured) {
  const auto compute = [&]() -> Status {
    COPPICE_ASSIGN_OR_RETURN(captured->logits, Compute(rows, /*scores=*/false));
    return OkStatus();
  };
  COPPICE_ASSIGN_OR_RETURN(captured->graph, CaptureGraph(*device_, stream_->get(), compute));
  return OkStatus();
}

Status DeviceRunner::ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const {
  return pool_->ReadKv(pages, num_tokens, kv, stream_->get());
}

Status DeviceRunner::WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) {
  return pool_->WriteKv(pages, begin, num_tokens, kv, stream_->get());
}

Result<std::unique_ptr<WeightSource>> DeviceRunner::PrepareUpdate(TensorMap tensors) const {
  return transformer_->PrepareUpdate(std::move(tensors));
}

Status DeviceRunner::UpdateWeights(const WeightSource& source) {
  COPPICE_RETURN_IF_ERROR(device_->Synchronize(stream_->get()));
  return transformer_->UpdateWeights(source);
}

Status DeviceRunner::Sleep(bool keep_weights) {
  COPPICE_RETURN_IF_ERROR(device_->Synchronize(stream_->get()));
  return SleepOn(*device_, *transformer_, keep_weights);
}

}  // namespace coppice
