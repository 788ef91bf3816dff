// Weights on their way into the engine: read from a segment of shared memory, mapped from a folder or from another process's memory
// of a GPU, or received from a trainer's group.
// Layer: server.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/engine/weights.h"
#include "core/buffer.h"
#include "core/device.h"
#include "core/ipc_memory.h"
#include "model/checkpoint.h"
#include "server/trainer/weight_message.h"

namespace coppice::server {

// Tensors, and what they lie in. Thread-compatible.
class ArrivedWeights {
 public:
  // Takes the message's tensors, which are none of a broadcast. From /dev/shm they are copied: what their sender does to the
  // segment later, or does not do, changes and harms nothing here. `memory` of earlier ones is used again where it is large enough.
  // A GPU's memory stays mapped as long as the object is there. NOT_FOUND: there is no such segment; INVALID_ARGUMENT: a tensor
  // does not lie in it, and IpcMemory::Open's.
  static Result<ArrivedWeights> Read(const WeightMessage& message, Buffer memory);
  // Tensors in memory of the device that another object owns, which outlives this one.
  static ArrivedWeights Lend(std::span<const WeightTensor> tensors, Device* device);
  // Maps a folder of config.json and *.safetensors. Errors as Checkpoint::Open, and INVALID_ARGUMENT for a file that stores weights
  // in blocks.
  static Result<ArrivedWeights> Open(const std::string& path);

  std::span<const WeightTensor> tensors() const { return tensors_; }
  // Lower-case hex SHA-256 of the bytes of one of tensors(). Errors of reading a GPU's memory.
  Result<std::string> ChecksumOf(const WeightTensor& tensor) const;
  // For the next Read.
  Buffer TakeMemory() && { return std::move(memory_); }

 private:
  ArrivedWeights() = default;
  static Result<ArrivedWeights> CopySegment(const WeightMessage& message, const std::string& segment, Buffer memory);
  static Result<ArrivedWeights> Map(const WeightMessage& message, const IpcSource& source);

  std::vector<WeightTensor> tensors_;
  Buffer memory_;
  std::unique_ptr<Checkpoint> folder_;
  std::optional<IpcMemory> mapped_;
  Device* device_ = nullptr;  // of Lend
};

}  // namespace coppice::server
