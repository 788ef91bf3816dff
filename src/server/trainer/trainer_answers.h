// Answers that trainers are given on routes of vLLM and of SGLang alike. Layer: server.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "coppice/core/status.h"
#include "server/trainer/trainer_context.h"

namespace coppice::server {

// Brings the weights that `info`, a message, names. On the control's thread, as those below.
Status BringWeights(TrainerContext& context, const nlohmann::json& info, const TrainerFields& fields);
// Checksums of the weights, or those of them that differ from "baseline".
TrainerAnswer CheckWeights(TrainerContext& context, const TrainerFields& fields);
TrainerAnswer DropCache(TrainerContext& context, const TrainerFields& fields);
TrainerAnswer WakeUp(TrainerContext& context, const TrainerFields& fields);

}  // namespace coppice::server
