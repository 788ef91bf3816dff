// What the engine needs of a model for one step. The seam at which tests and the host-overhead bench put a model that computes no
// layers; transformer_model.h is the real one.
// Layer: engine.
#pragma once

#include <span>
#include <string>

#include "coppice/attention/attention.h"
#include "coppice/core/status.h"
#include "coppice/core/tensor_view.h"
#include "model/config.h"
#include "model/transformer.h"

namespace coppice {

// Thread-compatible.
class StepModel {
 public:
  virtual ~StepModel() = default;
  virtual const ModelConfig& config() const = 0;
  // Bytes of one token's KV over all layers.
  virtual int64_t kv_bytes_per_token() const = 0;
  // Copies whole pages in all layers, before the next Forward.
  virtual Status CopyPages(std::span<const attention::PageCopy> copies) = 0;
  // Of the model that computes the KV (Checkpoint::Fingerprint): KV of equal tokens may be exchanged between equal ones.
  virtual std::string fingerprint() const = 0;
  // Element type of the KV.
  virtual DType kv_dtype() const = 0;
  // KV by token, apart from pages (KvPool::ReadKv, WriteKv). Not while a Forward runs.
  virtual Status ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const = 0;
  virtual Status WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) = 0;
  // Moves single tokens' KV in all layers, in order, before the next Forward.
  virtual Status MoveSlots(std::span<const attention::SlotMove> moves) = 0;
  // Logits [R, vocab] of batch.logit_rows in fp32, valid until the next call. `forest` is what `plan` was updated with.
  virtual Result<MatrixView<const float>> Forward(const ForwardBatch& batch, const attention::PrefixForestView& forest,
                                                  attention::AttentionPlan& plan) = 0;
};

}  // namespace coppice
