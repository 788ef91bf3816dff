// Where the time of a step goes, part by part: into counters and into the trace. Layer: runner.
#pragma once

#include <chrono>
#include <optional>

#include "core/trace.h"

namespace coppice {

// The part of a step that is under way, until the next begins or this goes out of scope. Its time is added to a counter; where
// there is a trace, it is a span of it.
class PhaseTimer {
 public:
  // `name`: a string literal. `seconds` may be null.
  PhaseTimer(const char* name, double* seconds) { Begin(name, seconds); }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;
  ~PhaseTimer() { End(); }

  void Next(const char* name, double* seconds) {
    End();
    Begin(name, seconds);
  }
  // A value beside the span of the part that is under way, as TraceSpan::Set.
  void Set(const char* name, int64_t value) { span_->Set(name, value); }

 private:
  void Begin(const char* name, double* seconds) {
    span_.emplace(name);
    seconds_ = seconds;
    begin_ = std::chrono::steady_clock::now();
  }
  void End() {
    if (seconds_ != nullptr) *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    span_.reset();
  }

  std::optional<TraceSpan> span_;
  double* seconds_ = nullptr;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace coppice
