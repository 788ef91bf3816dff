// Engine::Create: opens a model and puts the parts of an engine together.
// Layer: engine.
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/exhaustion.h"
#include "core/math.h"
#include "core/quoted.h"
#include "engine/chunk_probe.h"
#include "engine/engine_parts.h"
#include "engine/kv_split.h"
#include "engine/model_drafter.h"
#include "engine/ngram_drafter.h"
#include "engine/open_device.h"
#include "engine/validate_options.h"
#include "model/checkpoint.h"
#include "model/random_checkpoint.h"
#include "model/rope.h"
#include "ops/peer_group.h"
#include "runner/device_runner.h"
#include "runner/kv_pool.h"
#include "runner/model_runner.h"
#include "runner/null_runner.h"
#include "runner/rank_group.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

// Rows of logits that a GPU's step has at a time. More would make no product of so many columns faster.
constexpr int32_t kMostLogitRows = 512;

KeepStored KeepStoredOf(WeightForm form) {
  switch (form) {
    case WeightForm::kFastest: return KeepStored::kWhereFaster;
    case WeightForm::kStored: return KeepStored::kWherePossible;
    case WeightForm::kBF16:
    case WeightForm::kF32: break;
  }
  return KeepStored::kNone;
}

// Of KV, and of what the weights' form leaves open, where the options do.
DType SuitableDType(const Checkpoint& checkpoint, const EngineOptions& options, DeviceKind device) {
  const bool is_open = device != DeviceKind::kCpu && options.weights == WeightForm::kFastest;
  return is_open ? checkpoint.SuitableHalf() : DType::kBF16;
}

// Bytes that the KV cache may take on a device of what it has left, the model's weights and activations being there; INT64_MAX if
// it does not say.
Result<int64_t> KvCacheBudget(const Device& device, const EngineOptions& options) {
  const Result<Device::MemoryInfo> memory = device.GetMemoryInfo();
  if (device.kind() == DeviceKind::kCpu) return memory.ok() ? memory->free_bytes / 2 : INT64_MAX;
  COPPICE_RETURN_IF_ERROR(memory.status());
  const auto kept_free = static_cast<int64_t>((1 - options.gpu_memory_utilization) * static_cast<double>(memory->total_bytes));
  constexpr int64_t kStepInputs = int64_t{64} << 20;  // what is allocated after the pool
  return std::max<int64_t>(memory->free_bytes - kept_free - kStepInputs, 0);
}

