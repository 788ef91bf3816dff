#include "ops/cuda/peer_kernels.h"

#include <algorithm>

#include "core/check.h"
#include "core/math.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/norm_row.cuh"

namespace coppice::ops::cuda {
namespace {

constexpr int kThreads = 512;
constexpr uint64_t kMostWaitNanoseconds = 8'000'000'000;

__device__ uint32_t LoadAcquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ void StoreRelease(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ uint64_t Nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// Whether `ready` came true; false where the group has failed, which it has once a rank did not come.
template <class Ready>
__device__ bool Await(const PeerMeeting& m, int rank, Ready ready) {
  constexpr int kSpinsBetweenLooks = 512;  // at host memory, which is far
  uint64_t begin = 0;
  for (int spins = 1;; ++spins) {
    if (ready()) return true;
    if (spins % kSpinsBetweenLooks != 0) continue;
    if (*m.failed != 0) return false;
    const uint64_t now = Nanoseconds();
    if (begin == 0) begin = now;
    if (now - begin > kMostWaitNanoseconds) {
      *m.failed = 1 + rank;
      __threadfence_system();
      return false;
    }
  }
}

// Returns in all threads once the CTA of this number has called it on all ranks, with what they wrote before; false where the group
// has failed.
__device__ bool Meet(const PeerMeeting& m, uint32_t epoch) {
  __syncthreads();
  bool came = true;
  if (const int peer = threadIdx.x; peer < m.ranks && peer != m.rank) {
    const int64_t cta = static_cast<int64_t>(blockIdx.x) * kMostPeers;
    __threadfence_system();
    StoreRelease(m.arrived[peer] + cta + m.rank, epoch);
    const uint32_t* const arrived = m.arrived[m.rank] + cta + peer;
    came = Await(m, peer, [&] { return static_cast<int32_t>(LoadAcquire(arrived) - epoch) >= 0; });
  }
  return __syncthreads_and(came);
}

__device__ void SetEpochs(const PeerMeeting& m, uint32_t epoch) {
  for (int cta = blockIdx.x + gridDim.x * threadIdx.x; cta < kMostPeerCtas; cta += gridDim.x * blockDim.x) m.epochs[cta] = epoch;
}

// Where a rank finds what `from` sent in this epoch.
template <class T>
__device__ T* Slot(const PeerInbox& inbox, const PeerMeeting& m, int rank, int from, uint32_t epoch) {
  return reinterpret_cast<T*>(inbox.base[rank] + ((epoch & 1) * m.ranks + from) * inbox.slot_bytes);
}

// send(to, peer) for every other rank, with the slot there that is for this one.
template <class T, class Send>
__device__ void ForEachPeer(const PeerInbox& inbox, const PeerMeeting& m, uint32_t epoch, Send send) {
  for (int peer = 0; peer < m.ranks; ++peer) {
    if (peer != m.rank) send(Slot<T>(inbox, m, peer, m.rank, epoch));
  }
}

constexpr int kSumCtas = 128;  // whose CTAs are all there at once, and enough to fill a link
constexpr int kUnrolled = 4;   // packs of a thread that are on their way at a time

// A CTA adds up `run` neighbours.
template <int kPack>
__global__ void __launch_bounds__(kThreads, 1)
    AllReduceKernel(float* x, int64_t count, int64_t run, const __grid_constant__ PeerInbox inbox,
                    const __grid_constant__ PeerMeeting m) {
  LetNextStart();
  WaitForPrevious();
  const uint32_t epoch = m.epochs[blockIdx.x] + 1;
  constexpr int64_t kTurn = int64_t{kThreads} * kPack * kUnrolled;
  const int64_t begin = blockIdx.x * run, end = begin + run < count ? begin + run : count;
  // visit(u, i) for the packs of a turn that are this thread's.
  const auto for_each_pack = [&](int64_t turn, auto visit) {
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      if (const int64_t i = turn + (int64_t{u} * kThreads + threadIdx.x) * kPack; i < end) visit(u, i);
    }
  };
  for (int64_t turn = begin; turn < end; turn += kTurn) {
    Pack<float, kPack> own[kUnrolled];
    for_each_pack(turn, [&](int u, int64_t i) { own[u] = LoadPack<kPack>(x + i); });
    ForEachPeer<float>(inbox, m, epoch,
                       [&](float* to) { for_each_pack(turn, [&](int u, int64_t i) { StorePack<kPack>(to + i, own[u]); }); });
  }
  if (Meet(m, epoch)) {
    for (int64_t turn = begin; turn < end; turn += kTurn) {
      Pack<float, kPack> sums[kUnrolled];
      for (int rank = 0; rank < m.ranks; ++rank) {
        const float* const from = rank == m.rank ? x : Slot<const float>(inbox, m, m.rank, rank, epoch);
        for_each_pack(turn, [&](int u, int64_t i) {
          const Pack<float, kPack> term = LoadPack<kPack>(from + i);
#pragma unroll
          for (int j = 0; j < kPack; ++j) sums[u].values[j] = rank == 0 ? term.values[j] : sums[u].values[j] + term.values[j];
        });
      }
      for_each_pack(turn, [&](int u, int64_t i) { StorePack<kPack>(x + i, sums[u]); });
    }
  }
  SetEpochs(m, epoch);
}

constexpr int kNormPack = 4;  // columns

// x += the sum of the terms, which term(rank) gives.
template <class TermOf>
__device__ Pack<float, kNormPack> Updated(Pack<float, kNormPack> x, int ranks, TermOf term_of) {
  Pack<float, kNormPack> sum{};
  for (int rank = 0; rank < ranks; ++rank) {
    const auto term = term_of(rank);
#pragma unroll
    for (int j = 0; j < kNormPack; ++j) sum.values[j] += ToFloat(term.values[j]);
  }
#pragma unroll
  for (int j = 0; j < kNormPack; ++j) x.values[j] += sum.values[j];
  return x;
}

// A CTA a row, or several rows one after the other.
template <class Term, class Out>
__global__ void __launch_bounds__(kMaxNormThreads, 1)
    AddNormKernel(const Term* terms, int64_t stride, float* x, const __grid_constant__ NormParams p, int64_t rows,
                  const __grid_constant__ PeerInbox inbox, const __grid_constant__ PeerMeeting m) {
  LetNextStart();
  NormRow<kNormPack> held;
  if (p.y != nullptr) held.LoadWeights(p);
  WaitForPrevious();
  const uint32_t epoch = m.epochs[blockIdx.x] + 1;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    ForEachPeer<Term>(inbox, m, epoch, [&](Term* to) {
      const auto send = [&](int column) {
        StorePack<kNormPack>(to + row * p.cols + column, LoadPack<kNormPack>(terms + row * stride + column));
      };
      held.ForEachHeld(p.cols, [&](int, int column) { send(column); });
      held.ForEachOther(p.cols, send);
    });
  }
  const auto load = [&](int64_t row) {
    held.ForEachHeld(p.cols, [&](int i, int column) { held.held[i] = LoadPack<kNormPack>(x + row * p.x_stride + column); });
  };
  load(blockIdx.x);  // while what was sent is on its way
  if (Meet(m, epoch)) {
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
      if (row != blockIdx.x) load(row);
      float* const x_row = x + row * p.x_stride;
      const auto update = [&](Pack<float, kNormPack> value, int column) {
        value = Updated(value, m.ranks, [&](int rank) {
          const Term* const from =
              rank == m.rank ? terms + row * stride : Slot<const Term>(inbox, m, m.rank, rank, epoch) + row * p.cols;
          return LoadPack<kNormPack>(from + column);
        });
        StorePack<kNormPack>(x_row + column, value);
        return value;
      };
      held.ForEachHeld(p.cols, [&](int i, int column) { held.held[i] = update(held.held[i], column); });
      held.ForEachOther(p.cols, [&](int column) { update(LoadPack<kNormPack>(x_row + column), column); });
      if (p.y != nullptr) held.Normalize(p, x_row, static_cast<Out*>(p.y) + row * p.y_stride);
    }
  }
  SetEpochs(m, epoch);
}

