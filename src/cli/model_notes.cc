#include "cli/model_notes.h"

#include <spdlog/spdlog.h>

namespace coppice::cli {

void TellNotes(const Engine& engine) {
  for (const std::string& note : engine.model_info().notes) spdlog::warn("{}", note);
}

}  // namespace coppice::cli
