#include "server/sample_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/random_bytes.h"

namespace coppice::server {

SampleStore::SampleStore(Engine* engine, SampleStoreOptions options)
    : engine_(*engine), options_(options), worker_([this](const std::stop_token& stop) { Work(stop); }) {}

SampleStore::~SampleStore() {
  worker_.request_stop();
  worker_.join();
}

Status SampleStore::CheckSeconds(double seconds) const {
  if (seconds > 0 && seconds <= options_.max_seconds) return OkStatus();
  return InvalidArgument(
      fmt::format("keep is {}, expected seconds above 0, at most {} (--max-keep)", seconds, options_.max_seconds));
}

Result<std::shared_ptr<SampleStore::Generated>> SampleStore::Reserve(const std::string& key, int64_t count, double seconds) {
  COPPICE_RETURN_IF_ERROR(CheckSeconds(seconds));
  if (count > options_.max_per_key) {
    return InvalidArgument(
        fmt::format("{} samples are to be kept, and the server keeps {} of an API key (--max-kept); ask for fewer", count,
                    options_.max_per_key));
  }
  auto generated = std::make_shared<Generated>(weak_from_this(), seconds);
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find(key);
  const int64_t kept = found == counts_.end() ? 0 : found->second;
  if (kept + count > options_.max_per_key) {
    return Status(StatusCode::kResourceExhausted,
                  fmt::format("{} samples of this API key are kept, and the server keeps {} of one (--max-kept); delete some, or "
                              "send this again later",
                              kept, options_.max_per_key));
  }
  for (int64_t i = 0; i < count; ++i) {
    generated->names_.push_back("smp-" + RandomHex(16));
    entries_[generated->names_.back()].key = key;
    ++counts_[key];
  }
  return generated;
}

std::shared_ptr<SampleStore::Generated> SampleStore::Resume(const std::string& name, double seconds) {
  auto generated = std::make_shared<Generated>(weak_from_this(), seconds);
  generated->names_.push_back(name);
  const std::lock_guard lock(mutex_);
  if (const auto found = entries_.find(name); found != entries_.end()) {
    found->second.expires.reset();
    ++found->second.answers;
  }
  return generated;
}

void SampleStore::Generated::Begin(size_t first, const std::shared_ptr<openai::KeptRequest>& request,
                                   std::span<const SampleId> samples, const std::string& salt,
                                   const std::shared_ptr<const openai::OpenAiRequest>& form) {
  const std::shared_ptr<SampleStore> store = store_.lock();
  if (store == nullptr) return;
  const std::lock_guard lock(store->mutex_);
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto found = store->entries_.find(names_[first + i]);
    if (found == store->entries_.end()) continue;
    Entry& entry = found->second;
    entry.salt = salt;
    entry.request = request;
    entry.index = samples[i].index;
    entry.form = form;
    entry.seconds = seconds_;
  }
}

void SampleStore::Generated::End(bool keep) {
  if (std::exchange(ended_, true)) return;
  const std::shared_ptr<SampleStore> store = store_.lock();
  if (store == nullptr) return;
  std::vector<Entry> gone;
  {
    const std::lock_guard lock(store->mutex_);
    const Clock::time_point expires =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_));
    for (const std::string& name : names_) {
      const auto found = store->entries_.find(name);
      if (found == store->entries_.end()) continue;  // it was pruned meanwhile
      Entry& entry = found->second;
      --entry.answers;
      if (!keep || (entry.deleted && entry.answers == 0)) {
        gone.push_back(store->Take(found));
      } else if (entry.answers == 0) {
        entry.expires = expires;
      }
    }
    store->next_ = std::min(store->next_, expires);
  }
  store->wake_.notify_all();
  store->Prune(gone);
}

std::optional<SampleStore::Sample> SampleStore::Find(const std::string& key, const std::string& salt, const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) return std::nullopt;
  const Entry& entry = found->second;
  if (!entry.request || entry.key != key || entry.salt != salt || entry.deleted ||
      (entry.expires && *entry.expires <= Clock::now()))
    return std::nullopt;
  Sample sample = {.request = entry.request, .index = entry.index, .form = entry.form, .seconds = entry.seconds};
  if (entry.expires) sample.expires = std::chrono::duration_cast<std::chrono::seconds>(entry.expires->time_since_epoch()).count();
  return sample;
}

void SampleStore::Delete(const std::string& name, bool ended) {
  std::vector<Entry> gone;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) return;
    if (ended || found->second.expires) {
      gone.push_back(Take(found));
    } else {
      found->second.deleted = true;
    }
  }
  Prune(gone);
}

SampleStore::Entry SampleStore::Take(std::map<std::string, Entry>::iterator entry) {
  Entry taken = std::move(entry->second);
  entries_.erase(entry);
  const auto count = counts_.find(taken.key);
  if (--count->second == 0) counts_.erase(count);
  return taken;
}

void SampleStore::Prune(const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    if (!entry.request) continue;
    (void)engine_.Prune(entry.request->sample(entry.index));  // one that is gone needs no pruning
    entry.request->Forget(entry.index);
  }
}

void SampleStore::Work(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::vector<Entry> gone;
    {
      std::unique_lock lock(mutex_);
      const Clock::time_point now = Clock::now();
      next_ = kNever;
      for (auto at = entries_.begin(); at != entries_.end();) {
        const auto entry = at++;
        if (!entry->second.expires) continue;
        if (*entry->second.expires <= now) {
          gone.push_back(Take(entry));
        } else {
          next_ = std::min(next_, *entry->second.expires);
        }
      }
      // A copy: the wait reads its time without the lock.
      if (const Clock::time_point until = next_; gone.empty()) wake_.wait_until(lock, stop, until, [&] { return next_ < until; });
    }
    Prune(gone);
  }
}

}  // namespace coppice::server
