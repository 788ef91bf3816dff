#include "runner/device_runner.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/check.h"
#include "runner/phase_timer.h"

namespace coppice {

Result<std::unique_ptr<DeviceRunner>> DeviceRunner::Create(std::vector<ModelParts> ranks, std::unique_ptr<RankGroup> group,
                                                           const Limits& limits) {
  COPPICE_CHECK(static_cast<int>(ranks.size()) == group->size() && ranks.front().sampler != nullptr);
  std::unique_ptr<DeviceRunner> runner(new DeviceRunner(std::move(ranks), std::move(group), limits));
  for (Rank& rank : runner->ranks_) {
    COPPICE_ASSIGN_OR_RETURN(rank.stream, rank.device->CreateStream());
    COPPICE_ASSIGN_OR_RETURN(rank.uploads, PlanUploads::Create(rank.device.get()));
  }
  for (Step& step : runner->steps_.steps()) {
    COPPICE_ASSIGN_OR_RETURN(step.begun, runner->ranks_.front().device->CreateTimedEvent());
    COPPICE_ASSIGN_OR_RETURN(step.ended, runner->ranks_.front().device->CreateTimedEvent());
  }
  return runner;
}

DeviceRunner::Rank::Rank(ModelParts parts, const Limits& limits)
    : device(std::move(parts.device)),
      transformer(std::move(parts.transformer)),
      pool(std::move(parts.pool)),
      inputs(std::move(parts.inputs)),
      stripes(std::move(parts.stripes)),
      plans(GroupsOf(*transformer, stripes.get(), std::move(parts.plans))),
      graphs(limits.max_graphs) {}

DeviceRunner::DeviceRunner(std::vector<ModelParts> parts, std::unique_ptr<RankGroup> group, const Limits& limits)
    : info_(InfoOf(parts.front())), limits_(limits), group_(std::move(group)), sampler_(std::move(parts.front().sampler)) {
  ranks_.reserve(parts.size());
  for (ModelParts& rank : parts) ranks_.emplace_back(std::move(rank), limits);
}

// Work still under way on the streams writes into memory that is freed now.
DeviceRunner::~DeviceRunner() { (void)SynchronizeAll(); }

Status DeviceRunner::SynchronizeAll() const {
  Status first;
  for (const Rank& rank : ranks_) {
    if (!rank.stream) continue;
    const Status status = rank.device->Synchronize(rank.stream->get());
    if (first.ok()) first = status;
  }
  return first;
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
  const ForwardBatch batch = {.token_ids = token_ids, .positions = positions, .slot_mapping = nowhere, .logit_rows = logit_rows};
  return group_->Run([&](int r) -> Status {
    Rank& rank = ranks_[r];
    COPPICE_ASSIGN_OR_RETURN(const DeviceBatch uploaded, rank.inputs->Upload(batch, rank.stream->get()));
    return rank.transformer->Tune(uploaded, rank.pool->layers(), rank.stream->get());
  });
}

Result<StepTicket> DeviceRunner::Launch(const StepBatch& batch, const attention::PrefixForestView& forest) {
  Step& step = steps_.Prepare(batch);
  step.computes = step.draws_come = false;
  try {
    step.status = Begin(batch, forest, &step);
  } catch (...) {  // the step did not begin: nothing of it may be in a stream
    (void)SynchronizeAll();
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
  COPPICE_RETURN_IF_ERROR(group_->CheckDone());
  const Step& before = steps_.Before(*step);
  if (step->number > 1 && before.computes) {
    COPPICE_ASSIGN_OR_RETURN(step->stats.device_idle_seconds, ranks_.front().device->SecondsBetween(*before.ended, *step->begun));
  }
  return OkStatus();
}

Status DeviceRunner::Begin(const StepBatch& batch, const attention::PrefixForestView& forest, Step* step) {
  const bool computes = batch.num_rows() > 0, stands_on_failure = computes && steps_.StandsOnFailure(*step);
  if (computes && !stands_on_failure) FillRows(batch, steps_.Before(*step));
  COPPICE_RETURN_IF_ERROR(group_->Run([&](int r) -> Status {
    ranks_[r].stats = {};
    StepStats* const stats = r == 0 ? &step->stats : &ranks_[r].stats;  // the first rank's are the step's
    PhaseTimer phase("edit", &stats->forward_seconds);
    COPPICE_RETURN_IF_ERROR(Edit(batch, r));
    if (!computes) return OkStatus();
    if (stands_on_failure) return Internal("the step before it failed");
    COPPICE_ASSIGN_OR_RETURN(const DeviceBatch rows, Prepare(batch, forest, r, stats, &phase));
    COPPICE_RETURN_IF_ERROR(group_->communicator(r).Barrier());
    phase.Next("launch", &stats->forward_seconds);
    return Run(batch, rows, *step, r, stats);
  }));
  if (ranks_.front().stripes != nullptr) {
    reads_.Begin(KnowsSharing(ranks_.front().stripes.get()), &step->stats);
    for (const Rank& rank : std::span(ranks_).subspan(1)) reads_.Add(rank.stats, &step->stats);
  }
  step->computes = step->draws_come = computes;
  return OkStatus();
}

Status DeviceRunner::Edit(const StepBatch& batch, int r) {
  Rank& rank = ranks_[r];
  const Stream stream = rank.stream->get();
  COPPICE_RETURN_IF_ERROR(rank.pool->MoveSlots(batch.moves, stream));
  if (!batch.copies.empty()) COPPICE_RETURN_IF_ERROR(rank.pool->CopyPages(batch.copies, stream));
  return r == 0 ? sampler_->EditSlots(batch, stream) : OkStatus();
}

Result<DeviceBatch> DeviceRunner::Prepare(const StepBatch& batch, const attention::PrefixForestView& forest, int r,
                                          StepStats* stats, PhaseTimer* phase) {
  Rank& rank = ranks_[r];
  const Stream stream = rank.stream->get();
  phase->Next("plan", &stats->plan_seconds);
  COPPICE_RETURN_IF_ERROR(rank.uploads->Prepare(&rank.plans, ForestOf(rank.stripes.get(), forest), stream, stats));
  phase->Set("kv_bytes_read", stats->kv_bytes_read);
  phase->Next("upload", &stats->forward_seconds);
  phase->Set("rows", batch.num_rows());
  return rank.inputs->Upload({.token_ids = rows_.token_ids,
                              .positions = rows_.positions,
                              .slot_mapping = SlotsOf(rank.stripes.get(), rows_.slot_mapping),
                              .logit_rows = rows_.logit_rows},
                             stream);
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
  // Rows of no branch write no KV, and their results have no reader.
  rows_.token_ids.resize(rows_.shape.rows, 0);
  rows_.positions.resize(rows_.shape.rows, 0);
  rows_.slot_mapping.resize(rows_.shape.rows, -1);
  rows_.logit_rows.resize(rows_.shape.logit_rows, rows_.shape.rows - 1);
}

// The tokens that the step before drew are on the first rank's device, which sends them to the others.
Status DeviceRunner::TakeDrawn(const StepBatch& batch, const DeviceBatch& rows, const Step& step, int r) {
  if (batch.drawn_tokens.empty() || !steps_.Before(step).draws_come) return OkStatus();
  const Stream stream = ranks_[r].stream->get();
  const DeviceSpan<int32_t> token_ids = ranks_[r].inputs->token_ids();
  if (r == 0) COPPICE_RETURN_IF_ERROR(sampler_->TakeDrawn(step.number, batch.drawn_tokens, token_ids, stream));
  return group_->communicator(r).Broadcast(token_ids.data, rows.token_ids.size * int64_t{sizeof(int32_t)}, stream);
}

Status DeviceRunner::Run(const StepBatch& batch, const DeviceBatch& rows, const Step& step, int r, StepStats* stats) {
  Rank& rank = ranks_[r];
  const Stream stream = rank.stream->get();
  COPPICE_RETURN_IF_ERROR(TakeDrawn(batch, rows, step, r));
  if (r == 0) {
    COPPICE_RETURN_IF_ERROR(sampler_->SetWanted(step.number, batch, logit_rows_, rows_.shape.draws, stream));
    COPPICE_RETURN_IF_ERROR(rank.device->Record(*step.begun, stream));
  }
  const Status computed = ForwardAndSample(rows, /*has_scores=*/!batch.scores.empty(), r, stats);
  COPPICE_RETURN_IF_ERROR(rank.uploads->Launched(rank.plans, stream));  // some of it, if the rest failed
  COPPICE_RETURN_IF_ERROR(computed);
  if (r > 0) return OkStatus();
  COPPICE_RETURN_IF_ERROR(sampler_->Select(stream));
  COPPICE_RETURN_IF_ERROR(rank.device->Record(*step.ended, stream));
  return sampler_->Fetch(step.number, batch, stream);
}

Status DeviceRunner::ForwardAndSample(const DeviceBatch& rows, bool has_scores, int r, StepStats* stats) {
  Rank& rank = ranks_[r];
  // How many scores there are, a graph does not say: they follow it, where the logits of all rows are there then.
  const bool scores_follow = has_scores && rows_.shape.logit_rows <= limits_.max_logit_rows;
  const bool may_be_graph = limits_.max_graphs > 0 && (!has_scores || scores_follow);
  // Ranks that do not draw have graphs that draw nothing.
  const bool draws_plainly = r > 0 || sampler_->draws_plainly();
  StepGraphs::Captured* const captured =
      may_be_graph ? rank.graphs.Find({.shape = rows_.shape, .draws_plainly = draws_plainly}, rank.plans.launch_keys()) : nullptr;
  stats->new_shape = may_be_graph && (captured == nullptr || !captured->graph);
  if (captured == nullptr) return Compute(rows, has_scores, r).status();
  if (!captured->graph) COPPICE_RETURN_IF_ERROR(Capture(rows, r, captured));
  stats->ran_as_graph = true;
  COPPICE_RETURN_IF_ERROR(rank.device->Launch(*captured->graph, rank.stream->get()));
  return scores_follow && r == 0 ? sampler_->Score(captured->logits, 0, rank.stream->get()) : OkStatus();
}

Result<ConstDeviceTensor> DeviceRunner::Compute(const DeviceBatch& rows, bool scores, int r) {
  Rank& rank = ranks_[r];
  const Stream stream = rank.stream->get();
  COPPICE_RETURN_IF_ERROR(rank.transformer->Forward(rows, rank.plans.plans(), rank.pool->layers(), stream));
  ConstDeviceTensor logits;
  for (int32_t first = 0; first < rows_.shape.logit_rows; first += limits_.max_logit_rows) {
    const int32_t count = std::min(limits_.max_logit_rows, rows_.shape.logit_rows - first);
    COPPICE_ASSIGN_OR_RETURN(logits, rank.transformer->Logits(first, count, stream));
    if (r > 0) continue;
    COPPICE_RETURN_IF_ERROR(sampler_->Draw(logits, first, rows_.shape.draws, stream));
    if (scores) COPPICE_RETURN_IF_ERROR(sampler_->Score(logits, first, stream));
  }
  return logits;
}

Status DeviceRunner::Capture(const DeviceBatch& rows, int r, StepGraphs::Captured* captured) {
  const auto compute = [&]() -> Status {
    COPPICE_ASSIGN_OR_RETURN(captured->logits, Compute(rows, /*scores=*/false, r));
    return OkStatus();
  };
  COPPICE_ASSIGN_OR_RETURN(captured->graph, CaptureGraph(*ranks_[r].device, ranks_[r].stream->get(), compute));
  return OkStatus();
}

Status DeviceRunner::ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const {
  return group_->Run([&](int r) { return ranks_[r].pool->ReadKv(pages, num_tokens, kv, ranks_[r].stream->get()); });
}

Status DeviceRunner::WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) {
  return group_->Run([&](int r) { return ranks_[r].pool->WriteKv(pages, begin, num_tokens, kv, ranks_[r].stream->get()); });
}

// Ranks hold weights of equal shapes in equal formats, so what one can take all can.
Result<std::unique_ptr<WeightSource>> DeviceRunner::PrepareUpdate(TensorMap tensors) const {
  return ranks_.front().transformer->PrepareUpdate(std::move(tensors));
}

Status DeviceRunner::UpdateWeights(const WeightSource& source) {
  return group_->Run([&](int r) -> Status {
    COPPICE_RETURN_IF_ERROR(ranks_[r].device->Synchronize(ranks_[r].stream->get()));
    return ranks_[r].transformer->UpdateWeights(source);
  });
}

void DeviceRunner::BeginUpdate() {
  for (const Rank& rank : ranks_) rank.transformer->BeginUpdate();
}

void DeviceRunner::EndUpdate() {
  for (const Rank& rank : ranks_) rank.transformer->EndUpdate();
}

HeldWeights DeviceRunner::Weights() const { return ranks_.front().transformer->Weights(); }

bool DeviceRunner::weights_are_whole() const {
  return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.transformer->weights_are_whole(); });
}

Status DeviceRunner::CheckSleep(bool keep_weights) const {
  for (const Rank& rank : ranks_) COPPICE_RETURN_IF_ERROR(CheckSleepOn(*rank.device, *rank.transformer, keep_weights));
  return OkStatus();
}

Status DeviceRunner::Sleep(bool keep_weights) {
  COPPICE_RETURN_IF_ERROR(SynchronizeAll());
  return group_->Run([&](int r) { return SleepOn(*ranks_[r].device, *ranks_[r].transformer, keep_weights); });
}

Status DeviceRunner::Wake() {
  return group_->Run([&](int r) { return WakeOn(*ranks_[r].device); });
}

}  // namespace coppice