// Pages of the KV cache, of which each rank has `bytes_of_rank` a page. RESOURCE_EXHAUSTED if not even one sample of a token would
// fit.
Result<int32_t> NumPages(std::span<const ModelParts> ranks, const EngineOptions& options, int64_t bytes_of_rank) {
  const Device* smallest = ranks.front().device.get();
  const bool on_cpu = smallest->kind() == DeviceKind::kCpu;
  const int64_t page_bytes = bytes_of_rank * static_cast<int64_t>(ranks.size());
  const int64_t full = static_cast<int64_t>(options.max_running) * (CeilDiv(options.max_context, options.page_size) + 1);
  int64_t pages = options.kv_cache_bytes / page_bytes;
  if (options.kv_cache_bytes == 0) {
    pages = full;
    for (const ModelParts& rank : ranks) {
      COPPICE_ASSIGN_OR_RETURN(const int64_t budget, KvCacheBudget(*rank.device, options));
      const int64_t room = budget / (on_cpu ? page_bytes : bytes_of_rank);  // ranks on CPUs share the host's memory
      if (room >= pages) continue;
      pages = room;
      smallest = rank.device.get();
    }
  }
  // A slot number, page * page_size + slot, and the forest's page indices are 32 bits wide in some backends.
  pages = std::min<int64_t>(pages, INT32_MAX / options.page_size);
  if (pages < 2) {
    const Result<Device::MemoryInfo> memory = smallest->GetMemoryInfo();
    const std::string figures = memory.ok() ? ", of which " + std::to_string(memory->free_bytes) + " of " +
                                                  std::to_string(memory->total_bytes) + " bytes are free"
                                            : "";
    return ResourceExhausted("the KV cache would have " + std::to_string(pages) + " pages of " + std::to_string(page_bytes) +
                             " bytes on " + smallest->name() + figures +
                             "; expected at least 2: raise kv_cache_bytes (--kv-cache)" +
                             (on_cpu ? "" : " or gpu_memory_utilization") + " or free some memory");
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

// A model on a runner, and the cache of its KV.
struct LoadedModel {
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<Runner> runner;
};

// Where a model's ranks compute.
struct RankPlace {
  ThreadPool* threads = nullptr;
  attention::Context* context = nullptr;
};
std::vector<RankPlace> PlacesOf(const EngineParts& parts) {
  std::vector<RankPlace> places = {{parts.threads.get(), parts.context.get()}};
  for (const RankParts& rank : parts.other_ranks) places.push_back({rank.threads.get(), rank.context.get()});
  return places;
}
std::vector<Executor*> ExecutorsOf(std::span<const RankPlace> places) {
  std::vector<Executor*> executors;
  for (const RankPlace& place : places) executors.push_back(place.threads);
  return executors;
}

// Of KV and q.
struct AttentionDTypes {
  DType kv, q;
};
AttentionDTypes DTypesOf(const Checkpoint& checkpoint, const EngineOptions& options, DeviceKind device) {
  const DType dtype = options.dtype.value_or(SuitableDType(checkpoint, options, device));
  return {.kv = dtype, .q = WantedDType(options).value_or(dtype)};
}

// The tokens of a page that a rank has; `sharers`: KvSplitChoice's.
TokenStripe StripeOf(const Transformer& transformer, const EngineOptions& options, int32_t sharers) {
  const auto index = static_cast<int32_t>(transformer.shard().IndexAtKvHead(transformer.config()));
  return {.index = sharers == 1 ? 0 : index, .count = sharers, .page_size = options.page_size / sharers};
}

// The parts of a rank that do not depend on the number of pages.
Result<ModelParts> LoadRank(const Checkpoint& checkpoint, const EngineOptions& options, int32_t max_logit_rows,
                            std::unique_ptr<Device> device, const RankPlace& place, Communicator* communicator, int32_t sharers,
                            std::shared_ptr<DraftDistributions> distributions) {
  const bool on_cpu = device->kind() == DeviceKind::kCpu;
  const AttentionDTypes dtypes = DTypesOf(checkpoint, options, device->kind());
  ModelParts parts;
  parts.device = std::move(device);
  COPPICE_ASSIGN_OR_RETURN(parts.transformer, Transformer::Create(checkpoint, {.dtype = dtypes.q,
                                                                               .kv_dtype = dtypes.kv,
                                                                               .head_dtype = options.head_dtype,
                                                                               .keep_stored = KeepStoredOf(options.weights),
                                                                               .device = parts.device.get(),
                                                                               .communicator = communicator,
                                                                               .max_tokens = options.max_batch_tokens,
                                                                               .max_logit_rows = max_logit_rows,
                                                                               .max_context = options.max_context,
                                                                               .deterministic = options.deterministic,
                                                                               .splits_tokens = sharers > 1,
                                                                               .attends = !options.experiment.without_attention}));
  attention::PlanCapacity capacity = {.max_branches = options.max_running,
                                      .max_queries = options.max_batch_tokens,
                                      .max_page_slots = options.max_running * CeilDiv(options.max_context, options.page_size),
                                      .page_size = options.page_size,
                                      .device_images = on_cpu ? 1 : 2};
  if (sharers > 1) {
    const TokenStripe stripe = StripeOf(*parts.transformer, options, sharers);
    parts.stripes = std::make_unique<StripedForest>(stripe, capacity);
    capacity = StripedForest::CapacityOf(stripe, capacity);
  }
  for (const attention::AttentionSpec& group : parts.transformer->attention_specs()) {
    COPPICE_ASSIGN_OR_RETURN(auto plan, attention::AttentionPlan::Create(*place.context, group, capacity,
                                                                         {.policy = PolicyOf(options.sharing),
                                                                          .force_sharing = options.experiment.force_sharing,
                                                                          .kinds = options.experiment.kinds,
                                                                          .machine_model_path = options.machine_model_path}));
    parts.plans.push_back(std::move(plan));
  }
  if (!on_cpu && parts.transformer->shard().rank == 0) {
    COPPICE_ASSIGN_OR_RETURN(parts.sampler, DeviceSampler::Create(parts.device.get(),
                                                                  {.max_draws = options.max_batch_tokens,
                                                                   .max_rows = options.max_batch_tokens,
                                                                   .max_slots = options.max_running,
                                                                   .vocab_size = checkpoint.config().vocab_size},
                                                                  distributions));
  }
  parts.fingerprint = checkpoint.Fingerprint() + FrequencyChoice(checkpoint.config().rope, options.max_context);
  parts.executor = place.threads;
  parts.distributions = std::move(distributions);
  return parts;
}

// The KV of a rank, and what brings steps to it.
Status AddPages(const EngineOptions& options, int32_t num_pages, attention::Context* context, ModelParts* parts) {
  const ModelConfig& config = parts->transformer->config();
  const Shard& shard = parts->transformer->shard();
  const ShardRun heads = shard.KvHeads(config);
  const bool by_tokens = parts->stripes != nullptr;
  const TokenStripe stripe = by_tokens ? parts->stripes->stripe() : TokenStripe{.page_size = options.page_size};
  COPPICE_ASSIGN_OR_RETURN(parts->pool, KvPool::Create(parts->device.get(), context,
                                                       {.specs = parts->transformer->attention_specs(),
                                                        .layer_groups = parts->transformer->layer_groups(),
                                                        .num_pages = num_pages,
                                                        .page_size = stripe.page_size,
                                                        .stripe = stripe,
                                                        .heads = {.first = static_cast<int32_t>(heads.begin),
                                                                  .count = static_cast<int32_t>(heads.count),
                                                                  .total = config.num_kv_heads,
                                                                  .is_copy = !by_tokens && shard.IndexAtKvHead(config) > 0}}));
  COPPICE_ASSIGN_OR_RETURN(parts->inputs, StepInputs::Create(parts->device.get(), {.max_tokens = options.max_batch_tokens,
                                                                                   .max_logit_rows = options.max_batch_tokens,
                                                                                   .vocab_size = config.vocab_size,
                                                                                   .max_position = config.longest_context(),
                                                                                   .num_slots = parts->pool->num_slots()}));
  return OkStatus();
}

// The group by which the ranks on these devices communicate.
Result<std::unique_ptr<CommunicatorGroup>> ConnectRanks(const ModelConfig& config, const EngineOptions& options,
                                                        std::span<const std::unique_ptr<Device>> devices,
                                                        std::span<const RankPlace> places) {
  if (devices.size() == 1 || devices.front()->kind() == DeviceKind::kCpu) return MakeThreadGroup(ExecutorsOf(places));
  std::vector<int> ordinals;
  for (const auto& device : devices) ordinals.push_back(device->ordinal());
  constexpr int64_t kMostBytes = int64_t{16} << 20;  // at a time; more would fill no link better
  const int64_t widest = std::max(config.hidden_size, config.num_qo_heads * config.head_dim);  // of the rows of a call
  const int64_t max_bytes = std::min(int64_t{options.max_batch_tokens} * widest * int64_t{sizeof(float)}, kMostBytes);
  Status status;
  if (!options.experiment.ranks_by_nccl) {
    Result<std::unique_ptr<CommunicatorGroup>> peers = ops::MakePeerGroup(ordinals, max_bytes);
    if (peers.ok() || peers.status().code() != StatusCode::kUnavailable) return peers;
    status = peers.status();
  }
  Result<std::unique_ptr<CommunicatorGroup>> nccl = ops::MakeNcclGroup(ordinals, max_bytes);
  if (nccl.ok() || status.ok()) return nccl;
  return Unavailable(status.message() + ". NCCL would do without, but: " + nccl.status().message());
}

// `options` are complete; max_context is at most the model's, page_size that of all ranks that divide the tokens of a page, as many
// as `sharers`. `num_pages` 0: as options.kv_cache_bytes says. A rank for each device and place.
Result<LoadedModel> LoadModel(const Checkpoint& checkpoint, const EngineOptions& options, int32_t sharers, int32_t num_pages,
                              std::vector<std::unique_ptr<Device>> devices, std::span<const RankPlace> places,
                              std::shared_ptr<DraftDistributions> distributions) {
  const ModelConfig& config = checkpoint.config();
  const bool on_cpu = devices.front()->kind() == DeviceKind::kCpu;
  // A GPU draws from logits as they come, so few of them take room from KV: at 128,256 tokens and 2,048 rows they would have 1 GB.
  const int32_t max_logit_rows = on_cpu ? options.max_batch_tokens : std::min(options.max_batch_tokens, kMostLogitRows);
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<CommunicatorGroup> connected, ConnectRanks(config, options, devices, places));
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<RankGroup> group, RankGroup::Create(std::move(connected)));
  std::vector<ModelParts> ranks(devices.size());
  COPPICE_RETURN_IF_ERROR(group->Run([&](int rank) -> Status {
    Communicator* const communicator = group->size() == 1 ? nullptr : &group->communicator(rank);
    COPPICE_ASSIGN_OR_RETURN(ranks[rank], LoadRank(checkpoint, options, max_logit_rows, std::move(devices[rank]), places[rank],
                                                   communicator, sharers, rank == 0 ? distributions : nullptr));
    return OkStatus();
  }));
  if (num_pages == 0) {
    const attention::AttentionSpec& spec = ranks.front().transformer->attention_specs().front();
    const int64_t bytes_of_rank = KvPool::BytesPerPage(spec, config.num_layers, options.page_size / sharers);
    COPPICE_ASSIGN_OR_RETURN(num_pages, NumPages(ranks, options, bytes_of_rank));
  }
  LoadedModel loaded;
  COPPICE_ASSIGN_OR_RETURN(loaded.cache, KvCache::Create({.num_pages = num_pages,
                                                          .page_size = options.page_size,
                                                          .max_branches = options.max_running,
                                                          .max_context = options.max_context,
                                                          .share = options.sharing != SharingMode::kNone}));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    COPPICE_RETURN_IF_ERROR(AddPages(options, num_pages, places[rank].context, &ranks[rank]));
  }
  if (on_cpu) {
    COPPICE_ASSIGN_OR_RETURN(loaded.runner, ModelRunner::Create(std::move(ranks), std::move(group)));
  } else {
    COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceRunner> runner,
                             DeviceRunner::Create(std::move(ranks), std::move(group),
                                                  {.max_rows = options.max_batch_tokens,
                                                   .max_draws = options.max_batch_tokens,
                                                   .max_logit_rows = max_logit_rows,
                                                   .max_graphs = options.experiment.max_graphs}));
    if (options.tune) COPPICE_RETURN_IF_ERROR(runner->Tune());
    loaded.runner = std::move(runner);
  }
  return loaded;
}

