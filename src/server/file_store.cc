#include "server/file_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"
#include "server/errors.h"
#include "server/record.h"

namespace coppice::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kData = ".data";
constexpr std::string_view kIdBegin = "file-";

}  // namespace

ordered_json ToJson(const FileInfo& info) {
  ordered_json json = {{"id", info.id},
                       {"object", "file"},
                       {"bytes", info.bytes},
                       {"created_at", info.created},
                       {"filename", info.filename},
                       {"purpose", info.purpose},
                       {"status", "processed"}};
  if (info.expires) json["expires_at"] = *info.expires;
  return json;
}

std::string FileStore::NewId() { return std::string(kIdBegin) + RandomName(); }

std::string FileStore::PathOf(const std::string& id) const { return (fs::path(options_.folder) / (id + kData)).string(); }

// --------------------------------------------------------------------------------------------------------------------- folder

Status FileStore::LockFolder() {
  const std::string path = (fs::path(options_.folder) / "lock").string();
  folder_lock_ = FileDescriptor(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (folder_lock_.get() < 0) return SystemError("write to", path);
  if (flock(folder_lock_.get(), LOCK_EX | LOCK_NB) == 0) return OkStatus();
  return FailedPrecondition(fmt::format("{} belongs to a server that runs; give each its own folder", options_.folder));
}

Status FileStore::Restore(const std::set<std::string>& unfinished) {
  if (!enabled()) return OkStatus();
  COPPICE_RETURN_IF_ERROR(PrepareFolder(options_.folder));
  COPPICE_RETURN_IF_ERROR(LockFolder());
  std::error_code error;
  std::vector<FileInfo> found;
  std::vector<std::string> data;
  for (const fs::directory_entry& file : fs::directory_iterator(options_.folder, error)) {
    const std::string id = file.path().stem().string();
    if (!IsNamed(id, kIdBegin)) continue;
    if (file.path().extension() == kData) data.push_back(id);
    if (file.path().extension() != kRecordSuffix) continue;
    Result<FileInfo> info = ReadRecord(id);
    if (info.ok()) {
      found.push_back(*std::move(info));
    } else {
      spdlog::warn("{} is left as it is: {}", file.path().string(), info.status().message());
    }
  }
  if (error) return InvalidArgument(fmt::format("files cannot be kept in {}: {}", options_.folder, error.message()));
  std::ranges::sort(found, {}, [](const FileInfo& info) { return std::pair(info.created, info.id); });
  const std::lock_guard lock(mutex_);
  for (FileInfo& info : found) {
    const std::string id = info.id;
    entries_[id] = {.info = std::move(info), .order = ++next_order_};
  }
  for (const std::string& id : data) {
    // Data without a record: a kill cut its upload off.
    if (!fs::exists(fs::path(options_.folder) / (id + kRecordSuffix), error) && !unfinished.contains(id)) RemoveFiles(id);
  }
  return OkStatus();
}

Result<FileInfo> FileStore::ReadRecord(const std::string& id) const {
  COPPICE_ASSIGN_OR_RETURN(const json value, server::ReadRecord((fs::path(options_.folder) / (id + kRecordSuffix)).string()));
  RecordReader record(value);
  FileInfo info = {.id = id};
  info.key = record.String("key");
  info.filename = record.String("filename");
  info.purpose = record.String("purpose");
  info.bytes = record.Integer("bytes");
  info.created = record.Integer("created");
  info.expires = record.OptionalInteger("expires");
  COPPICE_RETURN_IF_ERROR(record.status());
  COPPICE_ASSIGN_OR_RETURN(const RegularFile data, OpenRegularFile(PathOf(id), Links::kRefused));
  if (static_cast<int64_t>(data.size) != info.bytes)
    return DataLoss(fmt::format("its data has {} bytes, expected {}", data.size, info.bytes));
  return info;
}

Status FileStore::WriteRecord(const FileInfo& info) const {
  ordered_json record = {
      {"key", info.key}, {"filename", info.filename}, {"purpose", info.purpose}, {"bytes", info.bytes}, {"created", info.created}};
  if (info.expires) record["expires"] = *info.expires;
  return ReplaceFile((fs::path(options_.folder) / (info.id + kRecordSuffix)).string(), DumpJson(std::move(record)) + "\n");
}

// The record first: without it, what is left is no file.
void FileStore::RemoveFiles(const std::string& id) const {
  std::error_code ignored;
  for (const char* suffix : {kRecordSuffix, kData}) fs::remove(fs::path(options_.folder) / (id + suffix), ignored);
}

// ---------------------------------------------------------------------------------------------------------------------- files

Result<FileInfo> FileStore::Put(FileInfo info, std::string_view data) {
  info.id = NewId();
  info.bytes = std::ssize(data);
  info.created = SecondsNow();
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<FileRoom> room, Reserve(info.key, {.files = 1, .bytes = info.bytes}));
  Status written = ReplaceFile(PathOf(info.id), data);
  if (written.ok()) written = WriteRecord(info);
  const std::lock_guard lock(mutex_);
  if (!written.ok()) {
    RemoveFiles(info.id);
    return DiskProblem(written);
  }
  entries_[info.id] = {.info = info, .order = ++next_order_};
  return info;
}

