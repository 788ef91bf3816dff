#include "cli/load_engine.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <string>

#include "cli/progress_line.h"
#include "cli/run_stats.h"
#include "core/format_bytes.h"
#include "engine/engine_parts.h"
#include "tokenizer/one_line.h"

namespace coppice::cli {

std::string ModelName(const std::string& path) {
  const std::filesystem::path of(path);
  return (of.has_filename() ? of : of.parent_path()).filename().string();
}

Result<std::unique_ptr<Engine>> LoadEngine(const EngineOptions& options, LoadingIs loading) {
  if (loading == LoadingIs::kSilent) return Engine::Create(options);
  const std::string what = "loading " + OneLine(ModelName(options.model_path));
  ProgressLine progress;
  progress.Show({what});
  const auto show = [&](int64_t done, int64_t total) {
    if (!progress.due()) return;
    progress.Show(
        {fmt::format("{}: {} of {}", what, FormatBytes(static_cast<double>(done)), FormatBytes(static_cast<double>(total)))});
  };
  Result<std::unique_ptr<Engine>> engine = CreateEngine(options, show);
  progress.Clear();
  return engine;
}

void ReportNotes(const Engine& engine) {
  const ModelInfo& info = engine.model_info();
  for (const std::string& note : info.notes) spdlog::warn("{}", note);
  if (!info.kv_split_reason.empty()) spdlog::info("KV is divided by {}: {}", Name(info.kv_split), info.kv_split_reason);
}

}  // namespace coppice::cli