// A draft's ids must mean in the target what they mean in the draft model.
Status CheckSameVocabulary(const Checkpoint& target, const Checkpoint& draft, const std::string& draft_path) {
  if (draft.config().vocab_size != target.config().vocab_size) {
    return InvalidArgument("the draft model " + draft_path + " has a vocabulary of " + std::to_string(draft.config().vocab_size) +
                           " tokens, the model one of " + std::to_string(target.config().vocab_size) +
                           ": expected two models of one vocabulary");
  }
  if (!draft.tokenizer() || !target.tokenizer()) return OkStatus();  // nothing to compare
  const std::vector<std::string>& theirs = draft.tokenizer()->tokens;
  const std::vector<std::string>& ours = target.tokenizer()->tokens;
  for (size_t id = 0; id < std::min(theirs.size(), ours.size()); ++id) {
    if (theirs[id] == ours[id]) continue;
    return InvalidArgument("token " + std::to_string(id) + " is " + Quoted(theirs[id]) + " in the draft model " + draft_path +
                           " and " + Quoted(ours[id]) + " in the model: expected two models of one vocabulary");
  }
  return OkStatus();
}

// Where a draft model writes its distributions for the target; null without one.
Result<std::shared_ptr<DraftDistributions>> MakeDistributions(const EngineOptions& options, int32_t vocab_size, bool on_cpu,
                                                              ThreadPool* threads) {
  if (options.draft != DraftMode::kModel) return std::shared_ptr<DraftDistributions>();
  if (on_cpu) return std::make_shared<DraftDistributions>(vocab_size);
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice(options, threads));
  // Of a step's drafts: as deep as was asked for, and no more than a step has rows.
  const int64_t rows = std::min<int64_t>(int64_t{options.max_running} * options.draft_tokens, options.max_batch_tokens);
  return DraftDistributions::CreateOn(std::move(device), static_cast<int32_t>(rows), vocab_size);
}

