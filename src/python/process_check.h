// Whether this is the process that started an object's threads. Layer: python.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include "coppice/core/status.h"

namespace coppice::python {

// Remembers the process that it was made in.
class ProcessCheck {
 public:
  bool here() const { return getpid() == process_; }
  // FAILED_PRECONDITION in a process that was forked from it: threads are not, and a wait for them never ends.
  Status Check() const {
    if (here()) return OkStatus();
    return FailedPrecondition(
        fmt::format("this was made in process {} and this is process {}, forked from it, which has none of its "
                    "threads: make it after the fork, or start processes by multiprocessing's \"spawn\"",
                    process_, getpid()));
  }

 private:
  const pid_t process_ = getpid();
};

}  // namespace coppice::python
