// Uploads of plans beside the step before: on a stream of their own, to the device images that no launch under way reads. Layer:
// runner.
#pragma once

#include <map>
#include <memory>

#include "core/device.h"
#include "runner/layer_plans.h"
#include "runner/runner.h"

namespace coppice {

// Thread-compatible. The device outlives it.
class PlanUploads {
 public:
  static Result<std::unique_ptr<PlanUploads>> Create(Device* device);
  ~PlanUploads();

  // Plans a step and copies what changed. Work that comes to `stream` from now on has the plans; the copies do not wait for what is
  // in the stream, but for launches that read what they write. REQUIRES: plans of two device images.
  Status Prepare(LayerPlans* plans, const attention::PrefixForestView& forest, Stream stream, StepStats* stats);
  // The stream's work so far reads the plans as they were prepared last.
  Status Launched(const LayerPlans& plans, Stream stream);

 private:
  explicit PlanUploads(Device* device) : device_(device) {}

  Device* device_;
  std::unique_ptr<OwnedStream> stream_;
  std::unique_ptr<Event> copied_;
  std::map<LaunchKeys, std::unique_ptr<Event>> read_;  // the last launch of these keys
};

}  // namespace coppice
