// The runner of a real model on CPUs: for each rank a transformer and the memory of its KV pages. Layer: runner.
#pragma once

#include <memory>
#include <vector>

#include "core/device.h"
#include "model/step_inputs.h"
#include "model/transformer.h"
#include "runner/host_runner.h"
#include "runner/kv_pool.h"
#include "runner/model_parts.h"
#include "runner/rank_group.h"

namespace coppice {

// Each rank edits, plans and computes its shard of every step on its own thread. All have planned before one computes; the first
// draws, from the logits that it gathers. A rank that fails ends the step on all.
class ModelRunner final : public HostRunner {
 public:
  // `ranks`: parts of each rank, whose transformers were made with the communicators of `group`. The first one's sampling parts and
  // fingerprint count.
  static Result<std::unique_ptr<ModelRunner>> Create(std::vector<ModelParts> ranks, std::unique_ptr<RankGroup> group);

  std::vector<attention::NodeRead> NodeReads() const override {
    return KnowsSharing(ranks_.front().stripes.get()) ? HostRunner::NodeReads() : std::vector<attention::NodeRead>();
  }
  Status ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const override;
  Status WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) override;
  Result<std::unique_ptr<WeightSource>> PrepareUpdate(TensorMap tensors) const override;
  Status UpdateWeights(const WeightSource& source) override;
  bool weights_are_whole() const override;
  void BeginUpdate() override;
  void EndUpdate() override;
  HeldWeights Weights() const override { return ranks_.front().transformer->Weights(); }
  Status CheckSleep(bool keep_weights) const override;
  Status Sleep(bool keep_weights) override;
  Status Wake() override;

 private:
  struct Rank {
    std::unique_ptr<Device> device;  // before what stands on it
    std::unique_ptr<OwnedStream> stream;
    std::unique_ptr<Transformer> transformer;
    std::unique_ptr<KvPool> pool;
    std::unique_ptr<StepInputs> inputs;
    std::unique_ptr<StripedForest> stripes;  // null: it has all tokens of its KV heads
    std::unique_ptr<LayerPlans> plans;       // but of the first rank, whose are HostRunner's
    StepStats reads;                         // of the step planned last, where it has plans of its own
  };

  ModelRunner(std::vector<ModelParts> parts, std::vector<std::unique_ptr<OwnedStream>> streams, std::unique_ptr<RankGroup> group);
  Status MoveSlots(std::span<const attention::SlotMove> moves) override;
  Status CopyPages(std::span<const attention::PageCopy> copies) override;
  Status Prepare(const attention::PrefixForestView& forest, StepStats* stats) override;
  Result<MatrixView<const float>> Forward(const ForwardBatch& batch) override;

  std::unique_ptr<RankGroup> group_;  // before the transformers that it connects
  std::vector<Rank> ranks_;
  ReadsOfRanks reads_;  // where ranks divide tokens
};

}  // namespace coppice
