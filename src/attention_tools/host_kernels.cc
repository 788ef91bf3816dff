#include "attention_tools/host_kernels.h"

#include "attention/cpu/tile_forms.h"

namespace coppice::attention {

std::string_view HostKernelsName() { return cpu::Name(cpu::DetectIsa()); }

ProbeReport HostTiles() { return cpu::TileReport(); }

}  // namespace coppice::attention
