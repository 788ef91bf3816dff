#include "engine/beams.h"

#include <algorithm>
#include <span>
#include <string>

namespace coppice {

std::vector<RequestState*> Beams::Commit(const ScheduledBatch& batch, const StepResult& result) {
  std::vector<RequestState*> without_distribution;
  for (size_t s = 0; s < batch.selecting.size(); ++s) {
    RequestState* const request = batch.selecting[s];
    if (request->unfinished == 0) continue;  // it ended while this step was under way
    const Selection& selection = batch.step.selections[s];
    const auto beams = std::span(batch.step.beams).subspan(selection.beam_begin, selection.beam_count);
    if (std::ranges::any_of(beams, [&](const Beam& beam) { return result.draws[beam.draw].token == kNoDistribution; })) {
      without_distribution.push_back(request);
      continue;
    }
    Add(batch, result, s);
    if (request->beams->all_arrived()) Advance(request);
  }
  return without_distribution;
}

void Beams::Add(const ScheduledBatch& batch, const StepResult& result, size_t selection) {
  const Selection& of = batch.step.selections[selection];
  RequestState& request = *batch.selecting[selection];
  for (const int32_t beam : std::span(batch.beams).subspan(of.beam_begin, of.beam_count)) {
    request.sequences.at(beam).draws_under_way = 0;
    request.beams->NoteArrived(beam);
    ++totals_.generated_tokens;
  }
  candidates_.clear();
  for (const SelectedToken& one : result.selected.subspan(of.selected_begin, of.wanted)) {
    if (one.beam < 0) break;
    candidates_.push_back({.beam = batch.beams[one.beam], .token = one.token, .logprob = one.logprob, .score = one.score});
  }
  request.beams->Add(candidates_);
}

void Beams::Advance(RequestState* request) {
  request->forked = true;
  const std::span<const BeamSearch::Move> moves = request->beams->Advance(events_.weight_version());
  if (moves.empty()) return End(request);
  goes_on_.assign(request->sequences.size(), false);
  for (const auto& [beam, parent, token] : moves) goes_on_[beam] = goes_on_[beam] || beam == parent;
  for (auto& [index, sequence] : request->sequences) {
    if (!goes_on_[index]) scheduler_.DropBeam(&sequence);
  }
  scheduler_.RemoveStopped();
  for (const auto& [beam, parent, token] : moves) {  // while the others have what their children begin with
    if (beam != parent) scheduler_.ForkBeam(&request->sequences.at(beam), request->sequences.at(parent), token);
  }
  for (const auto& [beam, parent, token] : moves) {
    if (beam == parent) scheduler_.ExtendBeam(&request->sequences.at(beam), token);
  }
}

void Beams::End(RequestState* request) {
  const std::vector<BeamSearch::Output> outputs = request->beams->Outputs();
  for (int32_t i = 0; i < request->params.n; ++i) {
    Sequence& sequence = request->sequences.at(i);
    if (sequence.end_is_written) continue;  // it was pruned
    if (std::cmp_greater_equal(i, outputs.size())) {
      Emissions::Item& item = events_.Begin(sequence);
      item.reason = FinishReason::kError;
      events_.SetStatus(&item, InvalidArgument("the beams found " + std::to_string(outputs.size()) + " outputs and n is " +
                                               std::to_string(request->params.n) + ": ask for fewer"));
      events_.End(sequence);
      continue;
    }
    const BeamSearch::Output& output = outputs[i];
    for (size_t t = 0; t < output.tokens.size(); ++t) {
      const bool is_last = t + 1 == output.tokens.size();
      Emissions::Item& item = events_.Begin(sequence);
      item.token = output.tokens[t];
      item.logprob = output.logprobs[t];
      item.weight_version = output.versions[t];
      item.decodes = !is_last || output.reason != FinishReason::kStop;  // the token that ends an output is no part of its text
      if (is_last) {
        item.reason = output.reason;
        item.beam_score = static_cast<float>(output.score);
      }
      events_.End(sequence);
    }
  }
  for (auto& [index, sequence] : request->sequences) scheduler_.Finish(&sequence);
}

}  // namespace coppice
