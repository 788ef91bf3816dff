// The beams of a request: which outputs go on, which have ended, and when the search is over. Knows tokens and scores; what becomes
// of sequences, pages and events is beams.h's. The results are those of transformers' beam search (GenerationMixin._beam_search),
// stochastic ones those of Kool, van Hoof and Welling 2019 ("Stochastic Beams and Where to Find Them", algorithm 1).
// Layer: engine. docs/engine.md, "Beam search".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coppice/engine/engine.h"

namespace coppice {

// Thread-compatible.
class BeamSearch {
 public:
  struct Options {
    BeamOptions beams;
    int32_t n = 1;                                  // outputs that are reported
    int32_t max_tokens = 0;                         // of an output; at least 1
    const std::vector<int32_t>* end_ids = nullptr;  // what ends an output; outlives the search
  };
  // Of a continuation of a beam: the token, its log-probability, and the score that it was selected by (SelectedToken).
  struct Candidate {
    int32_t beam = 0, token = 0;
    float logprob = 0, score = 0;
  };
  // A beam's continuation: one that another has before it and a token behind that. A beam that goes on has itself before it.
  struct Move {
    int32_t beam = 0, parent = 0, token = 0;
  };
  struct Output {
    std::vector<int32_t> tokens;  // the one that ended it included
    std::vector<float> logprobs;
    std::vector<int64_t> versions;  // of the weights that chose them
    double score = 0;
    FinishReason reason = FinishReason::kLength;
  };

  explicit BeamSearch(const Options& options);

  // Beams are numbered from 0 to width - 1; at first 0 alone runs, with no token.
  int32_t width() const { return options_.beams.width; }
  bool runs(int32_t beam) const { return beams_[beam].rank >= 0; }
  // Of those that run, from 0, best first.
  int32_t rank(int32_t beam) const { return beams_[beam].rank; }
  float score(int32_t beam) const { return static_cast<float>(beams_[beam].score); }
  float perturbed(int32_t beam) const { return static_cast<float>(beams_[beam].perturbed); }
  bool stochastic() const { return options_.beams.stochastic; }
  // Continuations that a step needs, of all beams together and of one at most.
  int32_t wanted() const { return wanted_; }
  int32_t wanted_of_beam() const { return wanted_of_beam_; }

  // The continuations of a beam that runs are among those of the next Add: it has nothing to compute before Advance. Those of all
  // beams may come in several parts, each with the best ones of its beams.
  void NoteArrived(int32_t beam);
  void Add(std::span<const Candidate> candidates);
  bool arrived(int32_t beam) const { return beams_[beam].arrived; }
  bool all_arrived() const { return num_arrived_ == num_running_; }

  // Takes the step that all continuations have come of. Returns what runs on, best first; empty: the search is over. Those that
  // neither go on nor are made anew do not run any more. `weight_version`: of what chose the tokens. REQUIRES: all_arrived().
  std::span<const Move> Advance(int64_t weight_version);
  // Once it is over: the n best outputs, best first; fewer where the vocabulary allows no more.
  std::vector<Output> Outputs() const;

 private:
  static constexpr int32_t kNone = -1;
  struct Beam {
    int32_t rank = kNone;  // it does not run
    int32_t node = kNone;  // of its last token
    double score = 0, perturbed = 0;
    bool arrived = false;
  };
  // A token of the tree of all outputs.
  struct Node {
    int32_t parent = kNone, token = 0;
    float logprob = 0;
    int64_t version = 0;
  };
  struct Ended {
    Node last;
    double score = 0;
    FinishReason reason = FinishReason::kLength;
  };

  // How an output ends with this continuation; nothing: it goes on.
  std::optional<FinishReason> EndOf(const Candidate& candidate) const;
  Node NodeOf(const Candidate& candidate, int64_t version) const {
    return {.parent = beams_[candidate.beam].node, .token = candidate.token, .logprob = candidate.logprob, .version = version};
  }
  void Sort();
  void EndBest(int64_t version);
  void EndDrawn(int64_t version);
  void KeepBestEnded();
  bool IsOver();
  void GoOn(int64_t version);

  const Options options_;
  int32_t wanted_ = 0, wanted_of_beam_ = 0;
  int32_t length_ = 0;  // tokens of beams that run
  int32_t num_running_ = 1, num_arrived_ = 0;
  std::vector<Beam> beams_;
  std::vector<Node> nodes_;
  std::vector<Candidate> candidates_;  // of the step
  std::vector<Candidate> next_;        // that go on
  std::vector<Ended> ended_;           // best first, `width` at most
  std::vector<Move> moves_;
};

}  // namespace coppice
