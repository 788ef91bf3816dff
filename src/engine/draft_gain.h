// Whether drafting saves time, by measurement: what a token costs in steps with drafts and in steps without, compared now and then,
// apart for each size of a step. A draft's saving depends on the text, and the cost of its rows on the device, the model and how
// many samples decode, so a rule from sizes alone is wrong somewhere (docs/engine.md, "When they save time"). Layer: engine.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>

namespace coppice {

// Steps that ask for drafts are measured as they come, those for which nothing can be guessed too: no step is launched ahead of one
// that asks, which costs a GPU's engine time whatever comes of it.
//
// The gain of drafts may be forecast (drafts.h): guesses are compared with the tokens that follow without them. Then a trial waits
// until the forecast promises a gain, and a pause without drafts ends where it promises more than the measured cost of their steps.
//
// Thread-compatible. A trial runs a block of steps with drafts and one without; if neither is clearly cheaper, another of both. The
// cheaper way is kept for a pause that doubles while trials agree, from kShortestPause to kLongestPause steps. The pause ends early
// when drafting, kept, has come to cost more than what the trial saw without.
class DraftGain {
 public:
  static constexpr int32_t kShortestPause = 32, kLongestPause = 512;  // steps
  // Steps of a block. The first settles (a pipeline fills, a draft model catches up) and does not count. A few samples' acceptance
  // in a step says little, so they take more steps.
  static int32_t BlockSteps(int32_t samples) { return 1 + std::clamp(24 / std::max(samples, 1), 3, kMostCounted); }

  // Whether the next step should draft, where about so many samples decode. `promise`: tokens of a sample in a step with drafts, 1
  // or more, where that is forecast.
  bool ShouldDraft(int32_t samples, std::optional<double> promise = {}) const { return NextDrafts(StateOf(samples), promise); }
  // Whether that is settled: nothing is measured until the pause is over.
  bool IsSettled(int32_t samples) const { return StateOf(samples).pause_left > 0; }

  struct Step {
    int32_t samples = 0;  // that ShouldDraft was asked for
    bool asked = false;   // for drafts, whether or not anything could be guessed
    double tokens = 0;    // that it gave, or was worth
    double seconds = 0;
    bool is_first = false;  // of its shape: others will take less
  };
  // A step without prompt rows was committed.
  void Note(const Step& step, std::optional<double> promise = {});

 private:
  static constexpr int32_t kRounds = 2;        // blocks of each way in a trial, at most
  static constexpr int32_t kMostCounted = 8;   // steps of a block
  static constexpr int32_t kMostLeftOut = 32;  // steps of a trial
  // Costs of steps of one way.
  struct Costs {
    std::array<double, kRounds * kMostCounted> seconds{};
    int32_t count = 0;
    double tokens = 0;

    void Add(const Step& step);
    // One slow step, of a shared machine or of a shape that a GPU captures for the first time, counts as two of the median's time.
    double Seconds() const;
    double SecondsPerToken() const { return Seconds() / tokens; }
    double SecondsPerStep() const { return Seconds() / count; }
  };
  // Of steps in which as many samples decode, within a factor of two.
  struct State {
    bool drafting = true;  // the way that is kept
    int32_t pause = kShortestPause / 2;
    int32_t pause_left = 0;  // steps; 0: a trial is on, or waits for a promise
    // Of the trial. Blocks take turns, the first is with drafts.
    int32_t block = 0, step_of_block = 0;
    int32_t left_out = 0;        // steps that were the first of their shape
    Costs with_drafts, without;  // kept through the pause after it
    Costs recent;                // of the pause, where drafts are kept: the last steps
  };

  static bool NextDrafts(const State& state, std::optional<double> promise);
  static void NoteInPause(const Step& step, std::optional<double> promise, State* state);
  static void NoteInTrial(const Step& step, State* state);
  static void EndRound(State* state);
  const State& StateOf(int32_t samples) const { return states_[std::bit_width(static_cast<uint32_t>(samples))]; }
  State& StateOf(int32_t samples) { return states_[std::bit_width(static_cast<uint32_t>(samples))]; }

  std::array<State, 33> states_;  // by the bits of the number of samples
};

}  // namespace coppice
