// Many requests on one engine, all at once: what an evaluation is made of. Layer: cli.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"
#include "openai/generation.h"

namespace coppice::cli {

// Outputs by request. Errors of Submit, of a step or of a sample; CANCELLED when `should_stop` says so. on_step: how many are done.
Result<std::vector<openai::RequestOutput>> RunRequests(Engine& engine, std::vector<Request> requests,
                                                       const std::function<void(int64_t done)>& on_step = {});

}  // namespace coppice::cli