// Two words beside the epoch in which they were sent, in each half of 16 bytes, which comes whole: a reader of the epoch has the
// word, and nothing else says that it came (the protocol that NCCL calls LL).
struct Flagged {
  uint32_t first, epoch_of_first, second, epoch_of_second;
};
__device__ void Send(Flagged* to, uint32_t first, uint32_t second, uint32_t epoch) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(first), "r"(epoch), "r"(second) : "memory");
}
__device__ Flagged Receive(const Flagged* from) {
  Flagged value;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.first), "=r"(value.epoch_of_first), "=r"(value.second), "=r"(value.epoch_of_second)
               : "l"(from)
               : "memory");
  return value;
}

// The same for few rows, whose time is that of a message: a CTA a row, of which each thread holds what it has of it.
template <class Term, class Out>
__global__ void __launch_bounds__(kMaxNormThreads, 1)
    AddNormFewKernel(const Term* terms, int64_t stride, float* x, const __grid_constant__ NormParams p,
                     const __grid_constant__ PeerInbox inbox, const __grid_constant__ PeerMeeting m) {
  constexpr int kFlagged = sizeof(Pack<Term, kNormPack>) / 8;  // of a pack
  struct Words {
    uint32_t of[2 * kFlagged];
  };
  LetNextStart();
  NormRow<kNormPack> held;
  if (p.y != nullptr) held.LoadWeights(p);
  WaitForPrevious();
  const uint32_t epoch = m.epochs[blockIdx.x] + 1;
  const int64_t row = blockIdx.x, first = row * (p.cols / kNormPack) * kFlagged;  // in an inbox
  // Where rank `at` finds what `from` sent of the pack at this column.
  const auto place = [&](int at, int from, int column) {
    return reinterpret_cast<Flagged*>(inbox.few[at] + ((epoch & 1) * m.ranks + from) * kFewSlotBytes) + first +
           column / kNormPack * kFlagged;
  };
  Pack<Term, kNormPack> own[kHeldPacks];
  held.ForEachHeld(p.cols, [&](int i, int column) {
    own[i] = LoadPack<kNormPack>(terms + row * stride + column);
    const Words words = __builtin_bit_cast(Words, own[i]);
    for (int peer = 0; peer < m.ranks; ++peer) {
      if (peer == m.rank) continue;
#pragma unroll
      for (int w = 0; w < kFlagged; ++w) Send(place(peer, m.rank, column) + w, words.of[2 * w], words.of[2 * w + 1], epoch);
    }
  });
  float* const x_row = x + row * p.x_stride;
  held.ForEachHeld(p.cols, [&](int i, int column) { held.held[i] = LoadPack<kNormPack>(x_row + column); });
  bool came = true;
  held.ForEachHeld(p.cols, [&](int i, int column) {
    held.held[i] = Updated(held.held[i], m.ranks, [&](int rank) {
      if (rank == m.rank) return own[i];
      Words words{};
#pragma unroll
      for (int w = 0; w < kFlagged; ++w) {
        Flagged value{};
        came &= Await(m, rank, [&] {
          value = Receive(place(m.rank, rank, column) + w);
          return value.epoch_of_first == epoch && value.epoch_of_second == epoch;
        });
        words.of[2 * w] = value.first;
        words.of[2 * w + 1] = value.second;
      }
      return __builtin_bit_cast(Pack<Term, kNormPack>, words);
    });
    if (came) StorePack<kNormPack>(x_row + column, held.held[i]);
  });
  if (p.y != nullptr) held.Normalize(p, x_row, static_cast<Out*>(p.y) + row * p.y_stride);
  SetEpochs(m, epoch);
}

