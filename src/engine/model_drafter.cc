#include "engine/model_drafter.h"

#include <algorithm>

#include "core/check.h"
#include "engine/batch_sampler.h"
#include "engine/scheduler.h"

namespace coppice {

ModelDrafter::ModelDrafter(ModelDrafterParts parts)
    : parts_(std::move(parts)), sampler_(parts_.executor, parts_.model->config().vocab_size) {}

Status ModelDrafter::Propose(std::span<const DraftRequest> requests) {
  ++calls_;
  const Status status = RunRounds(requests);
  if (!status.ok()) {  // what the failed pass should have computed is not there
    parts_.cache->AbandonStep();
    ++calls_;
    ReleaseUnused();
  }
  return status;
}

Status ModelDrafter::RunRounds(std::span<const DraftRequest> requests) {
  num_proposals_ = 0;
  jobs_.clear();
  for (const DraftRequest& request : requests) {
    if (const auto found = lanes_.find(KeyOf(*request.sequence)); found != lanes_.end()) found->second.last_call = calls_;
  }
  ReleaseUnused();  // before anybody needs room
  int32_t budget = parts_.max_batch_tokens;
  for (const DraftRequest& request : requests) {
    const Sequence& sequence = *request.sequence;
    const int32_t depth = std::min(request.max_depth, parts_.max_context - sequence.length());
    if (depth < 1 || budget == 0) continue;
    const auto found = lanes_.find(KeyOf(sequence));
    Lane* const lane = found != lanes_.end() ? &found->second : Admit(sequence);
    if (lane == nullptr) continue;
    Follow(sequence, lane);
    // The last token is fed again if need be: its logits are wanted.
    const int32_t begin = std::min(lane->computed, lane->known - 1);
    const int32_t count = std::min(lane->known - begin, budget);
    budget -= count;
    jobs_.push_back({.request = &request, .lane = lane, .begin = begin, .count = count, .depth = depth});
  }
  while (std::ranges::any_of(jobs_, [](const Job& job) { return job.count > 0; })) COPPICE_RETURN_IF_ERROR(RunRound());
  return OkStatus();
}

ModelDrafter::LaneKey ModelDrafter::KeyOf(const Sequence& sequence) { return {sequence.request->id, sequence.index}; }

void ModelDrafter::Follow(const Sequence& sequence, Lane* lane) {
  const int32_t length = sequence.length();
  int32_t agreed = lane->known;
  while (agreed < lane->computed && agreed < length && lane->tokens[agreed] == sequence.TokenAt(agreed)) ++agreed;
  if (agreed < lane->computed) {
    lane->computed = agreed;
    parts_.cache->MarkComputed(lane->branch, agreed);
  }
  lane->tokens.resize(lane->known);
  while (std::ssize(lane->tokens) < length) lane->tokens.push_back(sequence.TokenAt(static_cast<int32_t>(lane->tokens.size())));
  lane->known = length;
}

ModelDrafter::Lane* ModelDrafter::Admit(const Sequence& sequence) {
  const std::span<const int32_t> tokens = sequence.Tokens(&scratch_);
  const KvCache::Admission admission = parts_.cache->Admit(
      {.tokens = tokens, .salt = Scheduler::SaltOf(sequence), .spare_pages = static_cast<int32_t>(lanes_.size()) + 1});
  if (admission.outcome != KvCache::Outcome::kAdmitted) return nullptr;
  Lane& lane = lanes_[KeyOf(sequence)];
  lane = {.branch = admission.branch,
          .known = static_cast<int32_t>(tokens.size()),
          .computed = admission.computed,
          .tokens = {tokens.begin(), tokens.end()},
          .last_call = calls_};
  return &lane;
}

void ModelDrafter::ReleaseUnused() {
  for (auto entry = lanes_.begin(); entry != lanes_.end();) {
    const Lane& lane = entry->second;
    if (lane.last_call == calls_) {
      ++entry;
      continue;
    }
    parts_.cache->Release(lane.branch, lane.tokens);
    entry = lanes_.erase(entry);
  }
}

Status ModelDrafter::RunRound() {
  KvCache& cache = *parts_.cache;
  token_ids_.clear();
  positions_.clear();
  slot_mapping_.clear();
  logit_rows_.clear();
  cache.BeginStep();
  for (Job& job : jobs_) {
    if (job.count == 0) continue;
    const int32_t end = job.begin + job.count;
    if (!cache.Grow(job.lane->branch, end)) {
      job.count = 0;  // it goes without further drafts
      continue;
    }
    cache.SetQueries(job.lane->branch, static_cast<int32_t>(token_ids_.size()), job.count, end);
    for (int32_t kv_index = job.begin; kv_index < end; ++kv_index) {
      token_ids_.push_back(job.lane->tokens[kv_index]);
      positions_.push_back(kv_index);
      slot_mapping_.push_back(cache.SlotOf(job.lane->branch, kv_index));
    }
    if (job.samples()) logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()) - 1);
  }
  if (token_ids_.empty()) return OkStatus();
  const attention::PrefixForestView forest = cache.EndStep();
  COPPICE_RETURN_IF_ERROR(parts_.plan->Update(forest));
  COPPICE_RETURN_IF_ERROR(parts_.plan->Upload());
  COPPICE_RETURN_IF_ERROR(parts_.model->CopyPages(cache.pending_copies()));
  cache.ClearPendingCopies();
  COPPICE_ASSIGN_OR_RETURN(
      const MatrixView<const float> logits,
      parts_.model->Forward(
          {.token_ids = token_ids_, .positions = positions_, .slot_mapping = slot_mapping_, .logit_rows = logit_rows_}, forest,
          *parts_.plan));
  kv_bytes_read_ += parts_.plan->Stats().kv_bytes_read * parts_.model->config().num_layers;
  for (const Job& job : jobs_) {
    if (job.count == 0) continue;
    job.lane->computed = job.begin + job.count;
    cache.MarkComputed(job.lane->branch, job.lane->computed);
  }
  DraftTokens(logits);
  return OkStatus();
}

