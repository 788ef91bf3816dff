// The kernels for avxvnni: AVX2 with sums of products of bytes and of pairs (Alder Lake, Zen 5 and later); flags in CMakeLists.txt.
#define COPPICE_ISA avx_vnni
#define COPPICE_ISA_NAME "avxvnni"
#include "ops/cpu/kernels-inl.h"
#include "ops/cpu/quantized_kernels-inl.h"
