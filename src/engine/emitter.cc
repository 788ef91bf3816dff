#include "engine/emitter.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/exhaustion.h"
#include "core/trace.h"

namespace coppice {
namespace {

// Events in the queue. One costs microseconds, tens with log-probabilities, and those of all requests go out in order: this is how
// long one request's events may wait for what others have generated before.
constexpr size_t kMaxPending = 8192;
constexpr size_t kMostSpare = 16;

}  // namespace

void Emissions::Clear() {
  items.clear();
  texts.clear();
  statuses.clear();
  prompts.clear();
  top_logprobs.clear();
  shared_reads.clear();
  begun_texts.clear();
  retired.clear();
}

std::string Listener::BeginText(int32_t sample, TextStream text) {
  const auto place = static_cast<size_t>(sample);
  if (place >= texts.size()) texts.resize(place + 1);
  std::string held;
  texts[place].Finish(&held);
  texts[place] = std::move(text);
  return held;
}

Emitter::Emitter(bool own_thread, std::function<void()> on_sent) : on_sent_(std::move(on_sent)) {
  spare_.reserve(kMostSpare);
  if (own_thread) thread_ = std::thread([this] { Loop(); });
}

Emitter::~Emitter() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Emitter::Send(Emissions* emissions) {
  if (emissions->empty()) return;
  if (!thread_.joinable()) {
    Process(emissions);
    emissions->Clear();
    return;
  }
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return pending_ < kMaxPending; });
    const size_t sent = emissions->items.size();
    queue_.push_back(std::move(*emissions));
    pending_ += sent;
    if (spare_.empty()) {
      *emissions = {};
    } else {
      *emissions = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  changed_.notify_all();
}

void Emitter::Drain() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
}

double Emitter::seconds() const {
  const std::lock_guard lock(mutex_);
  return seconds_;
}

void Emitter::Loop() {
  std::vector<Emissions> taken;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    taken.swap(queue_);
    busy_ = true;
    for (Emissions& emissions : taken) {
      lock.unlock();
      Process(&emissions);
      const size_t sent = emissions.items.size();
      emissions.Clear();
      lock.lock();
      pending_ -= sent;
      if (spare_.size() < spare_.capacity()) spare_.push_back(std::move(emissions));
    }
    taken.clear();
    busy_ = false;
    changed_.notify_all();
  }
}

void Emitter::Process(Emissions* emissions) {
  TraceSpan span("emit");
  span.Set("events", std::ssize(emissions->items));
  const auto begin = std::chrono::steady_clock::now();
  for (const Emissions::Item& item : emissions->items) {
    const auto try_to = [&](const auto& send) {
      return CatchExhaustion("sending an event", [&] {
        send();
        return OkStatus();
      });
    };
    if (!item.listener->lost_event) {
      if (try_to([&] { Send(*emissions, item); }).ok()) continue;
      item.listener->lost_event = lost_ = true;
    }
    if (item.reason) (void)try_to([&] { SendEnd(item); });
  }
  if (on_sent_ && !emissions->items.empty()) on_sent_();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const std::lock_guard lock(mutex_);
  seconds_ += seconds.count();
}

void Emitter::Send(const Emissions& emissions, const Emissions::Item& item) {
  Listener& listener = *item.listener;
  if (item.prompt >= 0) return listener.on_event(emissions.prompts[item.prompt]);
  event_.text.clear();
  if (item.begun_text >= 0) {
    event_.text = listener.BeginText(item.index, emissions.begun_texts[item.begun_text]);
    if (event_.text.empty()) return;
  }
  event_.request = listener.request;
  event_.index = item.index;
  event_.token_ids.clear();
  event_.logprobs.clear();
  event_.ranks.clear();
  if (item.token >= 0) {
    event_.token_ids.push_back(item.token);
    event_.logprobs.push_back(item.logprob);
    if (item.rank > 0) event_.ranks.push_back(item.rank);
  }
  event_.top_logprobs.resize(item.top_count > 0 ? 1 : 0);
  if (item.top_count > 0) {
    const auto begin = emissions.top_logprobs.begin() + item.top_begin;
    event_.top_logprobs.front().assign(begin, begin + item.top_count);
  }
  if (item.text >= 0) event_.text = emissions.texts[item.text];
  if (!listener.has_stops && static_cast<size_t>(item.index) < listener.texts.size()) {
    TextStream& text = listener.texts[item.index];
    if (item.decodes) text.Push(item.token, /*look_for_stops=*/false, &event_.text);
    if (item.reason) text.Finish(&event_.text);
  }
  event_.begun = listener.begun();
  event_.cached_tokens = std::max(0, listener.cached_tokens.load());
  event_.finish_reason = item.reason;
  event_.stop = item.stop >= 0 ? std::optional(item.stop) : std::nullopt;
  event_.beam_score = item.beam_score;
  event_.request_done = item.request_done;
  event_.weight_version = item.weight_version;
  event_.shared_reads = item.reads >= 0 ? emissions.shared_reads[item.reads] : SharedReads();
  if (item.status >= 0) {
    event_.status = emissions.statuses[item.status];
  } else if (!event_.status.ok()) {  // seldom: a status is a string to assign
    event_.status = OkStatus();
  }
  listener.on_event(event_);
}

void Emitter::SendEnd(const Emissions::Item& item) {
  const Listener& listener = *item.listener;
  listener.on_event({.request = listener.request,
                     .index = item.index,
                     .begun = listener.begun(),
                     .finish_reason = FinishReason::kError,
                     .request_done = item.request_done,
                     .status = ResourceExhausted("out of memory")});  // so short that it takes none
}

}  // namespace coppice
