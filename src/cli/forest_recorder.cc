#include "cli/forest_recorder.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <utility>

#include "cli/command_tree.h"
#include "cli/parsed_option.h"
#include "coppice/attention/attention.h"
#include "coppice/engine/engine.h"
#include "core/check.h"
#include "core/exhaustion.h"
#include "tokenizer/one_line.h"

namespace coppice::cli {
namespace {

constexpr auto kWriteEvery = std::chrono::seconds(1);
constexpr size_t kMostHeld = size_t{1} << 20;  // bytes

}  // namespace

ForestRecorder::~ForestRecorder() {
  UnlessEnded([this] { return Write(); });
}

Status ForestRecorder::Begin() {
  COPPICE_ASSIGN_OR_RETURN(const std::string target, ResolveOutput(path_));
  COPPICE_RETURN_IF_ERROR(CheckReplaceable(target, path_, attention::kForestTraceBegin, "a forest trace"));
  file_ = FileDescriptor(open(target.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  return file_.get() >= 0 ? OkStatus() : SystemError("write to", path_);
}

template <class Body>
void ForestRecorder::UnlessEnded(Body body) {
  if (ended_) return;
  const Status status = CatchExhaustion("recording", body);
  if (status.ok()) return;
  ended_ = true;
  spdlog::warn("--record ends before step {}: {}", num_steps_ + 1, OneLine(status.message()));
}

void ForestRecorder::OnStep(const ModelInfo& model, const attention::PrefixForestView& forest) {
  UnlessEnded([&]() -> Status {
    if (num_steps_ == 0) COPPICE_RETURN_IF_ERROR(WriteHead(model, forest.page_size));
    writer_.AppendStep(forest, &text_);
    ++num_steps_;
    const bool due = text_.size() >= kMostHeld || std::chrono::steady_clock::now() - last_write_ >= kWriteEvery;
    return due ? Write() : OkStatus();
  });
}

Status ForestRecorder::WriteHead(const ModelInfo& model, int32_t page_size) {
  attention::ForestTraceHead head{.page_size = page_size};
  for (const AttentionLayers& layers : model.attention) {
    head.layers.push_back({.num_layers = layers.num_layers,
                           .spec = {.num_qo_heads = model.num_qo_heads,
                                    .num_kv_heads = model.num_kv_heads,
                                    .head_dim = model.head_dim,
                                    .window = layers.window}});
  }
  text_ = attention::ForestTraceWriter::HeadLine(head);
  if (ftruncate(file_.get(), 0) != 0) return SystemError("write to", path_);
  return Write();
}

Status ForestRecorder::Write() {
  last_write_ = std::chrono::steady_clock::now();
  const Status status = WriteAll(file_.get(), text_, path_);
  if (!status.ok()) {
    [[maybe_unused]] const int cut = ftruncate(file_.get(), written_);  // no part of a line
    return status;
  }
  written_ += static_cast<int64_t>(text_.size());
  text_.clear();
  return OkStatus();
}

void AddRecordOption(CLI::App& command, EngineOptions& options) {
  command
      .add_option_function<std::string>(
          "--record", [&options](const std::string& path) { options.forest_listener = std::make_shared<ForestRecorder>(path); },
          "Write the prefix tree of each step to this file, lengths and ids without text, for `coppice bench attention --trace`")
      ->type_name("FILE")
      ->check(NotEmpty())
      ->group(kBatchingGroup);
}

}  // namespace coppice::cli
