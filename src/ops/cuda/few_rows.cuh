// The kernel of FewRowsProduct. A CTA an SM has consecutive units of kFewRowsUnit rows of the weight, whole rows, and its warps
// share out the inputs; so sums meet in shared memory alone and are added in one order. Each warp copies what it will multiply into
// a ring of its own in shared memory, kStages ahead: no warp waits for another until a strip of two units is complete. A
// permutation of the inputs, which leaves sums over them alone, makes 16 bytes the operand of two instructions.
// A CTA takes less than half an SM, and lets the next kernel start at once: while a product ends, the CTAs of the one that follows
// are there with their first weights. There is always a CTA for each SM, also without units: where one is missing, two of the next
// product would share an SM. Layer: ops/cuda.
#pragma once

#include "core/check.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/few_rows_params.h"
#include "ops/cuda/few_rows_storage.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"

namespace coppice::ops::cuda {

namespace few_rows {

// Units [begin, end) of a CTA.
struct Units {
  int32_t begin, end;
  __device__ static Units Of(int cta, int ctas, int units) {
    return {static_cast<int32_t>(int64_t{cta} * units / ctas), static_cast<int32_t>(int64_t{cta + 1} * units / ctas)};
  }
  __device__ int strips() const { return (end - begin + 1) / 2; }
};

// A round of a strip: each warp has one of its chunks.
struct Position {
  int32_t strip = 0, round = 0;
  __device__ void Advance(int rounds) {
    if (++round == rounds) round = 0, ++strip;
  }
};

template <class T, int kRowTiles, bool kNorms>
class Streamer {
 public:
  using Storage = few_rows::Storage<T, kRowTiles, kNorms>;

  __device__ Streamer(const FewRowsParams& p, Storage& shared)
      : p_(p),
        shared_(shared),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        units_(Units::Of(blockIdx.x, gridDim.x, p.units)),
        strips_(units_.strips()),
        rounds_((p.chunks + kWarps - 1) / kWarps) {}

  __device__ void Run() {
    LetNextStart();
    ZeroInputs();
    Position ahead;
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage, ahead.Advance(rounds_)) CopyWeights(stage, ahead);
    NormWeight norm_weight;
    if constexpr (kNorms) norm_weight = LoadNormWeight();
    WaitForPrevious();  // below, x and y are touched
    if constexpr (kNorms) NormInputs(norm_weight);
    ahead = {};
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage, ahead.Advance(rounds_)) {
      CopyInputs(stage, ahead);
      CommitCopies();
    }
    int stage = 0;
    for (int strip = 0; strip < strips_; ++strip) {
      const Residual residual = LoadResidual(strip);
      const Rotation rotation = LoadRotation(strip);
      float sum[2][kRowTiles][4] = {};
      for (int round = 0; round < rounds_; ++round) {
        WaitForCopies<kStages - 1>();
        __syncwarp();  // a lane reads what others copied
        if (const int chunk = round * kWarps + warp_; chunk < p_.chunks) Multiply(shared_.ring[stage][warp_], chunk, sum);
        __syncwarp();  // all have read what is overwritten now
        CopyWeights(stage, ahead);
        CopyInputs(stage, ahead);
        CommitCopies();
        ahead.Advance(rounds_);
        stage = (stage + 1) % kStages;
      }
      Finish(strip, residual, rotation, sum);
    }
  }

 private:
  static constexpr int kMaxOutputs = kRowTiles * 8 * kStripRows / kThreads;  // of a thread and strip
  // What a product is added to, or what its pairs are rotated by and where they go: read while it is multiplied.
  struct Residual {
    float values[kMaxOutputs] = {};
  };
  struct Rotation {
    struct Output {
      float cosine = 1, sine = 0;
      int to_partner = 0;  // outputs of the strip
      T* to = nullptr;
    };
    Output outputs[kMaxOutputs];
  };

  // A lane's row of the weight and its place in a chunk, in the names of the PTX ISA's figures.
  __device__ int g() const { return lane_ / 4; }
  __device__ int t() const { return lane_ % 4; }
  __device__ bool HasSecondUnit(int strip) const { return units_.begin + 2 * strip + 1 < units_.end; }
  __device__ int ChunkOf(const Position& at) const { return at.round * kWarps + warp_; }
  __device__ bool IsInside(const Position& at) const { return at.strip < strips_ && ChunkOf(at) < p_.chunks; }

