// What a runner of a real model is made of, on each of its ranks. Layer: runner.
#pragma once

#include <memory>
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

namespace coppice {

struct ModelParts {
  std::unique_ptr<Device> device;  // what follows stands on it
  std::unique_ptr<Transformer> transformer;
  std::unique_ptr<KvPool> pool;
  std::unique_ptr<StepInputs> inputs;
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
// The plans with the number of layers that each is for, counted on every rank: what one of them reads, all read.
std::vector<LayerPlans::Group> GroupsOf(const Transformer& transformer,
                                        std::vector<std::unique_ptr<attention::AttentionPlan>> plans);

}  // namespace coppice