constexpr int kGatherTurn = kThreads * 4;  // floats of a row that a CTA copies at a time

template <int kPack>
__global__ void __launch_bounds__(kThreads, 1)
    AllGatherKernel(const __grid_constant__ PeerGather g, int64_t turns_of_part, const __grid_constant__ PeerMeeting m) {
  LetNextStart();
  WaitForPrevious();
  const uint32_t epoch = m.epochs[blockIdx.x] + 1;
  if (Meet(m, epoch) && g.all != nullptr) {
    const int64_t turns = g.rows * m.ranks * turns_of_part;
    for (int64_t turn = blockIdx.x; turn < turns; turn += gridDim.x) {
      const int64_t row = turn / (m.ranks * turns_of_part);
      const int rank = static_cast<int>(turn / turns_of_part % m.ranks);
      const int64_t first = rank * g.part_cols;
      const int64_t cols = first + g.part_cols <= g.all_cols ? g.part_cols : g.all_cols - first;
      const float* const from = g.part[rank] + row * g.part_stride;
      float* const to = g.all + row * g.all_stride + first;
      const int64_t begin = turn % turns_of_part * kGatherTurn;
#pragma unroll
      for (int64_t i = begin + threadIdx.x * kPack; i < begin + kGatherTurn; i += kThreads * kPack) {
        if (i < cols) StorePack<kPack>(to + i, LoadPack<kPack>(from + i));
      }
    }
  }
  Meet(m, epoch + 1);
  SetEpochs(m, epoch + 1);
}

