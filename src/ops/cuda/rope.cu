#include "ops/cuda/rope.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "core/math.h"
#include "ops/cuda/cuda_weight.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/rotation.h"

namespace coppice::ops::cuda {
namespace {

constexpr int kThreads = 256;  // of a CTA, at most

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
  int32_t log2_lanes;  // of those that share out a head
};

// The place of a thread among the lanes that share out a head: 2^log2_lanes neighbours of one warp.
struct HeadLanes {
  int count, lane;

  __device__ explicit HeadLanes(const AppendParams& p)
      : count(1 << p.log2_lanes), lane(static_cast<int>(threadIdx.x) & (count - 1)) {}

  __device__ float Sum(float value) const {
    const unsigned mask = (0xffffffffu >> (32 - count)) << (threadIdx.x % 32 - lane);
    for (int other = count / 2; other > 0; other /= 2) value += __shfl_xor_sync(mask, value, other);
    return value;
  }
};

// The elements of a head that a lane has: runs of two packs of kRun neighbours. Where halves are rotated, the packs of a run begin
// at a pair's two elements; everywhere else they follow each other.
template <int kRun>
struct LaneElements {
  static constexpr int kRuns = kMaxHeadDim / 2 / (32 * kRun);
  int pair[kRuns];                            // the first of a run
  int first[kRuns], second[kRuns];            // where its packs begin
  int read_first[kRuns], read_second[kRuns];  // and where in a head of q or k as the projections have it
  int num_pairs, rotated_pairs;

  __device__ LaneElements(const AppendParams& p, const HeadLanes& lanes)
      : num_pairs(p.rotation.head_dim / 2), rotated_pairs(p.rotation.rotated_pairs) {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      pair[run] = (run * lanes.count + lanes.lane) * kRun;
      const bool apart = p.pairs == RopePairs::kHalves && Rotates(run);
      first[run] = apart ? pair[run] : 2 * pair[run];
      second[run] = first[run] + (apart ? rotated_pairs : kRun);
      const bool in_groups = apart && p.rotation.in_groups;
      read_first[run] = in_groups ? pair[run] / kGateGroup * 2 * kGateGroup + pair[run] % kGateGroup : first[run];
      read_second[run] = in_groups ? read_first[run] + kGateGroup : second[run];
    }
  }

  __device__ bool Exists(int run) const { return pair[run] < num_pairs; }
  __device__ bool Rotates(int run) const { return pair[run] < rotated_pairs; }
};

// Of a row, for all its heads.
template <int kRun>
struct Angles {
  Pack<float, kRun> cos[LaneElements<kRun>::kRuns], sin[LaneElements<kRun>::kRuns];

  __device__ void Load(const RotationParams& r, int64_t row, const LaneElements<kRun>& elements) {
#pragma unroll
    for (int run = 0; run < elements.kRuns; ++run) {
      if (!elements.Rotates(run)) continue;
      cos[run] = LoadPack<kRun>(r.cos + row * r.cos_stride + elements.pair[run]);
      sin[run] = LoadPack<kRun>(r.sin + row * r.sin_stride + elements.pair[run]);
    }
  }
};

// A lane's part of a head.
template <int kRun>
struct HeadPart {
  static constexpr int kRuns = LaneElements<kRun>::kRuns;
  Pack<float, kRun> first[kRuns], second[kRuns];

  __device__ void Load(const float* head, bool is_v, const LaneElements<kRun>& elements) {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      if (!elements.Exists(run)) continue;
      first[run] = LoadPack<kRun>(head + (is_v ? elements.first[run] : elements.read_first[run]));
      second[run] = LoadPack<kRun>(head + (is_v ? elements.second[run] : elements.read_second[run]));
    }
  }

  __device__ void Normalise(const HeadNorm& norm, int head_dim, const LaneElements<kRun>& elements, const HeadLanes& lanes) {
    const auto for_each_run = [&](auto visit) {
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        if (elements.Exists(run)) visit(run);
      }
    };
    const auto sum_over_head = [&](auto term) {
      float sum = 0;
      for_each_run([&](int run) {
        for (int i = 0; i < kRun; ++i) sum += term(first[run].values[i]) + term(second[run].values[i]);
      });
      return lanes.Sum(sum);
    };
    const float size = static_cast<float>(head_dim);
    const float mean = norm.kind == NormKind::kLayer ? sum_over_head([](float x) { return x; }) / size : 0.0f;
    const float squares = sum_over_head([&](float x) { return (x - mean) * (x - mean); });
    const float scale = 1.0f / sqrtf(squares / size + norm.eps);
    for_each_run([&](int run) {
      const auto apply = [&](float& x, int element) {
        x = (x - mean) * scale * norm.weight[element] + (norm.bias == nullptr ? 0.0f : norm.bias[element]);
      };
      for (int i = 0; i < kRun; ++i) {
        apply(first[run].values[i], elements.first[run] + i);
        apply(second[run].values[i], elements.second[run] + i);
      }
    });
  }

  __device__ void Rotate(RopePairs pairs, const Angles<kRun>& angles, const LaneElements<kRun>& elements) {
    const auto rotate = [](float& x, float& y, float c, float s) {
      const float a = x, b = y;
      x = a * c - b * s;
      y = b * c + a * s;
    };
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      if (!elements.Rotates(run)) continue;
      for (int i = 0; i < kRun; ++i) {
        const float c = angles.cos[run].values[i], s = angles.sin[run].values[i];
        const auto element = [&](int j) -> float& { return j < kRun ? first[run].values[j] : second[run].values[j - kRun]; };
        if (pairs == RopePairs::kHalves) {
          rotate(element(i), element(kRun + i), c, s);
        } else {
          rotate(element(2 * i), element(2 * i + 1), c, s);
        }
      }
    }
  }

  template <class T>
  __device__ void Store(T* head, const LaneElements<kRun>& elements) const {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      if (!elements.Exists(run)) continue;
      Pack<T, kRun> a, b;
      for (int i = 0; i < kRun; ++i) {
        a.values[i] = FromFloat<T>(first[run].values[i]);
        b.values[i] = FromFloat<T>(second[run].values[i]);
      }
      StorePack(head + elements.first[run], a);
      StorePack(head + elements.second[run], b);
    }
  }
};

