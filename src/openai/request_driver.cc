#include "openai/request_driver.h"

#include <algorithm>
#include <utility>

namespace coppice::openai {

void RequestDriver::Begin(const std::function<void()>& submit) {
  const std::lock_guard lock(mutex_);
  submit();
  EndIfDone();
}

bool RequestDriver::Submit(Request request, std::shared_ptr<KeptRequest>* kept) {
  if (!failure_.ok() || cancelled_) return false;
  // Memory first: what the engine has taken is known here.
  submitted_.emplace_back();
  counts_.emplace_back();
  const size_t place = submitted_.size() - 1;
  request.on_event = [self = shared_from_this(), place](const StreamEvent& event) { self->Take(place, event); };
  if (kept) {
    *kept = KeptRequest::Keep(&request);
    submitted_.back().kept_samples.resize(static_cast<size_t>(std::max(0, request.n)));
  }
  const Result<RequestId> id = engine_.Submit(std::move(request));
  if (id.ok()) {
    Submitted& submitted = submitted_.back();
    submitted.id = *id;
    for (size_t i = 0; i < submitted.kept_samples.size(); ++i)
      submitted.kept_samples[i] = {.request = *id, .index = static_cast<int32_t>(i)};
    if (kept) (*kept)->SetId(*id);
    return true;
  }
  submitted_.pop_back();
  counts_.pop_back();
  refused_ = true;
  Fail(id.status());
  return false;
}

void RequestDriver::TakeOver(KeptRequest& kept, KeptRequest::Group* group, const std::function<void()>& begin) {
  size_t place = 0;
  {
    const std::lock_guard lock(mutex_);
    place = submitted_.size();
    submitted_.push_back({.id = kept.id(), .kept_samples = group->samples()});
    counts_.emplace_back();
    begin();
  }
  kept.Listen(group, [self = shared_from_this(), place](const StreamEvent& event) { self->Take(place, event); });
}

void RequestDriver::Take(size_t request, const StreamEvent& event) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  RequestCounts& counts = counts_[request];
  counts.cached_tokens = std::max(counts.cached_tokens, event.cached_tokens);
  counts.generated_tokens += static_cast<int64_t>(event.token_ids.size()) * (event.index >= 0);  // a prompt's are not generated
  counts.begun |= event.begun;
  counts.cancelled |= event.finish_reason == FinishReason::kCancelled;
  if (event.request_done) counts.shared_reads = event.shared_reads;
  if (event.finish_reason == FinishReason::kError) Fail(event.status);
  OnEvent(request, event);
  if (!event.request_done) return;
  num_done_ += !std::exchange(counts_[request].done, true);
  EndIfDone();
}

void RequestDriver::Cancel() {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  cancelled_ = true;
  CancelSubmitted();
}

void RequestDriver::Abort(Status why) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  if (!why.ok()) return Fail(std::move(why));
  CancelSubmitted();
}

void RequestDriver::AbortRequest(size_t request) {
  const std::lock_guard lock(mutex_);
  if (!ended_ && request < submitted_.size()) CancelRequest(request);
}

void RequestDriver::SetOpen(bool open) {
  open_ = open;
  EndIfDone();
}

void RequestDriver::Fail(Status status) {
  if (!failure_.ok()) return;
  failure_ = std::move(status);
  CancelSubmitted();
}

void RequestDriver::CancelSubmitted() {
  for (size_t i = 0; i < submitted_.size(); ++i) CancelRequest(i);
}

void RequestDriver::CancelRequest(size_t request) {
  if (counts_[request].done) return;
  const Submitted& submitted = submitted_[request];
  for (const SampleId sample : submitted.kept_samples) (void)engine_.Prune(sample);
  if (submitted.kept_samples.empty()) (void)engine_.Cancel(submitted.id);  // one that has ended needs no cancelling
}

void RequestDriver::EndIfDone() {
  if (ended_ || num_done_ < submitted_.size() || (open_ && failure_.ok() && !cancelled_)) return;
  OnEnd();
  ended_ = true;
}

bool RequestDriver::begun() const { return std::ranges::any_of(counts_, &RequestCounts::begun); }

TokenUsage RequestDriver::usage(int64_t prompt_tokens) const {
  TokenUsage usage = {.prompt = prompt_tokens};
  for (const RequestCounts& counts : counts_) usage.Add(counts.usage(0));
  return usage;
}

}  // namespace coppice::openai
