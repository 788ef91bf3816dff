// A command's engine: how far its loading is, and what the command says of the model that it has loaded. Layer: cli.
#pragma once

#include <memory>
#include <string>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"

namespace coppice::cli {

// Of a model's file or folder, as answers name it: the last part of its path.
std::string ModelName(const std::string& path);

enum class LoadingIs { kShown, kSilent };

// Engine::Create. On a terminal a line shows how much of the model is there.
Result<std::unique_ptr<Engine>> LoadEngine(const EngineOptions& options, LoadingIs loading = LoadingIs::kShown);

// ModelInfo::notes, as warnings: once for each model that a command loads.
void ReportNotes(const Engine& engine);

}  // namespace coppice::cli
