// The kernel of gated products on Hopper: y^T = act(G x^T) * (U x^T), tiles of 256 rows of the weight by up to 256 rows of x,
// wgmma, waves of whole tiles and then equal work for every cluster (stream-K: Osama et al., PPoPP 2023). Layer: ops/cuda.
// Design and figures: docs/matrix_products.md.
#pragma once

#include <algorithm>

#include "core/check.h"
#include "core/cuda/mma_sm90.cuh"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/cluster.cuh"
#include "ops/cuda/cuda_weight.h"
#include "ops/cuda/gated_product_params.h"
#include "ops/cuda/launch.cuh"

namespace coppice::ops::cuda::gated {

constexpr int kLoaderRegisters = 40, kProductRegisters = 232;
constexpr int kThreads = (1 + kWarpgroups) * 128;  // warpgroup 0 loads
constexpr int kSwizzleBytes = 128;
constexpr int kRingBytes = 192 << 10;
constexpr int kGatedRowBytes = kGatedCols * 2;

template <int kXRows>
struct SharedStorage {
  static constexpr int kStageBytes = (kTileRows + kXRows) * kSwizzleBytes;
  static constexpr int kStages = kRingBytes / kStageBytes < 8 ? kRingBytes / kStageBytes : 8;
  uint8_t weight[kStages][kTileRows * kSwizzleBytes];
  uint8_t x[kStages][kXRows * kSwizzleBytes];
  uint8_t gated[kWarpgroups][kXRows * kGatedRowBytes];  // outputs on their way to y
  uint64_t full[kStages], empty[kStages];
};
template <int kXRows>
constexpr size_t kSharedBytes = sizeof(SharedStorage<kXRows>) + 1024;  // its tiles begin on 1,024 bytes
static_assert(kSharedBytes<kMaxXRows> <= 227 << 10, "more than a CTA of Hopper has");

// Steps of one tile, of the steps that a cluster does one after the other.
struct Segment {
  int tile, begin, end;  // in chunks of the tile
};

// Where a CTA's part of a tile begins. Tiles are numbered weight by weight within a group of x blocks, so that those under way at
// one time read few rows of either operand, and a group's rows of x stay in the L2 while the weights pass.
struct Corner {
  int weight_row, x_row;
  __device__ Corner(const Params& p, int tile, uint32_t rank, int x_rows) {
    const int group_tiles = p.group_blocks * p.weight_tiles, group = tile / group_tiles, first_block = group * p.group_blocks;
    const int in_group = tile - group * group_tiles, blocks = min(p.group_blocks, p.x_blocks - first_block);
    const int weight_tile = in_group / blocks;
    weight_row = (weight_tile * kCtas + static_cast<int>(rank)) * kTileRows;
    x_row = (first_block + in_group - weight_tile * blocks) * x_rows;
  }
};

// A cluster's work: a tile of each whole wave, then its range of the steps of the tiles that are left, which are cut into equal
// ranges. Later ranges belong to clusters that start earlier: the cluster that completes a tile waits for those that have its later
// steps.
class Range {
 public:
  __device__ Range(const Params& p, int index) : p_(p), index_(index), next_(Begin(p, index)), end_(Begin(p, index + 1)) {}
  static __device__ int FirstShared(const Params& p) { return p.whole_waves * p.num_clusters; }  // tile
  // In steps from the first shared tile on.
  static __device__ int Begin(const Params& p, int index) {
    const int tiles = max(p.num_tiles - FirstShared(p), 0);
    return static_cast<int>(int64_t{tiles} * p.chunks * index / p.num_clusters);
  }
  __device__ bool Next(Segment* segment) {
    if (wave_ < p_.whole_waves) {
      const int tile = wave_ * p_.num_clusters + p_.num_clusters - 1 - index_;  // in the order in which clusters start
      ++wave_;
      if (tile < p_.num_tiles) {
        *segment = {tile, 0, p_.chunks};
        return true;
      }
      wave_ = p_.whole_waves;
    }
    if (next_ >= end_) return false;
    const int tile = next_ / p_.chunks, begin = next_ - tile * p_.chunks, count = min(p_.chunks - begin, end_ - next_);
    *segment = {FirstShared(p_) + tile, begin, begin + count};
    next_ += count;
    return true;
  }
  // Steps that are left of its share.
  __device__ int shared_size() const { return end_ - next_; }

