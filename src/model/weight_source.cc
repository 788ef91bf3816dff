#include "model/weight_source.h"

#include <fmt/format.h>

#include "core/quoted.h"

namespace coppice {

Status WeightSource::Load(std::string_view tensor, int64_t rows, int64_t cols, DType dtype, std::span<std::byte> out) const {
  const auto found = tensors().find(tensor);
  if (found == tensors().end()) return NotFound(fmt::format("{}: no tensor {}", name(), Quoted(tensor)));
  const Status status = LoadWeight(tensor, found->second, rows, cols, dtype, out);
  Release(found->second);
  return status;
}

}  // namespace coppice
