// The real StepModel: a transformer and the memory of its KV pages.
// Layer: engine.
#pragma once

#include <memory>
#include <utility>

#include "cache/kv_storage.h"
#include "engine/step_model.h"

namespace coppice {

class TransformerModel final : public StepModel {
 public:
  TransformerModel(std::unique_ptr<Transformer> transformer, std::unique_ptr<KvStorage> storage)
      : transformer_(std::move(transformer)), storage_(std::move(storage)) {}

  const ModelConfig& config() const override { return transformer_->config(); }
  int64_t kv_bytes_per_token() const override {
    return KvStorage::BytesPerPage(transformer_->attention_spec(), config().num_layers, /*page_size=*/1);
  }
  Status CopyPages(std::span<const attention::PageCopy> copies) override { return storage_->CopyPages(copies); }
  Result<MatrixView<const float>> Forward(const ForwardBatch& batch, const attention::PrefixForestView&,
                                          attention::AttentionPlan& plan) override {
    return transformer_->Forward(batch, plan, storage_->layers());
  }

 private:
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvStorage> storage_;
};

}  // namespace coppice
