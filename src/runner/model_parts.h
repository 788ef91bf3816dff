// Parts of a real model's runner, on each of its ranks. Layer: runner.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coppice/attention/attention.h"
#include "core/device.h"
#include "model/step_inputs.h"
#include "model/transformer.h"
#include "runner/device_sampler.h"
#include "runner/draft_distributions.h"
#include "runner/kv_pool.h"
#include "runner/layer_plans.h"
#include "runner/runner.h"
#include "runner/striped_forest.h"

namespace coppice {

struct ModelParts {
  std::unique_ptr<Device> device;  // what follows stands on it
  std::unique_ptr<Transformer> transformer;
  std::unique_ptr<KvPool> pool;
  std::unique_ptr<StepInputs> inputs;
  std::unique_ptr<StripedForest> stripes;                        // null: the rank has all tokens of its KV heads
  std::vector<std::unique_ptr<attention::AttentionPlan>> plans;  // one a layer group of the transformer
  std::string fingerprint;                                       // Checkpoint::Fingerprint
  // Sampling on a GPU; null on a CPU.
  std::unique_ptr<DeviceSampler> sampler;
  // And on a CPU.
  Executor* executor = nullptr;                       // outlives the runner
  std::shared_ptr<DraftDistributions> distributions;  // null: no draft model
};

RunnerInfo InfoOf(const ModelParts& parts);
// Runner::CheckSleep, Sleep and Wake of a model on a device that has nothing to do.
Status CheckSleepOn(const Device& device, const Transformer& transformer, bool keep_weights);
Status SleepOn(Device& device, Transformer& transformer, bool keep_weights);
Status WakeOn(Device& device);
// The plans with the number of layers that each is for, counted on every rank: what one of them reads, all read. Of a rank that has
// a part of the tokens: counted once.
std::vector<LayerPlans::Group> GroupsOf(const Transformer& transformer, const StripedForest* stripes,
                                        std::vector<std::unique_ptr<attention::AttentionPlan>> plans);
// A step's forest and slots as a rank has them.
inline attention::PrefixForestView ForestOf(StripedForest* stripes, const attention::PrefixForestView& forest) {
  return stripes == nullptr ? forest : stripes->View(forest);
}
inline std::span<const int64_t> SlotsOf(StripedForest* stripes, std::span<const int64_t> slots) {
  return stripes == nullptr ? slots : stripes->Slots(slots);
}
// A forest whose branches are cut into pieces does not show which branches and nodes share reads.
inline bool KnowsSharing(const StripedForest* stripes) { return stripes == nullptr || !stripes->has_pieces(); }

// Reads of a step on ranks that each have a part of the tokens and count for themselves, added up.
class ReadsOfRanks {
 public:
  // `stats`: of the first rank, to which others are added. Without knows_sharing it says nothing of branches.
  void Begin(bool knows_sharing, StepStats* stats);
  void Add(const StepStats& of_rank, StepStats* stats);

 private:
  std::vector<BranchReads> branches_[2];  // of the step planned last and of the one before it, which may be under way
  int32_t last_ = 0;
};

}  // namespace coppice
