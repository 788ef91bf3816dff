#include "core/trace.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/exhaustion.h"
#include "core/file.h"

#ifdef COPPICE_NVTX
#include "core/cuda/nvtx.h"
#endif

namespace coppice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kFlushBytes = 1 << 20;
constexpr std::string_view kBegin = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";  // of each trace

// Small numbers, since viewers sort threads by them.
int ThreadNumber() {
  static std::atomic<int> threads = 0;
  thread_local const int number = ++threads;
  return number;
}

// Names are literals of this program: nothing to escape.
std::string Quoted(const char* name) { return '"' + std::string(name) + '"'; }

std::string Microseconds(Clock::duration time) {
  const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  const std::string rest = std::to_string(ns % 1000);
  return std::to_string(ns / 1000) + '.' + std::string(3 - rest.size(), '0') + rest;
}

// The file of a trace, and the events that are not in it yet.
class TraceWriter {
 public:
  explicit TraceWriter(FileReplacement file) : file_(std::move(file)) {}

  void Add(const char* name, Clock::time_point begin, Clock::time_point end, std::span<const TraceSpan::Value> values) {
    if (!status_.ok() || begin < start_) return;
    Status added = CatchExhaustion("tracing", [&] {
      Append(name, begin, end, values);
      return OkStatus();
    });
    if (!added.ok()) status_ = std::move(added);
  }

  Status Finish() {
    text_ += "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"name\":\"coppice\"}}\n]}\n";
    Flush();
    return status_.ok() ? file_.Commit() : status_;
  }

 private:
  void Append(const char* name, Clock::time_point begin, Clock::time_point end, std::span<const TraceSpan::Value> values) {
    NameThread();
    text_ += "{\"ph\":\"X\",\"name\":" + Quoted(name) + Place() + ",\"ts\":" + Microseconds(begin - start_) +
             ",\"dur\":" + Microseconds(end - begin);
    for (size_t i = 0; i < values.size(); ++i) {
      text_ += (i == 0 ? ",\"args\":{" : ",") + Quoted(values[i].name) + ':' + std::to_string(values[i].value);
    }
    text_ += values.empty() ? "},\n" : "}},\n";
    if (text_.size() >= kFlushBytes) Flush();
  }

  static std::string Place() { return ",\"pid\":1,\"tid\":" + std::to_string(ThreadNumber()); }

  // Once a thread.
  void NameThread() {
    const int thread = ThreadNumber();
    if (thread < static_cast<int>(named_.size()) && named_[thread]) return;
    named_.resize(std::max(named_.size(), thread + size_t{1}));
    named_[thread] = true;
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    text_ += "{\"ph\":\"M\",\"name\":\"thread_name\"" + Place() + ",\"args\":{\"name\":" + nlohmann::json(name).dump() + "}},\n";
  }

  void Flush() {
    if (status_.ok()) status_ = file_.Write(std::as_bytes(std::span(text_)));
    text_.clear();
  }

  const Clock::time_point start_ = Clock::now();
  FileReplacement file_;
  Status status_;
  std::vector<bool> named_;
  std::string text_{kBegin};
};

std::atomic<bool> tracing = false;  // whether there is a writer; spans that see it late or early do no harm

struct State {
  std::mutex mutex;
  std::unique_ptr<TraceWriter> writer;
};
State& TheState() {
  static State* const state = new State;  // outlives threads that end after main
  return *state;
}

}  // namespace

Status StartTrace(const std::string& path) {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  if (state.writer != nullptr) return FailedPrecondition("a trace is being written already: finish it before " + path);
  COPPICE_ASSIGN_OR_RETURN(const std::string target, ResolveOutput(path));
  COPPICE_RETURN_IF_ERROR(CheckReplaceable(target, path, kBegin, "a trace"));
  COPPICE_ASSIGN_OR_RETURN(FileReplacement file, FileReplacement::Begin(target));
  state.writer = std::make_unique<TraceWriter>(std::move(file));
  tracing = true;
  return OkStatus();
}

Status FinishTrace() {
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  tracing = false;
  const std::unique_ptr<TraceWriter> writer = std::move(state.writer);
  return writer == nullptr ? OkStatus() : writer->Finish();
}

TraceSpan::TraceSpan(const char* name) : name_(name), traced_(tracing.load(std::memory_order_relaxed)) {
  if (traced_) begin_ = Clock::now();
#ifdef COPPICE_NVTX
  cuda::PushRange(name);
#endif
}

TraceSpan::~TraceSpan() {
#ifdef COPPICE_NVTX
  cuda::PopRange();
#endif
  if (!traced_) return;
  const Clock::time_point end = Clock::now();
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  if (state.writer != nullptr) state.writer->Add(name_, begin_, end, std::span(values_).first(num_values_));
}

}  // namespace coppice