 private:
  const Params& p_;
  const int index_;
  int wave_ = 0, next_;
  const int end_;
};

// A place in the ring.
template <int kStages>
struct Cursor {
  uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// Each CTA copies its rows of the weight, and its share of the rows of x to all CTAs of the cluster.
template <int kXRows>
class Loader {
 public:
  using Storage = SharedStorage<kXRows>;
  __device__ Loader(const Params& p, Storage& shared, int range, uint32_t rank)
      : p_(p), shared_(shared), range_(range), rank_(rank) {}

  __device__ void Run() {
    // Weights depend on no other kernel: those of the first steps come while the kernel before this one ends.
    ForEachStep([&](int step, const Corner& corner, int chunk, const auto& place) {
      if (step >= Storage::kStages) return false;
      LoadWeight(corner, chunk, place.stage);
      return true;
    });
    WaitForPrevious();
    ForEachStep([&](int step, const Corner& corner, int chunk, const auto& place) {
      if (step >= Storage::kStages) {
        ptx::BarrierWait(&shared_.empty[place.stage], place.parity ^ 1);
        LoadWeight(corner, chunk, place.stage);
      }
      LoadInput(corner, chunk, place.stage);
      return true;
    });
  }

 private:
  template <class Visit>
  __device__ void ForEachStep(Visit visit) {
    Cursor<Storage::kStages> place;
    Range range(p_, range_);
    int step = 0;
    for (Segment segment; range.Next(&segment);) {
      const Corner corner(p_, segment.tile, rank_, kXRows);
      for (int chunk = segment.begin; chunk < segment.end; ++chunk, ++step, place.Advance()) {
        if (!visit(step, corner, chunk, place)) return;
      }
    }
  }
  __device__ void LoadWeight(const Corner& corner, int chunk, uint32_t stage) {
    ptx::BarrierArriveExpectBytes(&shared_.full[stage], Storage::kStageBytes);
    ptx::TensorLoad2(shared_.weight[stage], &p_.weight, &shared_.full[stage], chunk * kChunkCols, corner.weight_row,
                     ptx::kEvictFirst);
  }
  __device__ void LoadInput(const Corner& corner, int chunk, uint32_t stage) {
    constexpr int kShare = kXRows / kCtas;
    const int share = static_cast<int>(rank_) * kShare;
    ptx::TensorLoad2(shared_.x[stage] + share * kSwizzleBytes, &p_.x, &shared_.full[stage], chunk * kChunkCols,
                     corner.x_row + share, ptx::kEvictLast, (1 << kCtas) - 1);
  }

  const Params& p_;
  Storage& shared_;
  const int range_;
  const uint32_t rank_;
};

// A warpgroup: 64 rows of the weight, all rows of x of the tile. A thread holds, for each eight rows of x, outputs lane / 4 and
// lane / 4 + 8 of its warp's 16 for rows lane % 4 * 2 and the next.
template <class T, int kXRows>
class Multiplier {
 public:
  using Storage = SharedStorage<kXRows>;
  static constexpr int kSums = kXRows / 2;
  __device__ Multiplier(const Params& p, Storage& shared, int range, uint32_t rank)
      : p_(p), shared_(shared), range_(range), rank_(rank), warpgroup_(threadIdx.x / 128 - 1), thread_(threadIdx.x % 128) {}

  __device__ void Run() {
    WaitForPrevious();  // outputs and partial sums are memory that kernels before this one use
    Range range(p_, range_);
    Cursor<Storage::kStages> place;
    float sums[kSums];
    for (Segment segment; range.Next(&segment);) {
      Multiply(segment, &place, sums);
      if (segment.begin > 0) {
        Deposit(sums);
      } else {
        AddPartials(segment, sums);
        Store(segment, sums);
      }
    }
    if (thread_ == 0) ptx::BulkWait();
  }

