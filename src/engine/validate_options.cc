#include "engine/validate_options.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/check.h"
#include "core/thread_pool.h"
#include "engine/draft.h"
#include "engine/open_device.h"

namespace coppice {
namespace {

// Memory is taken for that many when the engine is created: a step's activations, the forest's branches. Larger steps gain nothing,
// since a chip is busy with some thousand rows.
constexpr int64_t kMostRunning = 1 << 16, kMostBatchTokens = 1 << 20;
constexpr int64_t kAny = INT32_MAX;

struct Range {
  const char* option;
  int64_t value, low, high;
  const char* meaning = "";  // of 0
};

Status Refuse(const std::string& option, int64_t value, const std::string& expected) {
  return InvalidArgument(option + " is " + std::to_string(value) + ", expected " + expected);
}

Status Check(const Range& range) {
  if (range.value >= range.low && range.value <= range.high) return OkStatus();
  return Refuse(range.option, range.value,
                range.high >= kAny ? std::to_string(range.low) + range.meaning + " or more"
                                   : std::to_string(range.low) + ".." + std::to_string(range.high) + range.meaning);
}

Status CheckDrafts(const EngineOptions& options) {
  if (options.experiment.draft_branches > 1 && options.draft != DraftMode::kNgram) {
    return Refuse("draft_branches", options.experiment.draft_branches, "1 unless draft is ngram: only n-gram drafts are trees");
  }
  if (options.experiment.draft_branches > 1 && options.deterministic) {
    return Refuse("draft_branches", options.experiment.draft_branches,
                  "1 in deterministic mode: the bits of a draft tree's rows depend on the tree");
  }
  if ((options.draft == DraftMode::kModel) != !options.draft_model_path.empty()) {
    return InvalidArgument("draft is " + std::string(Name(options.draft)) + " and draft_model_path is \"" +
                           options.draft_model_path + "\": expected a path with draft model, and with that alone");
  }
  return OkStatus();
}

}  // namespace

Status ValidateOptions(const EngineOptions& options) {
  const Range ranges[] = {
      {"page_size", options.page_size, 1, 256},
      {"max_running", options.max_running, 1, kMostRunning},
      {"max_batch_tokens", options.max_batch_tokens, 1, kMostBatchTokens},
      {"chunk", options.chunk, kAutoChunk, kAny, " (kAutoChunk), 0 (no limit)"},
      {"max_context", options.max_context, 0, kAny, " (the model's)"},
      {"max_waiting", options.max_waiting, 0, kAny, " (no limit)"},
      {"kv_cache_bytes", options.kv_cache_bytes, 0, INT64_MAX, " (chosen by the engine)"},
      {"draft_tokens", options.draft_tokens, 1, Draft::kMaxTokens},
      {"draft_branches", options.experiment.draft_branches, 1, Draft::kMaxTokens},
      {"steps_ahead", options.steps_ahead, kAutoStepsAhead, 1, " (kAutoStepsAhead)"},
      {"max_graphs", options.experiment.max_graphs, 0, kAny, " (none)"},
      {"num_threads", options.num_threads, 0, ThreadPool::kMaxThreads, " (0: one per core)"},
  };
  for (const Range& range : ranges) {
    if (Status status = Check(range); !status.ok()) return status;
  }
  if (!(options.gpu_memory_utilization > 0 && options.gpu_memory_utilization <= 1)) {
    return InvalidArgument("gpu_memory_utilization is " + std::to_string(options.gpu_memory_utilization) +
                           ", expected more than 0 and at most 1");
  }
  if (!(options.target_tbt >= 0 && std::isfinite(options.target_tbt)))
    return InvalidArgument("target_tbt is " + std::to_string(options.target_tbt) + ", expected seconds, or 0 for no target");
  if (options.target_tbt > 0 && options.experiment.schedule == SchedulePolicy::kPrefillFirst)
    return InvalidArgument("target_tbt is " + std::to_string(options.target_tbt) +
                           " and schedule prefill-first, in which samples wait for whole prompts: expected schedule mixed");
  if (options.head_dtype.value_or(DType::kF32) != DType::kF32)
    return InvalidArgument("head_dtype is " + std::string(Name(*options.head_dtype)) +
                           ": expected f32, or none for the dtype of the other products");
  if (options.weights == WeightForm::kBF16 && options.dtype.value_or(DType::kBF16) != DType::kBF16) {
    const std::string dtype(Name(*options.dtype));
    return InvalidArgument("weights is bf16 and dtype " + dtype + ": expected weights fastest or f32, since products in " + dtype +
                           " read no bf16");
  }
  COPPICE_RETURN_IF_ERROR(CheckDevice(options));
  return CheckDrafts(options);
}

}  // namespace coppice
