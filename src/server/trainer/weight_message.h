// What a trainer's message says of weights that it brings: which tensors, and where their bytes lie. JSON, never pickled.
// Layer: server. docs/trainers.md describes the form.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/core/types.h"

namespace coppice::server {

// A tensor in a segment: row-major, without gaps.
struct SegmentTensor {
  std::string name;  // as WeightTensor::name
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;  // outermost dimension first
  int64_t offset = 0;          // bytes from the segment's beginning
  int64_t bytes = 0;
};

struct WeightMessage {
  std::string segment;  // of POSIX shared memory, without a slash
  std::vector<SegmentTensor> tensors;
  bool checksum = false;  // /weight_checker is to know these bytes
};

// The object "update_info" of /update_weights. INVALID_ARGUMENT names the field, its value and what is expected, a pickled payload
// among others; UNIMPLEMENTED: weights in a GPU's memory or by NCCL, whose form is checked first.
Result<WeightMessage> ReadWeightMessage(const nlohmann::json& info);

// The object "init_info" of /init_weight_transfer_engine: OK where it asks for what ReadWeightMessage takes. Errors likewise.
Status CheckTransfer(const nlohmann::json& info);

}  // namespace coppice::server
