// The kernels for x86_64_v2; flags in CMakeLists.txt.
#define COPPICE_ISA x86_64_v2
#define COPPICE_ISA_NAME "baseline"
#include "ops/cpu/kernels-inl.h"
#include "ops/cpu/quantized_kernels-inl.h"
