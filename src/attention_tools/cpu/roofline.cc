#include "attention_tools/cpu/roofline.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "core/buffer.h"
#include "core/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace coppice::attention::cpu {
namespace {

constexpr int64_t kSteps = 20000;  // a fraction of a millisecond
constexpr int kChains = 12;        // covers latency x throughput of every product instruction so far

// `multiply_add(sum)` adds a product of `flops` FLOPs to a vector V; kSteps times over kChains independent sums. Returns the FLOPs.
// Inlined, so that the loop is compiled for the instruction set of its caller.
template <class V, class F>
[[gnu::always_inline]] inline double Products(double flops, const F& multiply_add) {
  V sum[kChains] = {};
  for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) multiply_add(sum[c]);
  }
  return static_cast<double>(kSteps) * kChains * flops;
}

}  // namespace
}  // namespace coppice::attention::cpu

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,amx-tile,amx-bf16")
#include "attention/cpu/amx_session.h"

namespace coppice::attention::cpu {
namespace {

// 2 x 2 tiles per step, both operands loaded as in a matrix product. Returns the FLOPs.
double AmxProducts() {
  alignas(64) std::byte operands[4 * 1024] = {};
  asm volatile("" ::"r"(operands) : "memory");
  const AmxSession session;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < kSteps; ++i) {
    _tile_loadd(4, operands, 64);
    _tile_loadd(6, operands + 1024, 64);
    _tile_loadd(5, operands + 2048, 64);
    _tile_loadd(7, operands + 3072, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
  return static_cast<double>(kSteps) * 4 * (2 * 16 * 16 * 32);
}

double DotProducts() {
  const __m512 a = _mm512_set1_ps(1.25f), b = _mm512_set1_ps(-0.75f);
  return Products<__m512>(64, [&](__m512& sum) { asm volatile("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); });
}

// As bf16 is multiplied with VNNI and without instructions for bf16: dense_tile_int16.h.
double DotProducts16Wide() {
  const __m512i a = _mm512_set1_epi16(3), b = _mm512_set1_epi16(-5);
  return Products<__m512i>(64, [&](__m512i& sum) { asm volatile("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); });
}

double Fma512() {
  const __m512 a = _mm512_set1_ps(1.25f), b = _mm512_set1_ps(-0.75f);
  return Products<__m512>(32, [&](__m512& sum) { asm volatile("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); });
}

}  // namespace
}  // namespace coppice::attention::cpu
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace coppice::attention::cpu {
namespace {

double Fma256() {
  const __m256 a = _mm256_set1_ps(1.25f), b = _mm256_set1_ps(-0.75f);
  return Products<__m256>(16, [&](__m256& sum) { asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b)); });
}

// As bf16 is multiplied: dense_tile_int16.h.
double MultiplyAdd16() {
  const __m256i a = _mm256_set1_epi16(3), b = _mm256_set1_epi16(-5);
  return Products<__m256i>(32, [&](__m256i& sum) {
    __m256i product;
    asm volatile("vpmaddwd %2, %1, %0" : "=x"(product) : "x"(a), "x"(b));
    asm volatile("vpaddd %1, %0, %0" : "+x"(sum) : "x"(product));
  });
}

// The same with AVX-VNNI.
double DotProducts16() {
  const __m256i a = _mm256_set1_epi16(3), b = _mm256_set1_epi16(-5);
  return Products<__m256i>(32, [&](__m256i& sum) { asm volatile("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b)); });
}

}  // namespace
}  // namespace coppice::attention::cpu
#pragma GCC pop_options
#endif

namespace coppice::attention::cpu {
namespace {

constexpr int kRepeats = 20;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Shortest time in which all workers run `body(worker)` once.
template <class F>
double BestTime(Executor& executor, int repeats, const F& body) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const double begin = Seconds();
    executor.ParallelFor(executor.num_workers(), [&](int64_t part, int) { body(part); });
    best = std::min(best, Seconds() - begin);
  }
  return best;
}

// Plain multiplies and adds of four floats: what the portable kernel compiles to.
double MulAddBaseline() {
  typedef float V __attribute__((vector_size(16)));
  V sum[kChains] = {}, a = {1.25f, 1.25f, 1.25f, 1.25f};
  for (int64_t i = 0; i < kSteps; ++i) {
    for (int c = 0; c < kChains; ++c) {
      sum[c] = sum[c] * a + a;
      asm volatile("" : "+x"(sum[c]));
    }
  }
  return static_cast<double>(kSteps) * kChains * 8;
}

// The workers read slice after slice of the buffer; the fastest slice counts, `passes` times over if it shall stay in the cache.
double ReadRate(Executor& executor, const Buffer& buffer, size_t slice_bytes, int passes) {
  const size_t workers = executor.num_workers(), slices = buffer.size() / (workers * slice_bytes);
  double best = 1e30;
  for (const ReadOrder order : {ReadOrder::kPagesInTurn, ReadOrder::kMemory}) {
    for (size_t slice = 0; slice < slices; ++slice) {
      const std::byte* base = buffer.data() + slice * workers * slice_bytes;
      best = std::min(best, BestTime(executor, 1, [&](int64_t part) {
                        for (int i = 0; i < passes; ++i) ReadLines(base + part * slice_bytes, slice_bytes, order);
                      }));
    }
  }
  return static_cast<double>(workers) * passes * slice_bytes / best;
}

}  // namespace

double ComputeProducts(Isa isa, DType dtype) {
#if defined(__x86_64__)
  if (dtype == DType::kBF16 && isa >= Isa::kAmxBf16) return AmxProducts();
  if (dtype == DType::kBF16 && isa >= Isa::kAvx512Bf16) return DotProducts();
  if (isa >= Isa::kAvx512) return dtype == DType::kBF16 && CpuHasAvx512Vnni() ? DotProducts16Wide() : Fma512();
  if (isa == Isa::kAvxVnni && dtype == DType::kBF16) return DotProducts16();
  if (isa >= Isa::kAvx2) return dtype == DType::kBF16 ? MultiplyAdd16() : Fma256();
#endif
  return MulAddBaseline();
}

// One load a cache line: the bandwidth is that of lines, not of instructions.
void ReadLines(const std::byte* from, size_t bytes, ReadOrder order) {
  constexpr size_t kStreams = 8, kPageBytes = 4096, kLine = 64, kBlock = kStreams * kPageBytes;
  const bool in_turn = order == ReadOrder::kPagesInTurn;
  // Eight lines a step: one of each of eight pages, or eight that follow each other.
  const size_t apart = in_turn ? kPageBytes : kLine, step = in_turn ? kLine : kStreams * kLine;
  const size_t ahead = in_turn ? kBlock : kPageBytes;
  uint64_t sum[kStreams] = {};
  for (; bytes >= kBlock; from += kBlock, bytes -= kBlock) {
    for (size_t i = 0; i < kPageBytes / kLine; ++i) {
      for (size_t stream = 0; stream < kStreams; ++stream) {
        const std::byte* line = from + i * step + stream * apart;
        __builtin_prefetch(line + ahead);
        uint64_t word;
        std::memcpy(&word, line, sizeof(word));
        sum[stream] += word;
      }
    }
  }
  for (uint64_t& s : sum) asm volatile("" : "+r"(s));
}

Result<CpuRoofline> MeasureCpuRoofline(Executor& executor, Isa isa, DType dtype) {
  CpuRoofline result;
  const int workers = executor.num_workers();
  std::vector<double> flops(workers);
  const double seconds = BestTime(executor, kRepeats, [&](int64_t part) { flops[part] = ComputeProducts(isa, dtype); });
  for (const double f : flops) result.product_flops_per_s += f / seconds;

  const size_t last_level = CacheBytes(3, 32u << 20), private_level = CacheBytes(2, 1u << 20);
  const size_t bytes = std::clamp<size_t>(3 * last_level, 128u << 20, 512u << 20);
  COPPICE_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(bytes));
  executor.ParallelFor(64, [&](int64_t part, int) { std::memset(buffer.data() + part * (bytes / 64), 1, bytes / 64); });
  result.read_bytes_per_s = ReadRate(executor, buffer, size_t{4} << 20, 1);
  result.cache_bytes_per_s = ReadRate(executor, buffer, 2 * private_level, 8);
  return result;
}

}  // namespace coppice::attention::cpu
