#include "attention/cpu/cpu_features.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "core/cpu/kernel_probe.h"

namespace coppice::attention::cpu {
namespace {

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
  if (!avx512) return __builtin_cpu_supports("avxvnni") ? Isa::kAvxVnni : Isa::kAvx2;
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::kAvx512;
  return CpuHasAmxBf16() && RequestTileState() ? Isa::kAmxBf16 : Isa::kAvx512Bf16;
}
#else
Isa Detect() { return Isa::kBaseline; }
#endif

}  // namespace

bool CpuHasAvxVnni() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avxvnni");
#else
  return false;
#endif
}

bool CpuHasAvx512Vnni() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

std::string_view Name(Isa isa) { return kCpuIsaNames[static_cast<size_t>(isa)]; }

Isa BestIsa() { return Detect(); }

Isa DetectIsa() {
  const Isa best = Detect();
  const char* wanted = std::getenv("COPPICE_CPU_ISA");
  if (wanted == nullptr) return best;
  const auto found = std::ranges::find(kCpuIsaNames, wanted);
  if (found == kCpuIsaNames.end()) return best;
  const Isa isa = std::min(best, static_cast<Isa>(found - kCpuIsaNames.begin()));
  return isa == Isa::kAvxVnni && !CpuHasAvxVnni() ? Isa::kAvx2 : isa;
}

bool HasIsa(Isa isa) { return isa <= DetectIsa() && (isa != Isa::kAvxVnni || CpuHasAvxVnni()); }

std::string_view HostCpuModelName() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return "generic-x86";
  const unsigned base_family = (eax >> 8) & 0xf;
  const unsigned family = base_family == 0xf ? base_family + ((eax >> 20) & 0xff) : base_family;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return "generic-x86";
  constexpr unsigned kAvx2 = 1u << 5, kAvx512F = 1u << 16, kAmxBf16 = 1u << 22, kZen5Family = 0x1a, kZen3And4Family = 0x19;
  if ((edx & kAmxBf16) != 0) return "sapphire-rapids";
  if ((ebx & kAvx512F) != 0 && family == kZen5Family) return "zen5";
  if (family == kZen3And4Family && (ebx & kAvx2) != 0) return (ebx & kAvx512F) != 0 ? "zen4" : "zen3";
#endif
  return "generic-x86";
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
