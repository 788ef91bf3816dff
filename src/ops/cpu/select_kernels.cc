// Which kernels this machine runs.
// Layer: ops, private.
#include <cstdlib>
#include <string_view>
#include <vector>

#include "ops/cpu/kernels.h"

namespace coppice::ops {

std::span<const Kernels* const> SupportedKernels() {
  static const std::vector<const Kernels*> supported = [] {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    std::vector<const Kernels*> list;
    if (avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"))
      list.push_back(&avx512_bf16::kKernels);
    if (avx512) list.push_back(&avx512::kKernels);
    if (avx2 && __builtin_cpu_supports("avxvnni")) list.push_back(&avx_vnni::kKernels);
    if (avx2) list.push_back(&avx2::kKernels);
    list.push_back(&x86_64_v2::kKernels);
    return list;
  }();
  return supported;
}

const Kernels& SelectKernels() {
  if (const char* isa = std::getenv("COPPICE_CPU_ISA")) {
    for (const Kernels* kernels : SupportedKernels()) {
      if (isa == std::string_view(kernels->isa)) return *kernels;
    }
  }
  return *SupportedKernels().front();
}

}  // namespace coppice::ops
