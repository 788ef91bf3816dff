// The work on one batch, from its input file to the files that it gives: reads the input, puts its requests to the engine, writes
// the answers. Requests that an earlier server answered are not computed again. Layer: server.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "coppice/engine/engine.h"
#include "grammar/compile_queue.h"
#include "openai/batch_input.h"
#include "openai/batch_output.h"
#include "openai/batch_run.h"
#include "openai/request.h"
#include "server/batch.h"
#include "server/file_store.h"

namespace coppice::server {

// The server's parts for batches, which outlive them.
struct BatchContext {
  Engine* engine = nullptr;
  const openai::OpenAiRequestParser* parser = nullptr;
  FileStore* files = nullptr;
  CompileQueue* compile_queue = nullptr;  // null: no output can have a form
  std::string model;                      // the name that answers give
  int64_t max_requests = 0;               // of a batch
  size_t max_line_bytes = 0;              // of its input
  int32_t max_active = 0;                 // requests of a batch in the engine
  int32_t max_waiting = 1;                // nothing is submitted while so many requests wait, those of other clients included
  std::function<openai::FindNamedPrefix(const std::string& key)> prefixes_of;
  // BatchRunOptions::admit and on_end, of a key's requests.
  std::function<openai::BatchAdmission(const std::string& key, openai::OpenAiRequest*)> admit;
  std::function<void(const std::string& key, int64_t taken_tokens, int64_t used_tokens)> release;
  std::function<void(const std::string& key, const openai::TokenUsage&)> count;
};

enum class BatchStop : uint8_t { kNone, kCancelled, kExpired, kShutdown };

class BatchWork {
 public:
  using Asked = std::function<BatchStop()>;
  using Publish = std::function<Status(const Batch&, bool lasting)>;

  // `room` is that of its files, which grows with them, until the batch was reported to have ended. `asked` says whether to stop;
  // `publish` has what changes, `lasting` where a server that starts again must know. `resumed`: an earlier one began.
  BatchWork(const BatchContext& context, Batch batch, FileRoom* room, bool resumed, Asked asked, Publish publish);

  // To the batch's end, or until the next start has to go on with it: a shutdown, or a lost device. The last report says how it
  // ended.
  void Run();

 private:
  Status ReadAndRun();
  Status Drive(openai::BatchRun* run, openai::BatchOutput* output);
  // Room for what is written; where the key has none, that is the batch's error.
  Status KeepRoom(const openai::BatchOutput& output, const openai::BatchErrors& errors);
  Status Finish(BatchStop why);
  Status PublishFiles();
  void Count(const openai::BatchInput& input, const openai::BatchErrors& errors, const openai::BatchRun* run);

  const BatchContext& context_;
  Batch batch_;
  FileRoom& room_;
  const bool resumed_;
  const Asked asked_;
  const Publish publish_;
};

}  // namespace coppice::server
