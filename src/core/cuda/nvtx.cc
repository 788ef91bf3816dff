#include "core/cuda/nvtx.h"

#include <nvtx3/nvToolsExt.h>

namespace coppice::cuda {

void PushRange(const char* name) { nvtxRangePushA(name); }
void PopRange() { nvtxRangePop(); }

}  // namespace coppice::cuda
