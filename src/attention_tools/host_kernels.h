// Which of attention's CPU kernels run on this machine. Layer: attention_tools.
#pragma once

#include <string_view>

namespace coppice::attention {

// The name that COPPICE_CPU_ISA would give them: "avx2".
std::string_view HostKernelsName();

}  // namespace coppice::attention
