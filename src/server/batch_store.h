// The batches of /v1/batches: their records in the folder of the files, their line, and the threads that work on them. Each belongs
// to the API key that asked for it. However a server ended, the next one goes on with what is unfinished. Layer: server.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/batch.h"
#include "server/batch_work.h"
#include "server/file_store.h"

namespace coppice::server {

struct BatchStoreOptions {
  int32_t max_unfinished_per_key = 16;  // more are not taken
  int32_t max_ended_per_key = 1000;     // of more, the oldest records go
  int32_t threads = 2;                  // batches that are worked on at the same time
};

// Thread-safe.
class BatchStore {
 public:
  // Objects that `context` refers to outlive this.
  BatchStore(BatchContext context, BatchStoreOptions options) : context_(std::move(context)), options_(options) {}
  ~BatchStore();

  // Takes what lies in the folder, the files too, and begins to work. An error if the folder cannot be used.
  Status Restore();

  // A batch of ParseBatch, whose key is set. INVALID_ARGUMENT where its input cannot be one (input_file_id), RESOURCE_EXHAUSTED
  // where the key has too many that are unfinished, or no room for two files of its input's size; else as DiskProblem.
  Result<Batch> Create(Batch batch);
  std::optional<Batch> Get(const std::string& key, const std::string& id) const;
  std::vector<Batch> List(const std::string& key) const;  // oldest first
  // What is in the engine ends; what was answered stays. NOT_FOUND; FAILED_PRECONDITION where the batch has ended.
  Result<Batch> Cancel(const std::string& key, const std::string& id);
  // Works on nothing from now on: what is unfinished goes on with the next start.
  void Stop();

 private:
  struct Entry {
    Batch batch;
    int64_t order = 0;
    bool resumed = false;  // an earlier server began it
    bool running = false;
    std::unique_ptr<FileRoom> room;  // for its files, until it has ended
  };

  void Work();
  // With the lock held:
  Entry* Find(const std::string& key, const std::string& id);
  std::map<std::string, Entry>::iterator NextInLine();  // of the key that has the fewest running, the oldest
  void DropOldest(const std::string& key);

  BatchStop Asked(const std::string& id) const;
  // The work's report of its batch; `lasting`: and on the disk.
  Status Update(const Batch& batch, bool lasting);
  std::string PathOf(const std::string& id) const;
  // The bytes that a batch has written so far, and two files.
  FileUse UseOf(const Batch& batch) const;
  // Writes the record of what is known now.
  Status Save(const std::string& id);

  const BatchContext context_;
  const BatchStoreOptions options_;
  std::mutex save_mutex_;  // taken before the other one; held while a record is written, so that the last one stays
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::string, Entry> entries_;  // by id
  int64_t next_order_ = 0;
  bool stopping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace coppice::server