 private:
  __device__ void Multiply(const Segment& segment, Cursor<Storage::kStages>* place, float (&sums)[kSums]) {
    uint32_t done = place->stage;  // the stage that the step before read
    for (int chunk = segment.begin; chunk < segment.end; ++chunk) {
      ptx::BarrierWait(&shared_.full[place->stage], place->parity);
      ptx::PinRegisters(sums);
      ptx::WgmmaFence();
      const uint64_t a = Descriptor(shared_.weight[place->stage] + warpgroup_ * 64 * kSwizzleBytes);
      const uint64_t b = Descriptor(shared_.x[place->stage]);
#pragma unroll
      for (int i = 0; i < kChunkCols / 16; ++i)  // 32 bytes each; the address field counts 16
        ptx::Wgmma<T, kXRows>::Ss(sums, a + i * 2, b + i * 2, i > 0 || chunk > segment.begin);
      ptx::WgmmaCommit();
      if (chunk > segment.begin) {
        ptx::WgmmaWait<1>();
        Release(done);
      }
      done = place->stage;
      place->Advance();
    }
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(sums);
    Release(done);
  }

  // Rows of 128 bytes, swizzled, groups of eight rows behind each other. PTX ISA, "Shared Memory Matrix Layout".
  static __device__ uint64_t Descriptor(const void* tile) {
    return uint64_t{(ptx::SharedAddress(tile) & 0x3ffff) >> 4} | uint64_t{1} << 16 | uint64_t{8 * kSwizzleBytes >> 4} << 32 |
           uint64_t{1} << 62;
  }

  // This warpgroup has read the stage, into which all CTAs of the cluster copy rows of x.
  __device__ void Release(uint32_t stage) {
    if (thread_ < kCtas) ptx::BarrierArriveAt(&shared_.empty[stage], thread_);
  }

  __device__ int PlaceOf(int range) const { return (range * kCtas + static_cast<int>(rank_)) * kWarpgroups + warpgroup_; }
  __device__ float4* PartialsOf(int range) const {
    return p_.partials + int64_t{PlaceOf(range)} * (kPartialBytes / kWarpgroups / sizeof(float4)) + thread_;
  }
  __device__ void Sync() const { ptx::NamedBarrierSync(1 + warpgroup_, 128); }

  // For the range that completes the tile.
  __device__ void Deposit(const float (&sums)[kSums]) {
    float4* const to = PartialsOf(range_);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i)
      __stcg(to + i * 128, make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
    __threadfence();
    Sync();
    if (thread_ == 0) ptx::StoreRelease(p_.flags + PlaceOf(range_), 1);
  }

  // In the order of the steps, so that sums do not depend on the order of arrival.
  __device__ void AddPartials(const Segment& segment, float (&sums)[kSums]) {
    if (segment.end == p_.chunks) return;
    const int tile_end = (segment.tile + 1 - Range::FirstShared(p_)) * p_.chunks;
    for (int range = range_ + 1; range < p_.num_clusters && Range::Begin(p_, range) < tile_end; ++range) {
      if (Range(p_, range).shared_size() == 0) continue;  // fewer steps than clusters
      uint32_t* const flag = p_.flags + PlaceOf(range);
      if (thread_ == 0) {
        while (ptx::LoadAcquire(flag) == 0) {
        }
      }
      Sync();
      const float4* const from = PartialsOf(range);
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        const float4 partial = __ldcg(from + i * 128);
        sums[4 * i] += partial.x, sums[4 * i + 1] += partial.y, sums[4 * i + 2] += partial.z, sums[4 * i + 3] += partial.w;
      }
      if (thread_ == 0) *flag = 0;
    }
  }

  __device__ void Store(const Segment& segment, const float (&sums)[kSums]) {
    const Corner corner(p_, segment.tile, rank_, kXRows);
    const int output = (corner.weight_row + warpgroup_ * 64) / 2;
    if (p_.is_gelu) {
      StoreAs<Activation::kGeluTanh>(output, corner.x_row, sums);
    } else {
      StoreAs<Activation::kSilu>(output, corner.x_row, sums);
    }
  }

