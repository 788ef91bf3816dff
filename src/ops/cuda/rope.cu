#include "ops/cuda/rope.h"

#include <cmath>
#include <string>

#include "core/math.h"
#include "ops/cuda/cuda_weight.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/rotation.h"

namespace coppice::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct AngleParams {
  const int32_t* positions;
  const float* inverse_frequencies;
  float scale;
  float *cos, *sin;
  int64_t cos_stride, sin_stride;
  int64_t num_rows;
  int32_t count;
};

__global__ void __launch_bounds__(kThreads) AnglesKernel(const AngleParams p) {
  LetNextStart();
  WaitForPrevious();
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / p.count;
  const int32_t i = static_cast<int32_t>(index % p.count);
  if (row >= p.num_rows) return;
  const float angle = static_cast<float>(p.positions[row]) * p.inverse_frequencies[i];
  float sine, cosine;
  sincosf(angle, &sine, &cosine);
  p.cos[row * p.cos_stride + i] = p.scale * cosine;
  p.sin[row * p.sin_stride + i] = p.scale * sine;
}

struct HeadNorm {
  const float *weight = nullptr, *bias = nullptr;  // weight null: no norm
  float eps = 0;
  NormKind kind = NormKind::kRms;
};

struct AppendParams {
  const float* qkv;
  int64_t qkv_stride;
  RopePairs pairs;
  HeadNorm q_norm, k_norm;
  RotationParams rotation;
};

// A lane's part of a head: runs of kRun neighbouring pairs of elements. Pair p is (p, p + rotated_pairs) where halves are rotated
// and (2 p, 2 p + 1) everywhere else, the elements that are not rotated included.
template <int kRun>
struct HeadPart {
  static constexpr int kRuns = kMaxHeadDim / 2 / (32 * kRun);
  float first[kRuns][kRun], second[kRuns][kRun];

  __device__ static int PairOf(int run, int lane) { return (run * 32 + lane) * kRun; }

  template <class Visit>  // visit(run, pair, whether its elements are two runs apart from each other)
  __device__ static void ForEachRun(const AppendParams& p, int lane, Visit visit) {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      const int pair = PairOf(run, lane);
      if (pair < p.rotation.head_dim / 2) visit(run, pair, p.pairs == RopePairs::kHalves && pair < p.rotation.rotated_pairs);
    }
  }

  __device__ void Load(const AppendParams& p, const float* head, bool in_groups, int lane) {
    ForEachRun(p, lane, [&](int run, int pair, bool apart) {
      if (apart) {
        const int at = in_groups ? pair / kGateGroup * 2 * kGateGroup + pair % kGateGroup : pair;
        const auto a = LoadPack<kRun>(head + at),
                   b = LoadPack<kRun>(head + at + (in_groups ? kGateGroup : p.rotation.rotated_pairs));
        for (int i = 0; i < kRun; ++i) first[run][i] = a.values[i], second[run][i] = b.values[i];
      } else {
        const auto both = LoadPack<2 * kRun>(head + 2 * pair);
        for (int i = 0; i < kRun; ++i) first[run][i] = both.values[2 * i], second[run][i] = both.values[2 * i + 1];
      }
    });
  }

  __device__ void Normalise(const AppendParams& p, const HeadNorm& norm, int lane) {
    const auto sum_over_head = [&](auto term) {
      float sum = 0;
      ForEachRun(p, lane, [&](int run, int, bool) {
        for (int i = 0; i < kRun; ++i) sum += term(first[run][i]) + term(second[run][i]);
      });
      for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
      return sum;
    };
    const float size = static_cast<float>(p.rotation.head_dim);
    const float mean = norm.kind == NormKind::kLayer ? sum_over_head([](float x) { return x; }) / size : 0.0f;
    const float squares = sum_over_head([&](float x) { return (x - mean) * (x - mean); });
    const float scale = 1.0f / sqrtf(squares / size + norm.eps);
    ForEachRun(p, lane, [&](int run, int pair, bool apart) {
      for (int i = 0; i < kRun; ++i) {
        const int a = apart ? pair + i : 2 * (pair + i), b = apart ? p.rotation.rotated_pairs + pair + i : a + 1;
        const auto apply = [&](float x, int element) {
          return (x - mean) * scale * norm.weight[element] + (norm.bias == nullptr ? 0.0f : norm.bias[element]);
        };
        first[run][i] = apply(first[run][i], a);
        second[run][i] = apply(second[run][i], b);
      }
    });
  }

  __device__ void Rotate(const AppendParams& p, int64_t row, int lane) {
    const float* const cos = p.rotation.cos + row * p.rotation.cos_stride;
    const float* const sin = p.rotation.sin + row * p.rotation.sin_stride;
    ForEachRun(p, lane, [&](int run, int pair, bool) {
      for (int i = 0; i < kRun; ++i) {
        if (pair + i >= p.rotation.rotated_pairs) continue;
        const float c = cos[pair + i], s = sin[pair + i], a = first[run][i], b = second[run][i];
        first[run][i] = a * c - b * s;
        second[run][i] = b * c + a * s;
      }
    });
  }

  template <class T>
  __device__ void Store(const AppendParams& p, T* to, int lane) const {
    ForEachRun(p, lane, [&](int run, int pair, bool apart) {
      if (apart) {
        Pack<T, kRun> a, b;
        for (int i = 0; i < kRun; ++i) a.values[i] = FromFloat<T>(first[run][i]), b.values[i] = FromFloat<T>(second[run][i]);
        StorePack(to + pair, a);
        StorePack(to + p.rotation.rotated_pairs + pair, b);
      } else {
        Pack<T, 2 * kRun> both;
        for (int i = 0; i < kRun; ++i) {
          both.values[2 * i] = FromFloat<T>(first[run][i]);
          both.values[2 * i + 1] = FromFloat<T>(second[run][i]);
        }
        StorePack(to + 2 * pair, both);
      }
    });
  }
};

