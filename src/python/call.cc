#include "python/call.h"

#include <fmt/format.h>

#include <new>

#include "core/check.h"

namespace coppice::python {

Call::~Call() {
  if (const Result<bool> finished = Finished(); finished.ok() && !*finished) Cancel();
}

openai::KeptRequest::OnEvent Call::Gather(size_t request) const {
  return [news = news_, announcements = &engine_->announcements(), request](const StreamEvent& event) {
    if (!news->Add(static_cast<int32_t>(request), event)) return;
    try {
      announcements->Add([news] { news->Announce(); });
    } catch (const std::bad_alloc&) {
      news->Announce();
    }
  };
}

Result<std::unique_ptr<Call>> Call::Submit(std::shared_ptr<SteppedEngine> engine, std::vector<Request> requests,
                                           CallNews::Delivery delivery, bool keep) {
  std::unique_ptr<Call> call(new Call(std::move(engine), std::make_shared<CallNews>(delivery, requests.size(), keep)));
  const bool several = requests.size() > 1;
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.on_event = call->Gather(i);
    const int32_t n = request.n;
    const std::shared_ptr<openai::KeptRequest> kept = keep ? openai::KeptRequest::Keep(&request) : nullptr;
    const Result<RequestId> id = call->engine_->With([&](Engine& open) { return open.Submit(std::move(request)); });
    if (!id.ok()) {
      const std::string place = several ? fmt::format("prompts[{}]: ", i) : "";
      return Status(id.status().code(), place + id.status().message());
    }
    call->ids_.push_back(*id);
    if (!kept) continue;
    kept->SetId(*id);
    Kept& samples = call->kept_.emplace_back();
    samples.request = std::make_shared<KeptSamples>(call->engine_, kept);
    for (int32_t sample = 0; sample < n; ++sample) samples.samples.push_back(kept->sample(sample));
  }
  return call;
}

Result<std::unique_ptr<Call>> Call::Fork(const KeptSample& sample, const ForkOptions& options, CallNews::Delivery delivery) {
  COPPICE_ASSIGN_OR_RETURN(const std::shared_ptr<openai::KeptRequest::Group> group, sample.of->engine()->With([&](Engine& open) {
    return sample.of->request().Fork(open, sample.index, options);
  }));
  return Listening(sample, group.get(), delivery);
}

Result<std::unique_ptr<Call>> Call::Extend(const KeptSample& sample, std::span<const int32_t> tokens, CallNews::Delivery delivery) {
  COPPICE_ASSIGN_OR_RETURN(const openai::KeptRequest::Extended extended, sample.of->engine()->With([&](Engine& open) {
    return sample.of->request().Extend(open, sample.index, tokens);
  }));
  if (extended.group) return Listening(sample, extended.group.get(), delivery);
  std::unique_ptr<Call> call = Of(sample, {sample.id()}, std::make_shared<CallNews>(delivery, 0, false));
  call->news_->Add(0, {.index = 0});
  call->news_->Announce();
  return call;
}

std::unique_ptr<Call> Call::Of(const KeptSample& sample, std::vector<SampleId> samples, std::shared_ptr<CallNews> news) {
  std::unique_ptr<Call> call(new Call(sample.of->engine(), std::move(news)));
  call->kept_.push_back({.request = sample.of, .samples = std::move(samples)});
  return call;
}

std::unique_ptr<Call> Call::Listening(const KeptSample& sample, openai::KeptRequest::Group* group, CallNews::Delivery delivery) {
  std::unique_ptr<Call> call = Of(sample, group->samples(), std::make_shared<CallNews>(delivery, 1, true));
  call->ids_.push_back(sample.of->request().id());
  sample.of->request().Listen(group, call->Gather(0));
  call->engine_->announcements().MakeAll();  // of events that had come before, by this thread
  return call;
}

std::optional<KeptSample> Call::SampleOf(const CallNews::Place& place) const {
  if (kept_.empty()) return std::nullopt;
  const Kept& kept = kept_[static_cast<size_t>(place.first)];
  return KeptSample{.of = kept.request, .index = kept.samples[static_cast<size_t>(place.second)].index};
}

Result<bool> Call::Wait(std::chrono::milliseconds timeout) {
  COPPICE_RETURN_IF_ERROR(engine_->CheckUsable());
  return news_->Wait(timeout);
}

Result<bool> Call::Finished() const {
  const Status usable = engine_->CheckUsable();
  // In a forked process the news may be locked by a thread that is not there.
  if ((usable.ok() || engine_->closed()) && news_->finished()) return true;
  COPPICE_RETURN_IF_ERROR(usable);
  return false;
}

std::vector<SampleId> Call::Unfinished(size_t request) const {
  std::vector<SampleId> unfinished;
  const std::vector<SampleId>& samples = kept_[request].samples;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!news_->HasEnded({static_cast<int32_t>(request), static_cast<int32_t>(i)})) unfinished.push_back(samples[i]);
  }
  return unfinished;
}

void Call::Cancel() {
  if (!engine_->CheckUsable().ok()) return;
  for (size_t i = 0; i < ids_.size(); ++i) {
    const std::vector<SampleId> unfinished = kept_.empty() ? std::vector<SampleId>() : Unfinished(i);
    (void)engine_->With([&](Engine& open) -> Status {
      if (kept_.empty()) return open.Cancel(ids_[i]);  // one that has ended needs no cancelling
      for (const SampleId sample : unfinished) (void)open.Prune(sample);
      return OkStatus();
    });
  }
}

Result<int> Call::Descriptor() {
  COPPICE_RETURN_IF_ERROR(engine_->CheckUsable());
  return news_->Descriptor();
}

}  // namespace coppice::python