// A CTA a row, or several rows one after the other.
__global__ void __launch_bounds__(kThreads, 1)
    ShareKernel(const __grid_constant__ PeerShare s, int64_t rows, const __grid_constant__ PeerInbox inbox,
                const __grid_constant__ PeerMeeting m) {
  LetNextStart();
  WaitForPrevious();
  const uint32_t epoch = m.epochs[blockIdx.x] + 1;
  const auto copy = [&](const uint4* from, uint4* to) {
    for (int i = threadIdx.x; i < s.cols; i += blockDim.x) to[i] = from[i];
  };
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    ForEachPeer<uint4>(inbox, m, epoch, [&](uint4* to) { copy(s.part + row * s.part_stride, to + row * s.cols); });
    copy(s.part + row * s.part_stride, s.all + row * s.all_stride + int64_t{m.rank} * s.cols);  // while that is on its way
  }
  if (Meet(m, epoch)) {
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
      for (int rank = 0; rank < m.ranks; ++rank) {
        if (rank == m.rank) continue;
        copy(Slot<const uint4>(inbox, m, m.rank, rank, epoch) + row * s.cols, s.all + row * s.all_stride + int64_t{rank} * s.cols);
      }
    }
  }
  SetEpochs(m, epoch);
}

constexpr int kStatePack = 8;  // columns, all of one head

__host__ __device__ constexpr int64_t StateBytes(int64_t cols, int64_t heads, int64_t element_bytes) {
  return (cols * element_bytes + heads * 4 + 15) / 16 * 16;
}

// merged = sum of weight * out over `count` states, in their order, with the weights of Cascade Inference's merge: e^lse, divided
// by their sum. out_of(i) and lse_of(i) say where state i has the row's own heads.
template <class T, class OutOf, class LseOf>
__device__ void MergeStateRow(const PeerStates& s, T* merged, OutOf out_of, LseOf lse_of) {
  const int head_dim = s.cols / s.heads;
  for (int column = threadIdx.x * kStatePack; column < s.cols; column += blockDim.x * kStatePack) {
    const int head = column / head_dim;
    float weights[kMostPeers];
    float most = -INFINITY, total = 0;
#pragma unroll
    for (int i = 0; i < kMostPeers; ++i) {
      weights[i] = i < s.count ? lse_of(i)[head] : -INFINITY;
      most = fmaxf(most, weights[i]);
    }
#pragma unroll
    for (int i = 0; i < kMostPeers; ++i) {
      weights[i] = most == -INFINITY ? 0.0f : expf(weights[i] - most);
      total += weights[i];
    }
    Pack<float, kStatePack> sum{};
#pragma unroll
    for (int i = 0; i < kMostPeers; ++i) {
      if (weights[i] == 0.0f) continue;  // `out` may hold anything
      const float weight = weights[i] / total;
      const Pack<T, kStatePack> out = LoadPack<kStatePack>(out_of(i) + column);
#pragma unroll
      for (int j = 0; j < kStatePack; ++j) sum.values[j] += weight * ToFloat(out.values[j]);
    }
    Pack<T, kStatePack> result;
#pragma unroll
    for (int j = 0; j < kStatePack; ++j) result.values[j] = FromFloat<T>(sum.values[j]);
    StorePack<kStatePack>(merged + column, result);
  }
}

