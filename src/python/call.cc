#include "python/call.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "core/check.h"

namespace coppice::python {

Call::Gathered::~Gathered() {
  if (descriptor >= 0) close(descriptor);
}

void Call::Gathered::Wake() const {
  const uint64_t one = 1;
  // It cannot fail but for a count of 2^64 - 1, at which the descriptor can be read all the same.
  if (descriptor >= 0) [[maybe_unused]]
    const ssize_t written = write(descriptor, &one, sizeof one);
}

bool Call::Gathered::Add(int32_t request, const StreamEvent& event) {
  const std::lock_guard lock(mutex);
  if (event.index >= 0) {
    Piece& piece = pieces[{request, event.index}];
    piece.sample.index = event.index;
    piece.sample.Append(event);
    piece.cached_tokens = std::max(piece.cached_tokens, event.cached_tokens);
    piece.weight_version = event.weight_version;
    if (!event.status.ok()) piece.status = event.status;
    if (keeps && event.finish_reason) ended.emplace(request, event.index);
  }
  if (event.request_done) --unfinished;
  const bool is_news = unfinished == 0 || (delivery == Delivery::kPieces && !pieces.empty());
  return is_news && !std::exchange(announcing, true);
}

void Call::Gathered::Announce() {
  const std::lock_guard lock(mutex);
  announcing = false;
  announced = true;
  if (!has_news()) return;  // what the step brought was taken before its end
  Wake();
  news.notify_all();
}

Call::Call(std::shared_ptr<SteppedEngine> engine, Delivery delivery) : engine_(std::move(engine)) {
  gathered_->delivery = delivery;
}

Call::~Call() {
  if (!finished()) Cancel();
}

openai::KeptRequest::OnEvent Call::Gather(size_t request) const {
  return [gathered = gathered_, announcements = &engine_->announcements(), request](const StreamEvent& event) {
    if (!gathered->Add(static_cast<int32_t>(request), event)) return;
    try {
      announcements->Add([gathered] { gathered->Announce(); });
    } catch (const std::bad_alloc&) {
      gathered->Announce();
    }
  };
}

Result<std::unique_ptr<Call>> Call::Submit(std::shared_ptr<SteppedEngine> engine, std::vector<Request> requests, Delivery delivery,
                                           bool keep) {
  std::unique_ptr<Call> call(new Call(std::move(engine), delivery));
  const bool several = requests.size() > 1;
  call->gathered_->unfinished = requests.size();  // before the first event
  call->gathered_->keeps = keep;
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

Result<std::unique_ptr<Call>> Call::Fork(const KeptSample& sample, const ForkOptions& options, Delivery delivery) {
  COPPICE_ASSIGN_OR_RETURN(const std::shared_ptr<openai::KeptRequest::Group> group, sample.of->engine()->With([&](Engine& open) {
    return sample.of->request().Fork(open, sample.index, options);
  }));
  return Listening(sample, group.get(), delivery);
}

Result<std::unique_ptr<Call>> Call::Extend(const KeptSample& sample, std::span<const int32_t> tokens, Delivery delivery) {
  COPPICE_ASSIGN_OR_RETURN(const openai::KeptRequest::Extended extended, sample.of->engine()->With([&](Engine& open) {
    return sample.of->request().Extend(open, sample.index, tokens);
  }));
  if (extended.group) return Listening(sample, extended.group.get(), delivery);
  std::unique_ptr<Call> call = Of(sample, {sample.id()}, delivery);
  call->gathered_->pieces[{0, 0}];
  call->gathered_->announced = true;
  return call;
}

std::unique_ptr<Call> Call::Of(const KeptSample& sample, std::vector<SampleId> samples, Delivery delivery) {
  std::unique_ptr<Call> call(new Call(sample.of->engine(), delivery));
  call->kept_.push_back({.request = sample.of, .samples = std::move(samples)});
  return call;
}

std::unique_ptr<Call> Call::Listening(const KeptSample& sample, openai::KeptRequest::Group* group, Delivery delivery) {
  std::unique_ptr<Call> call = Of(sample, group->samples(), delivery);
  call->gathered_->unfinished = 1;
  call->gathered_->keeps = true;
  call->ids_.push_back(sample.of->request().id());
  sample.of->request().Listen(group, call->Gather(0));
  call->engine_->announcements().MakeAll();  // of events that had come before, and are told by this thread
  return call;
}

std::optional<KeptSample> Call::SampleOf(const std::pair<int32_t, int32_t>& place) const {
  if (kept_.empty()) return std::nullopt;
  const Kept& kept = kept_[static_cast<size_t>(place.first)];
  return KeptSample{.of = kept.request, .index = kept.samples[static_cast<size_t>(place.second)].index};
}

Result<bool> Call::Wait(std::chrono::milliseconds timeout) {
  COPPICE_RETURN_IF_ERROR(engine_->CheckUsable());
  std::unique_lock lock(gathered_->mutex);
  return gathered_->news.wait_for(lock, timeout, [&] { return gathered_->has_news(); });
}

Call::Pieces Call::Take() {
  const std::lock_guard lock(gathered_->mutex);
  if (!gathered_->has_news()) return {};
  gathered_->announced = false;
  if (gathered_->descriptor >= 0 && gathered_->unfinished > 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(gathered_->descriptor, &count, sizeof count);
  }
  return std::exchange(gathered_->pieces, {});
}

bool Call::finished() const {
  if (!engine_->CheckUsable().ok()) return true;
  const std::lock_guard lock(gathered_->mutex);
  return gathered_->unfinished == 0 && gathered_->pieces.empty();
}

std::vector<SampleId> Call::Unfinished(size_t request) const {
  std::vector<SampleId> unfinished;
  const std::lock_guard lock(gathered_->mutex);
  const std::vector<SampleId>& samples = kept_[request].samples;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!gathered_->ended.contains({static_cast<int32_t>(request), static_cast<int32_t>(i)})) unfinished.push_back(samples[i]);
  }
  return unfinished;
}

void Call::Cancel() {
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
  const std::lock_guard lock(gathered_->mutex);
  if (gathered_->descriptor < 0) {
    gathered_->descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (gathered_->descriptor < 0) {
      return Status(StatusCode::kResourceExhausted, fmt::format("eventfd: {}", std::strerror(errno)));
    }
    if (gathered_->has_news()) gathered_->Wake();
  }
  return gathered_->descriptor;
}

}  // namespace coppice::python
