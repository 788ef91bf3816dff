// The driver's function that makes tensor maps, without linking against the driver. Layer: core, CUDA.
#pragma once

#include <cuda.h>

#include "coppice/core/status.h"

namespace coppice::cuda {

using EncodeTensorMap = decltype(&cuTensorMapEncodeTiled);

// Looked up once. UNAVAILABLE where the driver is older than CUDA 12.0. Thread-safe.
Result<EncodeTensorMap> FindTensorMapEncoder();

}  // namespace coppice::cuda
