// A layer's KV bound for the CUDA backend. Layer: attention/cuda.
#pragma once

#include "attention/cuda/lower/kernel_choice.h"
#include "attention/cuda/tensor_map.h"
#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

class BoundCudaKv final : public BoundKv {
 public:
  BoundCudaKv(const AttentionSpec& spec, const KvLayerView& view, KernelPath path, const TensorMaps& maps)
      : BoundKv(spec, view), path_(path), maps_(maps) {}
  KernelPath path() const { return path_; }
  const TensorMaps& maps() const { return maps_; }  // of the Hopper path

 private:
  KernelPath path_;
  TensorMaps maps_;
};

}  // namespace coppice::attention::cuda
