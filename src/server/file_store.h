// Files of /v1/files in a folder: what clients upload, and what batches write. Each belongs to the API key that brought it. A file
// is `ID.data` and, last, the record `ID.json`; without it, what lies there is no file yet. Layer: server.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "server/http.h"

namespace coppice::server {

struct FileStoreOptions {
  std::string folder;             // empty: no files are kept
  int64_t max_bytes = 0;          // of a file that is uploaded
  int32_t max_per_key = 0;        // files of one API key, those that its batches are to write included; more are not taken
  int64_t max_bytes_per_key = 0;  // likewise; 0: no limit
};

struct FileUse {
  int64_t files = 0, bytes = 0;
};

struct FileInfo {
  std::string id, key, filename, purpose;
  int64_t bytes = 0, created = 0;  // created: seconds since 1970
  std::optional<int64_t> expires;  // likewise
};

// As answers have it.
nlohmann::ordered_json ToJson(const FileInfo& info);

class FileStore;

// Room for an API key's files that are not there yet; it ends with this. Thread-safe.
class FileRoom {
 public:
  FileRoom(FileStore* store, std::string key, FileUse use) : store_(*store), key_(std::move(key)), use_(use) {}
  ~FileRoom();

  // For as many bytes at least. RESOURCE_EXHAUSTED: the key has no room for more.
  Status GrowTo(int64_t bytes);

 private:
  friend class FileStore;

  FileStore& store_;
  const std::string key_;
  FileUse use_;  // guarded by the store's lock
};

// Thread-safe. No lock is held while a disk is waited for, but to remove files.
class FileStore {
 public:
  explicit FileStore(FileStoreOptions options) : options_(std::move(options)) {}

  const FileStoreOptions& options() const { return options_; }
  bool enabled() const { return !options_.folder.empty(); }
  static std::string NewId();

  // Makes the folder, which no other server may have, and takes what is in it. Data without a record is removed, but for
  // `unfinished`, ids of files that batches write. An error if the folder cannot be used.
  Status Restore(const std::set<std::string>& unfinished);

  // Keeps room, which counts as the key's. The store outlives it. RESOURCE_EXHAUSTED: the key has too much.
  Result<std::unique_ptr<FileRoom>> Reserve(const std::string& key, FileUse use);
  // For what an earlier server promised, whatever the limits.
  std::unique_ptr<FileRoom> ReserveAnyway(const std::string& key, FileUse use);
  // Keeps `data`; `info` says whose it is and how it is named, and gets an id, a size and a time. RESOURCE_EXHAUSTED: the key has
  // too many; else as DiskProblem.
  Result<FileInfo> Put(FileInfo info, std::string_view data);
  // The data at PathOf(info.id) is a file from now on, whatever the limits; info.bytes and info.created are set here.
  Status Publish(FileInfo info);
  std::optional<FileInfo> Get(const std::string& key, const std::string& id) const;
  std::vector<FileInfo> List(const std::string& key) const;  // oldest first
  // Nothing: there is none.
  std::shared_ptr<const BodyFile> Open(const std::string& key, const std::string& id) const;
  // NOT_FOUND, or FAILED_PRECONDITION while a batch reads it.
  Status Delete(const std::string& key, const std::string& id);

  // A batch reads the file: it stays until Release, however old. False: there is none.
  bool Use(const std::string& key, const std::string& id);
  // Likewise, where it did so before the server started: the file may have expired since.
  void UseAgain(const std::string& id);
  void Release(const std::string& id);
  // Of an id that the store gave.
  std::string PathOf(const std::string& id) const;

 private:
  friend class FileRoom;

  struct Entry {
    FileInfo info;
    int64_t order = 0;  // of arrival: times are whole seconds
    int32_t users = 0;  // batches
  };

  Status WriteRecord(const FileInfo& info) const;
  void RemoveFiles(const std::string& id) const;
  Result<FileInfo> ReadRecord(const std::string& id) const;
  Status LockFolder();
  // With the lock held:
  const Entry* Find(const std::string& key, const std::string& id) const;
  void DropExpired();
  // RESOURCE_EXHAUSTED where the key has no room for so much more.
  Status CheckRoom(const std::string& key, FileUse more) const;

  const FileStoreOptions options_;
  FileDescriptor folder_lock_;
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;     // by id
  std::map<std::string, FileUse> reserved_;  // by key: FileRooms
  int64_t next_order_ = 0;
};

}  // namespace coppice::server
