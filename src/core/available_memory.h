// How much memory this process may still take. Layer: core.
#pragma once

#include <cstdint>

namespace coppice {

// Bytes that the system could give without swapping, or what RLIMIT_AS leaves of the address space if that is less; 0 if neither is
// known.
int64_t AvailableMemoryBytes();

}  // namespace coppice
