#include "engine/samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "runner/step_batch.h"

namespace coppice {
namespace {

int32_t GeneratedBy(const Sequence& sequence) { return static_cast<int32_t>(sequence.generated.size()); }

// Tokens with which a sample ends that goes on from the first `kept` ones of another.
int64_t LimitAfter(const Sequence& sequence, int64_t kept) {
  return sequence.state == Sequence::State::kFinished ? kept + sequence.request->params.max_tokens : sequence.limit;
}

int32_t Clamp(int64_t limit) { return static_cast<int32_t>(std::min<int64_t>(limit, std::numeric_limits<int32_t>::max())); }

std::shared_ptr<const SamplingParams> SamplingOf(const Sequence& parent, const ForkOptions& options) {
  if (!options.params && !options.seed) return parent.own_sampling;
  auto sampling = std::make_shared<SamplingParams>(options.params.value_or(parent.sampling()));
  sampling->seed = options.seed.value_or(parent.sampling().seed);
  if (sampling->temperature < kSmallestTemperature) sampling->temperature = 0;
  return sampling;
}

}  // namespace

Result<Sequence*> Samples::Find(RequestState* request, int32_t index) {
  const auto found = request->sequences.find(index);
  const auto name = [&] { return fmt::format("sample {} of request {}", index, static_cast<uint64_t>(request->id)); };
  if (found == request->sequences.end() || found->second.pruned)
    return NotFound(name() + " is not known: it was pruned, or there never was one");
  if (request->params.beams.width > 0)
    return FailedPrecondition(name() + " is an output of a beam search, which alone forks and extends its beams");
  Sequence* const sequence = &found->second;
  if (sequence->state == Sequence::State::kFinished && !request->params.keep)
    return FailedPrecondition(name() + " has ended and is not kept: submit the request with keep");
  return sequence;
}

Result<std::shared_ptr<SharedConstraint>> Samples::ConstraintAfter(const Sequence& sequence, int32_t kept) {
  const RequestState& request = *sequence.request;
  if (!request.has_constraint) return std::shared_ptr<SharedConstraint>();
  if (sequence.constraint != nullptr && kept == GeneratedBy(sequence)) return sequence.constraint;
  auto after = std::make_shared<SharedConstraint>(request.params.constraint->Begin());
  for (; after->accepted < kept; ++after->accepted) {
    const int32_t token = sequence.generated[after->accepted];
    if (const Status status = after->state->Accept(token); !status.ok()) {
      return InvalidArgument(
          fmt::format("the constraint does not go on behind token {} of the sample, which is {}: fork it with "
                      "keep_tokens {} at most ({})",
                      after->accepted, token, after->accepted, status.message()));
    }
  }
  return after;
}

Result<std::shared_ptr<SharedConstraint>> Samples::ConstraintAfter(const Sequence& sequence,
                                                                   std::span<const int32_t> tokens) const {
  COPPICE_ASSIGN_OR_RETURN(const std::shared_ptr<SharedConstraint> before, ConstraintAfter(sequence, GeneratedBy(sequence)));
  if (before == nullptr) return before;
  auto after = std::make_shared<SharedConstraint>(before->state->Clone(), before->accepted);
  for (; after->accepted < GeneratedBy(sequence); ++after->accepted)
    COPPICE_RETURN_IF_ERROR(after->state->Accept(sequence.generated[after->accepted]));
  std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(limits_.vocab_size)));
  for (size_t i = 0; i < tokens.size(); ++i) {
    COPPICE_RETURN_IF_ERROR(after->state->FillMask(mask).status());
    if ((mask[tokens[i] / 32] >> tokens[i] % 32 & 1) == 0)
      return InvalidArgument(fmt::format("tokens[{}] is {}, which the constraint does not allow there", i, tokens[i]));
    COPPICE_RETURN_IF_ERROR(after->state->Accept(tokens[i]));
    ++after->accepted;
  }
  return after;
}

TextStream Samples::TextAfter(const Sequence& sequence, int32_t begin, int32_t end) const {
  const RequestState& request = *sequence.request;
  TextStream text(tokenizer_, request.params.stop, request.listener->visible_tokens);
  std::string text_so_far;
  for (int32_t i = begin; i < end; ++i) {
    text.Push(sequence.generated[i], /*look_for_stops=*/true, &text_so_far);
    text_so_far.clear();
  }
  return text;
}

