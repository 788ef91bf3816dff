// The one pickled value that a server takes: the name of a group of NCCL, as vLLM's StatelessProcessGroup stores it. It is
// recognised byte by byte, and nothing of it is run, looked up or imported. Layer: server.
#pragma once

#include <cstddef>
#include <span>

#include "coppice/core/status.h"
#include "ops/nccl_library.h"

namespace coppice::server {

// Of what pickle.dumps gives, by protocol 4 or 5, for a ctypes.Structure named ncclUniqueId, of any module, of 128 bytes.
// INVALID_ARGUMENT for all else, a value that an unpickler would take among it.
Result<ops::NcclId> ReadPickledId(std::span<const std::byte> pickled);

}  // namespace coppice::server
