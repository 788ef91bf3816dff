// When a majority vote over the samples of a request is settled: the others are not wanted any more, and callers prune them. Counts
// answers, reads no text, and knows no engine. Layer: engine; a policy on the verbs of docs/engine.md, "Trees that users grow".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace coppice {

// The vote is that of MajorityVote (ranking.h): most votes win, ties are decided by log-probabilities. While the first answer leads
// the second one by l votes, and r samples have not ended, it stays first whatever they say if l > r. So the answer of the vote is
// that of all samples. Thread-compatible.
class VoteStop {
 public:
  // Of `samples` in all, at least 1.
  explicit VoteStop(int32_t samples) : open_(samples) {}

  // A sample has ended with this answer; none: it does not vote. REQUIRES: fewer than all have.
  void Add(const std::optional<std::string>& answer);
  bool settled() const { return lead() > open_; }
  // The fewest samples that settle the vote, if they all vote for what leads: where no more of them are under way, none is in vain.
  // At most as many as have not ended; 0: it is settled, or all have.
  int32_t needed() const;

 private:
  int32_t lead() const { return first_ - second_; }

  int32_t open_;                    // samples that have not ended
  int32_t first_ = 0, second_ = 0;  // votes of the two answers that have the most
  std::string leader_;              // the answer with `first_` votes
  std::map<std::string, int32_t> votes_;
};

}  // namespace coppice