  __device__ void CopyWeights(int stage, const Position& at) {
    if (!IsInside(at)) return;
    constexpr int kRows = 32 / kPieces;  // that the lanes copy at once
    const int row = lane_ / kPieces, piece = lane_ % kPieces;
    const T* from = static_cast<const T*>(p_.weight) + (int64_t{units_.begin + 2 * at.strip} * kUnit + row) * p_.stride +
                    ChunkOf(at) * kChunkCols + piece * 8;
    auto& to = shared_.ring[stage][warp_];
#pragma unroll
    for (int i = 0; i < kStripRows; i += kRows) {
      if (i < kUnit || HasSecondUnit(at.strip)) CopyOnce(to.Weight(i + row, piece), from + i * p_.stride);
    }
  }

  // The columns of all rows that a thread norms, in fours.
  static constexpr int kMaxFours = kMaxNormedElements / 4 / kThreads;
  struct NormWeight {
    float4 fours[kMaxFours];
  };
  // Calls visit(i, column) for this thread's i-th four.
  template <class Visit>
  __device__ void ForEachFour(Visit visit) const {
#pragma unroll
    for (int i = 0; i < kMaxFours; ++i) {
      if (const int column = (i * kThreads + threadIdx.x) * 4; column < p_.in_features) visit(i, column);
    }
  }
  __device__ NormWeight LoadNormWeight() const {
    NormWeight weight;
    ForEachFour([&](int i, int column) { weight.fours[i] = *reinterpret_cast<const float4*>(p_.norm.weight + column); });
    return weight;
  }

  // As NormKernel, but for the order of additions. Elements behind a row's inputs are zero.
  __device__ void NormInputs(const NormWeight& weight) {
    for (int row = 0; row < p_.num_rows; ++row) {
      const float* const x = p_.norm.x + row * p_.norm.x_stride;
      float4 fours[kMaxFours];
      float squares = 0;
      ForEachFour([&](int i, int column) { fours[i] = *reinterpret_cast<const float4*>(x + column); });
      ForEachFour([&](int i, int) {
        squares += fours[i].x * fours[i].x + fours[i].y * fours[i].y + fours[i].z * fours[i].z + fours[i].w * fours[i].w;
      });
      for (int other = 16; other > 0; other /= 2) squares += __shfl_xor_sync(~0u, squares, other);
      if (row > 0) __syncthreads();  // all have the sum of the row before
      if (lane_ == 0) shared_.squares[warp_] = squares;
      __syncthreads();
      float sum = 0;
      for (int warp = 0; warp < kWarps; ++warp) sum += shared_.squares[warp];
      const float scale = 1.0f / sqrtf(sum / static_cast<float>(p_.in_features) + p_.norm.eps);
      T* const to = shared_.normed + row * p_.stride;
      ForEachFour([&](int i, int column) {
        const float4 &v = fours[i], &w = weight.fours[i];
        StorePack(to + column, Pack<T, 4>{FromFloat<T>(v.x * scale * w.x), FromFloat<T>(v.y * scale * w.y),
                                          FromFloat<T>(v.z * scale * w.z), FromFloat<T>(v.w * scale * w.w)});
      });
      for (int column = p_.in_features + threadIdx.x; column < p_.stride; column += kThreads) to[column] = FromFloat<T>(0.0f);
    }
    __syncthreads();  // all rows are there
  }

  __device__ void CopyInputs(int stage, const Position& at) {
    if (kNorms || !IsInside(at)) return;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      const int row = i * 8 + g();
      if (row >= p_.num_rows) continue;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const int column = ChunkOf(at) * kChunkCols + half * 32 + t() * 8;
        const bool inside = column < p_.in_features;
        CopyShared(&shared_.ring[stage][warp_].input[i][half][lane_],
                   static_cast<const T*>(p_.x) + row * p_.x_stride + (inside ? column : 0), inside ? 16 : 0);
      }
    }
  }

  // Rows that x does not have stay zero.
  __device__ void ZeroInputs() {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
#pragma unroll
      for (int i = 0; i < kRowTiles * kHalves; ++i)
        (&shared_.ring[stage][warp_].input[0][0][lane_])[i * 32] = make_uint4(0, 0, 0, 0);
    }
  }

  // Of row g of an eight, the inputs that a lane multiplies with.
  __device__ uint4 Input(const WarpStage<kRowTiles>& stage, int chunk, int eight, int half) {
    if constexpr (kNorms) {
      if (g() >= p_.num_rows) return make_uint4(0, 0, 0, 0);
      return *reinterpret_cast<const uint4*>(shared_.normed + g() * p_.stride + chunk * kChunkCols + half * 32 + t() * 8);
    } else {
      return stage.input[eight][half][lane_];
    }
  }

  __device__ void Multiply(WarpStage<kRowTiles>& stage, int chunk, float (&sum)[2][kRowTiles][4]) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      uint4 weight[4];  // of rows g, g + 8, g + 16, g + 24
