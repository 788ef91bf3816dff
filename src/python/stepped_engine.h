// An engine with the thread that steps it, and what turns requests in the form of OpenAI's bodies into its own. Knows no Python.
// Layer: python.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <shared_mutex>
#include <string>
#include <thread>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"
#include "grammar/grammar_compiler.h"
#include "openai/request.h"
#include "python/process_check.h"
#include "python/step_announcements.h"

namespace coppice::python {

// Thread-safe. A process that is forked from the one that loaded the model has no thread to step the engine: every call there is
// FAILED_PRECONDITION, and the engine's memory is left as it is.
class SteppedEngine {
 public:
  static Result<std::shared_ptr<SteppedEngine>> Create(const EngineOptions& options);
  ~SteppedEngine();

  // FAILED_PRECONDITION in a forked process and after Close; the message says what to do.
  Status CheckUsable() const;
  bool closed() const { return closed_; }
  // Ends the engine and what runs in it, once no call of With is under way.
  void Close();

  // Runs `use(engine)`, which returns a Status or a Result, while the engine stays open.
  template <class F>
  std::invoke_result_t<F, Engine&> With(F&& use) {
    if (Status status = CheckUsable(); !status.ok()) return status;
    const std::shared_lock lock(open_);
    if (Status status = CheckUsable(); !status.ok()) return status;
    return use(*state_->engine);
  }

  // The request that `body` stands for, complete but for what takes its events. `body`: a chat where it has messages, else a
  // completion (docs/batch.md). Its constraint is compiled here.
  Result<Request> MakeRequest(const std::string& body);
  const openai::OpenAiRequestParser& parser() const { return *state_->parser; }
  // Made when the events of the step that runs have been sent.
  StepAnnouncements& announcements() const { return *announcements_; }

 private:
  struct State {
    std::unique_ptr<Engine> engine;
    std::unique_ptr<openai::OpenAiRequestParser> parser;
    std::mutex compiling;                       // guards `compiler`
    std::unique_ptr<GrammarCompiler> compiler;  // made when a request first has a form
    std::jthread thread;                        // the last member: it ends before what it uses
  };
  SteppedEngine(std::unique_ptr<StepAnnouncements> announcements, std::unique_ptr<State> state)
      : announcements_(std::move(announcements)), state_(std::move(state)) {}

  Result<std::shared_ptr<const TokenConstraint>> Compile(const GrammarSource& source);

  const ProcessCheck process_;
  std::atomic<bool> closed_{false};
  std::shared_mutex open_;
  const std::unique_ptr<StepAnnouncements> announcements_;  // outlives the engine, which makes them
  std::unique_ptr<State> state_;                            // left to a forked process's end
};

}  // namespace coppice::python
