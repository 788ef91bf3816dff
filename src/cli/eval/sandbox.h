// Runs a program that a model wrote, so that it can do no harm: a process without rights, the network and the user's files, with
// limits of time, memory, files and threads that hold for all that it starts. A limit that cannot be set, or a right that cannot be
// taken away, is an error, and nothing runs. docs/evaluation.md says what it takes from the program. Layer: cli.
#pragma once

#include <linux/filter.h>

#include <cstdint>
#include <string>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::cli {

struct SandboxLimits {
  double seconds = 5;                       // of the clock; as much, rounded up, of a processor
  int64_t memory_bytes = int64_t{1} << 30;  // of all that a program starts, with its files; REQUIRES: 256 MiB or more
  bool subprocesses = false;                // else a program is one process, with threads
};

enum class ProgramResult : uint8_t { kPassed, kFailed, kTimedOut };

// A Python interpreter in bubblewrap: read-only /usr, an empty /tmp and /dev/shm, no network, no other processes to be seen. Where
// this process has the rights of root, programs run as the user 65534. Thread-safe.
class Sandbox {
 public:
  // `interpreter`: a path under /usr. UNAVAILABLE where a program does not come to its end in there, found by running one, or has
  // rights that it must not have: bubblewrap is missing or too old, the system gives it no namespaces, root's rights cannot be
  // given up, there is no such interpreter, or `subprocesses` is asked for without a control group to bound them together.
  static Result<Sandbox> Create(std::string interpreter, const SandboxLimits& limits);

  // kPassed: the program came to its last line without an exception. Its output is lost.
  Result<ProgramResult> Run(const std::string& program) const;

 private:
  Sandbox(std::string interpreter, const SandboxLimits& limits);
  // Output and stderr of the program and of bubblewrap go to the descriptor `errors`.
  Result<ProgramResult> Run(const std::string& program, double seconds, int errors) const;

  std::string interpreter_;
  SandboxLimits limits_;
  std::vector<sock_filter> filter_;
  std::string control_groups_;  // where a group for each program is made; empty: nowhere
};

}  // namespace coppice::cli
