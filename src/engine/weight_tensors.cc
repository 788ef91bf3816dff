#include "engine/weight_tensors.h"

#include <cstddef>
#include <cstdint>

#include "core/quoted.h"
#include "model/error_text.h"
#include "model/stored_type.h"

namespace coppice {
Result<TensorMap> TensorMapOf(std::span<const WeightTensor> tensors) {
  if (tensors.empty()) return InvalidArgument("an update of weights has no tensors: give it at least one");
  TensorMap map;
  for (const WeightTensor& tensor : tensors) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) {
      if (size < 1 || __builtin_mul_overflow(elements, size, &elements) || elements > INT64_MAX / 8)
        return InvalidArgument("tensor " + Quoted(tensor.name) + " has shape " + ShapeText(tensor.shape) +
                               ", expected sizes of at least 1 whose product fits into memory");
    }
    if (tensor.shape.empty() || tensor.data == nullptr)
      return InvalidArgument("tensor " + Quoted(tensor.name) + (tensor.shape.empty() ? " has no dimensions" : " has no data"));
    const auto bytes = static_cast<size_t>(elements) * SizeOf(tensor.dtype);
    const bool is_new = map.emplace(tensor.name, StoredTensor{.file = "update of weights",
                                                              .type = StoredTypeOf(tensor.dtype),
                                                              .shape = tensor.shape,
                                                              .data = {static_cast<const std::byte*>(tensor.data), bytes},
                                                              .device = tensor.device})
                            .second;
    if (!is_new) return InvalidArgument("tensor " + Quoted(tensor.name) + " is there twice: leave one away");
  }
  return map;
}

}  // namespace coppice