// A CTA a row, or several rows one after the other. Ranks outside of the run meet it, too, and exchange states of their own.
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    MergeStatesKernel(const __grid_constant__ PeerStates s, int64_t rows, const __grid_constant__ PeerInbox inbox,
                      const __grid_constant__ PeerMeeting m) {
  LetNextStart();
  WaitForPrevious();
  const uint32_t epoch = m.epochs[blockIdx.x] + 1;
  const int64_t row_bytes = StateBytes(s.cols, s.heads, sizeof(T));
  const T* const out = static_cast<const T*>(s.out);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int i = 0; i < s.count; ++i) {
      const int peer = s.first + i;
      if (peer == m.rank) continue;
      std::byte* const slot = Slot<std::byte>(inbox, m, peer, m.rank, epoch) + row * row_bytes;
      const T* const from = out + row * s.out_stride + int64_t{i} * s.cols;
      for (int column = threadIdx.x * kStatePack; column < s.cols; column += blockDim.x * kStatePack) {
        StorePack<kStatePack>(reinterpret_cast<T*>(slot) + column, LoadPack<kStatePack>(from + column));
      }
      float* const lse = reinterpret_cast<float*>(slot + s.cols * sizeof(T));
      for (int head = threadIdx.x; head < s.heads; head += blockDim.x) lse[head] = s.lse[row * s.lse_stride + i * s.heads + head];
    }
  }
  if (Meet(m, epoch)) {
    const int own = m.rank - s.first;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
      const auto slot = [&](int i) { return Slot<const std::byte>(inbox, m, m.rank, s.first + i, epoch) + row * row_bytes; };
      MergeStateRow(
          s, static_cast<T*>(s.merged) + row * s.merged_stride,
          [&](int i) { return i == own ? out + row * s.out_stride + int64_t{own} * s.cols : reinterpret_cast<const T*>(slot(i)); },
          [&](int i) {
            return i == own ? s.lse + row * s.lse_stride + own * s.heads
                            : reinterpret_cast<const float*>(slot(i) + s.cols * sizeof(T));
          });
    }
  }
  SetEpochs(m, epoch);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    MergeGatheredKernel(const __grid_constant__ PeerStates s, const __grid_constant__ GatheredStates g) {
  LetNextStart();
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  MergeStateRow(
      s, static_cast<T*>(s.merged) + row * s.merged_stride,
      [&](int i) { return static_cast<const T*>(g.out[i]) + row * g.out_stride[i]; },
      [&](int i) { return g.lse[i] + row * g.lse_stride[i]; });
}

__global__ void __launch_bounds__(kThreads, 1)
    BroadcastKernel(uint32_t* words, int64_t count, const __grid_constant__ PeerInbox inbox,
                    const __grid_constant__ PeerMeeting m) {
  LetNextStart();
  WaitForPrevious();
  const uint32_t epoch = m.epochs[blockIdx.x] + 1;
  const auto copy = [&](uint32_t* to, const uint32_t* from) {
    for (int64_t i = threadIdx.x; i < count; i += kThreads) to[i] = from[i];
  };
  if (m.rank == 0) ForEachPeer<uint32_t>(inbox, m, epoch, [&](uint32_t* to) { copy(to, words); });
  if (Meet(m, epoch) && m.rank != 0) copy(words, Slot<const uint32_t>(inbox, m, m.rank, 0, epoch));
  SetEpochs(m, epoch);
}

dim3 Ctas(int64_t wanted, int64_t most) { return dim3(static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, most))); }

