#include "engine/step_events.h"

#include <utility>

namespace coppice {

void StepEvents::AddPrompt(const RequestState& request) {
  if (!request.has_listener || (request.prompt_logprobs.empty() && !request.params.echo)) return;
  StreamEvent event{.request = request.id, .prompt_logprobs = request.prompt_logprobs};
  if (request.params.echo) {
    event.token_ids = request.params.prompt_ids;
    if (tokenizer_) event.text = PromptText(*tokenizer_, request.params.prompt_ids);
  }
  emissions_.items.push_back({.listener = request.listener.get(), .prompt = static_cast<int32_t>(emissions_.prompts.size())});
  emissions_.prompts.push_back(std::move(event));
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
  for (const TokenLogprob& one : top) {
    if (one.token >= 0) emissions_.top_logprobs.push_back(one);
  }
  item->top_count = static_cast<int32_t>(emissions_.top_logprobs.size()) - item->top_begin;
}

}  // namespace coppice