// A warp a head of a row: grid (rows, heads / warps).
template <class T, int kRun>
__global__ void __launch_bounds__(kThreads) AppendKernel(const AppendParams p) {
  LetNextStart();
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x % 32, head = blockIdx.y * kWarps + threadIdx.x / 32;
  const RotationParams& r = p.rotation;
  if (head >= r.num_qo_heads + 2 * r.num_kv_heads) return;
  T* const to = r.BeginOfHead<T>(row, head);
  if (to == nullptr) return;

  HeadPart<kRun> part;
  part.Load(p, p.qkv + row * p.qkv_stride + int64_t{head} * r.head_dim, r.in_groups && !r.IsV(head), lane);
  if (!r.IsV(head)) {
    const HeadNorm& norm = head < r.num_qo_heads ? p.q_norm : p.k_norm;
    if (norm.weight != nullptr) part.Normalise(p, norm, lane);
    part.Rotate(p, row, lane);
  }
  part.Store(p, to, lane);
}

HeadNorm Of(const std::optional<NormArgs>& norm) {
  if (!norm) return {};
  return {.weight = norm->weight.data, .bias = norm->bias.data, .eps = norm->eps, .kind = norm->kind};
}

template <class T>
Status LaunchAppend(const AppendParams& p, int64_t num_rows, bool overlaps, cudaStream_t stream) {
  // Runs of two pairs: every address is a multiple of two pairs' bytes.
  const size_t bytes = 4 * sizeof(T);
  const RotationParams& r = p.rotation;
  const bool runs = r.head_dim % 4 == 0 && r.rotated_pairs % 2 == 0 && IsAligned(p.qkv, p.qkv_stride, 4, 16) &&
                    IsAligned(r.q, r.q_stride, sizeof(T), bytes) && IsAligned(r.k, r.page_stride, sizeof(T), bytes) &&
                    IsAligned(r.v, r.head_stride, sizeof(T), bytes) && IsAligned(r.v, r.slot_stride, sizeof(T), bytes);
  const unsigned heads = static_cast<unsigned>(r.num_qo_heads + 2 * r.num_kv_heads);
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(num_rows), CeilDiv(heads, static_cast<unsigned>(kWarps))),
                             .threads = kThreads,
                             .stream = stream,
                             .overlaps = overlaps};
  return Launch("splitting and rotating q, k and v", shape, runs ? AppendKernel<T, 2> : AppendKernel<T, 1>, p);
}

}  // namespace

Status LaunchRopeAngles(DeviceSpan<const int32_t> positions, DeviceSpan<const float> inverse_frequencies, float scale,
                        const DeviceTensor& cos, const DeviceTensor& sin, bool overlaps, cudaStream_t stream) {
  if (inverse_frequencies.empty()) return OkStatus();
  const AngleParams params = {.positions = positions.data,
                              .inverse_frequencies = inverse_frequencies.data,
                              .scale = scale,
                              .cos = static_cast<float*>(cos.data),
                              .sin = static_cast<float*>(sin.data),
                              .cos_stride = cos.stride,
                              .sin_stride = sin.stride,
                              .num_rows = positions.size,
                              .count = static_cast<int32_t>(inverse_frequencies.size)};
  const auto grid = static_cast<unsigned>(CeilDiv<int64_t>(positions.size * inverse_frequencies.size, kThreads));
  return Launch("rotary angles", {.grid = dim3(grid), .threads = kThreads, .stream = stream, .overlaps = overlaps}, AnglesKernel,
                params);
}

Status LaunchRopeAppend(const RopeAppendArgs& args, bool in_groups, bool overlaps, cudaStream_t stream) {
  if (args.kv.dtype != args.q.dtype) {
    return Unimplemented("KV pages of " + std::string(Name(args.kv.dtype)) + " beside queries of " +
                         std::string(Name(args.q.dtype)) + ": on CUDA they have one dtype");
  }
  const AppendParams params = {.qkv = static_cast<const float*>(args.qkv.data),
                               .qkv_stride = args.qkv.stride,
                               .pairs = args.pairs,
                               .q_norm = Of(args.q_norm),
                               .k_norm = Of(args.k_norm),
                               .rotation = RotationParams::Of(args, in_groups)};
  switch (args.q.dtype) {
    case DType::kF32: return LaunchAppend<float>(params, args.qkv.rows, overlaps, stream);
    case DType::kBF16: return LaunchAppend<__nv_bfloat16>(params, args.qkv.rows, overlaps, stream);
    case DType::kF16: return LaunchAppend<__half>(params, args.qkv.rows, overlaps, stream);
  }
  return OkStatus();
}

}  // namespace coppice::ops::cuda
