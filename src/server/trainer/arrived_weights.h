// Weights on their way into the engine, in this process's memory: read from a segment of shared memory, or mapped from a folder.
// Layer: server.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/engine/weights.h"
#include "core/buffer.h"
#include "model/checkpoint.h"
#include "server/trainer/weight_message.h"

namespace coppice::server {

// Tensors, and what they lie in. Thread-compatible.
class ArrivedWeights {
 public:
  // Reads the message's tensors from /dev/shm. They are copied: what their sender does to the segment later, or does not do,
  // changes and harms nothing here. `memory` of earlier ones is used again where it is large enough. NOT_FOUND: there is no such
  // segment; INVALID_ARGUMENT: a tensor does not lie in it.
  static Result<ArrivedWeights> Read(const WeightMessage& message, Buffer memory);
  // Maps a folder of config.json and *.safetensors. Errors as Checkpoint::Open, and INVALID_ARGUMENT for a file that stores weights
  // in blocks.
  static Result<ArrivedWeights> Open(const std::string& path);

  std::span<const WeightTensor> tensors() const { return tensors_; }
  // For the next Read.
  Buffer TakeMemory() && { return std::move(memory_); }

 private:
  ArrivedWeights() = default;

  std::vector<WeightTensor> tensors_;
  Buffer memory_;
  std::unique_ptr<Checkpoint> folder_;
};

// Lower-case hex SHA-256 of a tensor's bytes.
std::string ChecksumOf(const WeightTensor& tensor);

}  // namespace coppice::server
