#include "engine/draft_gain.h"

#include <algorithm>

namespace coppice {
namespace {

// A round decides alone if one way is this much cheaper.
constexpr double kClearly = 1.15;
// The current way stays unless the other one is this much cheaper.
constexpr double kBetter = 1.02;
// A pause without drafts ends where the forecast is so much better than what they cost, after so many steps.
constexpr double kPromises = 1.1;
constexpr int32_t kLeastPause = DraftGain::kShortestPause / 2;
// Times of the median step that a slow one counts as at most.
constexpr double kSlow = 2;

}  // namespace

void DraftGain::Costs::Add(const Step& step) {
  seconds[count++] = step.seconds;
  tokens += step.tokens;
}

double DraftGain::Costs::Seconds() const {
  auto sorted = seconds;
  const auto middle = sorted.begin() + count / 2;
  std::nth_element(sorted.begin(), middle, sorted.begin() + count);
  double sum = 0;
  for (int32_t i = 0; i < count; ++i) sum += std::min(seconds[i], kSlow * *middle);
  return sum;
}

bool DraftGain::NextDrafts(const State& state, std::optional<double> promise) {
  if (state.pause_left > 0) return state.drafting;
  const bool begins = state.block == 0 && state.step_of_block == 0;
  if (begins && promise && *promise < kBetter) return false;
  return state.block % 2 == 0;
}

void DraftGain::Note(const Step& step, std::optional<double> promise) {
  if (step.tokens == 0) return;
  State& state = StateOf(step.samples);
  if (state.pause_left > 0) {
    NoteInPause(step, promise, &state);
  } else {
    NoteInTrial(step, &state);
  }
}

void DraftGain::NoteInPause(const Step& step, std::optional<double> promise, State* state) {
  --state->pause_left;
  if (!state->drafting && promise && state->pause - state->pause_left >= kLeastPause) {
    const double cost = state->with_drafts.SecondsPerStep() / state->without.SecondsPerStep();  // in steps without
    if (*promise > kPromises * cost) state->pause_left = 0;
  }
  if (state->drafting && step.asked && !step.is_first) {
    state->recent.Add(step);
    if (state->recent.count == std::ssize(state->recent.seconds)) {
      if (state->recent.SecondsPerToken() > kBetter * state->without.SecondsPerToken()) state->pause_left = 0;
      state->recent = {};
    }
  }
  if (state->pause_left > 0) return;
  state->block = state->step_of_block = state->left_out = 0;
  state->with_drafts = state->without = state->recent = {};
}

void DraftGain::NoteInTrial(const Step& step, State* state) {
  const bool drafts = state->block % 2 == 0;
  if (step.asked != drafts) return;  // launched before the block began, or before anything was promised
  if (step.is_first && state->left_out++ < kMostLeftOut) return;
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
