// The routes by which trainers steer vLLM's servers: docs/trainers.md describes them. Layer: server.
#pragma once

#include <vector>

#include "server/router.h"
#include "server/trainer/trainer_context.h"

namespace coppice::server {

// `context` outlives them.
std::vector<Route> VllmTrainerRoutes(TrainerContext* context);

}  // namespace coppice::server
