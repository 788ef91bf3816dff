// The features of this machine's CPU, found out at run time: the library is built for plain x86-64, and each kernel file compiles
// its functions for its own instruction set (#pragma GCC target after all includes).
// Layer: attention/cpu.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace coppice::attention::cpu {

// In rising order; each includes those before it, but for AVX-VNNI, which not all CPUs with AVX-512 have.
enum class Isa : uint8_t { kBaseline, kAvx2, kAvxVnni, kAvx512, kAvx512Bf16, kAmxBf16 };
std::string_view Name(Isa isa);

// The best of them here, AMX only if the system grants its tile registers to this process.
Isa BestIsa();
// The same, lowered by COPPICE_CPU_ISA (kCpuIsaNames), for tests and comparisons; what the CPU lacks is never chosen. Which tiles
// serve bf16 may be measured, too: tile_forms.h.
Isa DetectIsa();
bool CpuHasAvxVnni();
// A CPU of Isa::kAvx512 may lack it; every CPU of a later one has it.
bool CpuHasAvx512Vnni();
// Whether this CPU has `isa`, and COPPICE_CPU_ISA does not leave it out.
bool HasIsa(Isa isa);

// The shipped machine model (machine_model.h) that fits the CPU this runs on.
std::string_view HostCpuModelName();

// Bytes of the data cache of `level` (1..3) that the first CPU uses, as the kernel reports them; `otherwise` if it does not.
// sysconf adds up all third-level caches of some sockets (384 MiB where a core reaches 32).
size_t CacheBytes(int level, size_t otherwise);

}  // namespace coppice::attention::cpu
