#include "engine/step_builder.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace coppice {

void StepBuilder::SetSlot(const Sequence& sequence, BranchId branch) {
  StepBatch& step = batch_->step;
  const RequestState& request = *sequence.request;
  SlotEdit edit{.kind = SlotEdit::Kind::kSet,
                .slot = branch,
                .index = static_cast<int32_t>(step.parameters.size()),
                .token_begin = static_cast<int32_t>(step.history.size())};
  SlotSampling& sampling = step.parameters.emplace_back();
  sampling.params = sequence.sampling();
  if (request.params.min_tokens > 0) sampling.end_ids = *request.end_ids;
  if (sequence.has_penalties) {
    if (sampling.params.repetition_penalty != 1) {
      step.history.insert(step.history.end(), request.params.prompt_ids.begin(), request.params.prompt_ids.end());
      edit.num_prompt = request.prompt_length();
    }
    step.history.insert(step.history.end(), sequence.generated.begin(), sequence.generated.end());
    edit.token_count = static_cast<int32_t>(step.history.size()) - edit.token_begin;
  }
  step.slot_edits.push_back(edit);
}

void StepBuilder::NotifySlot(const Sequence& sequence, BranchId branch, int32_t* acknowledged) {
  if (!sequence.has_penalties) return;
  StepBatch& step = batch_->step;
  const int32_t known = static_cast<int32_t>(sequence.generated.size());
  if (*acknowledged < known) {
    const auto news = std::span(sequence.generated).subspan(*acknowledged);
    step.slot_edits.push_back({.kind = SlotEdit::Kind::kAdd,
                               .slot = branch,
                               .token_begin = static_cast<int32_t>(step.history.size()),
                               .token_count = static_cast<int32_t>(news.size())});
    step.history.insert(step.history.end(), news.begin(), news.end());
    *acknowledged = known;
  }
  if (sequence.draws_under_way > 0 && *acknowledged == known) {
    step.slot_edits.push_back(
        {.kind = SlotEdit::Kind::kAddDraw, .slot = branch, .draw = {.step = launched_, .index = sequence.draw}});
    *acknowledged = known + 1;
  }
}

void StepBuilder::Begin() {
  DropWork();
  in_cache_ = cache_.BeginStep();
}

int32_t StepBuilder::Rows(BranchId branch, int32_t begin, std::span<const int32_t> tokens) {
  const int32_t count = static_cast<int32_t>(tokens.size());
  in_cache_.SetQueries(branch, batch_->num_tokens(), count, begin + count);
  for (int32_t i = 0; i < count; ++i) Row(branch, begin + i, begin + i, tokens[i]);
  return batch_->num_tokens() - 1;
}

void StepBuilder::Append(Sequence* sequence, int32_t count, int32_t drafts) {
  const int32_t query_begin = batch_->num_tokens();
  const int32_t begin = sequence->launched, end = begin + count;
  const BranchId branch = sequence->branch;
  if (sequence->prefilling()) {
    batch_->prefill_tokens += count;
    batch_->shape.AddPrompt(count, begin);
  } else {
    batch_->shape.AddDecode(count + drafts, end + drafts);
  }
  in_cache_.SetQueries(branch, query_begin, count + drafts, end + drafts);
  const int32_t known = std::min(end, sequence->length());
  for (int32_t kv_index = begin; kv_index < known; ++kv_index) Row(branch, kv_index, kv_index, sequence->TokenAt(kv_index));
  if (known < end) {
    batch_->step.drawn_tokens.push_back({.row = batch_->num_tokens(), .draw = {.step = launched_, .index = sequence->draw}});
    Row(branch, known, known, /*token=*/0);
  }
  const Draft& draft = sequence->draft;
  for (int32_t i = 0; i < drafts; ++i) Row(branch, end + i, end - 1 + draft.DepthOf(i), draft.tokens[i]);
  batch_->step.has_drafts |= drafts > 0;
  batch_->has_draft_tree |= drafts > 0 && drafts > draft.LinearLength();
  ScheduledBatch::Entry& entry = batch_->entries.emplace_back();  // filled in place: a copy would wait for these stores
  entry.sequence = sequence;
  entry.begin = begin;
  entry.count = count + drafts;
  entry.drafts = drafts;
  entry.first_draw = static_cast<int32_t>(batch_->step.draws.size());
  entry.first_score = static_cast<int32_t>(batch_->step.scores.size());
  if (!sequence->request->forked && !sequence->request->scores.empty()) Scores(&entry, query_begin);
  sequence->launched = end;
  if (end < sequence->length() + sequence->draws_under_way) return;
  if (sequence->limit == 0) {
    entry.begins_samples = true;  // and ends them
  } else {
    Draws(&entry, query_begin + count - 1);
  }
}

