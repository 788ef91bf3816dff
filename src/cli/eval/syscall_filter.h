// Which system calls a sandboxed program may make: a seccomp filter that allows what computing, files, threads and sockets of its
// own network need, and nothing else; calls that a newer kernel adds are not in it. Layer: cli.
#pragma once

#include <linux/filter.h>

#include <vector>

namespace coppice::cli {

// For a process of this machine's own architecture; calls of another one (32-bit ones on x86-64) end it. Calls that are not allowed
// fail with ENOSYS, as in a kernel without them, so that libraries take their other way. Without `subprocesses` a process may start
// threads, and fork fails with EAGAIN, as at the limit of processes. Empty where no filter is known for the architecture.
std::vector<sock_filter> SyscallFilter(bool subprocesses);

}  // namespace coppice::cli
