// Products with quantised weights on one thread: every format and both precisions of the input, weights of SmolLM2-135M's gate and
// up (576 x 3,072) in the caches of the machine. Reports billions of multiply-adds a second and the rate at which packed weights
// are read. peak/...: what the registers alone allow, for AVX2: f32 (FMA), wide (VPMADDWD and an addition), narrow (VPMADDUBSW and
// an addition).
#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <string>
#include <vector>

#include "ops/cpu/kernels.h"
#include "ops/cpu/quantized_strip.h"

namespace coppice::ops {
namespace {

constexpr int64_t kOutputs = 3072;

void BM_Multiply(benchmark::State& state, BlockFormat format, InputPrecision precision) {
  const QuantizedKernels& kernels = *SelectKernels().quantized;
  const bool wide = precision == InputPrecision::kWide;
  const auto multiply = (wide ? kernels.wide : kernels.narrow)[static_cast<size_t>(format)];
  if (multiply == nullptr) return state.SkipWithError("no such product here");
  const int64_t k = Traits(format).elements == 256 ? 512 : 576, rows = state.range(0), strips = kOutputs / kQuantStripCols;
  const int64_t strip_bytes = Layout(format).StripBytes(k);
  // Values change no time; zero scales keep sums finite.
  const std::vector<std::byte> weights(strips * strip_bytes);
  const std::vector<float> x(rows * k, 0.5f);
  std::vector<float> tile(rows * kQuantStripCols);
  std::vector<int16_t> codes(rows * k);
  std::vector<int8_t> bytes(rows * k);
  std::vector<float> scales(rows * k / 32), middles(scales.size()), sums(scales.size());
  std::vector<int32_t> negated(scales.size()), halves(2 * scales.size());
  const QuantizedInput input = {codes.data(), bytes.data(),   scales.data(), middles.data(),
                                sums.data(),  negated.data(), halves.data()};
  for (auto _ : state) {
    for (int64_t r = 0; r < rows; ++r) {
      (wide ? kernels.quantize_wide : kernels.quantize_narrow)(&x[r * k], DType::kF32, k, input.FromRow(r, k));
    }
    for (int64_t s = 0; s < strips; ++s) {
      multiply(input, rows, &weights[s * strip_bytes], strip_bytes, k, tile.data(), kQuantStripCols);
      benchmark::DoNotOptimize(tile.data());
    }
  }
  const auto calls = static_cast<double>(state.iterations());
  state.counters["GMAC/s"] =
      benchmark::Counter(calls * 1e-9 * static_cast<double>(rows * k * kOutputs), benchmark::Counter::kIsRate);
  state.counters["weight_GB/s"] =
      benchmark::Counter(calls * 1e-9 * static_cast<double>(strips * strip_bytes), benchmark::Counter::kIsRate);
}

// As many sums as a tile of the products has: more than the latency of the instructions needs.
constexpr int kPeakSums = 12, kPeakSteps = 1024;

#pragma GCC push_options
#pragma GCC target("avx2,fma")
// Runs kPeakSteps x kPeakSums times sum = add(sum). The sums are locals that nothing points to while they are added to: an array
// whose address is known lies in memory, and each addition would wait for the one before to be stored and loaded.
template <class Vector, class AddTo>
[[gnu::always_inline]] inline void AddForPeak(benchmark::State& state, double macs_an_instruction, AddTo add) {
  for (auto _ : state) {
    Vector sums[kPeakSums] = {};
    for (int i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 12
      for (int s = 0; s < kPeakSums; ++s) {
        add(sums[s]);
        asm volatile("" : "+x"(sums[s]));  // one by one, in this order
      }
    }
  }
  state.counters["GMAC/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * 1e-9 * kPeakSums * kPeakSteps * macs_an_instruction, benchmark::Counter::kIsRate);
}

// A vector of ones that the compiler does not know to be that.
template <class Vector>
[[gnu::always_inline]] inline Vector Opaque(Vector x) {
  asm volatile("" : "+x"(x));
  return x;
}

void BM_PeakF32(benchmark::State& state) {
  const __m256 x = Opaque(_mm256_set1_ps(1));
  AddForPeak<__m256>(state, 8, [x](__m256& sum) { sum = _mm256_fmadd_ps(x, x, sum); });
}
void BM_PeakWide(benchmark::State& state) {
  const __m256i x = _mm256_set1_epi16(1);
  AddForPeak<__m256i>(state, 16, [x](__m256i& sum) { sum = _mm256_add_epi32(sum, _mm256_madd_epi16(Opaque(x), x)); });
}
void BM_PeakNarrow(benchmark::State& state) {
  const __m256i x = _mm256_set1_epi8(1);
  AddForPeak<__m256i>(state, 32, [x](__m256i& sum) { sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(Opaque(x), x)); });
}
#pragma GCC pop_options

}  // namespace
}  // namespace coppice::ops

int main(int argc, char** argv) {
  using coppice::ops::InputPrecision;
  for (size_t f = 0; f < coppice::ops::kNumBlockFormats; ++f) {
    const auto format = static_cast<coppice::ops::BlockFormat>(f);
    for (const InputPrecision precision : {InputPrecision::kWide, InputPrecision::kNarrow}) {
      const std::string name =
          std::string(Traits(format).name) + (precision == InputPrecision::kWide ? "/wide" : "/narrow") + "/rows";
      auto* bench = benchmark::RegisterBenchmark(name.c_str(), coppice::ops::BM_Multiply, format, precision);
      for (const int rows : {1, 2, 8, 16, 64, 512}) bench->Arg(rows);
    }
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    benchmark::RegisterBenchmark("peak/f32", coppice::ops::BM_PeakF32);
    benchmark::RegisterBenchmark("peak/wide", coppice::ops::BM_PeakWide);
    benchmark::RegisterBenchmark("peak/narrow", coppice::ops::BM_PeakNarrow);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