void ModelDrafter::DraftTokens(MatrixView<const float> logits) {
  tasks_.clear();
  draws_.assign(logit_rows_.size(), {});
  for (const Job& job : jobs_) {
    if (!job.samples()) continue;
    Sequence& sequence = *job.request->sequence;
    Draft& draft = sequence.draft;
    const size_t row = tasks_.size();
    SampleTask task = TaskAfter(sequence);
    task.logits = logits.Row(row);
    task.position += static_cast<uint32_t>(draft.size());
    task.banned = BannedAt(sequence, static_cast<int32_t>(sequence.generated.size()) + draft.size());
    task.drafted = draft.tokens;
    draws_[row].sample = sequence.index;
    task.draws = std::span(draws_).subspan(row, 1);
    if (!parts_.exact && task.params->temperature > 0) {
      if (num_proposals_ == proposals_.size()) proposals_.emplace_back(task.logits.size());
      task.distribution = proposals_[num_proposals_++];
    }
    tasks_.push_back(task);
  }
  sampler_.Run(tasks_, {});
  size_t row = 0;
  for (Job& job : jobs_) {
    const bool samples = job.samples();
    job.begin += std::exchange(job.count, 0);
    if (!samples) continue;
    const SampleTask& task = tasks_[row];
    const int32_t token = draws_[row++].token;
    if (token < 0) continue;  // no distribution to draw from
    Draft& draft = job.request->sequence->draft;
    draft.Extend(draft.size() - 1, token);
    if (!task.distribution.empty()) draft.proposals.push_back(task.distribution);
    const std::vector<int32_t>& ends = job.request->sequence->request->end_ids;
    if (draft.size() == job.depth || std::ranges::find(ends, token) != ends.end()) continue;
    job.lane->tokens.push_back(token);
    job.count = 1;
  }
}

}  // namespace coppice
