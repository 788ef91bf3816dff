#include "grammar/compile_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "core/check.h"
#include "core/exhaustion.h"

namespace coppice {
namespace {

void CallBack(std::vector<std::pair<CompileQueue::Done, Result<CompileQueue::Constraint>>>* answers) {
  for (auto& [done, answer] : *answers) done(std::move(answer));
  answers->clear();
}

}  // namespace

CompileQueue::CompileQueue(GrammarCompiler* compiler, CompileQueueOptions options) : compiler_(*compiler), options_(options) {
  for (int32_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Work(); });
  threads_.emplace_back([this] { WatchDeadlines(); });
}

CompileQueue::~CompileQueue() {
  Stop(Status(StatusCode::kCancelled, "nothing is compiled any more"));
  for (std::thread& thread : threads_) thread.join();
}

// ------------------------------------------------------------------------------------------------------------------ any thread

CompileQueue::Ticket CompileQueue::Compile(const std::string& key, GrammarSource source, std::optional<Clock::time_point> deadline,
                                           Done done) {
  const std::string id = IdOf(key, source);
  const auto take = [&]() -> Result<std::optional<Constraint>> {
    if (!stopped_.ok()) return stopped_;
    Client& client = clients_[key];
    if (const Constraint kept = FindKept(id)) return std::optional(kept);
    COPPICE_RETURN_IF_ERROR(CheckMemory(&client, /*more_bytes=*/1));
    if (waiting_ >= options_.max_waiting || client.waiting >= std::max(1, options_.max_waiting / 2)) {
      return ResourceExhausted(
          fmt::format("{} grammars wait to be compiled, {} of this API key; send this one again later", waiting_, client.waiting));
    }
    ++client.waiting;
    ++waiting_;
    std::shared_ptr<Job>& job = jobs_[id];
    if (!job) job = std::make_shared<Job>(Job{.key = key, .source = std::move(source)});
    job->askers.push_back({.ticket = next_ticket_++, .turn = turns_.Join(key, 1), .deadline = deadline, .done = std::move(done)});
    changed_.notify_one();
    if (deadline) deadlines_.notify_one();
    return std::optional<Constraint>();
  };
  std::unique_lock lock(mutex_);
  Result<std::optional<Constraint>> known = take();
  const Ticket ticket = next_ticket_ - 1;
  lock.unlock();
  if (known.ok() && !*known) return ticket;
  done(known.ok() ? Result<Constraint>(**std::move(known)) : Result<Constraint>(known.status()));
  return 0;
}

void CompileQueue::Cancel(Ticket ticket) {
  Answers answers;
  {
    const std::lock_guard lock(mutex_);
    End([&](const Asker& asker) { return asker.ticket == ticket; }, Status(StatusCode::kCancelled, "it was cancelled"), &answers);
  }
  CallBack(&answers);
}

void CompileQueue::Stop(Status why) {
  Answers answers;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_.ok()) stopped_ = why;
    End([](const Asker&) { return true; }, why, &answers);
    changed_.notify_all();
    deadlines_.notify_all();
  }
  CallBack(&answers);
}

// --------------------------------------------------------------------------------------------------------------------- threads

void CompileQueue::Work() {
  Answers answers;
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto next = Next();
    if (next == jobs_.end()) {
      if (!stopped_.ok()) return;
      changed_.wait(lock);
      continue;
    }
    const std::shared_ptr<Job> job = next->second;
    const std::string id = next->first;
    job->running = true;
    lock.unlock();
    const Result<Constraint> compiled =
        CatchExhaustion("compiling a grammar", [&] { return compiler_.Compile(job->source, job->stop.get_token()); });
    lock.lock();
    job->running = false;
    // Where all callers have left, a new job may have its place.
    const auto place = jobs_.find(id);
    if (place != jobs_.end() && place->second == job) Finish(place, compiled, &answers);
    changed_.notify_all();  // its key may have another
    lock.unlock();
    CallBack(&answers);
    lock.lock();
  }
}

void CompileQueue::WatchDeadlines() {
  Answers answers;
  std::unique_lock lock(mutex_);
  while (stopped_.ok()) {
    std::optional<Clock::time_point> first;
    for (const auto& [id, job] : jobs_) {
      for (const Asker& asker : job->askers) {
        if (asker.deadline && (!first || *asker.deadline < *first)) first = asker.deadline;
      }
    }
    if (first) {
      deadlines_.wait_until(lock, *first);
    } else {
      deadlines_.wait(lock);
    }
    const Clock::time_point now = Clock::now();
    End([&](const Asker& asker) { return asker.deadline && *asker.deadline <= now; },
        DeadlineExceeded("the request's time was over before its grammar was compiled: allow more time, or make it simpler"),
        &answers);
    lock.unlock();
    CallBack(&answers);
    lock.lock();
  }
}