#pragma unroll
      for (int i = 0; i < 4; ++i) weight[i] = *stage.Weight(i * 8 + g(), half * 4 + t());
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const uint4 x = Input(stage, chunk, i, half);
#pragma unroll
        for (int unit = 0; unit < 2; ++unit) {
          const uint4 &upper = weight[2 * unit], &lower = weight[2 * unit + 1];
          MultiplyAdd<T>(sum[unit][i], {upper.x, lower.x, upper.y, lower.y}, {x.x, x.y});
          MultiplyAdd<T>(sum[unit][i], {upper.z, lower.z, upper.w, lower.w}, {x.z, x.w});
        }
      }
    }
  }

  __device__ void Finish(int strip, const Residual& residual, const Rotation& rotation, const float (&sum)[2][kRowTiles][4]) {
    auto& sums = shared_.sums[strip % Storage::kSumBuffers];
    if (Storage::kSumBuffers == 1) __syncthreads();  // the strip before was read by all
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[warp_][i * 8 + 2 * t() + e % 2][unit * kUnit + g() + e / 2 * 8] = sum[unit][i][e];
      }
    }
    __syncthreads();  // all warps' sums of this strip are there, and those of the strip before were read by all
    ForEachOutput(strip, [&](int i, int row, int output, int64_t column) {
      const auto complete = [&](int strip_row) {
        float total = 0;
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) total += sums[warp][row][strip_row];
        return total + (p_.bias == nullptr ? 0.0f : p_.bias[(units_.begin + 2 * strip) * kUnit + strip_row]);
      };
      if (p_.rotation.slots != nullptr) {
        const auto& out = rotation.outputs[i];
        if (out.to == nullptr) return;
        float value = complete(output);
        if (out.to_partner != 0) value = value * out.cosine + complete(output + out.to_partner) * out.sine;
        *out.to = FromFloat<T>(value);
        return;
      }
      switch (p_.epilogue.kind) {
        case Epilogue::Kind::kStore: Store(row, column, complete(output)); break;
        case Epilogue::Kind::kAdd: Store(row, column, residual.values[i] + complete(output)); break;
        case Epilogue::Kind::kActivate: Store(row, column, Activate(p_.epilogue.activation, complete(output))); break;
        case Epilogue::Kind::kGated: {
          const int gate = output / kGateGroup * 2 * kGateGroup + output % kGateGroup;
          Store(row, column, Activate(p_.epilogue.activation, complete(gate)) * complete(gate + kGateGroup));
        }
      }
    });
  }

  // Calls visit(i, row of x, output of the strip, column of y) for this thread's i-th output.
  template <class Visit>
  __device__ void ForEachOutput(int strip, Visit visit) {
    const int per_unit = p_.epilogue.kind == Epilogue::Kind::kGated ? kUnit / 2 : kUnit;
    const int outputs = HasSecondUnit(strip) ? 2 * per_unit : per_unit;
#pragma unroll
    for (int i = 0; i < kMaxOutputs; ++i) {
      const int index = i * kThreads + threadIdx.x, row = index / outputs, output = index % outputs;
      const int64_t column = int64_t{units_.begin + 2 * strip} * per_unit + output;
      if (row < p_.num_rows && column < p_.out_features) visit(i, row, output, column);
    }
  }

  __device__ Residual LoadResidual(int strip) {
    Residual residual;
    if (p_.epilogue.kind != Epilogue::Kind::kAdd) return residual;
    ForEachOutput(strip, [&](int i, int row, int, int64_t column) {
      residual.values[i] = static_cast<const float*>(p_.y)[row * p_.y_stride + column];
    });
    return residual;
  }

  // Of element (a, b) of a pair that becomes (a cos - b sin, b cos + a sin): what it and its partner are multiplied with. Rows of
  // the weight, and so outputs of a strip, are elements of heads.
  __device__ Rotation LoadRotation(int strip) {
    Rotation rotation;
    const RotationParams& r = p_.rotation;
    if (r.slots == nullptr) return rotation;
    ForEachOutput(strip, [&](int i, int row, int, int64_t column) {
      auto& out = rotation.outputs[i];
      const int head = static_cast<int>(column) / r.head_dim, in_head = static_cast<int>(column) % r.head_dim;
      int element = in_head;
      if (head < r.num_qo_heads + r.num_kv_heads && in_head < 2 * r.rotated_pairs) {
        const int apart = r.in_groups ? kGateGroup : 1;
        const bool is_second = in_head / apart % 2 == 1;
        const int pair = r.in_groups ? in_head / (2 * kGateGroup) * kGateGroup + in_head % kGateGroup : in_head / 2;
        if (r.in_groups) element = is_second ? pair + r.rotated_pairs : pair;
        out.to_partner = is_second ? -apart : apart;
        out.cosine = r.cos[row * r.cos_stride + pair];
        const float sine = r.sin[row * r.sin_stride + pair];
        out.sine = is_second ? sine : -sine;
      }
      T* const begin = r.BeginOfHead<T>(row, head);
      out.to = begin == nullptr ? nullptr : begin + element;
    });
    return rotation;
  }

  __device__ void Store(int row, int64_t column, float value) {
    if (p_.y_is_f32) {
      static_cast<float*>(p_.y)[row * p_.y_stride + column] = value;
    } else {
      static_cast<T*>(p_.y)[row * p_.y_stride + column] = FromFloat<T>(value);
    }
  }

  const FewRowsParams& p_;
  Storage& shared_;
  const int warp_, lane_;
  const Units units_;
  const int strips_;
  const int rounds_;  // of a strip: warps take its chunks in turn
};