Status FileStore::CheckRoom(const std::string& key, FileUse more) const {
  const auto reserved = reserved_.find(key);
  FileUse use = reserved == reserved_.end() ? FileUse() : reserved->second;
  for (const auto& [id, entry] : entries_) {
    if (entry.info.key != key) continue;
    ++use.files;
    use.bytes += entry.info.bytes;
  }
  if (more.files > 0 && use.files + more.files > options_.max_per_key) {
    return ResourceExhausted(fmt::format(
        "there are {} files already, with those that batches are to write, and the server keeps {} of an API key; delete "
        "some",
        use.files, options_.max_per_key));
  }
  if (options_.max_bytes_per_key == 0 || use.bytes + more.bytes <= options_.max_bytes_per_key) return OkStatus();
  return ResourceExhausted(
      fmt::format("the files have {} bytes already, with room for those that batches are to write, and {} more are asked for; the "
                  "server keeps {} of an API key (--max-bytes-per-key); delete some",
                  use.bytes, more.bytes, options_.max_bytes_per_key));
}

Result<std::unique_ptr<FileRoom>> FileStore::Reserve(const std::string& key, FileUse use) {
  {
    const std::lock_guard lock(mutex_);
    DropExpired();
    COPPICE_RETURN_IF_ERROR(CheckRoom(key, use));
    reserved_[key].files += use.files;
    reserved_[key].bytes += use.bytes;
  }
  return std::make_unique<FileRoom>(this, key, use);
}

std::unique_ptr<FileRoom> FileStore::ReserveAnyway(const std::string& key, FileUse use) {
  const std::lock_guard lock(mutex_);
  reserved_[key].files += use.files;
  reserved_[key].bytes += use.bytes;
  return std::make_unique<FileRoom>(this, key, use);
}

FileRoom::~FileRoom() {
  const std::lock_guard lock(store_.mutex_);
  const auto reserved = store_.reserved_.find(key_);
  reserved->second.files -= use_.files;
  reserved->second.bytes -= use_.bytes;
  if (reserved->second.files == 0 && reserved->second.bytes == 0) store_.reserved_.erase(reserved);
}

Status FileRoom::GrowTo(int64_t bytes) {
  const std::lock_guard lock(store_.mutex_);
  const int64_t more = bytes - use_.bytes;
  if (more <= 0) return OkStatus();
  COPPICE_RETURN_IF_ERROR(store_.CheckRoom(key_, {.bytes = more}));
  store_.reserved_[key_].bytes += more;
  use_.bytes = bytes;
  return OkStatus();
}

Status FileStore::Publish(FileInfo info) {
  const std::string path = PathOf(info.id);
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 || fsync(file.get()) != 0) return SystemError("write to", path);
  info.bytes = lseek(file.get(), 0, SEEK_END);
  info.created = SecondsNow();
  COPPICE_RETURN_IF_ERROR(WriteRecord(info));
  const std::lock_guard lock(mutex_);
  const std::string id = info.id;
  entries_[id] = {.info = std::move(info), .order = ++next_order_};
  return OkStatus();
}

const FileStore::Entry* FileStore::Find(const std::string& key, const std::string& id) const {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.info.key != key) return nullptr;
  const Entry& entry = found->second;
  return entry.users == 0 && entry.info.expires && *entry.info.expires <= SecondsNow() ? nullptr : &entry;
}

std::optional<FileInfo> FileStore::Get(const std::string& key, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const Entry* entry = Find(key, id);
  return entry ? std::optional(entry->info) : std::nullopt;
}

std::vector<FileInfo> FileStore::List(const std::string& key) const {
  std::vector<const Entry*> own;
  std::vector<FileInfo> list;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, entry] : entries_) {
    if (const Entry* found = Find(key, id)) own.push_back(found);
  }
  std::ranges::sort(own, {}, &Entry::order);
  for (const Entry* entry : own) list.push_back(entry->info);
  return list;
}

std::shared_ptr<const BodyFile> FileStore::Open(const std::string& key, const std::string& id) const {
  const std::optional<FileInfo> info = Get(key, id);
  if (!info) return nullptr;
  Result<RegularFile> data = OpenRegularFile(PathOf(id), Links::kRefused);
  if (!data.ok()) return nullptr;  // deleted meanwhile
  return std::make_shared<const BodyFile>(BodyFile{.file = std::move(data->file), .size = info->bytes});
}

Status FileStore::Delete(const std::string& key, const std::string& id) {
  const std::lock_guard lock(mutex_);
  DropExpired();
  const Entry* entry = Find(key, id);
  if (!entry) return NotFound("there is no such file");
  if (entry->users > 0) return FailedPrecondition("a batch reads the file; cancel the batch, or wait for its end");
  RemoveFiles(id);
  entries_.erase(id);
  return OkStatus();
}

bool FileStore::Use(const std::string& key, const std::string& id) {
  const std::lock_guard lock(mutex_);
  if (!Find(key, id)) return false;
  ++entries_[id].users;
  return true;
}

void FileStore::UseAgain(const std::string& id) {
  const std::lock_guard lock(mutex_);
  if (const auto found = entries_.find(id); found != entries_.end()) ++found->second.users;
}

void FileStore::Release(const std::string& id) {
  const std::lock_guard lock(mutex_);
  if (const auto found = entries_.find(id); found != entries_.end() && found->second.users > 0) --found->second.users;
}

void FileStore::DropExpired() {
  const int64_t now = SecondsNow();
  std::erase_if(entries_, [&](const auto& entry) {
    const auto& [id, file] = entry;
    const bool expired = file.users == 0 && file.info.expires && *file.info.expires <= now;
    if (expired) RemoveFiles(id);
    return expired;
  });
}

}  // namespace coppice::server