Result<std::vector<SampleId>> Samples::Fork(RequestState* request, int32_t index, const ForkOptions& options) {
  COPPICE_ASSIGN_OR_RETURN(Sequence* const parent, Find(request, index));
  const int32_t kept = options.keep_tokens.value_or(GeneratedBy(*parent));
  const int64_t limit = options.max_tokens ? int64_t{kept} + *options.max_tokens : LimitAfter(*parent, kept);
  COPPICE_RETURN_IF_ERROR(
      ValidateFork(options, request->params, {.generated = GeneratedBy(*parent), .kept = kept, .limit = limit}, limits_));
  COPPICE_ASSIGN_OR_RETURN(const std::shared_ptr<SharedConstraint> constraint, ConstraintAfter(*parent, kept));
  const std::shared_ptr<const SamplingParams> sampling = SamplingOf(*parent, options);
  const int32_t text_begin = parent->text_begin <= kept ? parent->text_begin : 0;
  const TextStream text = TextAfter(*parent, text_begin, kept);
  const std::vector<int32_t> generated(parent->generated.begin(), parent->generated.begin() + kept);
  std::vector<SampleId> children;
  children.reserve(static_cast<size_t>(options.n));
  for (int32_t i = 0; i < options.n; ++i) {
    Sequence* const child = request->AddSequence();
    child->generated = generated;
    child->indexed = std::min(parent->indexed, request->prompt_length() + kept);  // its parent's text is there
    child->limit = Clamp(limit);
    if (options.seed) child->stream = i;
    child->own_sampling = sampling;
    child->has_penalties = HasPenalties(child->sampling());
    child->constraint = constraint;
    child->text_begin = text_begin;
    events_.BeginText(*child, text);
    scheduler_.BeginChild(child, *parent);
    children.push_back({.request = request->id, .index = child->index});
  }
  return children;
}

Result<Extension> Samples::Extend(RequestState* request, int32_t index, std::span<const int32_t> tokens) {
  COPPICE_ASSIGN_OR_RETURN(Sequence* const sequence, Find(request, index));
  if (sequence->state == Sequence::State::kPending || request->computes_prompt()) {
    return FailedPrecondition("the prompt of request " + std::to_string(static_cast<uint64_t>(request->id)) +
                              " is not computed yet: extend its samples once they have tokens");
  }
  const int64_t length = GeneratedBy(*sequence), limit = LimitAfter(*sequence, length);
  COPPICE_RETURN_IF_ERROR(
      ValidateExtension(tokens, request->params, {.generated = length, .kept = length, .limit = limit}, limits_));
  COPPICE_ASSIGN_OR_RETURN(std::shared_ptr<SharedConstraint> constraint, ConstraintAfter(*sequence, tokens));
  const bool ended = sequence->state == Sequence::State::kFinished;
  sequence->generated.insert(sequence->generated.end(), tokens.begin(), tokens.end());
  sequence->limit = Clamp(limit + std::ssize(tokens));
  sequence->constraint = std::move(constraint);
  sequence->text_begin = GeneratedBy(*sequence);
  sequence->draws_under_way = 0;  // it may have ended while a step was under way
  sequence->draft.Clear();
  sequence->draft_record = {};
  if (ended) {
    sequence->end_is_written = false;
    ++request->unfinished;
  }
  events_.BeginText(*sequence, TextAfter(*sequence, sequence->text_begin, sequence->text_begin));
  scheduler_.Requeue(sequence);
  return Extension{.had_ended = ended, .num_tokens = request->prompt_length() + GeneratedBy(*sequence)};
}

void Samples::Prune(RequestState* request, int32_t index) {
  const auto found = request->sequences.find(index);
  if (found == request->sequences.end()) return;
  Sequence& sequence = found->second;
  if (request->beams != nullptr) {  // beams go on for the other outputs
    if (!sequence.end_is_written) committer_.WriteEnd(&sequence, FinishReason::kCancelled, OkStatus());
    if (request->unfinished == 0) committer_.EndRequest(request, FinishReason::kCancelled, OkStatus());
    return scheduler_.RemoveStopped();
  }
  if (index == 0 && request->computes_prompt()) {  // it goes on for the others
    if (!sequence.end_is_written) committer_.WriteEnd(&sequence, FinishReason::kCancelled, OkStatus());
    sequence.pruned = true;
  } else {
    committer_.EndSample(&sequence, FinishReason::kCancelled, OkStatus());
    scheduler_.RemoveStopped();
    request->sequences.erase(found);
  }
  const auto is_gone = [](const auto& entry) { return entry.second.pruned; };
  const auto does_not_need_it = [&](const auto& entry) { return entry.second.pruned || !request->BeginsWithPrompt(entry.second); };
  if (request->computes_prompt() && std::ranges::all_of(request->sequences, does_not_need_it)) {
    committer_.EndSample(&request->sequences.begin()->second, FinishReason::kCancelled, OkStatus());
    scheduler_.BeginPending(request);
  }
  if (request->params.keep && std::ranges::all_of(request->sequences, is_gone)) events_.Forget(request);
}

void Samples::Release(RequestState* request) {
  if (!request->params.keep) return;
  if (request->unfinished == 0) {
    events_.Forget(request);
  } else {
    request->params.keep = false;
  }
}

Result<SampleInfo> Samples::Describe(RequestState* request, int32_t index) const {
  COPPICE_ASSIGN_OR_RETURN(const Sequence* const sequence, Find(request, index));
  SampleInfo info{.prompt_tokens = request->prompt_length(),
                  .token_ids = request->params.prompt_ids,
                  .finished = sequence->state == Sequence::State::kFinished};
  info.token_ids.insert(info.token_ids.end(), sequence->generated.begin(), sequence->generated.end());
  return info;
}

}  // namespace coppice