template <class T, int kRowTiles, bool kNorms>
__global__ void __launch_bounds__(kThreads, 2) Kernel(const __grid_constant__ FewRowsParams p) {
  extern __shared__ __align__(16) char memory[];
  Streamer<T, kRowTiles, kNorms>(p, *reinterpret_cast<Storage<T, kRowTiles, kNorms>*>(memory)).Run();
}

// Whether the kernel fits, which then may have all of it.
template <class T, int kRowTiles, bool kNorms>
Result<bool> PrepareKernel(int shared_bytes) {
  if (kBytes < T, kRowTiles, kNorms >> shared_bytes) return false;
  COPPICE_RETURN_IF_ERROR(coppice::cuda::CudaStatus(
      cudaFuncSetAttribute(Kernel<T, kRowTiles, kNorms>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
      "shared memory of a product of few rows"));
  return true;
}

}  // namespace few_rows

template <class T>
Result<int32_t> PrepareFewRows(int shared_bytes) {
  COPPICE_ASSIGN_OR_RETURN(const bool normed_fit, (few_rows::PrepareKernel<T, 1, true>(shared_bytes)));
  COPPICE_ASSIGN_OR_RETURN(const bool eight_fit, (few_rows::PrepareKernel<T, 1, false>(shared_bytes)));
  COPPICE_ASSIGN_OR_RETURN(const bool sixteen_fit, (few_rows::PrepareKernel<T, 2, false>(shared_bytes)));
  return sixteen_fit ? 16 : eight_fit && normed_fit ? 8 : 0;
}

template <class T>
Status LaunchFewRows(const FewRowsParams& params, const FewRowsLaunch& launch) {
  using few_rows::kAloneBytes, few_rows::kBytes, few_rows::Kernel;
  LaunchShape shape = {.grid = dim3(static_cast<unsigned>(launch.num_ctas)),
                       .threads = few_rows::kThreads,
                       .stream = launch.stream,
                       .overlaps = launch.overlaps};
  if (params.num_rows > 8) {
    shape.shared_bytes = kBytes<T, 2, false>;
    shape.overlaps &= launch.after_own;
    return Launch("a product of few rows", shape, Kernel<T, 2, false>, params);
  }
  const bool norms = params.norm.x != nullptr;
  const bool alone = launch.overlaps && !launch.after_own;
  shape.shared_bytes = alone ? kAloneBytes : norms ? kBytes<T, 1, true> : kBytes<T, 1, false>;
  return Launch("a product of few rows", shape, norms ? Kernel<T, 1, true> : Kernel<T, 1, false>, params);
}

}  // namespace coppice::ops::cuda
