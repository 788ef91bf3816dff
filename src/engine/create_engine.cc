// Engine::Create: opens a model and puts the parts of an engine together.
// Layer: engine.
#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "cache/kv_storage.h"
#include "core/check.h"
#include "engine/chunk_probe.h"
#include "engine/engine_parts.h"
#include "engine/transformer_model.h"
#include "model/checkpoint.h"

namespace coppice {
namespace {

// What the system could give us without swapping; 0 if it does not say.
int64_t AvailableMemoryBytes() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    if (line.starts_with("MemAvailable:")) return std::stoll(line.substr(13)) * 1024;
  }
  return 0;
}

int32_t CeilDiv(int32_t a, int32_t b) { return (a + b - 1) / b; }

Status ValidateOptions(const EngineOptions& options) {
  const auto refuse = [](const char* option, int64_t value, const std::string& expected) {
    return InvalidArgument(std::string(option) + " is " + std::to_string(value) + ", expected " + expected);
  };
  if (options.page_size < 1 || options.page_size > 256) return refuse("page_size", options.page_size, "1..256");
  if (options.max_running < 1) return refuse("max_running", options.max_running, "at least 1");
  if (options.max_batch_tokens < 1) return refuse("max_batch_tokens", options.max_batch_tokens, "at least 1");
  if (options.chunk < kAutoChunk) return refuse("chunk", options.chunk, "0 (no limit), kAutoChunk (-1) or a positive number");
  if (options.max_context < 0) return refuse("max_context", options.max_context, "0 (the model's) or a positive number");
  if (options.max_waiting < 0) return refuse("max_waiting", options.max_waiting, "0 (no limit) or a positive number");
  if (options.kv_cache_bytes < 0) return refuse("kv_cache_bytes", options.kv_cache_bytes, "0 (automatic) or a positive number");
  if (options.num_threads < 0) return refuse("num_threads", options.num_threads, "0 (one per core) or a positive number");
  return OkStatus();
}

// Pages of the KV cache. RESOURCE_EXHAUSTED if not even one sample of a token would fit.
Result<int32_t> NumPages(const EngineOptions& options, int64_t page_bytes) {
  const int64_t full = static_cast<int64_t>(options.max_running) * (CeilDiv(options.max_context, options.page_size) + 1);
  int64_t pages = options.kv_cache_bytes / page_bytes;
  if (options.kv_cache_bytes == 0) {
    const int64_t available = AvailableMemoryBytes();
    pages = available > 0 ? std::min(full, available / 2 / page_bytes) : full;
  }
  // A slot number, page * page_size + slot, and the forest's page indices are 32 bits wide in some backends.
  pages = std::min<int64_t>(pages, INT32_MAX / options.page_size);
  if (pages < 2) {
    return ResourceExhausted("the KV cache would have " + std::to_string(pages) + " pages of " + std::to_string(page_bytes) +
                             " bytes, expected at least 2: raise kv_cache_bytes or free some memory");
  }
  return static_cast<int32_t>(pages);
}

attention::SharePolicy PolicyOf(SharingMode mode) {
  switch (mode) {
    case SharingMode::kTree: return attention::SharePolicy::kTree;
    case SharingMode::kOneLevel: return attention::SharePolicy::kOneLevel;
    case SharingMode::kStore:
    case SharingMode::kNone: return attention::SharePolicy::kStore;  // kNone: the cache leaves nothing to share
  }
  return attention::SharePolicy::kTree;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& given) {
  COPPICE_RETURN_IF_ERROR(ValidateOptions(given));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(given.model_path));
  const ModelConfig& config = checkpoint->config();

  EngineParts parts{.options = given};
  EngineOptions& options = parts.options;
  if (options.max_context == 0) options.max_context = config.max_position;
  if (options.max_context > config.max_position) {
    return InvalidArgument("max_context is " + std::to_string(options.max_context) + ", the model's context length is " +
                           std::to_string(config.max_position) + ": ask for at most that");
  }
  const int64_t page_slots = int64_t{options.max_running} * CeilDiv(options.max_context, options.page_size);
  if (page_slots > INT32_MAX) {
    return InvalidArgument("max_running " + std::to_string(options.max_running) + " samples of max_context " +
                           std::to_string(options.max_context) + " tokens need " + std::to_string(page_slots) +
                           " page slots, expected at most " + std::to_string(INT32_MAX) + ": lower one of them or raise page_size");
  }
  options.max_batch_tokens = std::max(options.max_batch_tokens, options.max_running);  // every running sample decodes in each step

  if (checkpoint->tokenizer()) {
    COPPICE_ASSIGN_OR_RETURN(parts.tokenizer, Tokenizer::Create(*checkpoint->tokenizer()));
  }
  parts.threads = std::make_unique<ThreadPool>(options.num_threads);
  COPPICE_ASSIGN_OR_RETURN(parts.context, attention::Context::CreateCpu(parts.threads.get()));
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Transformer> transformer,
                           Transformer::Create(*checkpoint, {.dtype = options.dtype,
                                                             .executor = parts.threads.get(),
                                                             .attention = parts.context.get(),
                                                             .max_tokens = options.max_batch_tokens,
                                                             .max_logit_rows = options.max_batch_tokens,
                                                             .deterministic = options.deterministic}));
  const attention::AttentionSpec spec = transformer->attention_spec();
  COPPICE_ASSIGN_OR_RETURN(const int32_t num_pages,
                           NumPages(options, KvStorage::BytesPerPage(spec, config.num_layers, options.page_size)));
  COPPICE_ASSIGN_OR_RETURN(parts.cache, KvCache::Create({.num_pages = num_pages,
                                                         .page_size = options.page_size,
                                                         .max_branches = options.max_running,
                                                         .max_context = options.max_context,
                                                         .share = options.sharing != SharingMode::kNone}));
  COPPICE_ASSIGN_OR_RETURN(
      parts.plan, attention::AttentionPlan::Create(*parts.context, spec,
                                                   {.max_branches = options.max_running,
                                                    .max_queries = options.max_batch_tokens,
                                                    .max_page_slots = static_cast<int32_t>(page_slots),
                                                    .page_size = options.page_size},
                                                   {.policy = PolicyOf(options.sharing), .force_sharing = options.force_sharing}));
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<KvStorage> storage,
                           KvStorage::Create(parts.context.get(), spec, config.num_layers, num_pages, options.page_size));
  parts.model = std::make_unique<TransformerModel>(std::move(transformer), std::move(storage), checkpoint->Fingerprint());
  if (options.chunk == kAutoChunk) {
    COPPICE_ASSIGN_OR_RETURN(parts.chunk_probe, MeasureChunks(parts));
    options.chunk = SmallestGoodChunk(parts.chunk_probe);
  }
  if (options.chunk == 0) options.chunk = options.max_batch_tokens;
  return MakeEngine(std::move(parts));
}

}  // namespace coppice
