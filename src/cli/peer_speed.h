// The speed of another engine at the same job, which a script measured and wrote to a file: for `run --beside`. Layer: cli.
#pragma once

#include <string>

#include "coppice/core/status.h"

namespace coppice::cli {

struct PeerSpeed {
  std::string name;                                                    // short: it heads a column
  double prefill_tokens_per_second = 0, decode_tokens_per_second = 0;  // 0: not measured
};

// The file is an object with these members, and others that say how it was measured (bench/peers/llama_samples.py).
// INVALID_ARGUMENT names the file and the member that is wrong.
Result<PeerSpeed> ReadPeerSpeed(const std::string& path);

}  // namespace coppice::cli
