// The kernels for avx2; flags in CMakeLists.txt.
#define COPPICE_ISA avx2
#define COPPICE_ISA_NAME "avx2"
#include "ops/cpu/kernels-inl.h"
#include "ops/cpu/quantized_kernels-inl.h"
