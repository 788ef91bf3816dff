// What a trainer's message says of weights that it brings: which tensors, and where their bytes lie. JSON, never pickled.
// Layer: server. docs/trainers.md describes the form.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "core/ipc_memory.h"

namespace coppice::server {

// A tensor in shared memory or in an allocation of a GPU: row-major, without gaps.
struct SegmentTensor {
  std::string name;  // as WeightTensor::name
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;  // outermost dimension first
  int64_t offset = 0;          // bytes from the segment's or the allocation's beginning
  int64_t bytes = 0;
};

// An allocation of a GPU, in another process.
struct IpcSource {
  IpcMemory::Handle handle{};
  IpcMemory::DeviceId device;
};

struct WeightMessage {
  std::variant<std::string, IpcSource> source;  // a segment of POSIX shared memory, without a slash, or memory of a GPU
  std::vector<SegmentTensor> tensors;
  bool checksum = false;  // /weight_checker is to know these bytes
};

// The object "update_info" of /update_weights. INVALID_ARGUMENT names the field, its value and what is expected, a pickled payload
// among others; UNIMPLEMENTED: weights by NCCL.
Result<WeightMessage> ReadWeightMessage(const nlohmann::json& info);

// The object "init_info" of /init_weight_transfer_engine: OK where it asks for what ArrivedWeights::Read takes. Errors likewise,
// and UNIMPLEMENTED for weights in a GPU's memory in a build without CUDA.
Status CheckTransfer(const nlohmann::json& info);

}  // namespace coppice::server
