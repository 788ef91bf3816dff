#include "model/layer_weights.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/buffer.h"
#include "model/weight_map.h"

namespace coppice {
namespace {

class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, DType dtype, Device& device, ops::Ops& ops)
      : checkpoint_(checkpoint),
        config_(checkpoint.config()),
        map_(WeightsOf(config_)),
        dtype_(dtype),
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
    if (blocks.qkv == QkvLayout::kSeparate) {
      COPPICE_ASSIGN_OR_RETURN(layer.qkv, Linear(i, {kQ, kK, kV}));
    } else {
      COPPICE_ASSIGN_OR_RETURN(layer.qkv, Linear(i, {kQkv}, ops::PartOrder::kConcatenated, FusedRows(config_)));
    }
    COPPICE_ASSIGN_OR_RETURN(layer.output, Linear(i, {kAttentionOutput}));
    if (blocks.gated_mlp) {
      COPPICE_ASSIGN_OR_RETURN(layer.up, Linear(i, {kGate, kUp}, ops::PartOrder::kGateUp));
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

  // A product of one or more stored matrices. `runs`: the rows of a single one in the order of the outputs; empty: as stored.
  Result<std::unique_ptr<ops::Weight>> Linear(int32_t layer, std::initializer_list<WeightRole> roles,
                                              ops::PartOrder order = ops::PartOrder::kConcatenated,
                                              const std::vector<RowRun>& runs = {}) {
    std::vector<const WeightEntry*> entries;
    for (const WeightRole role : roles) entries.push_back(&map_.at({layer, role}));
    const int64_t in_features = entries.front()->shape[1], row_bytes = in_features * static_cast<int64_t>(SizeOf(dtype_));
    int64_t rows = 0;
    for (const WeightEntry* entry : entries) rows += entry->shape[0];
    if (static_cast<int64_t>(staging_.size()) < rows * row_bytes) {
      COPPICE_ASSIGN_OR_RETURN(staging_, Buffer::Allocate(rows * row_bytes));
    }
    std::vector<std::vector<float>> biases(entries.size());
    std::vector<std::optional<Checkpoint::Codes>> codes(entries.size());
    std::vector<ops::LinearPart> parts;
    int64_t first = 0;  // of the entry's rows in the staging buffer
    for (size_t i = 0; i < entries.size(); ++i) {
      const WeightEntry& entry = *entries[i];
      const int64_t count = entry.shape[0];
      std::byte* const to = staging_.data() + first * row_bytes;
      const std::span<std::byte> bytes(to, count * row_bytes);
      COPPICE_RETURN_IF_ERROR(checkpoint_.Load(entry.name + ".weight", count, in_features, dtype_, bytes));
      if (entry.bias) {
        COPPICE_ASSIGN_OR_RETURN(biases[i], Vector(entry.name + ".bias", count));
      }
      if (ops_.WantsCodes(dtype_)) codes[i] = checkpoint_.LoadCodes(entry.name + ".weight");
      for (const RowRun& run : runs.empty() ? std::vector<RowRun>{{0, count}} : runs) {
        ops::LinearPart& part = parts.emplace_back(ops::LinearPart{to + run.begin * row_bytes, run.count});
        if (entry.bias) part.bias = biases[i].data() + run.begin;
        if (!codes[i]) continue;
        const int64_t blocks = in_features / ops::kCodeBlock;
        part.coded = {.bits = codes[i]->bits,
                      .codes = codes[i]->codes.data() + run.begin * in_features,
                      .scales = codes[i]->scales.data() + run.begin * blocks,
                      .minima = codes[i]->minima.data() + run.begin * blocks};
      }
      first += count;
    }
    return ops_.Pack(dtype_, in_features, parts, order);
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const WeightMap map_;
  const DType dtype_;
  Device& device_;
  ops::Ops& ops_;
  Buffer staging_;
};

}  // namespace

Result<ModelWeights> LoadWeights(const Checkpoint& checkpoint, DType dtype, Device& device, ops::Ops& ops) {
  return WeightLoader(checkpoint, dtype, device, ops).Load();
}

}  // namespace coppice
