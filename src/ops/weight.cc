#include "ops/weight.h"

#include <string>

namespace coppice::ops {

std::vector<PartShape> ShapesOf(std::span<const LinearPart> parts) {
  std::vector<PartShape> shapes;
  for (const LinearPart& part : parts) shapes.push_back({part.rows, part.format});
  return shapes;
}

Status CheckRepack(const Weight& weight, const LinearPart& with, size_t part, bool has_bias) {
  if (!weight.is_dense()) return FailedPrecondition("the weight keeps a file's blocks or codes, which cannot be replaced");
  if (part >= weight.part_rows().size())
    return InvalidArgument("part " + std::to_string(part) + " of a weight of " + std::to_string(weight.part_rows().size()) +
                           " parts is to be replaced");
  if (with.rows != weight.part_rows()[part])
    return InvalidArgument("a part of " + std::to_string(weight.part_rows()[part]) + " rows is to be replaced by one of " +
                           std::to_string(with.rows));
  if (!std::holds_alternative<DenseFormat>(with.format))
    return InvalidArgument("a part is to be replaced by blocks or codes; convert them");
  if (with.bias != nullptr && !has_bias) return InvalidArgument("a weight without a bias is to get one");
  return OkStatus();
}

}  // namespace coppice::ops