  // A gate and its up are outputs lane / 4 and lane / 4 + 8. The tile, transposed, goes to shared memory, rows of 64 bytes in the
  // swizzle of the copy engine, which writes what lies inside of y.
  template <Activation kActivation>
  __device__ void StoreAs(int output, int row, const float (&sums)[kSums]) {
    const int lane = thread_ % 32, warp = thread_ / 32;
    uint8_t* const tile = shared_.gated[warpgroup_];
    if (thread_ == 0) ptx::BulkWaitRead();  // the tile before this one has left
    Sync();
    const uint32_t to = ptx::SharedAddress(tile) + lane * kGatedRowBytes + (warp ^ (lane / 2 % 4)) * 16;
#pragma unroll
    for (int i = 0; i < kXRows / 32; ++i) {
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const four = sums + (4 * i + j) * 4;
        const T pair[2] = {FromFloat<T>(ActivateNarrow(kActivation, four[0]) * four[2]),
                           FromFloat<T>(ActivateNarrow(kActivation, four[1]) * four[3])};
        memcpy(&words[j], pair, sizeof(words[j]));
      }
      ptx::StoreMatrix4Transposed(to + i * 32 * kGatedRowBytes, words);
    }
    ptx::FenceProxyAsync();  // before the copy engine reads what this thread wrote
    Sync();
    if (thread_ == 0) ptx::TensorStore2(&p_.y, tile, output, row);
  }

  const Params& p_;
  Storage& shared_;
  const int range_;
  const uint32_t rank_;
  const int warpgroup_, thread_;
};

template <class T, int kXRows>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(kCtas, 1, 1) Kernel(const __grid_constant__ Params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Storage = SharedStorage<kXRows>;
  extern __shared__ uint8_t memory[];
  Storage& shared = *reinterpret_cast<Storage*>(memory + (-ptx::SharedAddress(memory) & 1023));
  LetNextStart();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Storage::kStages; ++i) {
      ptx::BarrierInit(&shared.full[i], 1);
      ptx::BarrierInit(&shared.empty[i], kWarpgroups * kCtas);
    }
    ptx::FenceBarrierInit();
  }
  ptx::ClusterSync();
  const uint32_t rank = ptx::ClusterRank();
  const int range = p.num_clusters - 1 - static_cast<int>(blockIdx.x) / kCtas;
  if (threadIdx.x < 128) {
    ptx::DecreaseRegisters<kLoaderRegisters>();
    if (threadIdx.x == 0) Loader<kXRows>(p, shared, range, rank).Run();
  } else {
    ptx::IncreaseRegisters<kProductRegisters>();
    Multiplier<T, kXRows>(p, shared, range, rank).Run();
  }
  __syncwarp();
  ptx::ClusterSync();  // no CTA leaves while others copy to it or arrive at its barriers
#endif
}

template <class T, int kXRows>
Result<int32_t> PrepareKernel() {
  using coppice::cuda::CudaStatus;
  COPPICE_RETURN_IF_ERROR(CudaStatus(
      cudaFuncSetAttribute(Kernel<T, kXRows>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSharedBytes<kXRows>)),
      "shared memory of a gated product"));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kCtas, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kCtas);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes<kXRows>;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  COPPICE_RETURN_IF_ERROR(
      CudaStatus(cudaOccupancyMaxActiveClusters(&clusters, Kernel<T, kXRows>, &config), "cudaOccupancyMaxActiveClusters"));
  return clusters;
}

template <class T>
Result<int32_t> Prepare() {
  int32_t clusters = INT32_MAX;
  for (const auto prepare : {PrepareKernel<T, 64>, PrepareKernel<T, 128>, PrepareKernel<T, 192>, PrepareKernel<T, 256>}) {
    COPPICE_ASSIGN_OR_RETURN(const int32_t of_kernel, prepare());
    clusters = std::min(clusters, of_kernel);
  }
  return clusters;
}

template <class T>
Status LaunchTiles(const Params& params, int x_rows, cudaStream_t stream) {
  LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>(params.num_clusters * kCtas)), .threads = kThreads, .stream = stream, .overlaps = true};
  const auto run = [&]<int kXRows>() {
    shape.shared_bytes = kSharedBytes<kXRows>;
    return Launch("a gated product", shape, Kernel<T, kXRows>, params);
  };
  switch (x_rows) {
    case 64: return run.template operator()<64>();
    case 128: return run.template operator()<128>();
    case 192: return run.template operator()<192>();
    default: return run.template operator()<256>();
  }
}

}  // namespace coppice::ops::cuda::gated
