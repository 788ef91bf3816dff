#include "engine/step_events.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace coppice {
namespace {

// Those with a token: a small vocabulary has fewer than were asked for.
void AppendKnown(std::span<const TokenLogprob> top, std::vector<TokenLogprob>* known) {
  std::ranges::copy_if(top, std::back_inserter(*known), [](const TokenLogprob& one) { return one.token >= 0; });
}

// The last scores are those of the prompt's last tokens.
void AddPromptLogprobs(const PromptScores& scores, int32_t prompt_length, StreamEvent* event) {
  const size_t without = static_cast<size_t>(prompt_length) - scores.wanted.size();
  event->prompt_logprobs.resize(without);
  event->prompt_logprobs.insert(event->prompt_logprobs.end(), scores.logprobs.begin(), scores.logprobs.end());
  if (!scores.ranks.empty()) {
    event->prompt_ranks.resize(without);
    event->prompt_ranks.insert(event->prompt_ranks.end(), scores.ranks.begin(), scores.ranks.end());
  }
  if (scores.num_top == 0) return;
  event->prompt_top_logprobs.resize(event->prompt_logprobs.size());
  for (size_t i = 0; i < scores.wanted.size(); ++i) {
    const auto top = std::span(scores.top).subspan(i * scores.num_top, static_cast<size_t>(scores.num_top));
    AppendKnown(top, &event->prompt_top_logprobs[without + i]);
  }
}

void AddScores(const PromptScores& scores, StreamEvent* event) {
  for (size_t i = 0; i < scores.wanted.size(); ++i) {
    const bool greedy = scores.top[i].token >= 0 && scores.logprobs[i] >= scores.top[i].logprob;
    event->prompt_scores.push_back({.logprob = scores.logprobs[i], .greedy = greedy});
  }
}

}  // namespace

void StepEvents::AddPrompt(const RequestState& request) {
  const Request& params = request.params;
  if (!request.has_listener || (request.scores.empty() && !params.prompt_logprobs && !params.echo)) return;
  StreamEvent event{.request = request.id};
  if (params.prompt_logprobs) {
    AddPromptLogprobs(request.scores, request.prompt_length(), &event);
  } else {
    AddScores(request.scores, &event);
  }
  event.begun = request.has_begun();
  event.cached_tokens = std::max(0, request.listener->cached_tokens.load());
  if (params.echo) {
    event.token_ids = params.prompt_ids;
    if (tokenizer_) event.text = PromptText(*tokenizer_, params.prompt_ids);
  }
  emissions_.prompts.push_back(std::move(event));
  emissions_.prompts.back().weight_version = weight_version_;
  emissions_.items.push_back({.listener = request.listener.get(), .prompt = static_cast<int32_t>(emissions_.prompts.size()) - 1});
}

std::string* StepEvents::NewText(Emissions::Item* item) {
  item->text = static_cast<int32_t>(emissions_.texts.size());
  return &emissions_.texts.emplace_back();
}

void StepEvents::SetStatus(Emissions::Item* item, const Status& status) {
  item->status = static_cast<int32_t>(emissions_.statuses.size());
  emissions_.statuses.push_back(status);
}

void StepEvents::SetTopLogprobs(Emissions::Item* item, std::span<const TokenLogprob> top) {
  item->top_begin = static_cast<int32_t>(emissions_.top_logprobs.size());
  AppendKnown(top, &emissions_.top_logprobs);
  item->top_count = static_cast<int32_t>(emissions_.top_logprobs.size()) - item->top_begin;
}

void StepEvents::BeginText(const Sequence& sequence, TextStream text) {
  RequestState& request = *sequence.request;
  if (!request.has_listener) return;
  Emissions::Item item{.listener = request.listener.get(), .index = sequence.index, .weight_version = weight_version_};
  if (!request.has_stops) {
    item.begun_text = static_cast<int32_t>(emissions_.begun_texts.size());
    emissions_.begun_texts.push_back(std::move(text));
    emissions_.items.push_back(std::move(item));
    return;
  }
  if (std::string held = request.listener->BeginText(sequence.index, std::move(text)); !held.empty()) {
    *NewText(&item) = std::move(held);
    emissions_.items.push_back(std::move(item));
  }
}

void StepEvents::EndAll(RequestState* request, const Status& status) {
  if (request->unfinished == 0) return;
  // Memory first.
  emissions_.items.reserve(emissions_.items.size() + static_cast<size_t>(request->unfinished) + 1);
  emissions_.shared_reads.reserve(emissions_.shared_reads.size() + 1);
  done_.reserve(done_.size() + 1);
  emissions_.statuses.push_back(status);
  for (auto& [index, sequence] : request->sequences) {
    sequence.state = Sequence::State::kFinished;
    if (sequence.end_is_written) continue;
    Emissions::Item& item = Begin(sequence);
    item.reason = FinishReason::kError;
    item.status = static_cast<int32_t>(emissions_.statuses.size()) - 1;
    End(sequence);
  }
}

}  // namespace coppice
