#include "model/layer_weights.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "core/buffer.h"
#include "model/weight_map.h"

namespace coppice {
namespace {

std::optional<ops::BlockFormat> FormatOf(StoredType type) {
  for (size_t i = 0; i < ops::kNumBlockFormats; ++i) {
    if (ops::kBlockFormats[i].name == Name(type)) return static_cast<ops::BlockFormat>(i);
  }
  return std::nullopt;
}

// How a product's weight is made of stored matrices.
struct Packing {
  ops::PartOrder order = ops::PartOrder::kConcatenated;
  std::vector<RowRun> runs = {};  // the rows of a single matrix in the order of the outputs; empty: as stored
  // Instead of Ops::Pack.
  std::function<Result<std::unique_ptr<ops::Weight>>(int64_t in_features, std::span<const ops::LinearPart>)> pack = nullptr;
};

class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, const WeightOptions& options, Device& device, ops::Ops& ops)
      : checkpoint_(checkpoint),
        config_(checkpoint.config()),
        map_(WeightsOf(config_)),
        dtype_(options.dtype),
        keep_stored_(options.keep_stored),
        device_(device),
        ops_(ops) {}

  Result<ModelWeights> Load() {
    using enum WeightRole;
    ModelWeights w;
    COPPICE_ASSIGN_OR_RETURN(w.embedding, Linear(kNoLayer, {kEmbedding}));
    if (config_.blocks.learned_positions) {
      COPPICE_ASSIGN_OR_RETURN(w.positions, Linear(kNoLayer, {kPositions}));
    }
    if (!config_.tie_embeddings) {
      COPPICE_ASSIGN_OR_RETURN(w.lm_head, Linear(kNoLayer, {kLmHead}));
    }
    COPPICE_ASSIGN_OR_RETURN(w.final_norm, Norm(kNoLayer, kFinalNorm));
    for (int32_t i = 0; i < config_.num_layers; ++i) {
      COPPICE_ASSIGN_OR_RETURN(LayerWeights layer, Layer(i));
      w.layers.push_back(std::move(layer));
    }
    return w;
  }

 private:
  Result<LayerWeights> Layer(int32_t i) {
    using enum WeightRole;
    const Blocks& blocks = config_.blocks;
    LayerWeights layer;
    COPPICE_ASSIGN_OR_RETURN(layer.attention_norm, Norm(i, kAttentionNorm));
    COPPICE_ASSIGN_OR_RETURN(layer.mlp_norm, Norm(i, kMlpNorm));
    COPPICE_ASSIGN_OR_RETURN(layer.post_attention_norm, Norm(i, kPostAttentionNorm));
    COPPICE_ASSIGN_OR_RETURN(layer.post_mlp_norm, Norm(i, kPostMlpNorm));
    if (blocks.qk_norm) {
      COPPICE_ASSIGN_OR_RETURN(layer.q_norm, Norm(i, kQNorm));
      COPPICE_ASSIGN_OR_RETURN(layer.k_norm, Norm(i, kKNorm));
    }
    const auto pack_qkv = [&](int64_t in_features, std::span<const ops::LinearPart> parts) {
      return ops_.PackQkv(dtype_, in_features, parts,
                          {.num_qo_heads = config_.num_qo_heads,
                           .num_kv_heads = config_.num_kv_heads,
                           .head_dim = config_.head_dim,
                           .rotary_dim = config_.rotated(),
                           .pairs = blocks.rope_pairs});
    };
    if (blocks.qkv == QkvLayout::kSeparate) {
      COPPICE_ASSIGN_OR_RETURN(layer.qkv, Linear(i, {kQ, kK, kV}, {.pack = pack_qkv}));
    } else {
      COPPICE_ASSIGN_OR_RETURN(layer.qkv, Linear(i, {kQkv}, {.runs = FusedRows(config_), .pack = pack_qkv}));
    }
    COPPICE_ASSIGN_OR_RETURN(layer.output, Linear(i, {kAttentionOutput}));
    if (blocks.gated_mlp) {
      COPPICE_ASSIGN_OR_RETURN(layer.up, Linear(i, {kGate, kUp}, {.order = ops::PartOrder::kGateUp}));
    } else {
      COPPICE_ASSIGN_OR_RETURN(layer.up, Linear(i, {kUp}));
    }
    COPPICE_ASSIGN_OR_RETURN(layer.down, Linear(i, {kDown}));
    return layer;
  }

