// Runs a program that a model wrote, so that it can do no harm: a process without the network and the user's files, with limits of
// time, memory, files and processes. Layer: cli.
#pragma once

#include <cstdint>
#include <string>

#include "coppice/core/status.h"

namespace coppice::cli {

struct SandboxLimits {
  double seconds = 5;  // of the clock; as much, rounded up, of a processor
  int64_t memory_bytes = int64_t{1} << 30;
};

enum class ProgramResult : uint8_t { kPassed, kFailed, kTimedOut };

// Runs `program` by a Python interpreter (a path under /usr) in bubblewrap: read-only /usr, an empty /tmp, no network, no other
// processes to be seen. kPassed: it came to its last line without an exception. Its output is lost. Thread-safe.
Result<ProgramResult> RunProgram(const std::string& interpreter, const std::string& program, const SandboxLimits& limits);
// UNAVAILABLE where bubblewrap is missing, the system gives it no namespaces, or there is no such interpreter.
Status CheckSandbox(const std::string& interpreter);

}  // namespace coppice::cli
