// A CTA's reductions and scans of a row of logits: its largest one, sums of weights, the place that a running sum passes in the
// order of ids, and in the order of size. Every function is called by all threads and ends at a barrier, unless it says otherwise.
// Sums are taken of integers, or in an order that does not depend on the number of threads: the same row gives the same bits
// wherever it is asked. Layer: runner/cuda.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/math.h"
#include "runner/cuda/draw.h"

namespace coppice::cuda {

inline constexpr int kMaxWarps = 32;
inline constexpr int kBlock = 256;  // logits of a warp's turn: the sums of the walk
inline constexpr int kPerLane = kBlock / 32;
inline constexpr int kMaxBlocks = kMaxDrawVocab / kBlock;
inline constexpr int kDigitBits = 11, kBins = 1 << kDigitBits;
inline constexpr uint32_t kAllTies = UINT32_MAX;

struct RowShared {
  union {
    float sums[kMaxBlocks];          // of weights, by block
    unsigned long long bins[kBins];  // measures of a digit's values
  };
  float warp_max[kMaxWarps];
  double warp_sum[kMaxWarps];
  unsigned warp_count[kMaxWarps];
  // Results of one thread for the others.
  double sum;
  int token;
  unsigned digit;
  unsigned long long above;
};

// Larger logits have larger keys; equal ones equal keys.
__device__ inline uint32_t KeyOf(float logit) {
  const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float LogitOf(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// Tokens of largest logits: all with a larger key, and of those with this one the first `ties` by id.
struct Kept {
  uint32_t key = 0;
  uint32_t ties = kAllTies;
};

// kThreads: of the CTA.
template <class Logits, int kThreads>
class LogitRow {
  static constexpr int kWarps = kThreads / 32, kUnroll = Logits::kUnroll;
  static_assert(kWarps <= kMaxWarps && kMaxWarps % kWarps == 0);

 public:
  __device__ LogitRow(const Logits& logits, int vocab, RowShared& shared) : logits_(logits), vocab_(vocab), shared_(shared) {}

  __device__ float operator[](int token) const { return logits_[token]; }
  __device__ int vocab() const { return vocab_; }

  __device__ float Max() {
    float max = -INFINITY;
#pragma unroll(kUnroll)
    for (int i = threadIdx.x; i < vocab_; i += kThreads) max = fmaxf(max, logits_[i]);
    for (int lane = 16; lane > 0; lane /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, lane));
    if (threadIdx.x % 32 == 0) shared_.warp_max[threadIdx.x / 32] = max;
    __syncthreads();
    max = shared_.warp_max[threadIdx.x % kWarps];
    for (int lane = 16; lane > 0; lane /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, lane));
    __syncthreads();  // before warp_max is written again
    return max;
  }

  // weights(i, &counted, &walked) adds a token's two weights. Leaves the sums of the second by block for Walk, and returns that of
  // the first.
  template <class Weights>
  __device__ double SumBlocks(const Weights& weights) {
    const int lane = threadIdx.x % 32;
    for (int part = threadIdx.x / 32; part < kMaxWarps; part += kWarps) {  // every 32nd block
      double total = 0;
      for (int block = part; block * kBlock < vocab_; block += kMaxWarps) {
        float counted = 0, walked = 0;
#pragma unroll(kUnroll)
        for (int i = block * kBlock + lane; i < min(vocab_, (block + 1) * kBlock); i += 32) weights(i, &counted, &walked);
        for (int other = 16; other > 0; other /= 2) {
          counted += __shfl_xor_sync(~0u, counted, other);
          walked += __shfl_xor_sync(~0u, walked, other);
        }
        total += counted;
        if (lane == 0) shared_.sums[block] = walked;
      }
      if (lane == 0) shared_.warp_sum[part] = total;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      double sum = 0;
      for (int part = 0; part < kMaxWarps; ++part) sum += shared_.warp_sum[part];
      shared_.sum = sum;
    }
    __syncthreads();
    const double sum = shared_.sum;
    __syncthreads();  // before the places are written again
    return sum;
  }
  template <class Weight>
  __device__ double Sum(const Weight& weight) {
    return SumBlocks([&](int i, float* counted, float* walked) {
      const float value = weight(i);
      *counted += value;
      *walked += value;
    });
  }

  // The token at which the running sum of weight(i), whose block sums are there, passes `uniform` of their total; -1 if they are
  // all zero.
  template <class Weight>
  __device__ int Walk(const Weight& weight, double uniform) {
    if (threadIdx.x < 32) {
      double left;
      const int block = FindBlock(uniform, &left);
      const int token = block < 0 ? -1 : FindInBlock(weight, block, left);
      if (threadIdx.x == 0) shared_.token = token;
    }
    __syncthreads();
    const int token = shared_.token;
    __syncthreads();
    return token;
  }

  struct Selected {
    uint32_t key = 0;
    unsigned long long above = 0;  // measure of all larger keys
  };
  // The key at which the running measure of what is kept, largest keys first, reaches `target`, which is 1 to the measure of all.
  template <class Measure>
  __device__ Selected Select(const Kept& kept, const Measure& measure, unsigned long long target) {
    Selected selected;
    for (int digit = 0; digit < 3; ++digit) {
      const int bits = digit < 2 ? kDigitBits : 32 - 2 * kDigitBits, shift = digit < 2 ? 32 - (digit + 1) * kDigitBits : 0;
      for (int bin = threadIdx.x; bin < kBins; bin += kThreads) shared_.bins[bin] = 0;
      __syncthreads();
      const auto same_so_far = [&](uint32_t key) {
        return digit == 0 || (key >> (shift + bits)) == (selected.key >> (shift + bits));
      };
      const auto bin_of = [&](uint32_t key) { return (key >> shift) & ((1u << bits) - 1); };
      for (int i = threadIdx.x; i < vocab_; i += kThreads) {
        const float logit = logits_[i];
        const uint32_t key = KeyOf(logit);
        if (key < kept.key || (key == kept.key && kept.ties != kAllTies) || !same_so_far(key)) continue;
        if (const unsigned long long amount = measure(logit); amount > 0) atomicAdd(&shared_.bins[bin_of(key)], amount);
      }
      __syncthreads();
      if (threadIdx.x == 0 && kept.ties != kAllTies && same_so_far(kept.key))
        shared_.bins[bin_of(kept.key)] += kept.ties * measure(LogitOf(kept.key));
      __syncthreads();
      if (threadIdx.x < 32) FindDigit(target - selected.above);
      __syncthreads();
      selected.key |= shared_.digit << shift;
      selected.above += shared_.above;
      __syncthreads();  // before the bins are used again
    }
    return selected;
  }

  // Measure of all that is kept.
  template <class Measure>
  __device__ unsigned long long MeasureOf(const Kept& kept, const Measure& measure) {
    if (threadIdx.x == 0) shared_.above = 0;
    __syncthreads();
    unsigned long long sum = 0;
    for (int i = threadIdx.x; i < vocab_; i += kThreads) {
      const float logit = logits_[i];
      const uint32_t key = KeyOf(logit);
      if (key > kept.key || (key == kept.key && kept.ties == kAllTies)) sum += measure(logit);
    }
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
    if (threadIdx.x % 32 == 0) atomicAdd(&shared_.above, sum);
    __syncthreads();
    sum = shared_.above;
    __syncthreads();
    return kept.ties == kAllTies ? sum : sum + kept.ties * measure(LogitOf(kept.key));
  }

  // How many tokens are before `token` in the order of probability, of equals those of lower ids, and itself.
  __device__ int RankOf(int token) {
    if (threadIdx.x == 0) shared_.above = 1;
    __syncthreads();
    const uint32_t its = KeyOf(logits_[token]);
    unsigned long long before = 0;
    for (int i = threadIdx.x; i < vocab_; i += kThreads) {
      const uint32_t key = KeyOf(logits_[i]);
      before += key > its || (key == its && i < token);
    }
    for (int other = 16; other > 0; other /= 2) before += __shfl_xor_sync(~0u, before, other);
    if (threadIdx.x % 32 == 0) atomicAdd(&shared_.above, before);
    __syncthreads();
    const int rank = static_cast<int>(shared_.above);
    __syncthreads();
    return rank;
  }

  // The id of the n-th token, from 0, whose key is `key`; the last one if there are fewer, -1 if there is none.
  __device__ int NthOf(uint32_t key, int n) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) shared_.token = -1;
    __syncthreads();
    int before = 0;
    for (int begin = 0; begin < vocab_; begin += kThreads) {
      const int i = begin + threadIdx.x;
      const bool is_one = i < vocab_ && KeyOf(logits_[i]) == key;
      const unsigned ones = __ballot_sync(~0u, is_one);
      if (lane == 0) shared_.warp_count[warp] = __popc(ones);
      __syncthreads();
      int mine = before, all = before;
      for (int w = 0; w < kWarps; ++w) {
        const int count = static_cast<int>(shared_.warp_count[w]);
        if (w < warp) mine += count;
        all += count;
      }
      mine += __popc(ones & ((1u << lane) - 1));
      if (is_one && mine <= n) atomicMax(&shared_.token, i);
      __syncthreads();
      before = all;
      if (before > n) break;
    }
    const int token = shared_.token;
    __syncthreads();
    return token;
  }

 private:
  // One warp. The block in which the running sum passes its part of the total, and what of that part is left in it; -1 if there is
  // no mass.
  __device__ int FindBlock(double uniform, double* left) {
    const int lane = threadIdx.x, blocks = CeilDiv(vocab_, kBlock), share = CeilDiv(blocks, 32);
    const int begin = min(lane * share, blocks), end = min(begin + share, blocks);
    double mine = 0;
    for (int b = begin; b < end; ++b) mine += shared_.sums[b];
    double before = mine;  // inclusive
    for (int other = 1; other < 32; other *= 2) {
      const double value = __shfl_up_sync(~0u, before, other);
      if (lane >= other) before += value;
    }
    const double target = uniform * __shfl_sync(~0u, before, 31);
    const unsigned passed = __ballot_sync(~0u, target < before);
    before -= mine;
    int block = -1;
    double rest = target - before;
    if (passed != 0 && lane == __ffs(passed) - 1) {
      for (block = begin; block < end - 1 && rest >= shared_.sums[block]; ++block) rest -= shared_.sums[block];
    }
    if (passed == 0) {  // rounding carried it past the end: the last block with any mass
      int last = -1;
      for (int b = begin; b < end; ++b) {
        if (shared_.sums[b] > 0) last = b;
      }
      for (int other = 16; other > 0; other /= 2) last = max(last, __shfl_xor_sync(~0u, last, other));
      *left = 0;
      return last;
    }
    *left = __shfl_sync(~0u, rest, __ffs(passed) - 1);
    return __shfl_sync(~0u, block, __ffs(passed) - 1);
  }

  // One warp. The token at which the block's running sum passes `left`; the last one with mass if rounding carries it past the end.
  template <class Weight>
  __device__ int FindInBlock(const Weight& weight, int block, double left) {
    const int lane = threadIdx.x, begin = block * kBlock + lane * kPerLane;
    const auto weight_at = [&](int i) { return begin + i < vocab_ ? weight(begin + i) : 0.0f; };
    double mine = 0;
    int last = -1;
#pragma unroll(kUnroll)
    for (int i = 0; i < kPerLane; ++i) {
      const float value = weight_at(i);
      mine += value;
      if (value > 0) last = begin + i;
    }
    double through = mine;
    for (int other = 1; other < 32; other *= 2) {
      const double value = __shfl_up_sync(~0u, through, other);
      if (lane >= other) through += value;
    }
    double rest = left - (through - mine);
    int token = -1;
#pragma unroll(kUnroll)
    for (int i = 0; i < kPerLane; ++i) {
      rest -= weight_at(i);
      if (rest < 0 && token < 0) token = begin + i;
    }
    const unsigned found = __ballot_sync(~0u, token >= 0);
    if (found != 0) return __shfl_sync(~0u, token, __ffs(found) - 1);
    for (int other = 16; other > 0; other /= 2) last = max(last, __shfl_xor_sync(~0u, last, other));
    return last;
  }

  // One warp. The largest bin at which the sum of it and those above reaches `target`, and the sum of those above it.
  __device__ void FindDigit(unsigned long long target) {
    constexpr int kShare = kBins / 32;
    const int lane = threadIdx.x, top = kBins - 1 - lane * kShare;  // lane 0 has the largest bins
    unsigned long long mine = 0;
    for (int i = 0; i < kShare; ++i) mine += shared_.bins[top - i];
    unsigned long long through = mine;
    for (int other = 1; other < 32; other *= 2) {
      const unsigned long long value = __shfl_up_sync(~0u, through, other);
      if (lane >= other) through += value;
    }
    const unsigned reached = __ballot_sync(~0u, through >= target);
    if (reached == 0 || lane != __ffs(reached) - 1) return;
    unsigned long long above = through - mine;
    int bin = top;
    while (above + shared_.bins[bin] < target) above += shared_.bins[bin--];
    shared_.digit = static_cast<unsigned>(bin);
    shared_.above = above;
  }

  const Logits logits_;
  const int vocab_;
  RowShared& shared_;
};

}  // namespace coppice::cuda
