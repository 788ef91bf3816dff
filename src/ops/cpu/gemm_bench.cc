// Matrix products of SmolLM2-135M's shapes: our panel kernels, those of each instruction set of this machine, oneDNN on the same
// tiles, what CpuOps picks, its deterministic mode, and OpenBLAS where it is installed (f32; set OPENBLAS_CORETYPE where it does
// not know the machine). Reports GFLOP/s and the rate at which weights stream, each layer with weights of its own as in a model.
// peak/...: what registers alone allow of f32 FMA and of dot products of bf16 pairs. On a shared machine read the minimum over
// repetitions, in turns (--benchmark_enable_random_interleaving=true).
#include <benchmark/benchmark.h>
#include <immintrin.h>
#ifdef COPPICE_BENCH_OPENBLAS
#include <cblas.h>
#endif

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cache_line.h"
#include "core/math.h"
#include "core/thread_pool.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/testing/host_tensor.h"
#include "ops/cpu/weight_memory.h"

namespace coppice::ops {
namespace {

ThreadPool& Pool(int threads) {
  static ThreadPool one(1), two(2);
  return threads == 1 ? one : two;
}

struct Variant {
  const char* name;
  ProductLibrary library;
  bool deterministic = false;
  int32_t code_bits = 0;             // 0: not coded
  const Kernels* kernels = nullptr;  // null: SelectKernels()
};

void BM_Linear(benchmark::State& state, DType dtype, const Variant& variant, int64_t k, int64_t n, int threads) {
  const int64_t rows = state.range(0);
  const auto device = Device::CreateCpu(&Pool(threads));
  auto ops = MakeCpuOps(device.get(), {.deterministic = variant.deterministic},
                        variant.kernels != nullptr ? *variant.kernels : SelectKernels(), variant.library);
  // As many copies as a model has layers, up to 96 MB: a layer's weights are not in the second-level cache when it runs.
  const int64_t bytes = k * n * static_cast<int64_t>(SizeOf(dtype));
  const int64_t copies = std::clamp<int64_t>((96 << 20) / bytes, 1, 30);
  std::vector<float> values(k * n, 0.01f), y(rows * n);
  std::vector<BF16> values_bf16(k * n, BF16::FromFloat(0.01f));
  std::vector<std::unique_ptr<Weight>> weights;
  const std::vector<int8_t> codes(k * n, 1);
  const std::vector<F16> scales(k * n / kCodeBlock, F16::FromFloat(0.01f)), minima(scales.size(), F16::FromFloat(0.0f));
  LinearPart part = {dtype == DType::kF32 ? static_cast<const void*>(values.data()) : values_bf16.data(), n};
  if (variant.code_bits != 0) {
    part.format = CodedFormat{variant.code_bits};
    part.codes = {codes.data(), scales.data(), minima.data()};
  }
  for (int64_t i = 0; i < copies; ++i) weights.push_back(*ops->Pack(dtype, k, {&part, 1}));
  std::vector<float> x(RoundUp(rows, kRowPadding) * k, 0.0f);  // also read as bf16
  size_t next = 0;
  for (auto _ : state) {
    if (!ops->Linear({x.data(), dtype, rows, k, k}, *weights[next], HostTensor(y, rows, n), {}, nullptr).ok()) {
      state.SkipWithError("the product failed");
      break;
    }
    next = (next + 1) % weights.size();
    benchmark::DoNotOptimize(y.data());
  }
  const auto calls = static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(calls * 2e-9 * rows * k * n, benchmark::Counter::kIsRate);
  state.counters["weight_GB/s"] = benchmark::Counter(calls * 1e-9 * bytes, benchmark::Counter::kIsRate);
}

// How the panels that come next are asked for: by the kernel at each step, all at once before it, or not at all.
enum class Asking : uint8_t { kAtEachStep, kAtOnce, kNot };

// The panels of 30 qkv products, 33 MB, in turn on one thread.
void BM_Ahead(benchmark::State& state, const Kernels* kernels, Asking asking) {
  constexpr int64_t kInputs = 576, kPanels = 15 * 30, kElements = kInputs * kPanelCols;
  constexpr int64_t kBytes = kElements * static_cast<int64_t>(sizeof(BF16));
  const int64_t rows = state.range(0);
  const auto device = Device::CreateCpu(&Pool(1));
  WeightMemory memory(device.get());  // huge pages, as weights have
  const std::shared_ptr<std::byte> panels = *memory.Allocate((kPanels + 1) * kBytes);
  std::fill_n(reinterpret_cast<BF16*>(panels.get()), (kPanels + 1) * kElements, BF16::FromFloat(0.01f));
  const std::vector<BF16> x(rows * kInputs, BF16::FromFloat(0.5f));
  std::vector<float> tile(rows * kPanelCols);
  for (auto _ : state) {
    for (int64_t p = 0; p < kPanels; ++p) {
      const std::byte* const panel = panels.get() + p * kBytes;
      Ahead ahead;
      if (asking == Asking::kAtEachStep) ahead = {.from = panel + kBytes, .bytes = kBytes};
      for (int64_t i = 0; asking == Asking::kAtOnce && i < kBytes; i += kCacheLine)
        __builtin_prefetch(panel + kBytes + i, /*write=*/0, kSecondLevel);
      kernels->panel_bf16(x.data(), kInputs, rows, reinterpret_cast<const BF16*>(panel), kInputs, tile.data(), kPanelCols, ahead);
      benchmark::DoNotOptimize(tile.data());
    }
  }
  const auto calls = static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] =
      benchmark::Counter(calls * 2e-9 * static_cast<double>(rows * kElements * kPanels), benchmark::Counter::kIsRate);
}

#ifdef COPPICE_BENCH_OPENBLAS
void BM_OpenBlas(benchmark::State& state, int64_t k, int64_t n, int threads) {
  const int64_t rows = state.range(0);
  const int64_t copies = std::clamp<int64_t>((96 << 20) / (k * n * 4), 1, 30);
  std::vector<float> weights(copies * k * n, 0.01f), x(rows * k, 0.0f), y(rows * n);
  openblas_set_num_threads(threads);
  int64_t next = 0;
  for (auto _ : state) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, n, k, 1.0f, x.data(), k, &weights[next * k * n], k, 0.0f, y.data(),
                n);
    next = (next + 1) % copies;
    benchmark::DoNotOptimize(y.data());
  }
  const auto calls = static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(calls * 2e-9 * rows * k * n, benchmark::Counter::kIsRate);
  state.counters["weight_GB/s"] = benchmark::Counter(calls * 4e-9 * k * n, benchmark::Counter::kIsRate);
}
#endif

