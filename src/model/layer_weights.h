// A model's weights as its forward pass holds them: packed for the device's kernels, norms in device memory.
// Layer: model.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/check.h"
#include "core/device.h"
#include "core/device_tensor.h"
#include "model/checkpoint.h"
#include "model/keep_stored.h"
#include "ops/ops.h"

namespace coppice {

// fp32 values in device memory.
class DeviceVector {
 public:
  static Result<DeviceVector> Create(Device& device, std::span<const float> values) {
    DeviceVector v;
    v.size_ = std::ssize(values);
    COPPICE_ASSIGN_OR_RETURN(v.memory_, device.Allocate(values.size_bytes()));
    COPPICE_RETURN_IF_ERROR(device.Copy(v.memory_.data(), values.data(), values.size_bytes(), nullptr));
    COPPICE_RETURN_IF_ERROR(device.Synchronize(Stream{nullptr}));
    return v;
  }
  DeviceSpan<const float> span() const { return {memory_.As<const float>(), size_}; }

 private:
  DeviceMemory memory_;
  int64_t size_ = 0;
};

// A norm's weight and bias; of none, if the model has no such norm.
struct NormWeights {
  ops::NormArgs args(ops::NormKind kind, float eps) const { return {kind, weight.span(), bias.span(), eps}; }
  DeviceVector weight, bias;
};

struct LayerWeights {
  NormWeights attention_norm, post_attention_norm, mlp_norm, post_mlp_norm;
  std::optional<NormWeights> q_norm, k_norm;
  std::unique_ptr<ops::Weight> qkv, output;
  std::unique_ptr<ops::Weight> up;  // gated MLPs: gate and up
  std::unique_ptr<ops::Weight> down;
};

struct ModelWeights {
  std::unique_ptr<ops::Weight> embedding;
  std::unique_ptr<ops::Weight> positions;  // null: none are learned
  std::unique_ptr<ops::Weight> lm_head;    // null: tied to the embedding
  NormWeights final_norm;
  std::vector<LayerWeights> layers;
};

struct WeightOptions {
  DType dtype = DType::kBF16;  // of what is converted, and of the products' inputs
  KeepStored keep_stored = KeepStored::kWhereFaster;
};

// Reads and packs all weights through one staging buffer of host memory.
Result<ModelWeights> LoadWeights(const Checkpoint& checkpoint, const WeightOptions& options, Device& device, ops::Ops& ops);

}  // namespace coppice
