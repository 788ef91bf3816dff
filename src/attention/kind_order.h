// KindOrder as plans have it: by the rates of the machine that a plan is lowered for. Layer: attention, private.
#pragma once

#include "attention/backend_traits.h"
#include "attention/machine_model.h"
#include "coppice/attention/attention.h"

namespace coppice::attention {

// `machine` with rates that leave the lowering for a GPU no choice but `order`. Of kTwoLaunches, each launch has one kind:
// unchanged.
MachineModel MachineFor(KindOrder order, const AttentionSpec& spec, const BackendTraits& traits, MachineModel machine);

}  // namespace coppice::attention
