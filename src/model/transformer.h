// The forward pass: one screen per layer, the verbs of the papers. Owns packed weights and activations; attention comes from a
// plan. Layer: model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "coppice/attention/attention.h"
#include "coppice/core/status.h"
#include "coppice/core/tensor_view.h"
#include "model/checkpoint.h"
#include "model/config.h"

namespace coppice {

// One step's tokens; the queries of a branch are consecutive and in the order of the forest's branch_query_begin.
struct ForwardBatch {
  std::span<const int32_t> token_ids;     // [T]
  std::span<const int32_t> positions;     // [T] rotary position of each token
  std::span<const int64_t> slot_mapping;  // [T] page * page_size + slot that receives the token's K and V
  std::span<const int32_t> logit_rows;    // [R] rows whose logits are wanted, increasing
};

class Transformer {
 public:
  struct Options {
    DType dtype = DType::kBF16;  // kF32: weights, products and KV in fp32
    Executor* executor = nullptr;
    attention::Context* attention = nullptr;
    int32_t max_tokens = 512;  // T of the largest batch
    int32_t max_logit_rows = 512;
    bool deterministic = false;  // a row's bits do not depend on how many rows ride with it
  };
  static Result<std::unique_ptr<Transformer>> Create(const Checkpoint& checkpoint, const Options& options);
  virtual ~Transformer() = default;

  virtual const ModelConfig& config() const = 0;
  // Spec of every layer's attention (one spec per model for now).
  virtual attention::AttentionSpec attention_spec() const = 0;
  // Appends the batch's K and V to each layer's KV, attends through `plan` (already updated and uploaded for this step), and
  // returns logits [R, vocab] in fp32, valid until the next call. kv: one bound layer per model layer.
  virtual Result<MatrixView<const float>> Forward(const ForwardBatch& batch, attention::AttentionPlan& plan,
                                                  std::span<const std::unique_ptr<attention::BoundKv>> kv) = 0;
};

}  // namespace coppice
