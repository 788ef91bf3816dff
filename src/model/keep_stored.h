// Which form a quantised file's matrices have in memory.
// Layer: model.
#pragma once

#include <cstdint>

namespace coppice {

enum class KeepStored : uint8_t {
  kNone,          // all are converted to the compute dtype
  kWhereFaster,   // the file's blocks, where products with them are faster; else converted, with codes beside that few rows read
  kWherePossible  // the file's blocks wherever products take them, and each matrix once
};

}  // namespace coppice
