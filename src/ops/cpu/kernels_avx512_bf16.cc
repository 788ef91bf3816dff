// The kernels for avx512_bf16; flags in CMakeLists.txt.
#define COPPICE_ISA avx512_bf16
#define COPPICE_ISA_NAME "avx512_bf16"
#include "ops/cpu/kernels-inl.h"
#include "ops/cpu/quantized_kernels-inl.h"
