// Throughput of the inner loop of dense tiles, by the number of warpgroups that share an SM: scores, softmax and output of 64
// rows a warpgroup (dense_tile.cuh's own), against K and V that the copy engine brings from a set that the L2 holds. Two
// warpgroups that take turns, as the kernel has them; one alone, as a CTA would have that gives the rest of the SM to streams:
// steps of 128 tokens one after the other, or of 64, whose next scores run beside its own softmax (FlashAttention-3, section 3.2;
// steps of 128 spill then); and two CTAs an SM of the latter. The figures behind docs/kernels/overlap.md: what is left for dense
// tiles where streams have their own CTA. sm_90a. No arguments.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "attention/cuda/dense_tile.cuh"
#include "attention/cuda/device_memory.h"
#include "attention_tools/cuda/mix.cuh"
#include "core/check.h"

namespace coppice::attention::cuda::bench {
namespace {

constexpr int kSteps = 2000, kHeadDim = 128;
constexpr int64_t kSetBytes = int64_t{16} << 20;

template <int kTokens>
struct CoreConfig : Config<__nv_bfloat16, kHeadDim> {
  static constexpr int kKvTile = kTokens;
};

template <int kWarpgroups, int kTokens>
struct Shared {
  static constexpr int kStages = 2, kTileBytes = kTokens * kHeadDim * 2, kQBytes = 64 * kHeadDim * 2;
  alignas(1024) uint8_t q[kWarpgroups][kQBytes];
  alignas(1024) uint8_t kv[kStages][2][kTileBytes];
  uint64_t full[kStages][2], free[kStages][2];
};

// Two bf16 of both signs and from an eighth to two.
__device__ __forceinline__ uint32_t RandomPair(uint32_t i) { return 0x3e003e00u ^ (Mix(i) & 0x81ff81ffu); }

__global__ void Fill(uint32_t* values, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    values[i] = RandomPair(static_cast<uint32_t>(i));
  }
}

template <int kWarpgroups, int kTokens>
__device__ void Load(Shared<kWarpgroups, kTokens>& s, const uint8_t* set) {
  using S = Shared<kWarpgroups, kTokens>;
  for (int i = 0; i < kSteps; ++i) {
    const int stage = i % S::kStages;
    for (int v = 0; v < 2; ++v) {
      ptx::BarrierWait(&s.free[stage][v], (i / S::kStages & 1) ^ 1);
      ptx::BarrierArriveExpectBytes(&s.full[stage][v], S::kTileBytes);
      const uint32_t tile = Mix(blockIdx.x * 0x9e3779b9u + 2 * i + v) % (kSetBytes / S::kTileBytes);
      ptx::BulkLoad(s.kv[stage][v], set + int64_t{tile} * S::kTileBytes, S::kTileBytes, &s.full[stage][v], ptx::kEvictNormal);
    }
  }
}

template <int kWarpgroups, int kTokens, int kCtas>
__global__ void __launch_bounds__((1 + kWarpgroups) * kWarpgroup, kCtas) CoreKernel(const uint8_t* set, float* out) {
  using S = Shared<kWarpgroups, kTokens>;
  using Tile = DenseTile<CoreConfig<kTokens>>;
  extern __shared__ __align__(1024) uint8_t bytes[];
  auto& s = *reinterpret_cast<S*>(bytes);
  const int wg = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * S::kStages; ++i) {
      ptx::BarrierInit(&s.full[i / 2][i % 2], 1);
      ptx::BarrierInit(&s.free[i / 2][i % 2], kWarpgroups * 4);
    }
    ptx::FenceBarrierInit();
  }
  for (size_t i = threadIdx.x; i < sizeof(s.q) / 4; i += blockDim.x) {
    reinterpret_cast<uint32_t*>(s.q)[i] = RandomPair(static_cast<uint32_t>(i));
  }
  ptx::FenceProxyAsync();
  __syncthreads();
  if (wg < 0) {
    ptx::DecreaseRegisters<kWarpgroups == 1 ? 24 : 72>();
    if (threadIdx.x == 0) Load(s, set);
    return;
  }
  ptx::IncreaseRegisters<kWarpgroups == 1 ? 232 : 216>();
  const uint32_t q = ptx::Uniform(ptx::SharedAddress(s.q[wg]));
  const auto tile = [&](int i, int v) { return ptx::Uniform(ptx::SharedAddress(s.kv[i % S::kStages][v])); };
  const auto await = [&](int i, int v) { ptx::BarrierWait(&s.full[i % S::kStages][v], i / S::kStages & 1); };
  const auto release = [&](int i, int v) {
    if (threadIdx.x % 32 == 0) ptx::BarrierArrive(&s.free[i % S::kStages][v]);
  };
  float o[Tile::kOut];
