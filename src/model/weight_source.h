// Where a model's weights come from: tensors by name, as views into memory. A file is one source, the tensors of a trainer another.
// Layer: model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "model/weights.h"

namespace coppice {

// Immutable: safe to use from several threads.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // For messages: a file's path.
  virtual const std::string& name() const = 0;
  // By Hugging Face name ("model.layers.0.self_attn.q_proj.weight"); views live as long as the source.
  virtual const TensorMap& tensors() const = 0;
  // Says that a tensor was read and is not needed soon: its memory may be given back and filled again when it is read.
  virtual void Release(const StoredTensor& /*tensor*/) const {}

  // Writes the tensor, converted (dequantised) to `dtype`, row-major, into `out` (rows * cols elements of dtype; a vector has
  // rows 1), and releases it. NOT_FOUND or INVALID_ARGUMENT (wrong shape: both shapes in the message).
  Status Load(std::string_view tensor, int64_t rows, int64_t cols, DType dtype, std::span<std::byte> out) const;
};

}  // namespace coppice
