// The runner of a real model: a transformer and the memory of its KV pages. Layer: runner.
#pragma once

#include <memory>
#include <string>

#include "core/device.h"
#include "model/step_inputs.h"
#include "model/transformer.h"
#include "runner/host_runner.h"
#include "runner/kv_pool.h"

namespace coppice {

class ModelRunner final : public HostRunner {
 public:
  struct Parts {
    std::unique_ptr<Device> device;  // what follows stands on it
    std::unique_ptr<Transformer> transformer;
    std::unique_ptr<KvPool> pool;
    std::unique_ptr<StepInputs> inputs;
    std::vector<std::unique_ptr<attention::AttentionPlan>> plans;  // one a layer group of the transformer
    std::string fingerprint;                                       // Checkpoint::Fingerprint
    Executor* executor = nullptr;                                  // for sampling; outlives the runner
    std::shared_ptr<DraftDistributions> distributions;             // null: no draft model
  };
  static Result<std::unique_ptr<ModelRunner>> Create(Parts parts);

  Status ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const override;
  Status WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) override;

 private:
  ModelRunner(Parts parts, std::unique_ptr<OwnedStream> stream);
  Status MoveSlots(std::span<const attention::SlotMove> moves) override;
  Status CopyPages(std::span<const attention::PageCopy> copies) override;
  Result<MatrixView<const float>> Forward(const ForwardBatch& batch, const attention::PrefixForestView& forest,
                                          attention::AttentionPlan& plan) override;
  // The step's logits where the sampler can read them; waits for the device.
  Result<MatrixView<const float>> OnHost(const ConstDeviceTensor& logits);

  std::unique_ptr<Device> device_;  // before what stands on it
  std::unique_ptr<OwnedStream> stream_;
  DeviceMemory host_logits_;  // a device's, copied for the sampler
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<StepInputs> inputs_;
};

}  // namespace coppice
