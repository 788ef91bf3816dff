// The real StepModel: a transformer and the memory of its KV pages.
// Layer: engine.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "cache/kv_pool.h"
#include "core/check.h"
#include "engine/step_model.h"
#include "model/step_inputs.h"

namespace coppice {

class TransformerModel final : public StepModel {
 public:
  TransformerModel(std::unique_ptr<Device> device, std::unique_ptr<Transformer> transformer, std::unique_ptr<KvPool> pool,
                   std::unique_ptr<StepInputs> inputs, std::string fingerprint)
      : device_(std::move(device)),
        transformer_(std::move(transformer)),
        pool_(std::move(pool)),
        inputs_(std::move(inputs)),
        fingerprint_(std::move(fingerprint)) {}

  const ModelConfig& config() const override { return transformer_->config(); }
  int64_t kv_bytes_per_token() const override { return KvPool::BytesPerPage(spec(), config().num_layers, /*page_size=*/1); }
  Status CopyPages(std::span<const attention::PageCopy> copies) override { return pool_->CopyPages(copies); }
  std::string fingerprint() const override { return fingerprint_; }
  DType kv_dtype() const override { return spec().kv_dtype; }
  Status ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const override {
    return pool_->ReadKv(pages, num_tokens, kv);
  }
  Status WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) override {
    return pool_->WriteKv(pages, begin, num_tokens, kv);
  }
  Status MoveSlots(std::span<const attention::SlotMove> moves) override { return pool_->MoveSlots(moves); }
  Result<MatrixView<const float>> Forward(const ForwardBatch& batch, const attention::PrefixForestView&,
                                          attention::AttentionPlan& plan) override {
    COPPICE_ASSIGN_OR_RETURN(const DeviceBatch uploaded, inputs_->Upload(batch, /*stream=*/nullptr));
    attention::AttentionPlan* const plans[] = {&plan};
    COPPICE_ASSIGN_OR_RETURN(const ConstDeviceTensor logits,
                             transformer_->Forward(uploaded, plans, pool_->layers(), /*stream=*/nullptr));
    return HostView<float>(logits);
  }

 private:
  const attention::AttentionSpec& spec() const { return transformer_->attention_specs().front(); }

  std::unique_ptr<Device> device_;  // a CPU; before what stands on it
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<StepInputs> inputs_;
  std::string fingerprint_;
};

}  // namespace coppice