int StateThreads(const PeerStates& states) { return std::clamp(RoundUp(CeilDiv(states.cols, kStatePack), 32), 32, kThreads); }

template <class Term, class Out>
Status LaunchAddNorm(const PeerTerms& terms, float* x, const NormParams& norm, int64_t rows, const PeerInbox& inbox,
                     const PeerMeeting& meeting, LaunchShape shape) {
  // Twice the bytes go over the link, and the rank that waits sees them sooner.
  const int64_t bytes = 2 * rows * norm.cols * static_cast<int64_t>(sizeof(Term));
  if (rows <= kMostFewRows && bytes <= kFewSlotBytes && norm.cols <= kMaxNormThreads * kHeldPacks * kNormPack) {
    shape.threads = std::min(kMaxNormThreads, RoundUp(CeilDiv(norm.cols, kNormPack), 32));
    return Launch("sum over ranks and norm of few rows", shape, AddNormFewKernel<Term, Out>, static_cast<const Term*>(terms.terms),
                  terms.stride, x, norm, inbox, meeting);
  }
  return Launch("sum over ranks and norm", shape, AddNormKernel<Term, Out>, static_cast<const Term*>(terms.terms), terms.stride, x,
                norm, rows, inbox, meeting);
}

}  // namespace

Status LaunchPeerAllReduce(float* x, int64_t count, const PeerInbox& inbox, const PeerMeeting& meeting, bool overlaps,
                           cudaStream_t stream) {
  const bool packs = count % 4 == 0 && IsAligned(x, 0, 4, 16);
  const dim3 grid = Ctas(CeilDiv(count, int64_t{kThreads} * 4), kSumCtas);
  const int64_t run = RoundUp(CeilDiv(count, int64_t{grid.x}), int64_t{4});  // all begin where a pack does
  const LaunchShape shape = {.grid = grid, .threads = kThreads, .stream = stream, .overlaps = overlaps};
  return Launch("sum over ranks", shape, packs ? AllReduceKernel<4> : AllReduceKernel<1>, x, count, run, inbox, meeting);
}

bool TakesPeerAddNorm(const PeerTerms& terms, const NormParams& norm, DType y_dtype) {
  const size_t term_bytes = SizeOf(terms.dtype), y_bytes = SizeOf(y_dtype);
  return y_dtype != DType::kF32 && (terms.dtype == y_dtype || terms.dtype == DType::kF32) && norm.cols % 4 == 0 &&
         IsAligned(terms.terms, terms.stride, term_bytes, 4 * term_bytes) && IsAligned(norm.x, norm.x_stride, 4, 16) &&
         IsAligned(norm.weight, 0, 4, 16) && IsAligned(norm.bias, 0, 4, 16) &&
         IsAligned(norm.y, norm.y_stride, y_bytes, 4 * y_bytes);
}

Status LaunchPeerAddNorm(const PeerTerms& terms, float* x, const NormParams& norm, DType y_dtype, int64_t rows,
                         const PeerInbox& inbox, const PeerMeeting& meeting, bool overlaps, cudaStream_t stream) {
  if (rows == 0) return OkStatus();
  const LaunchShape shape = {.grid = Ctas(rows, kMostPeerCtas),
                             .threads = std::min(kMaxNormThreads, RoundUp(CeilDiv(norm.cols, kHeldPacks * 4), 32)),
                             .stream = stream,
                             .overlaps = overlaps};
  const bool is_bf16 = y_dtype == DType::kBF16, in_f32 = terms.dtype == DType::kF32;
  const auto launch = is_bf16 ? (in_f32 ? LaunchAddNorm<float, __nv_bfloat16> : LaunchAddNorm<__nv_bfloat16, __nv_bfloat16>)
                              : (in_f32 ? LaunchAddNorm<float, __half> : LaunchAddNorm<__half, __half>);
  return launch(terms, x, norm, rows, inbox, meeting, shape);
}

