#include "python/call.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/check.h"

namespace coppice::python {

Call::Gathered::~Gathered() {
  if (descriptor >= 0) close(descriptor);
}

void Call::Gathered::Announce() const {
  const uint64_t one = 1;
  // It cannot fail but for a count of 2^64 - 1, at which the descriptor can be read all the same.
  if (descriptor >= 0) [[maybe_unused]]
    const ssize_t written = write(descriptor, &one, sizeof one);
}

void Call::Gathered::Add(int32_t request, const StreamEvent& event) {
  const std::lock_guard lock(mutex);
  const bool had_news = has_news();
  if (event.index >= 0) {
    Piece& piece = pieces[{request, event.index}];
    piece.sample.index = event.index;
    piece.sample.Append(event);
    piece.cached_tokens = std::max(piece.cached_tokens, event.cached_tokens);
    piece.weight_version = event.weight_version;
    if (!event.status.ok()) piece.status = event.status;
  }
  if (event.request_done) --unfinished;
  if (had_news || !has_news()) return;
  Announce();
  news.notify_all();
}

Call::Call(std::shared_ptr<SteppedEngine> engine, Delivery delivery) : engine_(std::move(engine)) {
  gathered_->delivery = delivery;
}

Call::~Call() {
  if (!finished()) Cancel();
}

Result<std::unique_ptr<Call>> Call::Submit(std::shared_ptr<SteppedEngine> engine, std::vector<Request> requests,
                                           Delivery delivery) {
  std::unique_ptr<Call> call(new Call(std::move(engine), delivery));
  const bool several = requests.size() > 1;
  call->gathered_->unfinished = requests.size();  // before the first event
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_event = [gathered = call->gathered_, i](const StreamEvent& event) {
      gathered->Add(static_cast<int32_t>(i), event);
    };
    const Result<RequestId> id = call->engine_->With([&](Engine& open) { return open.Submit(std::move(requests[i])); });
    if (!id.ok()) {
      const std::string place = several ? fmt::format("prompts[{}]: ", i) : "";
      return Status(id.status().code(), place + id.status().message());
    }
    call->ids_.push_back(*id);
  }
  return call;
}

Result<bool> Call::Wait(std::chrono::milliseconds timeout) {
  COPPICE_RETURN_IF_ERROR(engine_->CheckUsable());
  std::unique_lock lock(gathered_->mutex);
  return gathered_->news.wait_for(lock, timeout, [&] { return gathered_->has_news(); });
}

Call::Pieces Call::Take() {
  const std::lock_guard lock(gathered_->mutex);
  if (!gathered_->has_news()) return {};
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

void Call::Cancel() {
  for (const RequestId id : ids_) {
    (void)engine_->With([&](Engine& open) { return open.Cancel(id); });  // one that has ended needs no cancelling
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
    if (gathered_->has_news()) gathered_->Announce();
  }
  return gathered_->descriptor;
}

}  // namespace coppice::python
