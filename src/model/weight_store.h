// A model's weights as its forward pass holds them: packed for the device's kernels, norms in device memory. Read from a source,
// and replaced in place from another. Layer: model.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/device.h"
#include "core/device_tensor.h"
#include "model/config.h"
#include "model/keep_stored.h"
#include "model/shard.h"
#include "model/weight_source.h"
#include "ops/ops.h"

namespace coppice {

// fp32 values in device memory.
class DeviceVector {
 public:
  static Result<DeviceVector> Create(Device& device, std::span<const float> values) {
    DeviceVector v;
    v.size_ = std::ssize(values);
    COPPICE_ASSIGN_OR_RETURN(v.memory_, device.Allocate(values.size_bytes()));
    COPPICE_RETURN_IF_ERROR(v.Assign(device, values));
    return v;
  }
  // REQUIRES: as many values as there are.
  Status Assign(Device& device, std::span<const float> values) {
    COPPICE_DCHECK(std::ssize(values) == size_);
    COPPICE_RETURN_IF_ERROR(device.Copy(memory_.data(), values.data(), values.size_bytes(), nullptr));
    return device.Synchronize(Stream{nullptr});
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
  std::unique_ptr<ops::Weight> lm_head;    // null: it is the embedding
  NormWeights final_norm;
  std::vector<LayerWeights> layers;
};

// Thread-compatible; `device` and `ops` outlive it.
class WeightStore {
 public:
  struct Options {
    DType dtype = DType::kBF16;  // of what is converted, and of the products' inputs
    DType head_dtype = dtype;    // the same of the output projection; where it differs, a tied one is held apart, dense
    KeepStored keep_stored = KeepStored::kWhereFaster;
    Shard shard = {};  // what of each matrix is held
  };

  // Reads and packs what the shard holds of all weights that the forward pass of `config` reads. A matrix that lies in the source
  // as the operations take it is read in place; others, one product's at a time, are converted in host memory. A matrix whose
  // columns the shard cuts inside a file's blocks is held dense. REQUIRES: `source` passed CheckWeights.
  static Result<WeightStore> Load(const WeightSource& source, const ModelConfig& config, const Options& options, Device& device,
                                  ops::Ops& ops);

  const ModelWeights& weights() const { return weights_; }

  // Whether Update can take these weights: INVALID_ARGUMENT or UNIMPLEMENTED of CheckSomeWeights for names, shapes and types;
  // FAILED_PRECONDITION where the store holds a file's blocks or codes.
  Status CheckUpdate(const WeightSource& source) const;
  // Replaces the weights that `source` has, some or all of them, in place: addresses stay. Nothing may read them meanwhile. An
  // error leaves a mixture of old and new weights, so that all are missing. REQUIRES: CheckUpdate.
  Status Update(const WeightSource& source);
  // FAILED_PRECONDITION where the store holds a file's blocks or codes, which no update could bring back.
  Status CheckDrop() const;
  // The memory of all packed weights is to lose its content: they are missing. REQUIRES: CheckDrop.
  void Drop() {
    missing_ = AllNames();
    keeps_rest_ = false;
  }
  // The next calls of Update are parts of one update: all weights are missing until they have come, or until EndUpdate where none
  // was missing before, and no part failed.
  void BeginUpdate() {
    keeps_rest_ = missing_.empty();
    missing_ = AllNames();
  }
  void EndUpdate() {
    if (std::exchange(keeps_rest_, false)) missing_.clear();
  }
  // All weights: matrices of the options' dtypes, vectors of f32.
  HeldWeights Held() const;
  // False while weights are missing: until updates have brought all of them.
  bool is_whole() const { return missing_.empty(); }

 private:
  std::set<std::string, std::less<>> AllNames() const;
  WeightStore(const ModelConfig& config, const Options& options, Device* device, ops::Ops* ops)
      : config_(config), options_(options), device_(device), ops_(ops) {}

  ModelConfig config_;
  Options options_;
  Device* device_;
  ops::Ops* ops_;
  ModelWeights weights_;
  std::set<std::string, std::less<>> missing_;  // names, as of ExpectedWeights
  bool keeps_rest_ = false;                     // what an open update does not bring stays as it was
};

}  // namespace coppice
