#include "engine/model_drafter.h"

#include <algorithm>

#include "core/check.h"

namespace coppice {

ModelDrafter::ModelDrafter(ModelDrafterParts parts) : parts_(std::move(parts)), steps_(parts_.cache.get()) {}

Status ModelDrafter::Propose(std::span<const DraftRequest> requests) {
  ++calls_;
  const Status status = RunRounds(requests);
  if (!status.ok()) {  // what the failed pass should have computed is not there
    steps_.DropWork();
    ++calls_;
    ReleaseUnused();
  }
  return status;
}

Status ModelDrafter::RunRounds(std::span<const DraftRequest> requests) {
  num_distributions_ = 0;
  jobs_.clear();
  for (const DraftRequest& request : requests) {
    if (const auto found = draft_branches_.find(KeyOf(*request.sequence)); found != draft_branches_.end())
      found->second.last_call = calls_;
  }
  ReleaseUnused();  // before any sequence needs room
  int32_t budget = parts_.max_batch_tokens;
  for (const DraftRequest& request : requests) {
    const Sequence& sequence = *request.sequence;
    const int32_t depth = std::min(request.max_depth, parts_.max_context - sequence.length());
    if (depth < 1 || budget == 0) continue;
    const auto found = draft_branches_.find(KeyOf(sequence));
    DraftBranch* const draft = found != draft_branches_.end() ? &found->second : Admit(sequence);
    if (draft == nullptr) continue;
    Follow(sequence, draft);
    // The last token is fed again if need be: its logits are wanted.
    const int32_t begin = std::min(draft->computed, draft->known - 1);
    const int32_t count = std::min(draft->known - begin, budget);
    budget -= count;
    jobs_.push_back({.request = &request, .draft = draft, .begin = begin, .count = count, .depth = depth});
  }
  while (std::ranges::any_of(jobs_, [](const Job& job) { return job.count > 0; })) COPPICE_RETURN_IF_ERROR(RunRound());
  return OkStatus();
}

ModelDrafter::DraftBranchKey ModelDrafter::KeyOf(const Sequence& sequence) { return {sequence.request->id, sequence.index}; }

void ModelDrafter::Follow(const Sequence& sequence, DraftBranch* draft) {
  const int32_t length = sequence.length();
  int32_t agreed = draft->known;
  while (agreed < draft->computed && agreed < length && draft->tokens[agreed] == sequence.TokenAt(agreed)) ++agreed;
  if (agreed < draft->computed) {
    draft->computed = agreed;
    parts_.cache->MarkComputed(draft->branch, agreed);
  }
  draft->tokens.resize(draft->known);
  while (std::ssize(draft->tokens) < length) draft->tokens.push_back(sequence.TokenAt(static_cast<int32_t>(draft->tokens.size())));
  draft->known = length;
}

ModelDrafter::DraftBranch* ModelDrafter::Admit(const Sequence& sequence) {
  const std::span<const int32_t> tokens = sequence.Tokens(&scratch_);
  const KvCache::Admission admission = parts_.cache->Admit(
      {.tokens = tokens, .salt = SaltOf(sequence), .spare_pages = static_cast<int32_t>(draft_branches_.size()) + 1});
  if (admission.outcome != KvCache::Outcome::kAdmitted) return nullptr;
  DraftBranch& draft = draft_branches_[KeyOf(sequence)];
  draft = {.branch = admission.branch,
           .known = static_cast<int32_t>(tokens.size()),
           .computed = admission.computed,
           .acknowledged = static_cast<int32_t>(sequence.generated.size()),
           .tokens = {tokens.begin(), tokens.end()},
           .last_call = calls_};
  steps_.SetSlot(sequence, draft.branch);
  return &draft;
}

void ModelDrafter::ReleaseUnused() {
  for (auto entry = draft_branches_.begin(); entry != draft_branches_.end();) {
    const DraftBranch& draft = entry->second;
    if (draft.last_call == calls_) {
      ++entry;
      continue;
    }
    parts_.cache->Release(draft.branch, draft.tokens);
    steps_.FreeSlot(draft.branch);
    entry = draft_branches_.erase(entry);
  }
}

Status ModelDrafter::RunRound() {
  KvCache& cache = *parts_.cache;
  steps_.Begin();
  for (Job& job : jobs_) {
    if (job.count == 0) continue;
    const int32_t end = job.begin + job.count;
    if (!cache.Grow(job.draft->branch, end)) {
      job.count = 0;  // it goes without further drafts
      continue;
    }
    job.last_row = steps_.Rows(job.draft->branch, job.begin, std::span(job.draft->tokens).subspan(job.begin, job.count));
  }
  if (steps_.next().num_tokens() == 0) return OkStatus();
  AppendDraws();
  COPPICE_ASSIGN_OR_RETURN(const StepTicket ticket, steps_.Launch(parts_.runner.get()));
  COPPICE_ASSIGN_OR_RETURN(const StepResult result, parts_.runner->Wait(ticket));
  CacheStep step = steps_.Launched(ticket);
  kv_bytes_read_ += result.stats.kv_bytes_read;
  for (const Job& job : jobs_) {
    if (job.count == 0) continue;
    job.draft->computed = job.begin + job.count;
    cache.MarkComputed(job.draft->branch, job.draft->computed);
  }
  step.Computed();
  TakeDrafts(result.draws);
  return OkStatus();
}

void ModelDrafter::Clear() {
  draft_branches_.clear();
  jobs_.clear();
  steps_.Clear();
  parts_.cache->Clear();
}

void ModelDrafter::AppendDraws() {
  for (Job& job : jobs_) {
    if (!job.samples()) continue;
    const Sequence& sequence = *job.request->sequence;
    const bool keeps = !parts_.exact && sequence.request->params.sampling.temperature > 0;
    steps_.NotifySlot(sequence, job.draft->branch, &job.draft->acknowledged);
    steps_.DraftDraw(sequence, job.draft->branch, job.last_row, /*distribution=*/keeps ? num_distributions_++ : -1);
  }
}

void ModelDrafter::TakeDrafts(std::span<const TokenDraw> draws) {
  size_t next = 0;
  for (Job& job : jobs_) {
    const bool samples = job.samples();
    job.begin += std::exchange(job.count, 0);
    if (!samples) continue;
    const int32_t distribution = steps_.last().step.drafting[next].distribution;
    const int32_t token = draws[next++].token;
    if (token < 0) continue;  // no distribution to draw from
    Draft& draft = job.request->sequence->draft;
    draft.Extend(draft.size() - 1, token);
    if (distribution >= 0) draft.proposals.push_back(distribution);
    const std::vector<int32_t>& ends = *job.request->sequence->request->end_ids;
    if (draft.size() == job.depth || std::ranges::find(ends, token) != ends.end()) continue;
    job.draft->tokens.push_back(token);
    job.count = 1;
  }
}

}  // namespace coppice
