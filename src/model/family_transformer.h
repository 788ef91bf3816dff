// The transformer of all families. Its parts: transformer.cc (making and updating it), forward.cc (layers and logits),
// warm_up.cc (what a GPU loads and measures before the first request). Layer: model, private to its files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/activations.h"
#include "model/transformer.h"
#include "model/weight_store.h"
#include "ops/ops.h"
#include "ops/peer_group.h"

namespace coppice {

// Layers that attend alike: one attention spec and one rotary embedding.
struct LayerGroup {
  DeviceVector inverse_frequencies;  // empty: no rotation
  float rope_scale = 1;
  Activation cos, sin;  // [T, rotated / 2] f32
};

// A layer is what Blocks says it is made of.
class FamilyTransformer final : public Transformer {
 public:
  static Result<std::unique_ptr<Transformer>> Create(const Checkpoint& checkpoint, const Options& options);

  const ModelConfig& config() const override { return config_; }
  const Shard& shard() const override { return shard_; }
  std::span<const attention::AttentionSpec> attention_specs() const override { return specs_; }
  std::span<const int32_t> layer_groups() const override { return layer_groups_; }
  Status Forward(const DeviceBatch& batch, std::span<attention::AttentionPlan* const> plans,
                 std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) override;
  Status Tune(const DeviceBatch& batch, std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) override;
  Result<ConstDeviceTensor> Logits(int64_t begin, int64_t count, Stream stream) override;
  Result<std::unique_ptr<WeightSource>> PrepareUpdate(TensorMap tensors) const override;
  Status UpdateWeights(const WeightSource& source) override { return store_->Update(source); }
  bool weights_are_whole() const override { return store_->is_whole(); }
  void BeginUpdate() override { store_->BeginUpdate(); }
  void EndUpdate() override { store_->EndUpdate(); }
  HeldWeights Weights() const override { return store_->Held(); }
  Status CheckDropWeights() const override { return store_->CheckDrop(); }
  void DropWeights() override { store_->Drop(); }

 private:
  // Arguments that a step's layers have in common.
  struct Step {
    const DeviceBatch& batch;
    int64_t tokens;
    Stream stream;
    // One a group of layers; none: queries go on in place of what they would find.
    std::span<attention::AttentionPlan* const> plans;
    DeviceTensor hidden;               // [tokens, hidden]: the residual stream
    bool has_logit_rows_only = false;  // KeepLogitRows left those
  };
  // The input of Logits: the last step's residual stream, and the places of the wanted rows in it.
  struct Wanted {
    DeviceTensor hidden;
    DeviceSpan<const int32_t> rows;  // none: hidden's, in order
    int64_t count = 0;
  };

  FamilyTransformer(const ModelConfig& config, const Options& options)
      : config_(config),
        blocks_(config_.blocks),
        options_(options),
        single_rank_(options.communicator == nullptr ? MakeSingleRank() : nullptr),
        ranks_(options.communicator == nullptr ? *single_rank_ : *options.communicator),
        peers_(FindPeers(config, options)),
        shard_{ranks_.rank(), ranks_.size()},
        local_(shard_.Local(config)),
        sharers_(options.splits_tokens ? shard_.RanksAtKvHead(config) : RankRun{shard_.rank}),
        layer_groups_(config.num_layers, 0) {}

  static ops::PeerRank* FindPeers(const ModelConfig& config, const Options& options);
  // In the deterministic mode sums are f32, of which those of other dtypes are nearly as exact and half as long on their way.
  DType TermsDType() const { return options_.deterministic ? DType::kF32 : options_.dtype; }
  Status MakeGroups();
  Status LoadKernels();
  Status Check(const DeviceBatch& batch, size_t num_plans, size_t num_kv_layers) const;
  ops::NormArgs Norm(const NormWeights& norm) const { return norm.args(blocks_.norm, config_.norm_eps); }
  std::optional<ops::NormArgs> Norm(const std::optional<NormWeights>& norm) const {
    return norm ? std::optional(Norm(*norm)) : std::nullopt;
  }
  const ModelWeights& weights() const { return store_->weights(); }
  const ops::Weight& head() const { return weights().lm_head != nullptr ? *weights().lm_head : *weights().embedding; }
  Status Embed(const Step& step);
  Status RunLayers(const DeviceBatch& batch, std::span<attention::AttentionPlan* const> plans,
                   std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream);
  Status RunLayer(size_t layer, const attention::BoundKv& kv, Step* step);
  Result<DeviceTensor> Attend(size_t layer, const Step& step, const attention::BoundKv& kv);
  Status AttendToPart(attention::AttentionPlan& plan, const attention::BoundKv& kv, DeviceTensor attended, const Step& step);
  Status KeepLogitRows(DeviceTensor* attended, Step* step);
  Status AddOverRanks(DeviceTensor x, Stream stream);
  Result<ConstDeviceTensor> GatherLogits(ConstDeviceTensor part, Stream stream);
  // `next_norm`: of the block that follows, in this layer or the next one; null after the last.
  Status FeedForward(const LayerWeights& layer, const NormWeights* next_norm, const Step& step);
  Status AddBlock(ConstDeviceTensor x, const ops::Weight& weight, const NormWeights& post_norm, const NormWeights* next_norm,
                  const Step& step);

  const ModelConfig config_;
  const Blocks& blocks_;
  const Options options_;
  const std::unique_ptr<Communicator> single_rank_;
  Communicator& ranks_;
  // Where the sum over ranks that ends a block goes with the norm that begins the next one, which then finds act_.normed; else
  // null.
  ops::PeerRank* const peers_;
  const Shard shard_;
  const ModelConfig local_;  // heads, columns and vocabulary as this rank has them
  const RankRun sharers_;    // whose query heads attend to this rank's tokens of KV
  std::vector<attention::AttentionSpec> specs_;
  std::vector<int32_t> layer_groups_;
  std::vector<LayerGroup> groups_;
  std::unique_ptr<ops::Ops> ops_;
  std::optional<WeightStore> store_;  // always there once made
  bool measures_ = false;             // ranks run by themselves: nothing that they compute is used
  Activations act_;
  Wanted wanted_;
};

}  // namespace coppice