// More sums than the latency of an instruction needs, in registers that nothing points to.
constexpr int kPeakSums = 24, kPeakSteps = 1000;
template <class Vector, class AddTo>
[[gnu::always_inline]] inline void AddForPeak(benchmark::State& state, double flops_an_instruction, AddTo add) {
  for (auto _ : state) {
    Vector sums[kPeakSums] = {};
    for (int i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 24
      for (int s = 0; s < kPeakSums; ++s) {
        add(sums[s]);
        asm volatile("" : "+v"(sums[s]));
      }
    }
  }
  state.counters["GFLOP/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * 1e-9 * kPeakSums * kPeakSteps * flops_an_instruction, benchmark::Counter::kIsRate);
}

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16")
void BM_PeakFma512(benchmark::State& state) {
  __m512 x = _mm512_set1_ps(1);
  asm volatile("" : "+v"(x));
  AddForPeak<__m512>(state, 32, [x](__m512& sum) { sum = _mm512_fmadd_ps(x, x, sum); });
}
void BM_PeakBf16Dots(benchmark::State& state) {
  __m512i x = _mm512_set1_epi32(0x3f803f80);
  asm volatile("" : "+v"(x));
  AddForPeak<__m512>(
      state, 64, [x](__m512& sum) { sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(x)); });
}
#pragma GCC pop_options

void SetRows(benchmark::internal::Benchmark* bench) {
  for (int rows : {1, 4, 8, 12, 16, 24, 32, 48, 64, 512}) bench->Arg(rows);
  bench->UseRealTime()->Unit(benchmark::kMicrosecond)->ComputeStatistics("min", [](const std::vector<double>& values) {
    return *std::min_element(values.begin(), values.end());
  });
}

struct Layer {
  const char* name;
  int64_t k, n;
};

void RegisterAll() {
  for (const Layer& layer :
       {Layer{"qkv", 576, 960}, Layer{"gate_up", 576, 3072}, Layer{"down", 1536, 576}, Layer{"lm_head", 576, 49152}}) {
    for (DType dtype : {DType::kBF16, DType::kF32}) {
      for (const Variant& variant :
           {Variant{"panels", ProductLibrary::kPanels}, Variant{"onednn", ProductLibrary::kOneDnn},
            Variant{"auto", ProductLibrary::kAuto}, Variant{"deterministic", ProductLibrary::kAuto, true},
            Variant{"coded4", ProductLibrary::kAuto, false, 4}, Variant{"coded8", ProductLibrary::kAuto, false, 8}}) {
        if (variant.code_bits != 0 && dtype != DType::kBF16) continue;
        for (int threads : {1, 2}) {
          const std::string name = std::string(layer.name) + "/" + std::string(Name(dtype)) + "/" + variant.name +
                                   "/threads:" + std::to_string(threads) + "/rows";
          SetRows(benchmark::RegisterBenchmark(name.c_str(), BM_Linear, dtype, variant, layer.k, layer.n, threads));
        }
      }
    }
    for (const Kernels* kernels : SupportedKernels()) {
      const Variant variant{.name = kernels->isa, .library = ProductLibrary::kPanels, .kernels = kernels};
      const std::string name = std::string(layer.name) + "/bf16/panels-" + kernels->isa + "/threads:1/rows";
      SetRows(benchmark::RegisterBenchmark(name.c_str(), BM_Linear, DType::kBF16, variant, layer.k, layer.n, 1));
    }
#ifdef COPPICE_BENCH_OPENBLAS
    for (int threads : {1, 2}) {
      const std::string name = std::string(layer.name) + "/f32/openblas/threads:" + std::to_string(threads) + "/rows";
      SetRows(benchmark::RegisterBenchmark(name.c_str(), BM_OpenBlas, layer.k, layer.n, threads));
    }
#endif
  }
  for (const Kernels* kernels : SupportedKernels()) {
    for (const auto& [name, asking] :
         {std::pair("at_each_step", Asking::kAtEachStep), std::pair("at_once", Asking::kAtOnce), std::pair("not", Asking::kNot)}) {
      auto* const bench = benchmark::RegisterBenchmark((std::string("ahead/") + kernels->isa + "/" + name + "/rows").c_str(),
                                                       BM_Ahead, kernels, asking);
      for (const int rows : {1, 4, 8, 16, 64}) bench->Arg(rows);
    }
  }
  if (__builtin_cpu_supports("avx512f")) benchmark::RegisterBenchmark("peak/fma-512", BM_PeakFma512);
  if (__builtin_cpu_supports("avx512bf16")) benchmark::RegisterBenchmark("peak/bf16-dots", BM_PeakBf16Dots);
}

}  // namespace
}  // namespace coppice::ops

int main(int argc, char** argv) {
  coppice::ops::RegisterAll();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