// A thread has its part of kHeads neighbouring heads of a row, all in flight at the same time: what it asks memory for depends on
// nothing that it reads. Grid (rows, lanes of the heads / threads).
template <class T, int kRun, int kHeads>
__global__ void __launch_bounds__(kThreads) AppendKernel(const AppendParams p) {
  LetNextStart();
  WaitForPrevious();
  const RotationParams& r = p.rotation;
  const HeadLanes lanes(p);
  const LaneElements<kRun> elements(p, lanes);
  const int64_t row = RowOfCta();
  const int begin = static_cast<int>((blockIdx.y * blockDim.x + threadIdx.x) >> p.log2_lanes) * kHeads;
  const int end = min(begin + kHeads, r.num_qo_heads + 2 * r.num_kv_heads);

  HeadPart<kRun> parts[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int head = begin + i;
    if (head < end) parts[i].Load(p.qkv + row * p.qkv_stride + head * r.head_dim, r.IsV(head), elements);
  }
  Angles<kRun> angles;
  if (!r.IsV(begin)) angles.Load(r, row, elements);
  const int64_t in_pages = end > r.num_qo_heads ? r.BeginInPages(row) : 0;
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int head = begin + i;
    if (head >= end) return;
    T* const to = r.BeginOfHead<T>(row, head, in_pages);
    if (to == nullptr) return;  // nor are those after it
    if (!r.IsV(head)) {
      const HeadNorm& norm = head < r.num_qo_heads ? p.q_norm : p.k_norm;
      if (norm.weight != nullptr) parts[i].Normalise(norm, r.head_dim, elements, lanes);
      parts[i].Rotate(p.pairs, angles, elements);
    }
    parts[i].Store(to, elements);
  }
}

HeadNorm Of(const std::optional<NormArgs>& norm) {
  if (!norm) return {};
  return {.weight = norm->weight.data, .bias = norm->bias.data, .eps = norm->eps, .kind = norm->kind};
}

// Rows from which a thread takes several heads: fewer would leave SMs of a large GPU idle.
constexpr int64_t kManyRows = 512;
constexpr int kHeadsOfManyRows = 3;

template <class T>
Status LaunchAppend(AppendParams p, int64_t num_rows, bool overlaps, cudaStream_t stream) {
  const RotationParams& r = p.rotation;
  // Runs of four pairs: 16 bytes of fp32, and up to 16 of T.
  const auto aligned = [](const void* to, int64_t stride) { return IsAligned(to, stride, sizeof(T), 16); };
  const bool runs = r.head_dim % 8 == 0 && r.rotated_pairs % 4 == 0 && IsAligned(p.qkv, p.qkv_stride, 4, 16) &&
                    IsAligned(r.cos, r.cos_stride, 4, 16) && IsAligned(r.sin, r.sin_stride, 4, 16) && aligned(r.q, r.q_stride) &&
                    aligned(r.k, r.page_stride) && aligned(r.v, r.head_stride) && aligned(r.v, r.slot_stride);
  const unsigned lanes = std::min(32u, std::bit_ceil(static_cast<unsigned>(CeilDiv(r.head_dim / 2, runs ? 4 : 1))));
  p.log2_lanes = std::countr_zero(lanes);
  const bool many = runs && num_rows >= kManyRows;
  const unsigned heads = static_cast<unsigned>(r.num_qo_heads + 2 * r.num_kv_heads);
  const unsigned threads_of_row = CeilDiv(heads, many ? unsigned{kHeadsOfManyRows} : 1u) * lanes;
  const unsigned threads = std::min(unsigned{kThreads}, RoundUp(threads_of_row, 32u));
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(num_rows), CeilDiv(threads_of_row, threads)),
                             .threads = static_cast<int>(threads),
                             .stream = stream,
                             .overlaps = overlaps};
  return Launch("splitting and rotating q, k and v", shape,
                many   ? AppendKernel<T, 4, kHeadsOfManyRows>
                : runs ? AppendKernel<T, 4, 1>
                       : AppendKernel<T, 1, 1>,
                p);
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
                               .rotation = RotationParams::Of(args, in_groups),
                               .log2_lanes = 0};
  switch (args.q.dtype) {
    case DType::kF32: return LaunchAppend<float>(params, args.qkv.rows, overlaps, stream);
    case DType::kBF16: return LaunchAppend<__nv_bfloat16>(params, args.qkv.rows, overlaps, stream);
    case DType::kF16: return LaunchAppend<__half>(params, args.qkv.rows, overlaps, stream);
  }
  return OkStatus();
}

}  // namespace coppice::ops::cuda
