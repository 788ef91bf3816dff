// What a command says of the model that it has loaded. Layer: cli.
#pragma once

#include "coppice/engine/engine.h"

namespace coppice::cli {

// ModelInfo::notes, as warnings: once for each model that a command loads.
void TellNotes(const Engine& engine);

}  // namespace coppice::cli