#pragma unroll
  for (float& x : o) x = 0;
  RowSoftmax state;
  uint32_t weights[Tile::kScores / 2];
  constexpr float kScale = 0.1f;
  const auto softmax = [&](float(&scores)[Tile::kScores]) { Tile::Softmax(state, scores, weights, o, kScale, false, [] {}); };
  if constexpr (kTokens == 128) {
    constexpr bool kTurns = kWarpgroups == 2;
    float scores[Tile::kScores];
    if (kTurns && wg == 1) ptx::NamedBarrierArrive(kTurnBarrier, 2 * kWarpgroup);
    for (int i = 0; i < kSteps; ++i) {
      await(i, 0);
      if (kTurns) ptx::NamedBarrierSync(kTurnBarrier + wg, 2 * kWarpgroup);
      Tile::Score(scores, q, tile(i, 0));
      if (i > 0) {
        await(i - 1, 1);
        Tile::Accumulate(o, weights, tile(i - 1, 1));
      }
      if (kTurns) ptx::NamedBarrierArrive(kTurnBarrier + (wg ^ 1), 2 * kWarpgroup);
      ptx::WgmmaWait<0>();
      ptx::PinRegisters(scores);
      ptx::PinRegisters(o);
      release(i, 0);
      if (i > 0) release(i - 1, 1);
      softmax(scores);
    }
    if (kTurns && wg == 0) ptx::NamedBarrierSync(kTurnBarrier, 2 * kWarpgroup);
  } else {
    float even[Tile::kScores], odd[Tile::kScores];
    await(0, 0);
    Tile::Score(even, q, tile(0, 0));
    ptx::WgmmaWait<0>();
    release(0, 0);
    const auto step = [&](int i, float(&now)[Tile::kScores], float(&next)[Tile::kScores]) {
      if (i + 1 < kSteps) {
        await(i + 1, 0);
        Tile::Score(next, q, tile(i + 1, 0));
      }
      softmax(now);
      await(i, 1);
      Tile::Accumulate(o, weights, tile(i, 1));
      ptx::WgmmaWait<0>();
      ptx::PinRegisters(next);
      ptx::PinRegisters(o);
      release(i, 1);
      if (i + 1 < kSteps) release(i + 1, 0);
    };
    for (int i = 0; i < kSteps; i += 2) {
      step(i, even, odd);
      step(i + 1, odd, even);
    }
  }
  float sum = state.sum[0] + state.sum[1];
#pragma unroll
  for (const float x : o) sum += x;
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

template <int kWarpgroups, int kTokens, int kCtas>
void Measure(const uint8_t* set, float* out, int sms, int ctas) {
  const auto check = [](cudaError_t error) { COPPICE_CHECK(error == cudaSuccess); };
  const auto kernel = CoreKernel<kWarpgroups, kTokens, kCtas>;
  constexpr int kThreads = (1 + kWarpgroups) * kWarpgroup;
  // More than half of an SM's where it has one CTA.
  const int bytes = std::max<int>(sizeof(Shared<kWarpgroups, kTokens>), ctas == 1 ? 120 << 10 : 0);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  int resident = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreads, bytes));
  COPPICE_CHECK(resident == ctas);
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  float best_ms = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat) {
    check(cudaEventRecord(begin));
    kernel<<<sms * ctas, kThreads, bytes>>>(set, out);
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end));
    best_ms = std::min(best_ms, ms);
  }
  const double flops = 4.0 * 64 * kWarpgroups * kTokens * kHeadDim * kSteps * ctas * sms;
  std::printf("%11d %8d %8d %10d %12.3f %10.0f\n", kWarpgroups, kTokens, ctas, bytes >> 10, best_ms * 1e3 / kSteps,
              flops / best_ms / 1e9);
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
}

int Main() {
  int sms = 0;
  COPPICE_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0) == cudaSuccess);
  DeviceBuffer set = DeviceBuffer::Allocate(kSetBytes).value(),
               out = DeviceBuffer::Allocate(static_cast<size_t>(sms) * 2 * 3 * kWarpgroup * sizeof(float)).value();
  Fill<<<1024, 256>>>(reinterpret_cast<uint32_t*>(set.data()), kSetBytes / 4);
  const auto* const kv = reinterpret_cast<const uint8_t*>(set.data());
  auto* const sums = reinterpret_cast<float*>(out.data());
  std::printf("%11s %8s %8s %10s %12s %10s\n", "warpgroups", "tokens", "CTAs/SM", "KiB/CTA", "us a step", "TFLOP/s");
  Measure<2, 128, 1>(kv, sums, sms, 1);
  Measure<1, 128, 1>(kv, sums, sms, 1);
  Measure<1, 64, 2>(kv, sums, sms, 1);
  Measure<1, 64, 2>(kv, sums, sms, 2);
  return 0;
}

}  // namespace
}  // namespace coppice::attention::cuda::bench

int main() { return coppice::attention::cuda::bench::Main(); }