CompileQueue::Jobs::iterator CompileQueue::Next() {
  std::vector<std::string_view> busy;  // keys
  for (const auto& [id, job] : jobs_) {
    if (job->running) busy.push_back(job->key);
  }
  auto next = jobs_.end();
  int64_t first = std::numeric_limits<int64_t>::max();
  for (auto at = jobs_.begin(); at != jobs_.end(); ++at) {
    const Job& job = *at->second;
    if (job.running || job.askers.front().turn >= first || std::ranges::find(busy, job.key) != busy.end()) continue;
    first = job.askers.front().turn;
    next = at;
  }
  if (next != jobs_.end()) turns_.Serve(first);
  return next;
}

void CompileQueue::Finish(Jobs::iterator job, const Result<Constraint>& compiled, Answers* answers) {
  const std::string& key = job->second->key;
  Client& client = clients_[key];
  Result<Constraint> answer = compiled;
  if (compiled.ok()) {
    const int64_t bytes = compiler_.BytesOf(**compiled);
    const Status allowed = CheckMemory(&client, bytes);
    answer = allowed.ok() ? Lease(&client, *compiled) : Result<Constraint>(allowed);
    Keep({.id = job->first, .key = key, .constraint = *compiled, .lease = answer.ok() ? *answer : nullptr, .bytes = bytes});
  }
  for (Asker& asker : job->second->askers) {
    --waiting_;
    --client.waiting;
    answers->emplace_back(std::move(asker.done), answer);
  }
  jobs_.erase(job);
}

void CompileQueue::End(const std::function<bool(const Asker&)>& ends, const Status& why, Answers* answers) {
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    Job& job = *at->second;
    for (auto asker = job.askers.begin(); asker != job.askers.end();) {
      if (!ends(*asker)) {
        ++asker;
        continue;
      }
      --waiting_;
      --clients_[job.key].waiting;
      answers->emplace_back(std::move(asker->done), why);
      asker = job.askers.erase(asker);
    }
    if (!job.askers.empty()) {
      ++at;
      continue;
    }
    job.stop.request_stop();
    at = jobs_.erase(at);  // while it runs, its thread has it
  }
}

// ---------------------------------------------------------------------------------------------------------------------- memory

Status CompileQueue::CheckMemory(Client* client, int64_t more_bytes) const {
  std::erase_if(client->uses, [](const Use& use) { return use.lease.expired(); });
  int64_t bytes = 0;
  for (const Use& use : client->uses) bytes += use.bytes;
  if (bytes == 0 || bytes + more_bytes <= options_.max_bytes_per_key) return OkStatus();
  return ResourceExhausted(
      fmt::format("the grammars of this API key's requests take {} MiB, expected at most {} with this one; send it when some are "
                  "answered",
                  (bytes + more_bytes) >> 20, options_.max_bytes_per_key >> 20));
}

CompileQueue::Constraint CompileQueue::FindKept(const std::string& id) {
  const auto found = kept_by_id_.find(id);
  if (found == kept_by_id_.end()) return nullptr;
  Kept& kept = *found->second;
  kept_.splice(kept_.begin(), kept_, found->second);
  Constraint lease = kept.lease.lock();
  if (!lease) kept.lease = lease = Lease(&clients_[kept.key], kept.constraint);
  return lease;
}

void CompileQueue::Keep(Kept kept) {
  constexpr int64_t kOfAnEntry = 1024;  // of a small one, at most
  kept.bytes += static_cast<int64_t>(kept.id.size()) + kOfAnEntry;
  kept_bytes_ += kept.bytes;
  clients_[kept.key].kept_bytes += kept.bytes;
  kept_.push_front(std::move(kept));
  kept_by_id_.emplace(kept_.front().id, kept_.begin());
  while (kept_bytes_ > options_.kept_bytes) {
    // The key that keeps most gives its oldest.
    const auto most = std::ranges::max_element(clients_, {}, [](const auto& client) { return client.second.kept_bytes; });
    const auto oldest = std::ranges::find(kept_.rbegin(), kept_.rend(), most->first, &Kept::key);
    kept_bytes_ -= oldest->bytes;
    most->second.kept_bytes -= oldest->bytes;
    kept_by_id_.erase(oldest->id);
    kept_.erase(std::next(oldest).base());
  }
}

CompileQueue::Constraint CompileQueue::Lease(Client* client, const Constraint& constraint) {
  Constraint lease = compiler_.CountIn(*constraint, client->held);
  std::erase_if(client->uses, [](const Use& use) { return use.lease.expired(); });
  client->uses.push_back({.lease = lease, .bytes = compiler_.BytesOf(*constraint)});
  return lease;
}

}  // namespace coppice