Result<std::unique_ptr<Drafter>> MakeDrafter(const Checkpoint& target, const EngineParts& parts,
                                             std::shared_ptr<DraftDistributions> distributions) {
  if (parts.options.draft == DraftMode::kNone) return std::unique_ptr<Drafter>();
  if (parts.options.draft == DraftMode::kNgram) {
    return std::unique_ptr<Drafter>(new NgramDrafter({.branches = parts.options.experiment.draft_branches}));
  }
  EngineOptions options = parts.options;
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(options.draft_model_path));
  COPPICE_RETURN_IF_ERROR(CheckSameVocabulary(target, *checkpoint, options.draft_model_path));
  options.max_context = std::min(options.max_context, checkpoint->config().longest_context());
  const std::vector<RankPlace> places = PlacesOf(parts);
  COPPICE_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Device>> devices, OpenDevices(options, ExecutorsOf(places)));
  COPPICE_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(*checkpoint, options, /*sharers=*/1, parts.cache->usage().pages_total,
                                                         std::move(devices), places, std::move(distributions)));
  return std::unique_ptr<Drafter>(new ModelDrafter({.cache = std::move(loaded.cache),
                                                    .runner = std::move(loaded.runner),
                                                    .max_batch_tokens = options.max_batch_tokens,
                                                    .max_context = options.max_context,
                                                    .exact = options.deterministic}));
}

