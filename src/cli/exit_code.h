// The meanings of the program's exit status. Layer: cli.
#pragma once

#include "coppice/core/status.h"

namespace coppice::cli {

enum class ExitCode : int {
  kOk = 0,
  kFailure = 1,        // it broke while running: a bug, an exhausted machine, or a device or server that is missing or lost
  kUsage = 2,          // the command line, the model file or the prompt is wrong; the message says what to do
  kInterrupted = 130,  // Ctrl-C, as shells report it (128 + SIGINT)
};

inline ExitCode ExitCodeOf(const Status& status) {
  if (status.ok()) return ExitCode::kOk;
  const bool broke = status.code() == StatusCode::kInternal || status.code() == StatusCode::kResourceExhausted ||
                     status.code() == StatusCode::kUnavailable;
  return broke ? ExitCode::kFailure : ExitCode::kUsage;
}

}  // namespace coppice::cli