void StepBuilder::Scores(ScheduledBatch::Entry* entry, int32_t query_begin) {
  const PromptScores& scores = entry->sequence->request->scores;
  StepBatch& step = batch_->step;
  entry->request_score = scores.IndexOf(entry->begin);
  entry->num_scores = scores.IndexOf(entry->begin + entry->count) - entry->request_score;
  for (int32_t i = 0; i < entry->num_scores; ++i) {
    const PromptScore& wanted = scores.wanted[entry->request_score + i];
    const int32_t row = query_begin + wanted.position - entry->begin;
    Score score{.row = row,
                .token = wanted.token,
                .wants_rank = !scores.ranks.empty(),
                .temperature = scores.temperature,
                .top_logprobs = static_cast<uint8_t>(scores.num_top)};
    const bool same_row = i > 0 && step.scores.back().row == row;
    score.top_begin = same_row ? step.scores.back().top_begin : NewTopLogprobs(scores.num_top);
    step.scores.push_back(score);
  }
}

void StepBuilder::Draws(ScheduledBatch::Entry* entry, int32_t last_known_row) {
  Sequence& sequence = *entry->sequence;
  StepBatch& step = batch_->step;
  NotifySlot(sequence, sequence.branch, &sequence.acknowledged);
  const bool is_beam = sequence.request->beams != nullptr;
  if (is_beam) beams_.push_back(static_cast<int32_t>(entry - batch_->entries.data()));
  entry->num_draws = (is_beam ? 1 : sequence.num_forks()) + entry->drafts;
  entry->begins_samples = !sequence.request->forked;
  sequence.draw = entry->first_draw;
  const int32_t next = sequence.draws_under_way++;  // ahead of the last known token
  const auto draw_after = [&](int32_t row, int32_t ahead) -> Draw& {
    Draw& draw = NewDraw(sequence, sequence.branch, row, ahead);
    draw.wants_rank = sequence.request->wants_ranks;
    draw.top_logprobs = sequence.request->top_logprobs;
    draw.top_begin = NewTopLogprobs(draw.top_logprobs);
    return draw;
  };
  if (entry->drafts == 0) {
    draw_after(last_known_row, next);
    for (int32_t i = 1; i < entry->num_draws; ++i) {
      step.draws.push_back(step.draws.back());
      ++step.draws.back().sample;
    }
    return;
  }
  const Draft& draft = sequence.draft;
  for (int32_t i = Draft::kRoot; i < entry->drafts; ++i) {
    path_.clear();
    if (i != Draft::kRoot && sequence.has_penalties) draft.Path(i, &path_);
    Drafting& drafting = NewDrafting(&draw_after(last_known_row + 1 + i, next + draft.DepthOf(i)), path_);
    if (!draft.proposals.empty() && i + 1 < entry->drafts) {  // linear: token i + 1 was drawn for this row
      drafting.proposal = draft.proposals[i + 1];
      drafting.token = draft.tokens[i + 1];
    }
  }
}

void StepBuilder::DraftDraw(const Sequence& sequence, BranchId branch, int32_t row, int32_t distribution) {
  Draw& draw = NewDraw(sequence, branch, row, sequence.draft.size());
  NewDrafting(&draw, sequence.has_penalties ? std::span<const int32_t>(sequence.draft.tokens) : std::span<const int32_t>())
      .distribution = distribution;
}

Draw& StepBuilder::NewDraw(const Sequence& sequence, BranchId branch, int32_t row, int32_t ahead) {
  Draw& draw = batch_->step.draws.emplace_back();
  draw.row = row;
  draw.slot = branch;
  draw.sample = sequence.stream;
  draw.position = sequence.length() + ahead;
  draw.bans_end_ids = static_cast<int32_t>(sequence.generated.size()) + ahead < sequence.request->params.min_tokens;
  return draw;
}