Result<std::unique_ptr<attention::Context>> MakeContext(const Device& device, ThreadPool* threads) {
  return device.kind() == DeviceKind::kCpu ? attention::Context::CreateCpu(threads)
                                           : attention::Context::CreateCuda(device.ordinal());
}

// Threads and contexts of all ranks, which divide the threads, and their devices.
Result<std::vector<std::unique_ptr<Device>>> OpenRanks(EngineParts* parts) {
  const EngineOptions& options = parts->options;
  COPPICE_ASSIGN_OR_RETURN(const std::vector<DeviceName> names, ParseDeviceNames(options.device));
  const auto num_ranks = static_cast<int>(names.size());
  const int threads = options.num_threads > 0 || num_ranks == 1 ? options.num_threads : AvailableCores();
  const int threads_of_each = num_ranks == 1 ? threads : std::max(threads / num_ranks, 1);
  COPPICE_ASSIGN_OR_RETURN(parts->threads, ThreadPool::Create(threads_of_each));
  std::vector<Executor*> executors = {parts->threads.get()};
  for (int rank = 1; rank < num_ranks; ++rank) {
    RankParts& other = parts->other_ranks.emplace_back();
    COPPICE_ASSIGN_OR_RETURN(other.threads, ThreadPool::Create(threads_of_each));
    executors.push_back(other.threads.get());
  }
  COPPICE_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Device>> devices, OpenDevices(options, executors));
  COPPICE_ASSIGN_OR_RETURN(parts->context, MakeContext(*devices.front(), parts->threads.get()));
  for (int rank = 1; rank < num_ranks; ++rank) {
    RankParts& other = parts->other_ranks[rank - 1];
    COPPICE_ASSIGN_OR_RETURN(other.context, MakeContext(*devices[rank], other.threads.get()));
  }
  return devices;
}

// Puts the model's values in place of zeros.
Status CompleteOptions(const ModelConfig& config, EngineOptions* options) {
  if (options->max_context == 0) options->max_context = config.max_position;
  if (options->max_context > config.longest_context()) {
    return InvalidArgument("max_context is " + std::to_string(options->max_context) + ", the model's context length is " +
                           std::to_string(config.longest_context()) + ": ask for at most that");
  }
  const int64_t page_slots = int64_t{options->max_running} * CeilDiv(options->max_context, options->page_size);
  if (page_slots > INT32_MAX) {
    return InvalidArgument("max_running " + std::to_string(options->max_running) + " samples of max_context " +
                           std::to_string(options->max_context) + " tokens need " + std::to_string(page_slots) +
                           " page slots, expected at most " + std::to_string(INT32_MAX) + ": lower one of them or raise page_size");
  }
  options->max_batch_tokens =
      std::max(options->max_batch_tokens, options->max_running);  // every running sample decodes in each step
  return OkStatus();
}

// The ranks that divide the tokens of a KV head; a page has the tokens of all of them.
Result<int32_t> SplitKv(const Checkpoint& checkpoint, std::span<const std::unique_ptr<Device>> devices, EngineParts* parts) {
  const auto [kv, q] = DTypesOf(checkpoint, parts->options, devices.front()->kind());
  COPPICE_ASSIGN_OR_RETURN(const KvSplitChoice choice, ChooseKvSplit({.config = checkpoint.config(),
                                                                      .options = parts->options,
                                                                      .ranks = static_cast<int>(devices.size()),
                                                                      .q_dtype = q,
                                                                      .kv_dtype = kv},
                                                                     *parts->context));
  parts->options.kv_split = choice.split;
  parts->options.page_size *= choice.sharers;
  parts->kv_split_reason = choice.reason;
  return choice.sharers;
}

