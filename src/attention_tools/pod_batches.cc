#include "attention_tools/pod_batches.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include "core/check.h"
#include "core/math.h"

namespace coppice::attention {
namespace {

constexpr int32_t kHeadDim = 128;
constexpr double kElementBytes = 2;
constexpr double kMemoryInUse = 0.9;
constexpr int32_t kK = 1024;

constexpr std::array<PodModel, 3> kModels = {{
    {"Llama-3-8B", 32, 8, 32, 16.1e9},
    {"Llama-2-7B", 32, 32, 32, 13.5e9},
    {"Yi-6B", 32, 4, 32, 12.1e9},
}};
const PodModel* const kLlama3 = &kModels[0];
const PodModel* const kYi = &kModels[2];

constexpr std::array<const char*, 10> kSets = {"sweep",    "quick",    "small",    "figure6", "figure7",
                                               "figure10", "figure13", "figure14", "table1",  "table7"};

// A chunk that ends a prompt of `context` tokens beside requests of as many.
PodBatch Even(const char* set, const PodModel* model, int32_t gpus, int32_t chunk, int32_t context, int32_t requests) {
  return {.set = set, .model = model, .gpus = gpus, .chunk = chunk, .prompt = context, .requests = requests, .context = context};
}

std::vector<PodBatch> Sweep(double memory_bytes) {
  std::vector<PodBatch> batches;
  for (const PodModel& model : kModels) {
    for (const int32_t gpus : {1, 2, 4}) {
      for (const int32_t chunk : {512, 1024, 2048}) {
        for (int32_t context = 4 * kK; context <= 20 * kK; context += 4 * kK) {
          const int32_t most = PodMostRequests(model, gpus, memory_bytes, context);
          for (const int32_t requests : {most / 2, most}) {
            if (requests > 0) batches.push_back(Even("sweep", &model, gpus, chunk, context, requests));
          }
        }
      }
    }
  }
  return batches;
}

std::vector<PodBatch> Quick(double memory_bytes) {
  std::vector<PodBatch> batches;
  for (const PodModel* model : {kLlama3, kYi}) {
    for (const int32_t chunk : {512, 2048}) {
      for (const int32_t context : {4 * kK, 12 * kK}) {
        if (const int32_t most = PodMostRequests(*model, 1, memory_bytes, context); most > 0) {
          batches.push_back(Even("quick", model, 1, chunk, context, most / 2));
        }
      }
    }
  }
  return batches;
}

// Batches that a CPU computes in a moment.
std::vector<PodBatch> Small() {
  std::vector<PodBatch> batches;
  for (const PodModel* model : {kLlama3, kYi}) {
    for (const int32_t chunk : {64, 256}) {
      for (const int32_t requests : {4, 16, 64}) batches.push_back(Even("small", model, 4, chunk, 1024, requests));
    }
  }
  return batches;
}

// Chunks of 512 of a prompt of 16K tokens, from `first_chunk` on, beside requests of 16K.
std::vector<PodBatch> Chunks(const char* set, const PodModel* model, int32_t gpus, int32_t first_chunk,
                             std::span<const int32_t> requests) {
  std::vector<PodBatch> batches;
  for (const int32_t decodes : requests) {
    for (int32_t i = first_chunk; i < 32; ++i) {
      PodBatch batch = Even(set, model, gpus, 512, 16 * kK, decodes);
      batch.prompt = (i + 1) * 512;
      batch.chunk_id = i;
      batches.push_back(batch);
    }
  }
  return batches;
}

}  // namespace

std::span<const PodModel> PodModels() { return kModels; }

AttentionSpec PodBatch::Spec() const {
  return {.num_qo_heads = model->qo_heads / gpus, .num_kv_heads = model->kv_heads / gpus, .head_dim = kHeadDim};
}
double PodBatch::ChunkBytes() const { return 2 * kElementBytes * kHeadDim * Spec().num_kv_heads * prompt; }
double PodBatch::DecodeBytes() const { return 2 * kElementBytes * kHeadDim * Spec().num_kv_heads * requests * double{1} * context; }
double PodBatch::ChunkFlops() const {
  const double unseen = 0.5 * chunk * (chunk - 1.0);  // queries do not see those after them
  return 4.0 * kHeadDim * Spec().num_qo_heads * (static_cast<double>(chunk) * prompt - unseen);
}
double PodBatch::DecodeFlops() const { return 4.0 * kHeadDim * Spec().num_qo_heads * requests * double{1} * context; }

int32_t PodMostRequests(const PodModel& model, int32_t gpus, double memory_bytes, int32_t context) {
  const double left = kMemoryInUse * memory_bytes - model.weight_bytes / gpus;
  const double token_bytes = 2 * kElementBytes * kHeadDim * model.layers * model.kv_heads / gpus;
  return static_cast<int32_t>(std::max(0.0, left / (token_bytes * context)));
}

std::span<const char* const> PodSets() { return kSets; }

std::vector<PodBatch> PodBatches(const std::string& set, double memory_bytes) {
  if (set == "sweep") return Sweep(memory_bytes);
  if (set == "quick") return Quick(memory_bytes);
  if (set == "small") return Small();
  // 54 decode requests of four kv heads fill the 108 SMs of an A100 in whole rounds, 55 do not; 66 and 67 those of a Hopper card.
  if (set == "figure6") return Chunks("figure6", kYi, 1, 0, std::array{54, 55, 66, 67});
  if (set == "table7") return Chunks("table7", kLlama3, 2, 28, std::array{64});
  std::vector<PodBatch> batches;
  if (set == "figure7") {
    // The paper has one kernel that multiplies and one that adds arrays: here a chunk at the end of a longer and longer prompt,
    // from a tenth of the requests' time to twice of it.
    for (const int32_t prompt : {2 * kK, 4 * kK, 8 * kK, 12 * kK, 16 * kK, 20 * kK, 24 * kK, 32 * kK}) {
      PodBatch batch = Even("figure7", kLlama3, 1, 2 * kK, 8 * kK, 64);
      batch.prompt = prompt;
      batches.push_back(batch);
    }
  } else if (set == "figure10") {
    for (const int32_t requests : {8, 16, 32}) {
      PodBatch batch = Even("figure10", kLlama3, 2, 0, 16 * kK, requests);
      batch.prompt = 0;
      batches.push_back(batch);
    }
  } else if (set == "figure13") {
    for (const int32_t context : {4 * kK, 8 * kK, 12 * kK, 16 * kK, 20 * kK}) {
      for (const int32_t requests : {16, 32, 64, 128}) batches.push_back(Even("figure13", kLlama3, 2, 1024, context, requests));
    }
  } else if (set == "figure14") {
    for (const PodModel* model : {kYi, kLlama3}) {
      for (const int32_t requests : {16, 32, 64, 96, 128, 192}) {
        batches.push_back(Even("figure14", model, model == kYi ? 1 : 2, 1024, 8 * kK, requests));
      }
    }
  } else {
    COPPICE_CHECK(set == "table1");
    for (const auto& [requests, chunk, prompt] : {std::array{80, kK, 12 * kK}, {220, 12 * kK, 12 * kK}, {250, 16 * kK, 16 * kK}}) {
      PodBatch batch = Even("table1", kLlama3, 2, chunk, 12 * kK, requests);
      batch.prompt = prompt;
      batches.push_back(batch);
    }
  }
  return batches;
}

int32_t PodPages(const PodBatch& batch, int32_t page_size) {
  return static_cast<int32_t>(CeilDiv(batch.prompt, page_size) + batch.requests * CeilDiv(batch.context, page_size));
}

OwnedForest PodForest(const PodBatch& batch, PodPart part, int32_t page_size) {
  std::vector<int32_t> pages(static_cast<size_t>(PodPages(batch, page_size)));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
  OwnedForest forest;
  forest.page_size = page_size;
  forest.version = 1;
  std::span<const int32_t> left = pages;
  const auto add = [&](bool wanted, int32_t tokens, int32_t queries) {
    const auto count = static_cast<size_t>(CeilDiv(tokens, page_size));
    if (wanted) forest.AddBranch(forest.AddNode(kNoParent, 0, kLive), tokens, queries, left.first(count));
    left = left.subspan(count);
  };
  add(part != PodPart::kDecode && batch.chunk > 0, batch.prompt, batch.chunk);
  for (int32_t i = 0; i < batch.requests; ++i) add(part != PodPart::kChunk, batch.context, 1);
  return forest;
}

}  // namespace coppice::attention