  Result<std::vector<float>> Vector(const std::string& name, int64_t n) {
    std::vector<float> values(n);
    COPPICE_RETURN_IF_ERROR(checkpoint_.Load(name, 1, n, DType::kF32, std::as_writable_bytes(std::span(values))));
    return values;
  }

  // Nothing, if the model has no such norm.
  Result<NormWeights> Norm(int32_t layer, WeightRole role) {
    NormWeights norm;
    const auto found = map_.find({layer, role});
    if (found == map_.end()) return norm;
    const WeightEntry& entry = found->second;
    COPPICE_ASSIGN_OR_RETURN(std::vector<float> weight, Vector(entry.name + ".weight", entry.shape[0]));
    if (config_.blocks.unit_offset_norms) {
      for (float& value : weight) value += 1.0f;
    }
    COPPICE_ASSIGN_OR_RETURN(norm.weight, DeviceVector::Create(device_, weight));
    if (entry.bias) {
      COPPICE_ASSIGN_OR_RETURN(const std::vector<float> bias, Vector(entry.name + ".bias", entry.shape[0]));
      COPPICE_ASSIGN_OR_RETURN(norm.bias, DeviceVector::Create(device_, bias));
    }
    return norm;
  }

  bool WantsBlocks() const {
    return keep_stored_ == KeepStored::kWherePossible || (keep_stored_ == KeepStored::kWhereFaster && ops_.PrefersBlocks(dtype_));
  }
  bool WantsCodes() const { return keep_stored_ == KeepStored::kWhereFaster && ops_.WantsCodes(dtype_); }

  // A product of one or more stored matrices.
  Result<std::unique_ptr<ops::Weight>> Linear(int32_t layer, std::initializer_list<WeightRole> roles, const Packing& packing = {}) {
    const auto& [order, runs, pack] = packing;
    Matrices matrices;
    for (const WeightRole role : roles) {
      const WeightEntry& entry = map_.at({layer, role});
      matrices.entries.push_back(&entry);
      std::vector<float>& bias = matrices.biases.emplace_back();
      if (!entry.bias) continue;
      COPPICE_ASSIGN_OR_RETURN(bias, Vector(entry.name + ".bias", entry.shape[0]));
    }
    const int64_t in_features = matrices.entries.front()->shape[1];
    std::vector<ops::LinearPart> parts;
    if (WantsBlocks()) parts = BlockParts(layer, runs, &matrices);
    if (parts.empty() || !ops_.TakesBlocks(dtype_, in_features, parts, order)) {
      matrices.blocks.clear();
      COPPICE_ASSIGN_OR_RETURN(parts, ConvertedParts(runs, &matrices));
    }
    return pack ? pack(in_features, parts) : ops_.Pack(dtype_, in_features, parts, order);
  }

  // The matrices of a product, and what their parts refer to.
  struct Matrices {
    std::vector<const WeightEntry*> entries;
    std::vector<std::vector<float>> biases;  // of those that have one
    std::vector<Checkpoint::StoredBlocks> blocks;
    std::vector<std::optional<Checkpoint::Codes>> codes;
  };

