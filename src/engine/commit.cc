#include "engine/commit.h"

#include <algorithm>
#include <string>

#include "engine/not_finite.h"

namespace coppice {

void Committer::Commit(const ScheduledBatch& batch, const StepResult& result) {
  batch_ = &batch;
  result_ = result;
  for (size_t e = 0; e < batch.entries.size(); ++e) {
    PrefetchAhead(e, batch.entries.size(), cache_, [&](size_t i) { return batch.entries[i].sequence; });
    const ScheduledBatch::Entry& entry = batch.entries[e];
    Sequence* const sequence = entry.sequence;
    if (sequence->state == Sequence::State::kFinished && !entry.begins_samples) continue;  // it ended while this step was under way
    CountReads(*sequence);
    if (entry.num_scores > 0) CommitScores(entry);
    totals_.sample_steps += entry.num_draws > 0 && !entry.begins_samples;
    if (entry.drafts > 0) {
      if (!CommitDrafts(entry)) scheduler_.Finish(sequence);
      continue;
    }
    MarkAndPublish(sequence, entry.begin + entry.count);
    if (entry.begins_samples) {
      BeginSamples(entry);
    } else if (sequence->request->beams != nullptr) {
      continue;
    } else if (entry.num_draws > 0 && !Accept(sequence, entry.first_draw)) {
      scheduler_.Finish(sequence);
    }
  }
  for (RequestState* const request : beams_.Commit(batch, result))
    EndRequest(request, FinishReason::kError, LogitsNotFinite(" of a beam"));
}

void Committer::MarkComputed(Sequence* sequence, int32_t computed) {
  sequence->computed = computed;
  cache_.MarkComputed(sequence->branch, computed);
}

void Committer::MarkAndPublish(Sequence* sequence, int32_t computed) {
  MarkComputed(sequence, computed);
  const auto [begin, end] = cache_.Unpublished(sequence->branch);
  if (begin == end) return;
  const int32_t prompt = sequence->request->prompt_length();
  if (begin >= prompt) return cache_.Publish(sequence->branch, std::span(sequence->generated).subspan(begin - prompt, end - begin));
  std::vector<int32_t> scratch;  // a child that was cut inside the prompt's last page
  cache_.Publish(sequence->branch, sequence->Tokens(&scratch).subspan(begin, end - begin));
}

void Committer::CommitScores(const ScheduledBatch::Entry& entry) {
  PromptScores& scores = entry.sequence->request->scores;
  for (int32_t i = 0; i < entry.num_scores; ++i) {
    scores.logprobs[entry.request_score + i] = result_.scores[entry.first_score + i];
    if (!scores.ranks.empty()) scores.ranks[entry.request_score + i] = result_.score_ranks[entry.first_score + i];
    const Score& score = batch_->step.scores[entry.first_score + i];
    std::ranges::copy(result_.top_logprobs.subspan(score.top_begin, score.top_logprobs),
                      scores.top.begin() + int64_t{entry.request_score + i} * scores.num_top);
  }
  kept_scores_.Keep(*entry.sequence, entry.request_score, entry.num_scores, &cache_);
}

bool Committer::CommitDrafts(const ScheduledBatch::Entry& entry) {
  Sequence* const sequence = entry.sequence;
  const Draft& draft = sequence->draft;
  const int32_t drafts_begin = entry.begin + entry.count - entry.drafts;  // kv index of the first
  accepted_.clear();
  bool goes_on = true;
  for (int32_t node = Draft::kRoot;;) {
    const int32_t draw = entry.first_draw + node + 1;
    sequence->draws_under_way = 1;
    goes_on = Accept(sequence, draw);
    node = goes_on ? draft.ChildOf(node, result_.draws[draw].token, entry.drafts) : Draft::kRoot;
    if (node == Draft::kRoot) break;
    accepted_.push_back(node);
  }
  const int32_t num_accepted = static_cast<int32_t>(accepted_.size());
  for (int32_t i = 0; i < num_accepted; ++i) {  // what was refused in between goes
    if (accepted_[i] != i) steps_.Move(sequence->branch, drafts_begin + accepted_[i], drafts_begin + i);
  }
  sequence->launched = drafts_begin + num_accepted;
  MarkAndPublish(sequence, sequence->launched);
  totals_.drafted_tokens += entry.drafts;
  totals_.accepted_draft_tokens += num_accepted;
  drafts_.NoteAccepted(sequence, entry.drafts, num_accepted);
  return goes_on;
}

// The prompt of a request is computed: its n samples begin as n leaves of it, or have begun while its last step was under way.
void Committer::BeginSamples(const ScheduledBatch::Entry& entry) {
  Sequence* const first = entry.sequence;
  RequestState* const request = first->request;
  events_.AddPrompt(*request);
  if (!request->params.pin_prompt_as.empty()) prefixes_.Pin(*request, first->branch);
  if (request->params.max_tokens == 0) {
    for (auto& [index, sequence] : request->sequences) {
      if (request->BeginsWithPrompt(sequence)) EndSample(&sequence, FinishReason::kLength, OkStatus());
    }
  } else if (request->beams == nullptr) {
    BeginDrawn(entry);
  }
  if (request->beams == nullptr) scheduler_.BeginPending(request);
}

void Committer::BeginDrawn(const ScheduledBatch::Entry& entry) {
  Sequence* const first = entry.sequence;
  RequestState* const request = first->request;
  const bool forked = request->forked;
  running_samples_.clear();
  for (int32_t i = 0; i < entry.num_draws; ++i) {
    const auto found = request->sequences.find(i);
    if (found == request->sequences.end()) continue;  // it was pruned
    Sequence* const sequence = &found->second;
    if (sequence->pruned) {
      sequence->draws_under_way = 0;
      continue;
    }
    if (forked && sequence->branch != kNoBranch) MarkComputed(sequence, entry.begin + entry.count);
    sequence->draws_under_way += !forked && sequence != first;
    if (Accept(sequence, entry.first_draw + i)) {
      running_samples_.push_back(sequence);
    } else if (forked || sequence != first) {
      scheduler_.Finish(sequence);
    }
  }
  if (forked) return;
  if (running_samples_.empty()) {
    scheduler_.Finish(first);
  } else {
    scheduler_.Fork(first, running_samples_);
  }
}

bool Committer::Accept(Sequence* sequence, int32_t index) {
  const TokenDraw& drawn = result_.draws[index];
  --sequence->draws_under_way;
  Emissions::Item& item = events_.Begin(*sequence);
  item.token = drawn.token;
  item.logprob = drawn.logprob;
  item.rank = drawn.rank;
  if (drawn.token < 0) {
    EndWithoutToken(*sequence, index, &item);
  } else {
    sequence->generated.push_back(drawn.token);
    if (sequence->request->top_logprobs > 0) {
      const Draw& draw = batch_->step.draws[index];
      events_.SetTopLogprobs(&item, result_.top_logprobs.subspan(draw.top_begin, draw.top_logprobs));
    }
    ++totals_.generated_tokens;
    item.reason = EndOf(*sequence, &item);
  }
  const bool goes_on = !item.reason;
  events_.End(*sequence);
  return goes_on;
}

void Committer::EndWithoutToken(const Sequence& sequence, int32_t index, Emissions::Item* item) {
  const int32_t mask = batch_->step.draws[index].mask;
  const std::string place = " at token " + std::to_string(sequence.length());
  item->token = -1;
  item->reason = FinishReason::kError;
  if (result_.draws[index].token == kNoDistribution) {
    events_.SetStatus(item, LogitsNotFinite(place));
  } else if (mask < 0) {
    events_.SetStatus(item, InvalidArgument("logit_bias and min_tokens leave no token" + place + ": allow more"));
  } else if (!batch_->masks[mask].status.ok()) {
    events_.SetStatus(item, batch_->masks[mask].status);
  } else if (batch_->masks[mask].may_end) {
    item->reason = FinishReason::kStop;  // the output is complete, and no token says so
  } else {
    events_.SetStatus(item, InvalidArgument("the constraint, logit_bias and min_tokens leave no token" + place + ": allow more"));
  }
  if (sequence.request->has_stops) StreamOf(sequence).Finish(events_.NewText(item));
}

std::optional<FinishReason> Committer::EndOf(const Sequence& sequence, Emissions::Item* item) {
  const RequestState& request = *sequence.request;
  const int32_t generated = static_cast<int32_t>(sequence.generated.size());
  const bool may_end = generated >= request.params.min_tokens;
  if (may_end && std::ranges::find(*request.end_ids, item->token) != request.end_ids->end()) {
    if (request.has_stops) StreamOf(sequence).Finish(events_.NewText(item));
    return FinishReason::kStop;  // the token that ends a sample is no part of its text
  }
  item->decodes = true;
  if (request.has_stops) {
    const std::optional<int32_t> stop = StreamOf(sequence).Push(item->token, may_end, events_.NewText(item));
    if (stop) {
      item->stop = *stop;
      return FinishReason::kStop;
    }
  }
  if (generated == sequence.limit || sequence.length() == max_context_) {
    if (request.has_stops) StreamOf(sequence).Finish(events_.TextOf(*item));
    return FinishReason::kLength;
  }
  return std::nullopt;
}

void Committer::EndSample(Sequence* sequence, FinishReason reason, const Status& status) {
  if (sequence->state == Sequence::State::kFinished) return;
  scheduler_.Finish(sequence);
  if (!sequence->end_is_written) WriteEnd(sequence, reason, status);
}

void Committer::WriteEnd(Sequence* sequence, FinishReason reason, const Status& status) {
  Emissions::Item& item = events_.Begin(*sequence);
  item.reason = reason;
  if (sequence->request->has_stops) StreamOf(*sequence).Finish(events_.NewText(&item));
  if (!status.ok()) events_.SetStatus(&item, status);
  events_.End(*sequence);
}

void Committer::EndRequest(RequestState* request, FinishReason reason, const Status& status) {
  for (auto& [index, sequence] : request->sequences) EndSample(&sequence, reason, status);
}

void Committer::FailBatch(const ScheduledBatch& batch, const Status& status) {
  for (const ScheduledBatch::Entry& entry : batch.entries) EndRequest(entry.sequence->request, FinishReason::kError, status);
}

}  // namespace coppice
