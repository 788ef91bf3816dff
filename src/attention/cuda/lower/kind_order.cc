#include "attention/kind_order.h"

#include "attention/cuda/lower/sm_costs.h"
#include "attention/cuda/plan_device.h"

namespace coppice::attention {

MachineModel MachineFor(KindOrder order, const AttentionSpec& spec, const BackendTraits& traits, MachineModel machine) {
  constexpr double kNever = 1e12, kOverlapOfMemory = 1.3;
  SmRates& sm = machine.sm;
  if (sm.num_sms == 0) return machine;  // a CPU's: nothing is cut for SMs
  if (order == KindOrder::kSerial) sm.overlapped_step_ns = sm.slowed_by_streams = kNever;
  if (order == KindOrder::kOverlapped) {
    // As if it cost the dense tiles nothing, near the memory's rate: what asks for more slows them in the simulation.
    const cuda::SmCosts costs(sm, spec, traits);
    sm.overlapped_step_ns =
        kOverlapOfMemory * cuda::kOverlappedStepTokens * costs.bytes_per_token() / costs.sm_memory_bytes_per_ns();
    sm.overlapped_task_ns = sm.dense_task_overlapped_ns = sm.slowed_by_overlap = 0;
  }
  return machine;
}

}  // namespace coppice::attention
