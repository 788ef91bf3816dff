// The requests of a batch on their way through an engine: submits them, a bounded number ahead, gathers what comes back and writes
// each answer as soon as it is complete. Steps no engine: `coppice batch` does that between two calls, a server has a thread for
// it. Layer: openai.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"
#include "openai/batch_input.h"
#include "openai/batch_output.h"
#include "openai/job_prefixes.h"
#include "openai/request.h"
#include "openai/response.h"

namespace coppice::openai {

struct BatchRunOptions {
  std::string model;         // the name that answers give
  int32_t max_waiting = 64;  // nothing is submitted while so many requests wait in the engine, whoever sent them
  int32_t max_active = 0;    // requests of this run in the engine; 0: no limit
  // Begins with one request at a time and one more for each that was answered, so that a run that is killed soon has answered some
  // rather than begun all.
  bool careful = false;
  // Adds to a request what the caller has to say. An error is that of its line, in `priority`.
  std::function<Status(Request*)> complete;
  std::function<void(const TokenUsage&)> on_answer;  // for each answer that is written, on the thread that calls WriteFinished
};

struct BatchCounts {
  int64_t total = 0;  // to be answered by this run
  int64_t answered = 0, failed = 0;
  int64_t done() const { return answered + failed; }
};

// Used by one thread; the engine may be stepped by another.
class BatchRun {
 public:
  // What the arguments point to outlives this; `prefixes` may be null.
  BatchRun(Engine* engine, const BatchInput* input, const OpenAiRequestParser* parser, BatchRunOptions options,
           JobPrefixes* prefixes, BatchOutput* output, BatchErrors* errors);

  // As many of the next requests as there is room for. What the engine or the parser refuses is a line of the errors; an error is
  // that of a file, or UNAVAILABLE: the device is lost. Where another's requests took the last room, the request waits for the next
  // call.
  Status Submit();
  // Writes what is complete. Errors as Submit.
  Status WriteFinished();
  // Until a request is complete, or `timeout` is over.
  void WaitForFinished(std::chrono::milliseconds timeout);
  // Submits no more, and ends what is in the engine; what was complete is still to be written.
  void Cancel();
  // After Cancel, when done: an error line with this code for each request that has no answer.
  Status ReportUnanswered(const std::string& code, const Status& why);
  // Nothing is in the engine, and nothing more will be submitted.
  bool done() const { return active_.empty() && (cancelled_ || next_ == input_.jobs().size()); }
  const BatchCounts& counts() const { return counts_; }

 private:
  struct Active;    // a request that the engine works on. Its events come on the engine's thread, and may outlive the run
  struct Finished;  // complete ones

  bool HasRoom() const;
  // False: the engine's queue is full.
  Result<bool> SubmitOne(size_t job);
  void End(size_t job);
  Status ReportFailure(size_t job, const BatchLine& line, const Status& status, std::string param = {});
  Status Write(const Active& active);
  static void OnEvent(const std::shared_ptr<Active>& active, const StreamEvent& event, Finished* finished);

  Engine& engine_;
  const BatchInput& input_;
  const OpenAiRequestParser& parser_;
  const BatchRunOptions options_;
  JobPrefixes* const prefixes_;
  BatchOutput& output_;
  BatchErrors& errors_;
  BatchCounts counts_;
  size_t next_ = 0;  // job
  bool cancelled_ = false;
  std::vector<bool> ended_;  // by job: answered or failed
  std::set<RequestId> active_;
  const std::shared_ptr<Finished> finished_;
};

}  // namespace coppice::openai
