// The real StepModel: a transformer and the memory of its KV pages.
// Layer: engine.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "cache/kv_storage.h"
#include "engine/step_model.h"

namespace coppice {

class TransformerModel final : public StepModel {
 public:
  TransformerModel(std::unique_ptr<Transformer> transformer, std::unique_ptr<KvStorage> storage, std::string fingerprint)
      : transformer_(std::move(transformer)), storage_(std::move(storage)), fingerprint_(std::move(fingerprint)) {}

  const ModelConfig& config() const override { return transformer_->config(); }
  int64_t kv_bytes_per_token() const override {
    return KvStorage::BytesPerPage(transformer_->attention_spec(), config().num_layers, /*page_size=*/1);
  }
  Status CopyPages(std::span<const attention::PageCopy> copies) override { return storage_->CopyPages(copies); }
  std::string fingerprint() const override { return fingerprint_; }
  DType kv_dtype() const override { return transformer_->attention_spec().kv_dtype; }
  Status ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const override {
    return storage_->ReadKv(pages, num_tokens, kv);
  }
  Status WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) override {
    return storage_->WriteKv(pages, begin, num_tokens, kv);
  }
  Status MoveSlots(std::span<const attention::SlotMove> moves) override { return storage_->MoveSlots(moves); }
  Result<MatrixView<const float>> Forward(const ForwardBatch& batch, const attention::PrefixForestView&,
                                          attention::AttentionPlan& plan) override {
    return transformer_->Forward(batch, plan, storage_->layers());
  }

 private:
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvStorage> storage_;
  std::string fingerprint_;
};

}  // namespace coppice
