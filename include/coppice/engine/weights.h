// Weights that a caller holds, such as a trainer's, for Engine::UpdateWeights.
// Layer: public API.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coppice/core/types.h"
#include "coppice/engine/pause.h"

namespace coppice {

// One tensor of a model, in memory that stays as it is until UpdateWeights returns.
struct WeightTensor {
  // As Hugging Face's folders name it ("model.layers.0.self_attn.q_proj.weight"), with the model's prefix or without it. Rows of q
  // and k are in the half-split rotary order of those folders.
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;  // outermost dimension first
  const void* data = nullptr;  // contiguous, row-major, of any alignment
  // Where `data` lies: in host memory, or (kCuda) in that of the engine's GPU, written by work that is done. Memory there in the
  // engine's own dtype is copied from device to device, all else by way of the host.
  DeviceKind device = DeviceKind::kCpu;
};

// The part of an update that a call of UpdateWeights is. One that comes in several parts makes one version; between its first part
// and its last, weights are missing.
enum class UpdatePart : uint8_t {
  kWhole,  // all of it
  kFirst,  // its begin; one that was open before it is given up, and what it brought counts as missing
  kNext,   // of this and kLast, an empty label changes none
  kLast,   // its end; may have no tensors
};

struct UpdateOptions {
  PauseMode when = PauseMode::kWait;
  std::string label = {};  // the caller's name of the weights, such as a training step; names may repeat
  UpdatePart part = UpdatePart::kWhole;
  // Whether names, shapes, dtypes and devices would be taken, and nothing else: `data`, which must not be null, is not read, no
  // step is waited for, and the version stays.
  bool check_only = false;
};

// A tensor that an update may bring.
struct WeightInfo {
  std::string name;            // as WeightTensor::name
  std::vector<int64_t> shape;  // outermost dimension first
  DType dtype = DType::kBF16;  // that the engine holds it in; f32, bf16 and f16 are taken
  bool missing = false;        // nothing is computed until an update has brought it, or has ended
};

// Which weights an engine computes with.
struct WeightVersion {
  int64_t number = 0;      // of updates since the model was loaded
  std::string label = {};  // UpdateOptions::label of the last one
};

}  // namespace coppice
