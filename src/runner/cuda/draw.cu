#include "runner/cuda/draw.h"

#include <cuda_runtime.h>

#include "core/cuda/cuda_status.h"
#include "core/math.h"
#include "runner/philox.h"

namespace coppice::cuda {
namespace {

// A CTA draws one token. Without filters it walks the vocabulary in the order of ids, block sums first, as Sampler::DrawFromAll.
// With them it finds the token in the order of probability without sorting: a radix selection over the logits' bits, digit by
// digit, of the place where the running mass (or count) passes a bound. Masses are integers, so that their sums do not depend on
// the order of additions, and a draw is the same in every run.
constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kBlock = 256;  // logits of a warp's turn: the sums of the walk
constexpr int kPerLane = kBlock / 32;
constexpr int kMaxBlocks = kMaxDrawVocab / kBlock;
constexpr int kDigitBits = 11, kBins = 1 << kDigitBits;
constexpr float kMassOne = 0x1p40f;  // the weight of the most probable token: 2^19 of them fit 64 bits, and e^-27 of it is not 0
constexpr uint32_t kAllTies = UINT32_MAX;

struct Shared {
  union {
    float sums[kMaxBlocks];          // of exp((x - max) / temperature), by block
    unsigned long long bins[kBins];  // masses of a digit's values
  };
  float warp_max[kWarps];
  double warp_sum[kWarps];
  unsigned warp_count[kWarps];
  // Results that one thread tells the others.
  float max;
  double sum;
  int token;
  unsigned digit;
  unsigned long long above;
};

// Larger logits have larger keys; equal ones equal keys.
__device__ uint32_t KeyOf(float logit) {
  const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ float LogitOf(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// What filters leave: all tokens with a larger key, and of those with this one the first `ties` by id.
struct Kept {
  uint32_t key = 0;
  uint32_t ties = kAllTies;
};

class Drawer {
 public:
  __device__ Drawer(const float* logits, int vocab, const DrawSpec& spec, Shared& shared)
      : logits_(logits), vocab_(vocab), spec_(spec), shared_(shared) {}

  __device__ DrawnToken Draw() {
    shared_.token = -1;
    const float max = Max();
    const double model_sum = ModelSum(max);  // leaves block sums at the temperature
    if (!isfinite(max) || !isfinite(model_sum)) return {};
    int token;
    if (spec_.temperature == 0) {
      token = NthOf(KeyOf(max), 0);
    } else if (spec_.top_k > 0 || spec_.top_p < 1 || spec_.min_p > 0) {
      token = DrawFiltered(max);
    } else {
      token = DrawFromAll(max);
    }
    return {token, static_cast<float>(logits_[token] - max - log(model_sum))};
  }

 private:
  __device__ double Uniform() const { return UniformAt(spec_.seed, spec_.sample, spec_.position); }

  __device__ float Max() {
    float max = -INFINITY;
#pragma unroll 8
    for (int i = threadIdx.x; i < vocab_; i += kThreads) max = fmaxf(max, logits_[i]);
    for (int lane = 16; lane > 0; lane /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, lane));
    if (threadIdx.x % 32 == 0) shared_.warp_max[threadIdx.x / 32] = max;
    __syncthreads();
    max = shared_.warp_max[threadIdx.x % kWarps];
    for (int lane = 16; lane > 0; lane /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, lane));
    return max;
  }

  // Sum of exp(x - max); a NaN among the logits makes it one.
  __device__ double ModelSum(float max) {
    const float scale = spec_.temperature > 0 ? 1.0f / spec_.temperature : 1.0f;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    double total = 0;
    for (int block = warp; block * kBlock < vocab_; block += kWarps) {
      float model = 0, sampled = 0;
#pragma unroll 8
      for (int i = block * kBlock + lane; i < min(vocab_, (block + 1) * kBlock); i += 32) {
        const float distance = logits_[i] - max;
        const float weight = expf(distance);
        model += weight;
        sampled += scale == 1.0f ? weight : expf(distance * scale);
      }
      for (int other = 16; other > 0; other /= 2) {
        model += __shfl_xor_sync(~0u, model, other);
        sampled += __shfl_xor_sync(~0u, sampled, other);
      }
      total += model;
      if (lane == 0) shared_.sums[block] = sampled;
    }
    if (lane == 0) shared_.warp_sum[warp] = total;
    __syncthreads();
    if (threadIdx.x == 0) {
      double sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += shared_.warp_sum[w];
      shared_.sum = sum;
    }
    __syncthreads();
    return shared_.sum;
  }

  // ---- Without filters: Sampler::DrawFromAll.

  __device__ int DrawFromAll(float max) {
    if (threadIdx.x < 32) {
      double left;
      const int block = FindBlock(&left);
      const int token = FindInBlock(block, left, max);
      if (threadIdx.x == 0) shared_.token = token;
    }
    __syncthreads();
    return shared_.token;
  }

  // One warp. The block in which the running sum passes the draw's part of the total, and what of that part is left in it.
  __device__ int FindBlock(double* left) {
    const int lane = threadIdx.x, blocks = CeilDiv(vocab_, kBlock), share = CeilDiv(blocks, 32);
    const int begin = min(lane * share, blocks), end = min(begin + share, blocks);
    double mine = 0;
    for (int b = begin; b < end; ++b) mine += shared_.sums[b];
    double before = mine;  // inclusive
    for (int other = 1; other < 32; other *= 2) {
      const double value = __shfl_up_sync(~0u, before, other);
      if (lane >= other) before += value;
    }
    const double target = Uniform() * __shfl_sync(~0u, before, 31);
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

  // One warp. The token at which the block's running sum passes `left`; the likeliest one if rounding carries it past the end.
  __device__ int FindInBlock(int block, double left, float max) {
    const float scale = 1.0f / spec_.temperature;
    const int lane = threadIdx.x, begin = block * kBlock + lane * kPerLane;
    double weights[kPerLane], mine = 0;
    float best = -INFINITY;
    int best_token = INT32_MAX;
    for (int i = 0; i < kPerLane; ++i) {
      const bool is_token = begin + i < vocab_;
      const float logit = is_token ? logits_[begin + i] : -INFINITY;
      weights[i] = is_token ? static_cast<double>(expf((logit - max) * scale)) : 0;
      mine += weights[i];
      if (logit > best) best = logit, best_token = begin + i;
    }
    double through = mine;
    for (int other = 1; other < 32; other *= 2) {
      const double value = __shfl_up_sync(~0u, through, other);
      if (lane >= other) through += value;
    }
    double rest = left - (through - mine);
    int token = -1;
    for (int i = 0; i < kPerLane && token < 0; ++i) {
      rest -= weights[i];
      if (rest < 0) token = begin + i;
    }
    const unsigned found = __ballot_sync(~0u, token >= 0);
    if (found != 0) return __shfl_sync(~0u, token, __ffs(found) - 1);
    for (int other = 16; other > 0; other /= 2) {
      const float value = __shfl_xor_sync(~0u, best, other);
      const int theirs = __shfl_xor_sync(~0u, best_token, other);
      if (value > best || (value == best && theirs < best_token)) best = value, best_token = theirs;
    }
    return best_token;
  }

  // ---- With filters: Sampler::FilterCandidates and DrawFromCandidates.

  // exp((x - max) / temperature) as an integer.
  __device__ unsigned long long WeightOf(float logit, float max) const {
    return static_cast<unsigned long long>(expf((logit - max) / spec_.temperature) * kMassOne);
  }

  struct Selected {
    uint32_t key = 0;
    unsigned long long above = 0;  // measure of all larger keys
  };

  // The key at which the running measure of what is kept, largest keys first, reaches `target`, which is 1 to the measure of all.
  template <class Measure>
  __device__ Selected Select(const Kept& kept, Measure measure, unsigned long long target) {
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

  // What `kept` weighs.
  __device__ unsigned long long MassOf(const Kept& kept, float max) {
    if (threadIdx.x == 0) shared_.above = 0;
    __syncthreads();
    unsigned long long mass = 0;
    for (int i = threadIdx.x; i < vocab_; i += kThreads) {
      const uint32_t key = KeyOf(logits_[i]);
      if (key > kept.key || (key == kept.key && kept.ties == kAllTies)) mass += WeightOf(logits_[i], max);
    }
    for (int other = 16; other > 0; other /= 2) mass += __shfl_xor_sync(~0u, mass, other);
    if (threadIdx.x % 32 == 0) atomicAdd(&shared_.above, mass);
    __syncthreads();
    mass = shared_.above;
    __syncthreads();
    return kept.ties == kAllTies ? mass : mass + kept.ties * WeightOf(LogitOf(kept.key), max);
  }

  __device__ int DrawFiltered(float max) {
    const auto weight = [&](float logit) { return WeightOf(logit, max); };
    Kept kept;
    if (spec_.top_k > 0 && spec_.top_k < vocab_) {
      const unsigned long long k = static_cast<unsigned long long>(spec_.top_k);
      const Selected last = Select(
          kept, [](float) { return 1ull; }, k);
      kept = {last.key, static_cast<uint32_t>(k - last.above)};
    }
    if (spec_.top_p < 1) {
      // The fewest whose mass is at least that part of all.
      const double wanted = ceil(static_cast<double>(spec_.top_p) * static_cast<double>(MassOf(kept, max)));
      const Selected last = Select(kept, weight, wanted < 1 ? 1 : static_cast<unsigned long long>(wanted));
      const unsigned long long tie = WeightOf(LogitOf(last.key), max);
      const unsigned long long ties = CeilDiv(static_cast<unsigned long long>(wanted) - last.above, tie);
      kept = {last.key, static_cast<uint32_t>(ties)};
    }
    if (spec_.min_p > 0) {
      const uint32_t least = KeyOf(max + spec_.temperature * logf(spec_.min_p));
      if (least > kept.key) kept = {least, kAllTies};
    }
    const unsigned long long mass = MassOf(kept, max);
    const unsigned long long target = static_cast<unsigned long long>(Uniform() * static_cast<double>(mass)) + 1;
    const Selected drawn = Select(kept, weight, target < mass ? target : mass);
    const unsigned long long before = (target < mass ? target : mass) - 1 - drawn.above;
    return NthOf(drawn.key, static_cast<int>(before / WeightOf(LogitOf(drawn.key), max)));
  }

  // The id of the n-th token, from 0, whose key is `key`; the last one if there are fewer.
  __device__ int NthOf(uint32_t key, int n) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
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
    return shared_.token;
  }

  const float* const logits_;
  const int vocab_;
  const DrawSpec spec_;
  Shared& shared_;
};

__global__ void __launch_bounds__(kThreads) DrawKernel(const LogitRows logits, const DrawSpec* specs, DrawnToken* drawn) {
  __shared__ Shared shared;
  const DrawSpec spec = specs[blockIdx.x];
  if (spec.row < 0) return;
  const DrawnToken token = Drawer(logits.data + spec.row * logits.stride, logits.vocab, spec, shared).Draw();
  if (threadIdx.x == 0) drawn[blockIdx.x] = token;
}

__global__ void TakeDrawnKernel(const DrawnRow* rows, int count, const DrawnToken* drawn, int32_t* token_ids) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) token_ids[rows[i].row] = max(drawn[rows[i].draw].token, 0);
}

}  // namespace

Status LaunchDraw(const LogitRows& logits, const DrawSpec* specs, int32_t count, DrawnToken* drawn, cudaStream_t stream) {
  if (count == 0) return OkStatus();
  DrawKernel<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(logits, specs, drawn);
  return CudaStatus(cudaGetLastError(), "launching draws");
}

Status LaunchTakeDrawn(const DrawnRow* rows, int32_t count, const DrawnToken* drawn, int32_t* token_ids, cudaStream_t stream) {
  if (count == 0) return OkStatus();
  constexpr int kRowThreads = 128;
  TakeDrawnKernel<<<static_cast<unsigned>(CeilDiv(count, kRowThreads)), kRowThreads, 0, stream>>>(rows, count, drawn, token_ids);
  return CudaStatus(cudaGetLastError(), "launching the tokens of draws");
}

}  // namespace coppice::cuda