  // Calls add(part, matrix, first row of the matrix) for the parts of all matrices, biases set.
  template <class Add>
  static void ForEachPart(const std::vector<RowRun>& runs, const Matrices& matrices, Add add) {
    for (size_t i = 0; i < matrices.entries.size(); ++i) {
      for (const RowRun& run : runs.empty() ? std::vector<RowRun>{{0, matrices.entries[i]->shape[0]}} : runs) {
        ops::LinearPart part{.rows = run.count};
        if (!matrices.biases[i].empty()) part.bias = matrices.biases[i].data() + run.begin;
        add(part, i, run.begin);
      }
    }
  }

  // As the file stores them; nothing, if one of them lies there otherwise than in blocks that products read.
  std::vector<ops::LinearPart> BlockParts(int32_t layer, const std::vector<RowRun>& runs, Matrices* matrices) {
    std::vector<ops::LinearPart> parts;
    for (const WeightEntry* entry : matrices->entries) {
      std::optional<Checkpoint::StoredBlocks> blocks = checkpoint_.LoadBlocks(entry->name + ".weight");
      if (!blocks || !FormatOf(blocks->type)) return parts;
      matrices->blocks.push_back(*std::move(blocks));
    }
    // The output projection's products are the logits themselves: an error there is not averaged by anything behind it.
    ForEachPart(runs, *matrices, [&](ops::LinearPart part, size_t i, int64_t row) {
      const Checkpoint::StoredBlocks& blocks = matrices->blocks[i];
      part.blocks = {.format = *FormatOf(blocks.type),
                     .rows = blocks.rows.data() + StoredBytes(blocks.type, row * matrices->entries[i]->shape[1]),
                     .coarse_input = config_.blocks.coarse_inputs && layer != kNoLayer && dtype_ == DType::kBF16};
      parts.push_back(part);
    });
    return parts;
  }

  // In the compute dtype, in the staging buffer.
  Result<std::vector<ops::LinearPart>> ConvertedParts(const std::vector<RowRun>& runs, Matrices* matrices) {
    const int64_t in_features = matrices->entries.front()->shape[1], row_bytes = in_features * static_cast<int64_t>(SizeOf(dtype_));
    int64_t rows = 0;
    for (const WeightEntry* entry : matrices->entries) rows += entry->shape[0];
    if (static_cast<int64_t>(staging_.size()) < rows * row_bytes) {
      COPPICE_ASSIGN_OR_RETURN(staging_, Buffer::Allocate(rows * row_bytes));
    }
    std::vector<std::byte*> begins;  // of each matrix
    std::byte* next = staging_.data();
    for (const WeightEntry* entry : matrices->entries) {
      const int64_t bytes = entry->shape[0] * row_bytes;
      COPPICE_RETURN_IF_ERROR(
          checkpoint_.Load(entry->name + ".weight", entry->shape[0], in_features, dtype_, std::span(next, bytes)));
      begins.push_back(std::exchange(next, next + bytes));
      matrices->codes.push_back(WantsCodes() ? checkpoint_.LoadCodes(entry->name + ".weight") : std::nullopt);
    }
    std::vector<ops::LinearPart> parts;
    ForEachPart(runs, *matrices, [&](ops::LinearPart part, size_t i, int64_t row) {
      part.weight = begins[i] + row * row_bytes;
      if (const auto& codes = matrices->codes[i]) {
        const int64_t block = row * (in_features / ops::kCodeBlock);
        part.coded = {.bits = codes->bits,
                      .codes = codes->codes.data() + row * in_features,
                      .scales = codes->scales.data() + block,
                      .minima = codes->minima.data() + block};
      }
      parts.push_back(part);
    });
    return parts;
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const WeightMap map_;
  const DType dtype_;
  const KeepStored keep_stored_;
  Device& device_;
  ops::Ops& ops_;
  Buffer staging_;
};

}  // namespace

Result<ModelWeights> LoadWeights(const Checkpoint& checkpoint, const WeightOptions& options, Device& device, ops::Ops& ops) {
  return WeightLoader(checkpoint, options, device, ops).Load();
}

}  // namespace coppice
