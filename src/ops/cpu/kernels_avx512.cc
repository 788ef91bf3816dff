// The kernels for avx512; flags in CMakeLists.txt.
#define COPPICE_ISA avx512
#define COPPICE_ISA_NAME "avx512"
#include "ops/cpu/kernels-inl.h"
#include "ops/cpu/quantized_kernels-inl.h"