void TakeTokenizer(const Checkpoint& checkpoint, EngineParts* parts) {
  Result<std::unique_ptr<Tokenizer>> tokenizer = checkpoint.MakeTokenizer();
  parts->tokenizer_status = tokenizer.status();
  if (tokenizer.ok()) parts->tokenizer = *std::move(tokenizer);
}

void TakeDefaults(const Checkpoint& checkpoint, EngineParts* parts) {
  const SamplingDefaults& defaults = checkpoint.sampling_defaults();
  SamplingParams& sampling = parts->sampling;
  sampling.temperature = defaults.temperature.value_or(sampling.temperature);
  sampling.top_p = defaults.top_p.value_or(sampling.top_p);
  sampling.top_k = defaults.top_k.value_or(sampling.top_k);
  sampling.min_p = defaults.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = defaults.repetition_penalty.value_or(sampling.repetition_penalty);
  parts->notes = checkpoint.notes();
}

}  // namespace

namespace {

Result<std::unique_ptr<Checkpoint>> OpenCheckpoint(const EngineOptions& options) {
  return options.experiment.random_weights ? MakeRandomCheckpoint(options.model_path) : Checkpoint::Open(options.model_path);
}

// Reports each tensor that a rank has read.
std::function<void(const StoredTensor&)> CountLoaded(const TensorMap& tensors, size_t ranks, LoadProgress progress) {
  struct Count {
    std::mutex mutex;
    int64_t done = 0, total = 0;
  };
  const auto count = std::make_shared<Count>();
  for (const auto& [name, tensor] : tensors) count->total += static_cast<int64_t>(ranks * tensor.data.size());
  return [count, progress = std::move(progress)](const StoredTensor& tensor) {
    const std::lock_guard lock(count->mutex);
    count->done = std::min(count->done + static_cast<int64_t>(tensor.data.size()), count->total);
    progress(count->done, count->total);
  };
}

// The model's file again, if it is the one that was loaded.
Result<std::unique_ptr<WeightSource>> ReopenWeights(const EngineOptions& options, const std::string& fingerprint) {
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(options));
  if (checkpoint->Fingerprint() != fingerprint)
    return FailedPrecondition(options.model_path + " has changed since it was loaded: restore it, or make another engine");
  return std::unique_ptr<WeightSource>(std::move(checkpoint));
}

}  // namespace

Result<EngineParts> LoadEngineParts(const EngineOptions& given, LoadProgress progress) {
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(given));
  const ModelConfig& config = checkpoint->config();

  EngineParts parts{.options = given};
  EngineOptions& options = parts.options;
  COPPICE_RETURN_IF_ERROR(CompleteOptions(config, &options));
  TakeTokenizer(*checkpoint, &parts);
  TakeDefaults(*checkpoint, &parts);
  COPPICE_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Device>> devices, OpenRanks(&parts));
  const bool on_cpu = devices.front()->kind() == DeviceKind::kCpu;
  if (progress) checkpoint->OnRelease(CountLoaded(checkpoint->tensors(), devices.size(), std::move(progress)));
  options.device = NamesOf(devices);  // the draft model's are the same ones
  if (const std::string note = parts.context->MachineNote(); options.machine_model_path.empty() && !note.empty()) {
    parts.notes.push_back(note);
  }
  if (options.steps_ahead == kAutoStepsAhead) options.steps_ahead = on_cpu ? 0 : 1;
  COPPICE_ASSIGN_OR_RETURN(const std::shared_ptr<DraftDistributions> distributions,
                           MakeDistributions(options, config.vocab_size, on_cpu, parts.threads.get()));
  COPPICE_ASSIGN_OR_RETURN(const int32_t sharers, SplitKv(*checkpoint, devices, &parts));
  COPPICE_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(*checkpoint, options, sharers, /*num_pages=*/0, std::move(devices),
                                                         PlacesOf(parts), distributions));
  parts.cache = std::move(loaded.cache);
  parts.runner = std::move(loaded.runner);
  COPPICE_ASSIGN_OR_RETURN(parts.drafter, MakeDrafter(*checkpoint, parts, distributions));
  COPPICE_RETURN_IF_ERROR(WarmUp(parts));
  if (options.chunk == kAutoChunk || options.target_tbt > 0) {
    COPPICE_ASSIGN_OR_RETURN(parts.chunk_probe, MeasureChunks(parts));
  }
  if (options.chunk == kAutoChunk) options.chunk = SmallestGoodChunk(parts.chunk_probe);
  if (options.target_tbt > 0) parts.predictor.emplace(parts.chunk_probe);
  if (options.chunk == 0) options.chunk = options.max_batch_tokens;
  parts.open_weights = [given, fingerprint = checkpoint->Fingerprint()] { return ReopenWeights(given, fingerprint); };
  return parts;
}

