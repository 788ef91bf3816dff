#include "engine/draft_gain.h"

#include <algorithm>

namespace coppice {
namespace {

// A round decides alone if one way is this much cheaper.
constexpr double kClearly = 1.15;
// What is kept stays unless the other way is this much cheaper.
constexpr double kBetter = 1.02;
// Times of the median step that a slow one counts as at most.
constexpr double kSlow = 2;

}  // namespace

void DraftGain::Costs::Add(const Step& step) {
  seconds[count++] = step.seconds;
  tokens += step.tokens;
}

double DraftGain::Costs::SecondsPerToken() const {
  auto sorted = seconds;
  const auto middle = sorted.begin() + count / 2;
  std::nth_element(sorted.begin(), middle, sorted.begin() + count);
  double sum = 0;
  for (int32_t i = 0; i < count; ++i) sum += std::min(seconds[i], kSlow * *middle);
  return sum / static_cast<double>(tokens);
}

void DraftGain::Note(const Step& step) {
  if (step.tokens == 0) return;
  State& state = StateOf(step.samples);
  if (state.pause_left > 0) {
    NoteInPause(step, &state);
  } else {
    NoteInTrial(step, &state);
  }
}

void DraftGain::NoteInPause(const Step& step, State* state) {
  --state->pause_left;
  if (state->drafting && step.asked) {
    state->recent.Add(step);
    if (state->recent.count == std::ssize(state->recent.seconds)) {
      if (state->recent.SecondsPerToken() > kBetter * state->without.SecondsPerToken()) state->pause_left = 0;
      state->recent = {};
    }
  }
  if (state->pause_left > 0) return;
  state->block = state->step_of_block = 0;
  state->with_drafts = state->without = state->recent = {};
}

void DraftGain::NoteInTrial(const Step& step, State* state) {
  const bool drafts = NextDrafts(*state);
  if (step.asked != drafts) return;  // launched before the block began
  if (state->step_of_block > 0) (drafts ? state->with_drafts : state->without).Add(step);
  if (++state->step_of_block < BlockSteps(step.samples)) return;
  state->step_of_block = 0;
  ++state->block;
  if (state->block % 2 == 0) EndRound(state);
}

void DraftGain::EndRound(State* state) {
  const double gain = state->without.SecondsPerToken() / state->with_drafts.SecondsPerToken();
  const bool is_clear = gain > kClearly || gain < 1 / kClearly;
  if (!is_clear && state->block < 2 * kRounds) return;
  const bool drafting = state->drafting ? gain > 1 / kBetter : gain > kBetter;
  state->pause = drafting == state->drafting ? std::min(2 * state->pause, kLongestPause) : kShortestPause;
  state->drafting = drafting;
  state->pause_left = state->pause;
}

}  // namespace coppice
