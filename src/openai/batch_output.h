// The result files of `coppice batch` and `coppice score`: an append-only output that a killed run continues, and a file of what
// went wrong. Layer: openai.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "coppice/core/status.h"
#include "core/file.h"
#include "core/text_source.h"

namespace coppice::openai {

// Whose lines an output has: what the messages call it, and the member of a line, a string or a number, that says what it answers.
struct ResultForm {
  std::string_view command, key;
};
inline constexpr ResultForm kBatchOutput = {"coppice batch", "custom_id"}, kScoreOutput = {"coppice score", "line"};

// Lines of JSON, one after the other, so that a kill leaves whole lines and at most one torn one at the end. Synced to disk once a
// second at most, and at the end: a power cut loses that second, and the next run computes it again.
class BatchOutput {
 public:
  // Opens or creates the file and locks it. Results of an earlier run are kept, a torn last line is cut off. INVALID_ARGUMENT if it
  // is no regular file or holds anything else than such results, FAILED_PRECONDITION if another process writes to it.
  static Result<BatchOutput> Open(const std::string& path, const ResultForm& form = kBatchOutput);

  // The form's key -> id of every line that was there; the id names the request that it answers.
  const std::unordered_map<std::string, std::string>& finished() const { return finished_; }
  // FAILED_PRECONDITION where lines that were there name another model as that of their answers.
  Status CheckModel(std::string_view model) const;
  // `line`: without the line break. DATA_LOSS if another program removed, moved or changed the file meanwhile: what was written
  // before may be lost.
  Status Append(TextSource* line);
  // Puts everything on the disk. Errors as Append.
  Status Sync();
  int64_t size() const { return size_; }  // bytes

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kSyncInterval = std::chrono::seconds(1);

  Status CheckIsOurs() const;
  Status Write(TextSource* line, int64_t* size);

  FileDescriptor file_;
  std::string path_;  // symbolic links followed
  int64_t size_ = 0;  // bytes
  std::unordered_map<std::string, std::string> finished_;
  std::string model_;  // that the first of them names; empty: none does
  Clock::time_point last_sync_ = Clock::now();
};

// Requests without an answer, as lines of OpenAI's error file with the input's line number added. There is no file where nothing
// failed.
class BatchErrors {
 public:
  struct Error {
    int64_t line = 0;       // of the input
    std::string id;         // of the request; empty where the line is none
    std::string custom_id;  // empty: not known
    Status status;
    std::string param;  // the field that is wrong; may be empty
    std::string code;   // why a request was not even tried, "batch_expired"; else empty
  };

  // Begins anew, since a run tries again what failed before: removes an earlier run's file. The first few errors are also reported
  // on stderr. INVALID_ARGUMENT for what is no regular file or holds anything else than errors of a batch; it stays as it is.
  static Result<BatchErrors> Open(const std::string& path);
  // Goes on with an earlier run's file, whose torn last line is cut off: what it holds counts and stays. `most`: lines of the file;
  // more errors are counted and not written, so that a later run tries again what they were about. Reports nothing on stderr.
  // Errors as Open.
  static Result<BatchErrors> Resume(const std::string& path, int64_t most = std::numeric_limits<int64_t>::max());
  // Once for a line: what is said of it later is dropped.
  Status Report(const Error& error);
  bool Has(int64_t line) const { return lines_.contains(line); }
  int64_t count() const { return count_; }
  int64_t size() const { return size_; }  // of the file, in bytes
  const std::string& path() const { return path_; }

 private:
  void Log(const Error& error) const;

  FileDescriptor file_;
  std::string path_;      // as the user gave it
  std::string resolved_;  // symbolic links followed
  bool logs_ = true;
  int64_t count_ = 0, size_ = 0;
  int64_t most_ = std::numeric_limits<int64_t>::max();
  std::unordered_set<int64_t> lines_;  // of the input
};

}  // namespace coppice::openai