Drafting& StepBuilder::NewDrafting(Draw* draw, std::span<const int32_t> path) {
  StepBatch& step = batch_->step;
  draw->drafting = static_cast<int32_t>(step.drafting.size());
  Drafting& drafting = step.drafting.emplace_back();
  if (path.empty()) return drafting;
  drafting.path_begin = static_cast<int32_t>(step.draft_tokens.size());
  drafting.path_count = static_cast<int32_t>(path.size());
  step.draft_tokens.insert(step.draft_tokens.end(), path.begin(), path.end());
  return drafting;
}

int32_t StepBuilder::NewTopLogprobs(int32_t count) {
  return std::exchange(batch_->step.num_top_logprobs, batch_->step.num_top_logprobs + count);
}

void StepBuilder::FillTreeMasks() {
  if (!batch_->has_draft_tree) return;
  for (const ScheduledBatch::Entry& entry : batch_->entries) {
    const size_t begin = batch_->tree_masks.size();
    const int32_t known = entry.count - entry.drafts;
    uint64_t mask = 0;
    for (int32_t i = 0; i < known; ++i) batch_->tree_masks.push_back(mask |= uint64_t{1} << i);
    for (int32_t i = 0; i < entry.drafts; ++i) {
      const int32_t parent_row = known + entry.sequence->draft.parents[i];  // kRoot is -1: the last known token's
      batch_->tree_masks.push_back(batch_->tree_masks[begin + parent_row] | uint64_t{1} << (known + i));
    }
  }
}

void StepBuilder::FillSelections() {
  std::ranges::sort(beams_, {}, [this](int32_t i) {
    const Sequence& sequence = *batch_->entries[i].sequence;
    return std::pair(sequence.request->id, sequence.request->beams->rank(sequence.index));
  });
  StepBatch& step = batch_->step;
  for (const int32_t i : beams_) {
    const ScheduledBatch::Entry& entry = batch_->entries[i];
    const Sequence& sequence = *entry.sequence;
    const BeamSearch& search = *sequence.request->beams;
    if (batch_->selecting.empty() || batch_->selecting.back() != sequence.request) {
      batch_->selecting.push_back(sequence.request);
      step.selections.push_back({.beam_begin = static_cast<int32_t>(step.beams.size()),
                                 .wanted = search.wanted(),
                                 .wanted_of_beam = search.wanted_of_beam(),
                                 .selected_begin = step.num_selected,
                                 .stochastic = search.stochastic()});
      step.num_selected += search.wanted();
    }
    ++step.selections.back().beam_count;
    Draw& draw = step.draws[entry.first_draw];
    draw.beam = static_cast<int32_t>(step.beams.size());
    draw.sample = search.rank(sequence.index);  // which differs between the beams of a step, whatever else runs
    step.beams.push_back(
        {.draw = entry.first_draw, .score = search.score(sequence.index), .perturbed = search.perturbed(sequence.index)});
    batch_->beams.push_back(sequence.index);
  }
}

Result<StepTicket> StepBuilder::Launch(Runner* runner) {
  auto [forest, copies] = in_cache_.Take();
  forest.query_tree_mask = batch_->tree_masks;
  batch_->step.copies.assign(copies.begin(), copies.end());
  Result<StepTicket> ticket = runner->Launch(batch_->step, forest);
  batch_->step.ClearEdits();
  return ticket;
}

CacheStep StepBuilder::Launched(StepTicket ticket) {
  in_cache_.Launched();
  launched_ = ticket.step;
  next_ = (next_ + 1) % batches_.size();
  batch_ = &batches_[next_];
  batch_->Clear();  // its sequences may be gone
  return std::exchange(in_cache_, {});
}

Status StepBuilder::Flush(Runner* runner) {
  Begin();
  if (!batch_->step.has_edits() && !in_cache_.has_copies()) return OkStatus();
  COPPICE_ASSIGN_OR_RETURN(const StepTicket ticket, Launch(runner));
  const Status waited = runner->Wait(ticket).status();
  Launched(ticket).Computed();
  return waited;
}

void StepBuilder::Clear() {
  in_cache_ = {};
  for (ScheduledBatch& batch : batches_) {
    batch.Clear();
    batch.step.ClearEdits();
  }
}

}  // namespace coppice
