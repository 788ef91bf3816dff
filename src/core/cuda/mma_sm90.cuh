// Hopper's warpgroup matrix instructions: D[64, N] (fp32 registers) += A[64, 16] B[16, N], one instruction a function.
// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". A is in shared memory (ss) or in registers (rs), B in shared memory.
// Layer: core/cuda.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace coppice::ptx {

template <class T, int N>
struct Wgmma;

// clang-format off
// The registers of D in the instruction's text, and as its operands: N / 2 a thread.
#define COPPICE_NAMES_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define COPPICE_NAMES_64 COPPICE_NAMES_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define COPPICE_NAMES_96 COPPICE_NAMES_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define COPPICE_NAMES_128 COPPICE_NAMES_96 ", " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define COPPICE_D_8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define COPPICE_D_32 COPPICE_D_8(0), COPPICE_D_8(8), COPPICE_D_8(16), COPPICE_D_8(24)
#define COPPICE_D_64 COPPICE_D_32, COPPICE_D_8(32), COPPICE_D_8(40), COPPICE_D_8(48), COPPICE_D_8(56)
#define COPPICE_D_96 COPPICE_D_64, COPPICE_D_8(64), COPPICE_D_8(72), COPPICE_D_8(80), COPPICE_D_8(88)
#define COPPICE_D_128 COPPICE_D_96, COPPICE_D_8(96), COPPICE_D_8(104), COPPICE_D_8(112), COPPICE_D_8(120)

// A and B K-major in shared memory. accumulate = 0 overwrites D. at_*: the numbers of the operands behind D's.
#define COPPICE_WGMMA_SS(type, n, registers, at_a, at_b, at_accumulate)                                                   \
  static __device__ __forceinline__ void Ss(float (&d)[registers], uint64_t a, uint64_t b, int accumulate) {              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #at_accumulate ", 0;\n"                                             \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" COPPICE_NAMES_##registers "}, "     \
                 "%" #at_a ", %" #at_b ", p, 1, 1, 0, 0;\n}\n"                                                            \
                 : COPPICE_D_##registers                                                                                  \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                      \
  }
// A in registers; B MN-major (its N is contiguous) in shared memory.
#define COPPICE_WGMMA_RS_TRANSPOSED_B(type, n, registers, at_a0, at_a1, at_a2, at_a3, at_b)                               \
  static __device__ __forceinline__ void RsTransposedB(float (&d)[registers], const uint32_t* a, uint64_t b) {            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" COPPICE_NAMES_##registers "}, "     \
                 "{%" #at_a0 ", %" #at_a1 ", %" #at_a2 ", %" #at_a3 "}, %" #at_b ", 1, 1, 1, 1;\n"                        \
                 : COPPICE_D_##registers                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                   \
  }
// Both in shared memory, the left operand MN-major where a_transposed is 1 (its M is contiguous), the right K-major. kN columns.
#define COPPICE_WGMMA_SS_NARROW(type, a_transposed, name)                                                                 \
  static __device__ __forceinline__ void name(float (&d)[4], uint64_t a, uint64_t b, int accumulate) {                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"                                                             \
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32." type "." type " {%0, %1, %2, %3}, %4, %5, p, 1, 1, "        \
                 #a_transposed ", 0;\n}\n"                                                                               \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                         \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                      \
  }
// Scores have a KV tile's columns (128 or 192), the output the head's (64 or 128), products of src/ops/cuda 64 to 256.
#define COPPICE_WGMMA(T, type)                                                                                            \
  template <> struct Wgmma<T, 8> {                                                                                        \
    COPPICE_WGMMA_SS_NARROW(type, 0, Ss)                                                                                  \
    COPPICE_WGMMA_SS_NARROW(type, 1, SsTransposedA)                                                                       \
  };                                                                                                                      \
  template <> struct Wgmma<T, 64> {                                                                                       \
    COPPICE_WGMMA_SS(type, 64, 32, 32, 33, 34)                                                                            \
    COPPICE_WGMMA_RS_TRANSPOSED_B(type, 64, 32, 32, 33, 34, 35, 36)                                                       \
  };                                                                                                                      \
  template <> struct Wgmma<T, 128> {                                                                                      \
    COPPICE_WGMMA_SS(type, 128, 64, 64, 65, 66)                                                                           \
    COPPICE_WGMMA_RS_TRANSPOSED_B(type, 128, 64, 64, 65, 66, 67, 68)                                                      \
  };                                                                                                                      \
  template <> struct Wgmma<T, 192> {                                                                                      \
    COPPICE_WGMMA_SS(type, 192, 96, 96, 97, 98)                                                                           \
  };                                                                                                                      \
  template <> struct Wgmma<T, 256> {                                                                                      \
    COPPICE_WGMMA_SS(type, 256, 128, 128, 129, 130)                                                                       \
  };

COPPICE_WGMMA(__nv_bfloat16, "bf16")
COPPICE_WGMMA(__half, "f16")

#undef COPPICE_WGMMA
#undef COPPICE_WGMMA_SS_NARROW
#undef COPPICE_WGMMA_RS_TRANSPOSED_B
#undef COPPICE_WGMMA_SS
#undef COPPICE_D_128
#undef COPPICE_D_96
#undef COPPICE_D_64
#undef COPPICE_D_32
#undef COPPICE_D_8
#undef COPPICE_NAMES_128
#undef COPPICE_NAMES_96
#undef COPPICE_NAMES_64
#undef COPPICE_NAMES_32
// clang-format on

}  // namespace coppice::ptx
