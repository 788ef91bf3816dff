// Compiles what outputs of a batch must look like, for BatchRunOptions::compile: starts, and says later what came of it. Layer:
// server.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "grammar/compile_queue.h"

namespace coppice::server {

// Used by one thread.
class BatchCompile {
 public:
  // `queue` outlives this.
  BatchCompile(CompileQueue* queue, std::string key) : queue_(*queue), key_(std::move(key)) {}
  BatchCompile(const BatchCompile&) = delete;
  // A grammar that no request waits for any more is not compiled.
  ~BatchCompile() { queue_.Cancel(ticket_); }

  std::optional<Result<CompileQueue::Constraint>> operator()(const GrammarSource& source, std::function<void()> wake) {
    if (!answer_ || source.kind != source_.kind || source.text != source_.text) {
      queue_.Cancel(ticket_);
      source_ = source;
      answer_ = std::make_shared<Answer>();
      ticket_ = queue_.Compile(key_, source, std::nullopt, [answer = answer_, wake = std::move(wake)](auto compiled) {
        {
          const std::lock_guard lock(answer->mutex);
          answer->compiled = std::move(compiled);
        }
        wake();
      });
    }
    std::optional<Result<CompileQueue::Constraint>> compiled;
    {
      const std::lock_guard lock(answer_->mutex);
      compiled = answer_->compiled;
    }
    if (compiled) answer_.reset();
    return compiled;
  }

 private:
  struct Answer {
    std::mutex mutex;
    std::optional<Result<CompileQueue::Constraint>> compiled;
  };

  CompileQueue& queue_;
  const std::string key_;
  GrammarSource source_;
  std::shared_ptr<Answer> answer_;  // of the source above, until it was reported
  CompileQueue::Ticket ticket_ = 0;
};

}  // namespace coppice::server
