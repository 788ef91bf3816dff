#include "openai/kept_request.h"

#include <utility>

#include "core/check.h"

namespace coppice::openai {

std::shared_ptr<KeptRequest> KeptRequest::Keep(Request* request) {
  const auto kept = std::make_shared<KeptRequest>();
  std::vector<SampleId> samples;
  for (int32_t i = 0; i < request->n; ++i) samples.push_back({.index = i});
  kept->sampling_ = request->sampling;
  kept->first_ = kept->Add(std::move(samples));
  kept->first_->on_event_ = std::exchange(request->on_event, [kept](const StreamEvent& event) { kept->Report(event); });
  request->keep = true;
  return kept;
}

Result<std::shared_ptr<KeptRequest::Group>> KeptRequest::Fork(Engine& engine, int32_t index, const ForkOptions& options) {
  COPPICE_ASSIGN_OR_RETURN(std::vector<SampleId> children, engine.Fork(sample(index), options));
  NoteSampling(index, options, children);
  const std::lock_guard lock(mutex_);
  return Add(std::move(children));
}

Result<KeptRequest::Extended> KeptRequest::Extend(Engine& engine, int32_t index, std::span<const int32_t> tokens) {
  const std::lock_guard alone(extending_);
  COPPICE_ASSIGN_OR_RETURN(const Extension extension, engine.Extend(sample(index), tokens));
  Extended extended{.num_tokens = extension.num_tokens};
  if (extension.had_ended) {
    const std::lock_guard lock(mutex_);
    extended.group = Add({sample(index)});
  }
  return extended;
}

std::shared_ptr<KeptRequest::Group> KeptRequest::Add(std::vector<SampleId> samples) {
  const auto group = std::make_shared<Group>();
  group->samples_ = std::move(samples);
  group->unfinished_ = std::ssize(group->samples_);
  for (size_t i = 0; i < group->samples_.size(); ++i) {
    const int32_t index = group->samples_[i].index;
    listeners_[index].push_back({.group = group, .place = static_cast<int32_t>(i)});
    const auto early = early_.extract(index);
    if (early.empty()) continue;
    for (const StreamEvent& event : early.mapped()) Report(index, event);
  }
  return group;
}

void KeptRequest::Listen(Group* group, OnEvent on_event) {
  const std::lock_guard lock(mutex_);
  for (const StreamEvent& event : group->unheard_) on_event(event);
  group->unheard_ = {};
  if (group->unfinished_ > 0) group->on_event_ = std::move(on_event);
}

void KeptRequest::NoteSampling(int32_t parent, const ForkOptions& options, std::span<const SampleId> children) {
  const std::lock_guard lock(sampling_mutex_);
  std::shared_ptr<const SamplingParams> sampling;
  if (options.params) {
    sampling = std::make_shared<const SamplingParams>(*options.params);
  } else if (const auto own = own_sampling_.find(parent); own != own_sampling_.end()) {
    sampling = own->second;
  }
  if (!sampling) return;
  for (const SampleId child : children) own_sampling_[child.index] = sampling;
}

SamplingParams KeptRequest::SamplingOf(int32_t index) const {
  const std::lock_guard lock(sampling_mutex_);
  const auto own = own_sampling_.find(index);
  return own == own_sampling_.end() ? sampling_ : *own->second;
}

void KeptRequest::Forget(int32_t index) {
  const std::lock_guard lock(sampling_mutex_);
  own_sampling_.erase(index);
}

void KeptRequest::Report(const StreamEvent& event) {
  const std::lock_guard lock(mutex_);
  if (event.index >= 0) return Report(event.index, event);
  if (first_->on_event_) first_->on_event_(event);
}

void KeptRequest::Report(int32_t index, const StreamEvent& event) {
  const auto found = listeners_.find(index);
  if (found == listeners_.end()) return early_[index].push_back(event);
  Deliver(found->second.front(), event);
  if (!event.finish_reason) return;
  found->second.pop_front();
  if (found->second.empty()) listeners_.erase(found);
}

void KeptRequest::Deliver(const Listener& listener, const StreamEvent& event) {
  Group& group = *listener.group;
  StreamEvent sent = event;
  sent.index = listener.place;
  sent.request_done = event.finish_reason && group.unfinished_ == 1;
  if (group.on_event_) {
    group.on_event_(sent);  // where it throws, the engine reports the sample's end again
  } else {
    group.unheard_.push_back(std::move(sent));
  }
  if (event.finish_reason && --group.unfinished_ == 0) group.on_event_ = nullptr;
}

}  // namespace coppice::openai
