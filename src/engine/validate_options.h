// Whether an engine can be made with these options: each refusal names the option, its value and what is expected. Options that
// need the model as well (context length, KV bytes) are checked where the model is loaded, create_engine.cc.
// Layer: engine.
#pragma once

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"

namespace coppice {

// INVALID_ARGUMENT, or OK. The message begins with the option's name in EngineOptions.
Status ValidateOptions(const EngineOptions& options);

}  // namespace coppice
