// Whether drafting pays, by measurement: what a token costs in steps with drafts and in steps without, compared now and then, apart
// for each size of a step. What a draft saves depends on the text, and what its rows cost on the device, the model and how many
// samples decode, so a rule from sizes alone is wrong somewhere (docs/engine.md, "When they pay").
// Layer: engine.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace coppice {

// Steps that ask for drafts are measured as they come, those for which nothing can be guessed too: no step is launched ahead of one
// that asks, which costs a GPU's engine time whatever comes of it.
//
// Thread-compatible. A trial runs a block of steps with drafts and one without; if neither is clearly cheaper, another of both. The
// cheaper way is kept for a pause that doubles while trials agree, from kShortestPause to kLongestPause steps. The pause ends early
// when drafting, kept, has come to cost more than what the trial saw without.
class DraftGain {
 public:
  static constexpr int32_t kShortestPause = 32, kLongestPause = 512;  // steps
  // Steps of a block. The first settles (a pipeline fills, a draft model catches up) and does not count. What few samples accept in
  // a step says little, so they take more steps.
  static int32_t BlockSteps(int32_t samples) { return 1 + std::clamp(24 / std::max(samples, 1), 3, kMostCounted); }

  // Whether the next step should draft, where about so many samples decode.
  bool ShouldDraft(int32_t samples) const { return NextDrafts(StateOf(samples)); }
  // Whether that is settled: nothing is measured until the pause is over.
  bool IsSettled(int32_t samples) const { return StateOf(samples).pause_left > 0; }

  struct Step {
    int32_t samples = 0;  // that ShouldDraft was asked for
    bool asked = false;   // for drafts, whether or not anything could be guessed
    int32_t tokens = 0;   // that it gave
    double seconds = 0;
  };
  // A step without prompt rows was committed.
  void Note(const Step& step);

 private:
  static constexpr int32_t kRounds = 2;       // blocks of each way in a trial, at most
  static constexpr int32_t kMostCounted = 8;  // steps of a block
  // What steps of one way cost.
  struct Costs {
    std::array<double, kRounds * kMostCounted> seconds{};
    int32_t count = 0;
    int64_t tokens = 0;

    void Add(const Step& step);
    // One slow step, of a shared machine or of a shape that a GPU captures for the first time, counts as two of the median's time.
    double SecondsPerToken() const;
  };
  // Of steps in which as many samples decode, within a factor of two.
  struct State {
    bool drafting = true;  // the way that is kept
    int32_t pause = kShortestPause / 2;
    int32_t pause_left = 0;  // steps; 0: a trial is on
    // Of the trial. Blocks take turns, the first is with drafts.
    int32_t block = 0, step_of_block = 0;
    Costs with_drafts, without;
    Costs recent;  // of the pause, where drafts are kept: the last steps
  };

  static bool NextDrafts(const State& state) { return state.pause_left > 0 ? state.drafting : state.block % 2 == 0; }
  static void NoteInPause(const Step& step, State* state);
  static void NoteInTrial(const Step& step, State* state);
  static void EndRound(State* state);
  const State& StateOf(int32_t samples) const { return states_[std::bit_width(static_cast<uint32_t>(samples))]; }
  State& StateOf(int32_t samples) { return states_[std::bit_width(static_cast<uint32_t>(samples))]; }

  std::array<State, 33> states_;  // by the bits of the number of samples
};

}  // namespace coppice
