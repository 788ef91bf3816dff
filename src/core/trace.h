// A trace of what the process does when: spans of work by thread, for Perfetto and chrome://tracing (Trace Event Format, complete
// events). Off, a span costs a load and a branch. In a build with CUDA each span is an NVTX range too, trace or not, so that Nsight
// shows the same names. Layer: core. Thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "coppice/core/status.h"

namespace coppice {

// Spans that begin from here on are kept for `path`. ResolveOutput's errors for a path that takes no file, INVALID_ARGUMENT for
// a file that holds something else than a trace, FAILED_PRECONDITION while there is one.
Status StartTrace(const std::string& path);
// Ends the trace and puts the file into its place, whole; or the error that ended it earlier. Spans under way are left out. OK
// where there is no trace.
Status FinishTrace();

// Work of one thread, from here to the end of the scope; spans of a thread nest. Names are string literals.
class TraceSpan {
 public:
  explicit TraceSpan(const char* name);
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan();

  static constexpr int kMaxValues = 4;
  // Shown beside the span: rows, bytes. REQUIRES: at most kMaxValues of them.
  void Set(const char* name, int64_t value) {
    if (traced_) values_[num_values_++] = {name, value};
  }

  struct Value {
    const char* name = nullptr;
    int64_t value = 0;
  };

 private:
  const char* const name_;
  const bool traced_;
  int num_values_ = 0;
  std::chrono::steady_clock::time_point begin_;
  std::array<Value, kMaxValues> values_;
};

}  // namespace coppice
