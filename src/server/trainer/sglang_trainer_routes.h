// The routes by which trainers steer SGLang's servers: docs/trainers.md describes them. Layer: server.
#pragma once

#include <vector>

#include "server/router.h"
#include "server/trainer/trainer_context.h"

namespace coppice::server {

// `context` outlives them.
std::vector<Route> SglangTrainerRoutes(TrainerContext* context);

}  // namespace coppice::server
