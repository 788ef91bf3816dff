// The forward pass, on any device: one screen per layer, the verbs of the papers. Owns packed weights and activations; attention
// comes from plans, one per group of layers. Layer: model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "coppice/attention/attention.h"
#include "coppice/core/status.h"
#include "core/communicator.h"
#include "core/device.h"
#include "core/device_tensor.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/keep_stored.h"
#include "model/shard.h"
#include "model/step_inputs.h"
#include "model/weight_source.h"

namespace coppice {

class Transformer {
 public:
  struct Options {
    DType dtype = DType::kBF16;       // of product inputs, q and converted weights: kBF16 or kF32
    std::optional<DType> kv_dtype;    // none: dtype
    std::optional<DType> head_dtype;  // kF32: of the output projection's weight and input; none: dtype
    KeepStored keep_stored = KeepStored::kWhereFaster;
    Device* device = nullptr;
    Communicator* communicator = nullptr;  // of this rank: the transformer is its shard of the model. Null: one rank
    int32_t max_tokens = 512;              // T of the largest batch
    int32_t max_logit_rows = 512;          // that Logits gives at a time
    int32_t max_context = 0;               // longest sequence; 0: the model's. Chooses the frequencies of longrope
    bool deterministic = false;            // a row's bits do not depend on how many rows ride with it
    // KV heads that several ranks have are divided among these by tokens: a rank's KV and plans are of its tokens and of the query
    // heads of all of them. REQUIRES: Shard::KvSharers is above 1, and no layer has a window.
    bool splits_tokens = false;
    bool attends = true;  // false: queries go on in place of what they would find, for measuring all else
  };
  static Result<std::unique_ptr<Transformer>> Create(const Checkpoint& checkpoint, const Options& options);
  virtual ~Transformer() = default;

  // Of the whole model.
  virtual const ModelConfig& config() const = 0;
  virtual const Shard& shard() const = 0;
  // The attention of the layers on this rank, whose heads are padded as Shard says, with splits_tokens the query heads of all
  // ranks that have its KV head: one spec per group of layers that attend alike, and the group of each layer.
  virtual std::span<const attention::AttentionSpec> attention_specs() const = 0;
  virtual std::span<const int32_t> layer_groups() const = 0;
  // Appends the batch's K and V to each layer's KV and attends through the plan of its group, which is updated and uploaded for
  // this step. kv: one bound layer per model layer. The batch's memory is read until Logits has what it wants.
  virtual Status Forward(const DeviceBatch& batch, std::span<attention::AttentionPlan* const> plans,
                         std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) = 0;
  // Ops::Tune for steps of up to batch.token_ids.size rows: those steps but for attention, of the batch's first rows, with logits
  // of all of them. KV is stored where the batch's slots say.
  virtual Status Tune(const DeviceBatch& batch, std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) = 0;
  // Logits [count, vocab] f32, in device memory, of entries [begin, begin + count) of the last batch's logit_rows; valid until the
  // next call's work on the stream. OUT_OF_RANGE beyond max_logit_rows at a time or the batch's. Of several ranks, all make the
  // same calls of Forward and Logits; the first one has the logits, the others get no rows.
  virtual Result<ConstDeviceTensor> Logits(int64_t begin, int64_t count, Stream stream) = 0;

  // A trainer's tensors as a source that UpdateWeights can take; they outlive it. Errors as TensorSource::Create and
  // WeightStore::CheckUpdate.
  virtual Result<std::unique_ptr<WeightSource>> PrepareUpdate(TensorMap tensors) const = 0;
  // As WeightStore::Update and is_whole. No work of this transformer is under way on any stream. KV that older weights made stays
  // where it is; it is the caller's to drop.
  virtual Status UpdateWeights(const WeightSource& source) = 0;
  virtual bool weights_are_whole() const = 0;
  // As WeightStore::BeginUpdate, EndUpdate and Held.
  virtual void BeginUpdate() = 0;
  virtual void EndUpdate() = 0;
  virtual HeldWeights Weights() const = 0;
  // As WeightStore::CheckDrop and Drop.
  virtual Status CheckDropWeights() const = 0;
  virtual void DropWeights() = 0;
};

}  // namespace coppice
