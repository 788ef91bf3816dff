// The requests of a batch on their way through an engine: submits them, a bounded number ahead, gathers what comes back and writes
// each answer as soon as it is complete. Steps no engine: `coppice batch` does that between two calls, a server has a thread for
// it. Layer: openai.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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

struct BatchAdmission {
  Status status;
  std::string param;         // of an error
  int64_t taken_tokens = 0;  // of what the request's owner may use
  // Not now: no request goes before this is over.
  std::optional<std::chrono::milliseconds> wait;
};

struct BatchRunOptions {
  std::string model;          // the name that answers give
  int32_t max_waiting = 64;   // nothing is submitted while so many requests wait in the engine, those of other clients included
  int32_t max_active = 0;     // requests of this run in the engine; 0: no limit
  int64_t give_up_after = 0;  // no request follows where so many have failed and none was answered; 0: all are tried
  // Begins with one request at a time and one more for each that was answered, so that a run that is killed soon has answered some
  // rather than begun all.
  bool careful = false;
  // Asked before a request is submitted: adds to it what the caller has to say, and may let it wait. It is asked again then. An
  // error is that of the request's line, whose field it names.
  std::function<BatchAdmission(OpenAiRequest*)> admit;
  // The compiled constraint of an admitted request's output; nothing: not yet. It is asked again when `wake` was called, on any
  // thread, or after a while. Empty: requests whose output is not free are errors.
  std::function<std::optional<Result<std::shared_ptr<const TokenConstraint>>>(const GrammarSource&, std::function<void()> wake)>
      compile;
  // Tokens that an admitted request took and used, when it has ended, on the thread that calls Submit and WriteFinished.
  std::function<void(int64_t taken, int64_t used)> on_end;
  std::function<void(const TokenUsage&)> on_answer;  // for each answer that is written, on the thread that calls WriteFinished
};

struct BatchCounts {
  int64_t total = 0;  // to be answered by this run
  int64_t answered = 0, failed = 0;
  // Of output: what all requests may have, what those that ended might have had, and what these have.
  int64_t tokens_asked = 0, tokens_asked_of_done = 0, tokens_of_done = 0;
  int64_t done() const { return answered + failed; }
  // Of output, in the end: requests that have not ended are taken to use as much of what they may have as those that did.
  double ExpectedTokens() const {
    const double used =
        tokens_asked_of_done > 0 ? static_cast<double>(tokens_of_done) / static_cast<double>(tokens_asked_of_done) : 1.0;
    return static_cast<double>(tokens_of_done) + used * static_cast<double>(tokens_asked - tokens_asked_of_done);
  }
};

// Used by one thread; the engine may be stepped by another.
class BatchRun {
 public:
  // Objects that the arguments point to outlive this; `prefixes` may be null.
  BatchRun(Engine* engine, const BatchInput* input, const OpenAiRequestParser* parser, BatchRunOptions options,
           JobPrefixes* prefixes, BatchOutput* output, BatchErrors* errors);
  BatchRun(const BatchRun&) = delete;
  ~BatchRun();

  // As many of the next requests as there is room for. A request that the engine or the parser refuses is a line of the errors. An
  // error is that of a file, or UNAVAILABLE: the device is lost. Where another's requests took the last room, the request waits for
  // the next call.
  Status Submit();
  // Writes what is complete. Errors as Submit.
  Status WriteFinished();
  // Until a request is complete or compiled, or `timeout` is over.
  void WaitForFinished(std::chrono::milliseconds timeout);
  // Submits no more, and ends what is in the engine; what was complete is still to be written.
  void Cancel();
  // After Cancel, when done: an error line with this code for each request that has no answer.
  Status ReportUnanswered(const std::string& code, const Status& why);
  // Nothing is in the engine, and nothing more will be submitted.
  bool done() const { return active_.empty() && (cancelled_ || !Next()); }
  const BatchCounts& counts() const { return counts_; }
  // BatchRunOptions::give_up_after is reached.
  bool given_up() const { return options_.give_up_after > 0 && counts_.answered == 0 && counts_.failed >= options_.give_up_after; }

 private:
  class Active;     // a request and what comes of it. Its events come on the engine's thread, and may outlive the run
  struct Finished;  // complete ones

  bool HasRoom() const;
  // The job whose request is submitted next; nothing: none is left.
  std::optional<size_t> Next() const;
  // False: the engine's queue is full, or the request is to wait.
  Result<bool> SubmitOne(size_t job);
  // Reads the job's request and asks for its admission. False: it is to wait. Nothing in `*active`: it is an error, which is
  // reported.
  Result<bool> Begin(size_t job, std::shared_ptr<Active>* active);
  // The compiled constraint of the job's output; nothing: not yet.
  std::optional<Result<std::shared_ptr<const TokenConstraint>>> Compile(const GrammarSource& source);
  void End(size_t job);
  // Reports the tokens that an admitted request used.
  void Release(int64_t taken, int64_t used) const;
  Status ReportFailure(size_t job, const BatchLine& line, const Status& status, std::string param = {});
  Status Write(Active* active);

  Engine& engine_;
  const BatchInput& input_;
  const OpenAiRequestParser& parser_;
  const BatchRunOptions options_;
  JobPrefixes* const prefixes_;
  BatchOutput& output_;
  BatchErrors& errors_;
  BatchCounts counts_;
  size_t next_ = 0;            // job
  std::vector<size_t> again_;  // jobs before it whose requests a pause or an update of weights ended
  bool cancelled_ = false;
  std::chrono::steady_clock::time_point next_admission_;
  std::vector<bool> ended_;                   // by job: answered or failed
  std::shared_ptr<Active> compiling_;         // the next one, admitted, where its constraint is not compiled yet
  std::set<std::shared_ptr<Active>> active_;  // in the engine
  const std::shared_ptr<Finished> finished_;
};

}  // namespace coppice::openai