Status LaunchPeerAllGather(const PeerGather& gather, const PeerMeeting& meeting, bool overlaps, cudaStream_t stream) {
  const int64_t turns_of_part = CeilDiv(gather.part_cols, int64_t{kGatherTurn});
  const LaunchShape shape = {.grid = Ctas(gather.rows * meeting.ranks * turns_of_part, kSumCtas),
                             .threads = kThreads,
                             .stream = stream,
                             .overlaps = overlaps};
  bool packs = gather.part_cols % 4 == 0 && gather.all_cols % 4 == 0 && IsAligned(gather.all, gather.all_stride, 4, 16);
  for (int rank = 0; rank < meeting.ranks; ++rank) packs &= IsAligned(gather.part[rank], gather.part_stride, 4, 16);
  return Launch("gathering from ranks", shape, packs ? AllGatherKernel<4> : AllGatherKernel<1>, gather, turns_of_part, meeting);
}

Status LaunchPeerShare(const PeerShare& share, int64_t rows, const PeerInbox& inbox, const PeerMeeting& meeting, bool overlaps,
                       cudaStream_t stream) {
  if (rows == 0) return OkStatus();
  const LaunchShape shape = {.grid = Ctas(rows, kMostPeerCtas),
                             .threads = std::clamp(RoundUp(share.cols, 32), 32, kThreads),
                             .stream = stream,
                             .overlaps = overlaps};
  return Launch("sharing among ranks", shape, ShareKernel, share, rows, inbox, meeting);
}

int64_t StateRowBytes(const PeerStates& states) {
  return StateBytes(states.cols, states.heads, static_cast<int64_t>(SizeOf(states.dtype)));
}

Status LaunchPeerMergeStates(const PeerStates& states, int64_t rows, const PeerInbox& inbox, const PeerMeeting& meeting,
                             bool overlaps, cudaStream_t stream) {
  if (rows == 0) return OkStatus();
  const LaunchShape shape = {
      .grid = Ctas(rows, kMostPeerCtas), .threads = StateThreads(states), .stream = stream, .overlaps = overlaps};
  return Launch("merge of states of ranks", shape,
                states.dtype == DType::kBF16 ? MergeStatesKernel<__nv_bfloat16> : MergeStatesKernel<__half>, states, rows, inbox,
                meeting);
}

Status LaunchMergeGathered(const PeerStates& states, const GatheredStates& gathered, int64_t rows, bool overlaps,
                           cudaStream_t stream) {
  const LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>(rows)), .threads = StateThreads(states), .stream = stream, .overlaps = overlaps};
  return Launch("merge of states", shape,
                states.dtype == DType::kBF16 ? MergeGatheredKernel<__nv_bfloat16> : MergeGatheredKernel<__half>, states, gathered);
}

Status LaunchPeerBroadcast(uint32_t* words, int64_t count, const PeerInbox& inbox, const PeerMeeting& meeting, bool overlaps,
                           cudaStream_t stream) {
  const LaunchShape shape = {.grid = dim3(1), .threads = kThreads, .stream = stream, .overlaps = overlaps};
  return Launch("broadcast to ranks", shape, BroadcastKernel, words, count, inbox, meeting);
}

Status LoadPeerKernels() {
  const auto address = [](auto* kernel) { return reinterpret_cast<const void*>(kernel); };
  for (const void* const kernel :
       {address(AllReduceKernel<1>), address(AllReduceKernel<4>), address(AddNormKernel<float, __nv_bfloat16>),
        address(AddNormKernel<float, __half>), address(AddNormKernel<__nv_bfloat16, __nv_bfloat16>),
        address(AddNormKernel<__half, __half>), address(AllGatherKernel<1>), address(AllGatherKernel<4>), address(ShareKernel),
        address(MergeStatesKernel<__nv_bfloat16>), address(MergeStatesKernel<__half>), address(BroadcastKernel)}) {
    cudaFuncAttributes attributes;
    COPPICE_RETURN_IF_ERROR(coppice::cuda::CudaStatus(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes"));
  }
  return OkStatus();
}

}  // namespace coppice::ops::cuda
