#include "attention_tools/host_kernels.h"

#include "attention/cpu/cpu_features.h"

namespace coppice::attention {

std::string_view HostKernelsName() { return cpu::Name(cpu::DetectIsa()); }

}  // namespace coppice::attention
