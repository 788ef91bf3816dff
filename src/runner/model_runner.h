// The runner of a real model on the CPU: a transformer and the memory of its KV pages. Layer: runner.
#pragma once

#include <memory>

#include "core/device.h"
#include "model/step_inputs.h"
#include "model/transformer.h"
#include "runner/host_runner.h"
#include "runner/kv_pool.h"
#include "runner/model_parts.h"

namespace coppice {

class ModelRunner final : public HostRunner {
 public:
  static Result<std::unique_ptr<ModelRunner>> Create(ModelParts parts);

  Status ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const override;
  Status WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) override;
  Result<std::unique_ptr<WeightSource>> PrepareUpdate(TensorMap tensors) const override;
  Status UpdateWeights(const WeightSource& source) override;
  bool weights_are_whole() const override { return transformer_->weights_are_whole(); }
  Status Sleep(bool keep_weights) override;
  Status Wake() override;

 private:
  ModelRunner(ModelParts parts, std::unique_ptr<OwnedStream> stream);
  Status MoveSlots(std::span<const attention::SlotMove> moves) override;
  Status CopyPages(std::span<const attention::PageCopy> copies) override;
  Result<MatrixView<const float>> Forward(const ForwardBatch& batch) override;

  std::unique_ptr<Device> device_;  // before what stands on it
  std::unique_ptr<OwnedStream> stream_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<StepInputs> inputs_;
};

}  // namespace coppice
