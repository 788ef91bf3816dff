// Answers that trainers are given on routes of vLLM and of SGLang alike. Layer: server.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "coppice/core/status.h"
#include "server/trainer/trainer_context.h"
#include "server/trainer/weight_message.h"

namespace coppice::server {

// TrainerControl::JoinGroup, and UNIMPLEMENTED for a model that is divided among ranks. On the control's thread, as those below.
Status JoinGroup(TrainerContext& context, const GroupInfo& group);
// Brings the weights that `info`, a message, names.
Status BringWeights(TrainerContext& context, const nlohmann::json& info, const TrainerFields& fields);
// Checksums of the weights, or those of them that differ from "baseline".
TrainerAnswer CheckWeights(TrainerContext& context, const TrainerFields& fields);
TrainerAnswer DropCache(TrainerContext& context, const TrainerFields& fields);
TrainerAnswer WakeUp(TrainerContext& context, const TrainerFields& fields);

}  // namespace coppice::server
