#include "attention/cpu/cpu_features.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <string>

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace coppice::attention::cpu {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"baseline", "avx2", "avx512", "avx512-bf16", "amx-bf16"};

#if defined(__x86_64__)
// Linux hands out the 8 KiB of tile state per thread on request only (Documentation/x86/xstate.rst).
bool RequestTileState() {
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

bool CpuHasAmxBf16() {
  uint32_t eax = 7, ebx, ecx = 0, edx;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  constexpr uint32_t kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  return (edx & kAmxBf16) && (edx & kAmxTile);
}

Isa Detect() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) return Isa::kBaseline;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!avx512) return Isa::kAvx2;
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::kAvx512;
  return CpuHasAmxBf16() && RequestTileState() ? Isa::kAmxBf16 : Isa::kAvx512Bf16;
}
#else
Isa Detect() { return Isa::kBaseline; }
#endif

}  // namespace

std::string_view Name(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

Isa DetectIsa() {
  const Isa best = Detect();
  const char* wanted = std::getenv("COPPICE_CPU_ISA");
  if (wanted == nullptr) return best;
  const auto found = std::ranges::find(kNames, std::string_view(wanted));
  return found == kNames.end() ? best : std::min(best, static_cast<Isa>(found - kNames.begin()));
}

size_t CacheBytes(int level, size_t otherwise) {
  for (int index = 0;; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    int found = 0;
    std::string type;
    size_t kib = 0;
    if (!(std::ifstream(folder + "level") >> found) || !(std::ifstream(folder + "type") >> type)) return otherwise;
    if (found == level && type != "Instruction" && std::ifstream(folder + "size") >> kib && kib > 0) return kib << 10;
  }
}

}  // namespace coppice::attention::cpu
