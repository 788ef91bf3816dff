// Makes a transformer of a checkpoint, and gives it other weights. Layer: model.
#include "model/transformer.h"

#include <string>
#include <utility>

#include "core/check.h"
#include "model/family_transformer.h"
#include "model/rope.h"
#include "model/tensor_source.h"

namespace coppice {

Result<std::unique_ptr<Transformer>> FamilyTransformer::Create(const Checkpoint& checkpoint, const Options& options) {
  if (options.device == nullptr) return InvalidArgument("a transformer needs a device; it is null");
  if (options.max_tokens < 1 || options.max_logit_rows < 1)
    return InvalidArgument("max_tokens is " + std::to_string(options.max_tokens) + " and max_logit_rows " +
                           std::to_string(options.max_logit_rows) + "; expected at least 1 each");
  Device& device = *options.device;
  std::unique_ptr<FamilyTransformer> transformer(new FamilyTransformer(checkpoint.config(), options));
  COPPICE_ASSIGN_OR_RETURN(transformer->ops_, ops::Ops::Create(&device, {.deterministic = options.deterministic}));
  COPPICE_ASSIGN_OR_RETURN(transformer->store_, WeightStore::Load(checkpoint, checkpoint.config(),
                                                                  {.dtype = options.dtype,
                                                                   .head_dtype = options.head_dtype.value_or(options.dtype),
                                                                   .keep_stored = options.keep_stored,
                                                                   .shard = transformer->shard_},
                                                                  device, *transformer->ops_));
  COPPICE_RETURN_IF_ERROR(transformer->MakeGroups());
  COPPICE_ASSIGN_OR_RETURN(
      transformer->act_,
      Activations::Create(device, transformer->local_, options.dtype,
                          transformer->shard_.ranks > 1 && transformer->shard_.rank == 0 ? checkpoint.config().vocab_size : 0,
                          {.max_tokens = options.max_tokens,
                           .max_logit_rows = options.max_logit_rows,
                           .head_inputs = options.head_dtype,
                           .terms = transformer->peers_ != nullptr ? std::optional(transformer->TermsDType()) : std::nullopt,
                           .gathered_ranks = options.splits_tokens ? transformer->shard_.ranks : 0,
                           .kv_sharers = options.splits_tokens ? transformer->sharers_.count : 0}));
  COPPICE_RETURN_IF_ERROR(transformer->LoadKernels());
  return std::unique_ptr<Transformer>(std::move(transformer));
}

ops::PeerRank* FamilyTransformer::FindPeers(const ModelConfig& config, const Options& options) {
  const bool fits =
      !config.blocks.post_norms && !config.blocks.parallel && config.hidden_size % 4 == 0 && options.dtype != DType::kF32;
  return fits ? dynamic_cast<ops::PeerRank*>(options.communicator) : nullptr;
}

// Group 0: all layers but the local ones. Group 1: those, if there are any.
Status FamilyTransformer::MakeGroups() {
  const int32_t rotated = config_.rotated();
  const auto add = [&](int32_t window, const RopeConfig& rope) -> Status {
    specs_.push_back({.num_qo_heads = local_.num_qo_heads * sharers_.count,
                      .num_kv_heads = local_.num_kv_heads,
                      .head_dim = config_.head_dim,
                      .q_dtype = options_.dtype,
                      .kv_dtype = options_.kv_dtype.value_or(options_.dtype),
                      .sm_scale = config_.sm_scale,
                      .soft_cap = config_.soft_cap,
                      .window = window,
                      .deterministic = options_.deterministic});
    LayerGroup& group = groups_.emplace_back();
    group.rope_scale = rope.attention_factor;
    const int32_t context = options_.max_context > 0 ? options_.max_context : config_.max_position;
    COPPICE_ASSIGN_OR_RETURN(group.inverse_frequencies,
                             DeviceVector::Create(*options_.device, InverseFrequencies(rope, rotated, context)));
    COPPICE_ASSIGN_OR_RETURN(group.cos, Activation::Create(*options_.device, DType::kF32, options_.max_tokens, rotated / 2));
    COPPICE_ASSIGN_OR_RETURN(group.sin, Activation::Create(*options_.device, DType::kF32, options_.max_tokens, rotated / 2));
    return OkStatus();
  };
  COPPICE_RETURN_IF_ERROR(add(config_.window, config_.rope));
  if (config_.local_layers.empty()) return OkStatus();
  for (int32_t i = 0; i < config_.num_layers; ++i) layer_groups_[i] = config_.local_layers[i] ? 1 : 0;
  return add(config_.local_window, config_.local_rope);
}

Result<std::unique_ptr<WeightSource>> FamilyTransformer::PrepareUpdate(TensorMap tensors) const {
  COPPICE_ASSIGN_OR_RETURN(TensorSource source, TensorSource::Create("update of weights", config_, std::move(tensors)));
  COPPICE_RETURN_IF_ERROR(store_->CheckUpdate(source));
  return std::unique_ptr<WeightSource>(std::make_unique<TensorSource>(std::move(source)));
}

Result<std::unique_ptr<Transformer>> Transformer::Create(const Checkpoint& checkpoint, const Options& options) {
  return FamilyTransformer::Create(checkpoint, options);
}

}  // namespace coppice
