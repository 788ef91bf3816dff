#include "server/batch_store.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"
#include "core/quoted.h"
#include "server/errors.h"
#include "server/record.h"

namespace coppice::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIdBegin = "batch_";

}  // namespace

BatchStore::~BatchStore() { Stop(); }

std::string BatchStore::PathOf(const std::string& id) const {
  return (fs::path(context_.files->options().folder) / (id + kRecordSuffix)).string();
}

Status BatchStore::Save(const std::string& id) {
  const std::lock_guard saving(save_mutex_);
  std::string record;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return OkStatus();
    record = DumpJson(ToRecord(found->second.batch)) + "\n";
  }
  return ReplaceFile(PathOf(id), record);
}

Status BatchStore::Restore() {
  if (!context_.files->enabled()) return OkStatus();
  std::vector<Batch> found;
  std::error_code absent;
  for (const fs::directory_entry& file : fs::directory_iterator(context_.files->options().folder, absent)) {
    const std::string id = file.path().stem().string();
    if (file.path().extension() != kRecordSuffix || !IsNamed(id, kIdBegin)) continue;
    const Result<nlohmann::json> value = ReadRecord(file.path().string());
    Result<Batch> batch = value.ok() ? ParseRecord(id, *value) : Result<Batch>(value.status());
    if (batch.ok()) {
      found.push_back(*std::move(batch));
    } else {
      spdlog::warn("{} is left as it is: {}", file.path().string(), batch.status().message());
    }
  }
  std::ranges::sort(found, {}, [](const Batch& batch) { return std::pair(batch.created, batch.id); });
  std::set<std::string> unfinished;
  for (const Batch& batch : found) {
    if (!batch.ended()) unfinished.insert({batch.output_file_id, batch.error_file_id});
  }
  COPPICE_RETURN_IF_ERROR(context_.files->Restore(unfinished));
  const std::lock_guard lock(mutex_);
  for (Batch& batch : found) {
    if (!batch.ended()) {
      spdlog::info("{} goes on", batch.id);
      context_.files->UseAgain(batch.input_file_id);  // gone: the work says so
    }
    Entry entry = {.order = ++next_order_, .resumed = true};
    if (!batch.ended()) entry.room = context_.files->ReserveAnyway(batch.key, UseOf(batch));
    const std::string id = batch.id;
    entry.batch = std::move(batch);
    entries_[id] = std::move(entry);
  }
  for (int32_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Work(); });
  return OkStatus();
}

FileUse BatchStore::UseOf(const Batch& batch) const {
  FileUse use = {.files = 2};
  for (const std::string& file : {batch.output_file_id, batch.error_file_id}) {
    std::error_code absent;
    const auto size = fs::file_size(context_.files->PathOf(file), absent);
    if (!absent) use.bytes += static_cast<int64_t>(size);
  }
  return use;
}

// ------------------------------------------------------------------------------------------------------------------- requests

Result<Batch> BatchStore::Create(Batch batch) {
  const std::optional<FileInfo> input = context_.files->Get(batch.key, batch.input_file_id);
  if (!input) return InvalidArgument(fmt::format("input_file_id: there is no file {}", Quoted(batch.input_file_id)));
  if (input->purpose != "batch")
    return InvalidArgument(fmt::format("input_file_id: the file's purpose is {}, expected batch", Quoted(input->purpose)));
  batch.id = std::string(kIdBegin) + RandomName();
  batch.output_file_id = FileStore::NewId();
  batch.error_file_id = FileStore::NewId();
  {
    const std::lock_guard lock(mutex_);
    const auto unfinished = std::ranges::count_if(
        entries_, [&](const auto& entry) { return entry.second.batch.key == batch.key && !entry.second.batch.ended(); });
    if (unfinished >= options_.max_unfinished_per_key) {
      return ResourceExhausted(
          fmt::format("{} batches of this API key are unfinished, which is the most; wait for one, or cancel it", unfinished));
    }
    COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<FileRoom> room,
                             context_.files->Reserve(batch.key, {.files = 2, .bytes = input->bytes}));
    if (!context_.files->Use(batch.key, batch.input_file_id))
      return InvalidArgument(fmt::format("input_file_id: there is no file {}", Quoted(batch.input_file_id)));
    DropOldest(batch.key);
    // In line when its record is written; until then it counts.
    entries_[batch.id] = {.batch = batch, .order = ++next_order_, .running = true, .room = std::move(room)};
  }
  const Status saved = Save(batch.id);
  const std::lock_guard lock(mutex_);
  if (!saved.ok()) {
    context_.files->Release(batch.input_file_id);
    entries_.erase(batch.id);
    return DiskProblem(saved);
  }
  entries_[batch.id].running = false;
  wake_.notify_one();
  return batch;
}

