#include "engine/beam_search.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace coppice {

BeamSearch::BeamSearch(const Options& options) : options_(options), beams_(static_cast<size_t>(options.beams.width)) {
  const int32_t ends = static_cast<int32_t>(options.end_ids->size());
  // The best `width` of all, and as many that do not end: those that end are one for each beam and token that does it.
  wanted_ = stochastic() ? width() : (1 + ends) * width();
  wanted_of_beam_ = stochastic() ? width() : width() + ends;
  beams_.front().rank = 0;
}

void BeamSearch::NoteArrived(int32_t beam) {
  COPPICE_DCHECK(runs(beam) && !beams_[beam].arrived);
  beams_[beam].arrived = true;
  ++num_arrived_;
}

void BeamSearch::Add(std::span<const Candidate> candidates) {
  candidates_.insert(candidates_.end(), candidates.begin(), candidates.end());
}

std::optional<FinishReason> BeamSearch::EndOf(const Candidate& candidate) const {
  if (std::ranges::find(*options_.end_ids, candidate.token) != options_.end_ids->end()) return FinishReason::kStop;
  return length_ == options_.max_tokens ? std::optional(FinishReason::kLength) : std::nullopt;
}

std::span<const BeamSearch::Move> BeamSearch::Advance(int64_t weight_version) {
  COPPICE_DCHECK(all_arrived());
  ++length_;
  Sort();
  next_.clear();
  moves_.clear();
  if (stochastic()) {
    EndDrawn(weight_version);
  } else {
    EndBest(weight_version);
  }
  if (next_.empty() || IsOver()) {
    next_.clear();
    num_running_ = 0;
  } else {
    GoOn(weight_version);
  }
  candidates_.clear();
  num_arrived_ = 0;
  for (Beam& beam : beams_) beam.arrived = false;
  return moves_;
}

// In the order of their selection, where they came in several parts too.
void BeamSearch::Sort() {
  std::ranges::sort(candidates_, [this](const Candidate& a, const Candidate& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.beam != b.beam ? rank(a.beam) < rank(b.beam) : a.token < b.token;
  });
  if (std::ssize(candidates_) > wanted_) candidates_.resize(static_cast<size_t>(wanted_));
}

// Of the best `width` continuations those that end compete with what has ended; the best that do not end go on.
void BeamSearch::EndBest(int64_t version) {
  const double divisor = std::pow(static_cast<double>(length_), options_.beams.length_penalty);
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const Candidate& candidate = candidates_[i];
    const std::optional<FinishReason> end = EndOf(candidate);
    if (!end) {
      if (std::ssize(next_) < width()) next_.push_back(candidate);
    } else if (std::cmp_less(i, width())) {
      const double sum = beams_[candidate.beam].score + candidate.logprob;
      ended_.push_back({.last = NodeOf(candidate, version), .score = sum / divisor, .reason = *end});
    }
  }
  KeepBestEnded();
}

// An ended continuation stays among the best `width`, by its noisy score, until one that goes on displaces it.
void BeamSearch::EndDrawn(int64_t version) {
  for (const Candidate& candidate : candidates_) {
    if (const std::optional<FinishReason> end = EndOf(candidate)) {
      ended_.push_back({.last = NodeOf(candidate, version), .score = candidate.score, .reason = *end});
    } else {
      next_.push_back(candidate);
    }
  }
  KeepBestEnded();
  while (std::ssize(ended_) + std::ssize(next_) > width()) {
    if (next_.empty() || (!ended_.empty() && ended_.back().score < next_.back().score)) {
      ended_.pop_back();
    } else {
      next_.pop_back();
    }
  }
}

void BeamSearch::KeepBestEnded() {
  std::ranges::stable_sort(ended_, std::greater<>(), &Ended::score);
  if (std::ssize(ended_) > width()) ended_.resize(static_cast<size_t>(width()));
}

// As transformers decides it, once it knows what goes on.
bool BeamSearch::IsOver() {
  if (stochastic()) return false;
  const bool is_full = std::ssize(ended_) == width();
  if (!is_full) return false;
  if (options_.beams.early_stopping == EarlyStopping::kTrue) return true;
  const float penalty = options_.beams.length_penalty;
  const bool longest_is_best = options_.beams.early_stopping == EarlyStopping::kNever && penalty > 0;
  const double length = longest_is_best ? options_.max_tokens : length_;
  const double best = (beams_[next_.front().beam].score + next_.front().logprob) / std::pow(length, penalty);
  return best <= ended_.back().score;
}

// The best child of a beam takes its place, others take those of beams that have none.
void BeamSearch::GoOn(int64_t version) {
  std::vector<Beam> before(beams_.size());
  before.swap(beams_);
  std::vector<bool> has_child(beams_.size());
  const auto make = [&](int32_t beam, size_t rank) {
    const Candidate& candidate = next_[rank];
    const Beam& parent = before[candidate.beam];
    nodes_.push_back({.parent = parent.node, .token = candidate.token, .logprob = candidate.logprob, .version = version});
    beams_[beam] = {.rank = static_cast<int32_t>(rank),
                    .node = static_cast<int32_t>(nodes_.size()) - 1,
                    .score = parent.score + candidate.logprob,
                    .perturbed = candidate.score};
    moves_[rank] = {.beam = beam, .parent = candidate.beam, .token = candidate.token};
  };
  moves_.assign(next_.size(), {.beam = kNone});
  for (size_t rank = 0; rank < next_.size(); ++rank) {
    const int32_t parent = next_[rank].beam;
    if (has_child[parent]) continue;
    has_child[parent] = true;
    make(parent, rank);
  }
  int32_t free = 0;
  for (size_t rank = 0; rank < next_.size(); ++rank) {
    if (moves_[rank].beam != kNone) continue;
    while (has_child[free]) ++free;
    make(free++, rank);
  }
  num_running_ = static_cast<int32_t>(next_.size());
}

std::vector<BeamSearch::Output> BeamSearch::Outputs() const {
  std::vector<Output> outputs;
  for (const Ended& ended : ended_) {
    if (std::ssize(outputs) == options_.n) break;
    Output& output = outputs.emplace_back();
    output.score = ended.score;
    output.reason = ended.reason;
    for (const Node* node = &ended.last;; node = &nodes_[node->parent]) {
      output.tokens.push_back(node->token);
      output.logprobs.push_back(node->logprob);
      output.versions.push_back(node->version);
      if (node->parent == kNone) break;
    }
    std::ranges::reverse(output.tokens);
    std::ranges::reverse(output.logprobs);
    std::ranges::reverse(output.versions);
  }
  return outputs;
}

}  // namespace coppice
