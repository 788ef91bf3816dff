// A machine model as JSON inside of another text. Layer: attention, private; its users hide the library in their .cc files.
#pragma once

#include <nlohmann/json.hpp>

#include "attention/machine_model.h"

namespace coppice::attention {

// The members that ToJson writes. Where memory ends, `object` has some of them and can be dismantled.
void PutMachineModel(const MachineModel& model, nlohmann::ordered_json* object);

}  // namespace coppice::attention