namespace {

Result<std::unique_ptr<Engine>> LoadEngine(const EngineOptions& options, LoadProgress progress) {
  COPPICE_ASSIGN_OR_RETURN(EngineParts parts, LoadEngineParts(options, std::move(progress)));
  return MakeEngine(std::move(parts));
}

// Tokens that are whole characters wherever they stand: each makes text as soon as it comes. Empty where there is no tokenizer.
std::vector<int32_t> TextTokens(const Tokenizer* tokenizer, int32_t vocab_size) {
  std::vector<int32_t> tokens;
  for (int32_t id = 0; tokenizer && id < vocab_size; ++id) {
    const std::string_view bytes = tokenizer->TokenBytes(id);
    const bool ends = std::ranges::find(tokenizer->info().eos_ids, id) != tokenizer->info().eos_ids.end();
    if (!ends && !bytes.empty() && ValidUtf8Prefix(bytes) == bytes.size()) tokens.push_back(id);
  }
  return tokens;
}

Result<std::unique_ptr<Engine>> MakeNullEngine(const EngineOptions& given, std::chrono::nanoseconds step_time) {
  if (given.draft != DraftMode::kNone)
    return InvalidArgument("an engine that runs no model has nothing to guess ahead: leave draft");
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(given.model_path));
  EngineParts parts{.options = given};
  EngineOptions& options = parts.options;
  COPPICE_RETURN_IF_ERROR(CompleteOptions(checkpoint->config(), &options));
  if (options.chunk <= 0) options.chunk = options.max_batch_tokens;
  options.target_tbt = 0;                                               // a step takes what step_time says, whatever its rows
  if (options.steps_ahead == kAutoStepsAhead) options.steps_ahead = 0;  // there is no device to keep busy
  TakeTokenizer(*checkpoint, &parts);
  TakeDefaults(*checkpoint, &parts);
  COPPICE_ASSIGN_OR_RETURN(parts.threads, ThreadPool::Create(1));
  const int64_t pages = int64_t{options.max_running} * (CeilDiv(options.max_context, options.page_size) + 1);
  COPPICE_ASSIGN_OR_RETURN(parts.cache, KvCache::Create({.num_pages = static_cast<int32_t>(std::min<int64_t>(pages, INT32_MAX)),
                                                         .page_size = options.page_size,
                                                         .max_branches = options.max_running,
                                                         .max_context = options.max_context,
                                                         .share = options.sharing != SharingMode::kNone}));
  parts.runner = std::make_unique<NullRunner>(RunnerInfo{.model = checkpoint->config(), .fingerprint = checkpoint->Fingerprint()},
                                              TextTokens(parts.tokenizer.get(), checkpoint->config().vocab_size), step_time);
  return MakeEngine(std::move(parts));
}

// Checks that may refuse the options before a file of the model is opened.
Status BeginWith(const EngineOptions& options) {
  COPPICE_RETURN_IF_ERROR(ValidateOptions(options));
  return options.forest_listener ? options.forest_listener->Begin() : OkStatus();
}

}  // namespace

Result<std::unique_ptr<Engine>> CreateNullEngine(const EngineOptions& options, std::chrono::nanoseconds step_time) {
  COPPICE_RETURN_IF_ERROR(BeginWith(options));
  return CatchExhaustion("creating the engine", [&] { return MakeNullEngine(options, step_time); });
}

Result<std::unique_ptr<Engine>> CreateEngine(const EngineOptions& options, LoadProgress progress) {
  COPPICE_RETURN_IF_ERROR(BeginWith(options));
  return CatchExhaustion("creating the engine", [&] { return LoadEngine(options, std::move(progress)); });
}

Result<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) { return CreateEngine(options, {}); }

}  // namespace coppice
