// --record: the prefix forests of an engine's steps, as a trace in a file (docs/traces.md). Layer: cli.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "attention_tools/forest_trace.h"
#include "coppice/core/status.h"
#include "coppice/engine/forest_listener.h"
#include "core/file.h"

namespace CLI {
class App;
}

namespace coppice {
struct EngineOptions;
struct ModelInfo;
}  // namespace coppice

namespace coppice::cli {

// Whole lines are written once a second and at the end. Where they cannot be, one warning is logged, the file keeps the steps that
// it has, and the engine goes on.
class ForestRecorder final : public ForestListener {
 public:
  explicit ForestRecorder(std::string path) : path_(std::move(path)) {}
  ForestRecorder(const ForestRecorder&) = delete;
  ForestRecorder& operator=(const ForestRecorder&) = delete;
  ~ForestRecorder() override;

  // Opens the file; what it holds stays until the first step. Errors of ResolveOutput; INVALID_ARGUMENT for a file that holds
  // something else than a trace.
  Status Begin() override;
  void OnStep(const ModelInfo& model, const attention::PrefixForestView& forest) override;

 private:
  Status WriteHead(const ModelInfo& model, int32_t page_size);
  // Lines that are not in the file yet.
  Status Write();
  // Runs `body` unless an earlier one failed.
  template <class Body>
  void UnlessEnded(Body body);

  const std::string path_;
  FileDescriptor file_;
  attention::ForestTraceWriter writer_;
  std::string text_;       // whole lines
  int64_t num_steps_ = 0;  // with those of text_
  int64_t written_ = 0;    // bytes
  std::chrono::steady_clock::time_point last_write_;
  bool ended_ = false;
};

// --record of a command that runs one engine with these options.
void AddRecordOption(CLI::App& command, EngineOptions& options);

}  // namespace coppice::cli
