#include "engine/request_state.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/validate_request.h"
#include "runner/step_batch.h"

namespace coppice {
namespace {

void SetEndIds(const std::vector<int32_t>& eos_ids, RequestState* state) {
  static const std::vector<int32_t> kNone;
  const Request& params = state->params;
  if (params.stop_token_ids.empty()) {
    state->end_ids = params.ignore_eos ? &kNone : &eos_ids;
    return;
  }
  state->own_end_ids = params.stop_token_ids;
  if (!params.ignore_eos) state->own_end_ids.insert(state->own_end_ids.end(), eos_ids.begin(), eos_ids.end());
  state->end_ids = &state->own_end_ids;
}

void SetScores(RequestState* state) {
  PromptScores& scores = state->scores;
  const Request& params = state->params;
  if (params.prompt_logprobs) {
    for (int32_t i = std::max(0, params.prompt_logprobs_begin - 1); i + 1 < state->prompt_length(); ++i)
      scores.wanted.push_back({.position = i, .token = params.prompt_ids[i + 1]});
    scores.num_top = params.prompt_top_logprobs.value_or(params.top_logprobs);
    if (params.ranks) scores.ranks.resize(scores.wanted.size());
    const SamplingParams& sampling = params.sampling;
    if (sampling.logprobs_mode == LogprobsMode::kProcessed && sampling.temperature > 0) scores.temperature = sampling.temperature;
  } else if (!params.prompt_scores.empty()) {
    scores.wanted = std::move(state->params.prompt_scores);
    scores.num_top = 1;  // is it the one in question?
  }
  scores.logprobs.resize(scores.wanted.size());
  scores.top.resize(scores.wanted.size() * scores.num_top);
}

std::unique_ptr<Listener> MakeListener(Request* params, const Tokenizer* tokenizer) {
  auto listener = std::make_unique<Listener>();
  listener->on_event = std::move(params->on_event);
  listener->has_stops = !params->stop.empty();
  listener->visible_tokens = std::move(params->visible_tokens);
  listener->texts.resize(params->n);
  for (TextStream& text : listener->texts) text = TextStream(tokenizer, params->stop, listener->visible_tokens);
  return listener;
}

// Events are those of the first n sequences alone.
void AddBeams(RequestState* state) {
  const Request& params = state->params;
  state->beams = std::make_unique<BeamSearch>(
      BeamSearch::Options{.beams = params.beams, .n = params.n, .max_tokens = params.max_tokens, .end_ids = state->end_ids});
  for (int32_t i = 0; i < params.beams.width; ++i) state->AddSequence()->end_is_written = i >= params.n;
  state->unfinished = params.n;
}

}  // namespace

RequestPtr MakeRequest(Request params, const std::vector<int32_t>& eos_ids, const Tokenizer* tokenizer,
                       std::pmr::memory_resource* memory) {
  using Clock = RequestState::Clock;
  RequestPtr state(std::pmr::polymorphic_allocator<>(memory).new_object<RequestState>(memory), DeleteRequest{memory});
  if (params.timeout_seconds > 0) {
    const std::chrono::duration<double> timeout(params.timeout_seconds);
    state->deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
  }
  if (params.sampling.temperature < kSmallestTemperature) params.sampling.temperature = 0;
  state->params = std::move(params);
  SetEndIds(eos_ids, state.get());
  state->top_logprobs = static_cast<uint8_t>(state->params.top_logprobs);
  state->wants_ranks = state->params.ranks;
  state->has_constraint = state->params.constraint != nullptr;
  SetScores(state.get());
  state->listener = MakeListener(&state->params, tokenizer);  // its texts look for the stop strings of state->params
  state->has_listener = state->listener->on_event != nullptr;
  state->has_stops = state->listener->has_stops;
  std::shared_ptr<SharedConstraint> constraint;
  if (state->has_constraint) constraint = std::make_shared<SharedConstraint>(state->params.constraint->Begin());
  if (state->params.beams.width > 0 && state->params.max_tokens > 0) {
    AddBeams(state.get());
  } else {
    for (int32_t i = 0; i < state->params.n; ++i) state->AddSequence()->constraint = constraint;
  }
  return state;
}

Status UnknownRequest(RequestId id) {
  return NotFound("request " + std::to_string(static_cast<uint64_t>(id)) + " is not known or is done already");
}

Sequence* RequestState::AddSequence() {
  Sequence& sequence = sequences[next_index];
  ++unfinished;
  sequence.request = this;
  sequence.index = sequence.stream = next_index++;
  sequence.limit = params.max_tokens;
  sequence.has_penalties = HasPenalties(params.sampling);
  return &sequence;
}

}  // namespace coppice