void BatchStore::DropOldest(const std::string& key) {
  std::vector<std::pair<int64_t, std::string>> ended;
  for (const auto& [id, entry] : entries_) {
    if (entry.batch.key == key && entry.batch.ended() && !entry.running) ended.emplace_back(entry.order, id);
  }
  std::ranges::sort(ended);
  for (int64_t i = 0; i <= std::ssize(ended) - options_.max_ended_per_key; ++i) {
    std::error_code ignored;
    fs::remove(PathOf(ended[i].second), ignored);
    entries_.erase(ended[i].second);
  }
}

BatchStore::Entry* BatchStore::Find(const std::string& key, const std::string& id) {
  const auto found = entries_.find(id);
  return found == entries_.end() || found->second.batch.key != key ? nullptr : &found->second;
}

std::optional<Batch> BatchStore::Get(const std::string& key, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.batch.key != key) return std::nullopt;
  return found->second.batch;
}

std::vector<Batch> BatchStore::List(const std::string& key) const {
  std::vector<const Entry*> own;
  std::vector<Batch> list;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, entry] : entries_) {
    if (entry.batch.key == key) own.push_back(&entry);
  }
  std::ranges::sort(own, {}, &Entry::order);
  for (const Entry* entry : own) list.push_back(entry->batch);
  return list;
}

Result<Batch> BatchStore::Cancel(const std::string& key, const std::string& id) {
  Batch batch;
  {
    const std::lock_guard lock(mutex_);
    Entry* entry = Find(key, id);
    if (!entry) return NotFound("there is no such batch");
    if (entry->batch.state == BatchState::kCancelling) return entry->batch;
    if (entry->batch.ended() || entry->batch.state == BatchState::kFinalizing)
      return FailedPrecondition(fmt::format("the batch is {}; it cannot be cancelled any more", Name(entry->batch.state)));
    const bool is_new = entry->batch.state == BatchState::kValidating && !entry->running && !entry->resumed;
    entry->batch.Enter(BatchState::kCancelling);
    if (is_new) {  // no thread has looked at it, and all may be busy for hours
      entry->batch.Enter(BatchState::kCancelled);
      context_.files->Release(entry->batch.input_file_id);
      entry->room.reset();
    }
    batch = entry->batch;
  }
  if (const Status saved = Save(id); !saved.ok()) return DiskProblem(saved);
  return batch;
}

void BatchStore::Stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
}

// --------------------------------------------------------------------------------------------------------------------- workers

std::map<std::string, BatchStore::Entry>::iterator BatchStore::NextInLine() {
  std::map<std::string, int> running;  // by key
  for (const auto& [id, entry] : entries_) running[entry.batch.key] += entry.running;
  auto next = entries_.end();
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    if (at->second.running || at->second.batch.ended()) continue;
    const auto rank = [&](const Entry& entry) { return std::pair(running[entry.batch.key], entry.order); };
    if (next == entries_.end() || rank(at->second) < rank(next->second)) next = at;
  }
  return next;
}

void BatchStore::Work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto next = NextInLine();
    if (next == entries_.end()) {
      wake_.wait(lock);
      continue;
    }
    Entry& entry = next->second;
    entry.running = true;
    const std::string id = next->first;
    BatchWork work(
        context_, entry.batch, entry.room.get(), entry.resumed, [this, id] { return Asked(id); },
        [this](const Batch& batch, bool lasting) { return Update(batch, lasting); });
    lock.unlock();
    work.Run();
    lock.lock();
    // One that has not ended is the next server's, and stays out of the line.
    entry.running = !entry.batch.ended();
  }
}

BatchStop BatchStore::Asked(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  if (stopping_) return BatchStop::kShutdown;
  const Batch& batch = entries_.at(id).batch;
  if (batch.state == BatchState::kCancelling) return BatchStop::kCancelled;
  return batch.expires <= SecondsNow() ? BatchStop::kExpired : BatchStop::kNone;
}

Status BatchStore::Update(const Batch& batch, bool lasting) {
  {
    const std::lock_guard lock(mutex_);
    Batch& known = entries_.at(batch.id).batch;
    Batch updated = batch;
    if (known.state == BatchState::kCancelling && !batch.ended()) updated.state = known.state;  // asked for meanwhile
    updated.cancelling = known.cancelling;
    if (updated.ended()) {
      context_.files->Release(updated.input_file_id);  // a client that sees the end may delete the file
      entries_.at(batch.id).room.reset();
    }
    known = std::move(updated);
  }
  return lasting ? Save(batch.id) : OkStatus();
}

}  // namespace coppice::server
