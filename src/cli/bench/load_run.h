// Puts the requests of a workload to an engine at the moments at which they arrive and measures what their users would see.
// Layer: cli.
#pragma once

#include <span>

#include "cli/bench/load_recorder.h"
#include "cli/bench/load_result.h"
#include "cli/bench/workload.h"
#include "coppice/core/status.h"
#include "coppice/engine/engine.h"

namespace coppice::cli {

// The engine is fresh. Every sample gets all its tokens: ends of text are ignored. An error of any request ends the run.
Result<LoadResult> RunLoad(Engine& engine, std::span<const WorkloadRequest> requests, const LoadSchedule& schedule);

}  // namespace coppice::cli
