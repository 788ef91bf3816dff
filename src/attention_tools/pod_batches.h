// The hybrid batches of the POD-Attention paper (Kamath et al. 2025): a chunk of a prompt and requests that decode, in one
// attention layer of one GPU of a tensor-parallel group. Layer: attention, private.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/owned_forest.h"
#include "coppice/attention/attention.h"

namespace coppice::attention {

// A model's facts for attention and memory; 16-bit weights and KV, head_dim 128.
struct PodModel {
  const char* name;
  int32_t qo_heads, kv_heads, layers;
  double weight_bytes;
};
std::span<const PodModel> PodModels();  // Llama-3-8B, Llama-2-7B, Yi-6B

struct PodBatch {
  std::string set;                    // what of the paper it belongs to: see PodSets
  const PodModel* model = nullptr;    // of PodModels
  int32_t gpus = 1;                   // that share its heads
  int32_t chunk = 0, prompt = 0;      // queries, 0: requests alone; tokens of their prompt up to the last of them
  int32_t requests = 0, context = 0;  // that decode, a query each; tokens of each
  int32_t chunk_id = -1;              // of the prompt, where a figure goes over them

  AttentionSpec Spec() const;
  // Bytes of K and V that the chunk and the requests read in a layer, and their operations: 4 head_dim a visible (query head,
  // token).
  double ChunkBytes() const, DecodeBytes() const, ChunkFlops() const, DecodeFlops() const;
};

// Requests of so many tokens whose KV fills the memory that weights leave on each GPU, at `memory_bytes` a GPU and a tenth of it
// for all else. 0: the weights do not fit.
int32_t PodMostRequests(const PodModel& model, int32_t gpus, double memory_bytes, int32_t context);

// "sweep" (figure 11: models x 1, 2, 4 GPUs x chunks of 512, 1024, 2048 x contexts of 4K to 20K x decode batches that fill a half
// and all of the memory), "quick" (a few of those), "small" (for a CPU), "figure6", "figure7" (requests beside more and more
// products), "figure10" (requests alone), "figure13", "figure14", "table1", "table7".
std::span<const char* const> PodSets();
// REQUIRES: a name of PodSets.
std::vector<PodBatch> PodBatches(const std::string& set, double memory_bytes);

// Which part of a batch a forest holds.
enum class PodPart : uint8_t { kBoth, kChunk, kDecode };
// Pages in random order, each request's own; parts of one batch read the same pages. Rows of q: the chunk's, then one a request.
OwnedForest PodForest(const PodBatch& batch, PodPart part, int32_t page_size);
// Pages of the whole batch.
int32_t PodPages(const PodBatch& batch, int32_t page_size);

}  // namespace coppice::attention
