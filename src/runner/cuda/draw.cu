#include "runner/cuda/draw.h"

#include <cuda_runtime.h>

#include "core/cuda/cuda_status.h"
#include "core/math.h"
#include "runner/cuda/adjusted_logits.cuh"
#include "runner/cuda/logit_row.cuh"
#include "runner/philox.h"

namespace coppice::cuda {
namespace {

// A CTA draws one token. Without filters it walks the vocabulary in the order of ids, block sums first, as Sampler::DrawFromAll.
// With them it finds the token in the order of probability without sorting: a radix selection over the logits' bits, digit by
// digit, of the place where the running mass (or count) passes a bound. Masses are integers, so that their sums do not depend on
// the order of additions, and a draw is the same in every run.
constexpr float kMassOne = 0x1p40f;  // the weight of the most probable token: 2^19 of them fit 64 bits, and e^-27 of it is not 0

struct TopToken {
  int token;
  float logit;
};

struct DrawShared {
  RowShared row;
  Adjustment adjustment;
  TopToken tops[kMaxContinuations];
  unsigned num_tops;
};

// A step whose draws ask for nothing but a token of an unchanged row, by temperature and filters, runs with as many threads as
// there are. All else takes more registers.
constexpr int kPlainThreads = 1024, kOtherThreads = 512;

// Draws from one row, which the parameters have adjusted.
template <class Logits, int kThreads>
class Drawer {
 public:
  using Row = LogitRow<Logits, kThreads>;
  static constexpr bool kIsPlain = kThreads == kPlainThreads;

  __device__ Drawer(Row& row, float max, const DrawSpec& spec, const DrawMemory& memory)
      : row_(row), max_(max), inverse_temperature_(1.0f / spec.temperature), spec_(spec), memory_(memory) {}

  // `summed`: the block sums of the weights at the temperature are there.
  __device__ int Draw(bool summed) {
    if (spec_.temperature == 0) return row_.NthOf(KeyOf(max_), 0);
    if constexpr (!kIsPlain) {
      if (spec_.distribution >= 0 || spec_.proposal >= 0) return DrawSpeculatively();
    }
    if (HasFilter()) return DrawFiltered();
    const auto weight = [&](int i) { return WeightOf(row_[i]); };
    if (!summed) row_.Sum(weight);
    return row_.Walk(weight, Uniform(RandomStream::kToken));
  }

  // Of what is drawn from: which tokens they are, and Sampler::Normaliser. Temperature 0 counts as 1.
  struct Processed {
    Kept kept;
    float temperature = 1;
    double log_sum = 0;
  };
  __device__ Processed Process() {
    Processed processed;
    if (spec_.temperature == 0) {
      processed.log_sum = log(row_.Sum([&](int i) { return expf(row_[i] - max_); }));
      return processed;
    }
    processed.temperature = spec_.temperature;
    if (HasFilter()) {
      processed.kept = Filter();
      const auto mass_of = [&](float logit) { return MassOf(logit); };
      processed.log_sum = log(static_cast<double>(row_.MeasureOf(processed.kept, mass_of)) / kMassOne);
    } else {
      processed.log_sum = log(row_.Sum([&](int i) { return WeightOf(row_[i]); }));
    }
    return processed;
  }

 private:
  __device__ bool HasFilter() const { return spec_.top_k > 0 || spec_.top_p < 1 || spec_.min_p > 0; }
  __device__ double Uniform(RandomStream stream) const { return UniformAt(spec_.seed, spec_.sample, spec_.position, stream); }
  __device__ float WeightOf(float logit) const { return expf((logit - max_) * inverse_temperature_); }
  // exp((x - max) / temperature) as an integer.
  __device__ unsigned long long MassOf(float logit) const {
    return static_cast<unsigned long long>(expf((logit - max_) / spec_.temperature) * kMassOne);
  }

  // Sampler::FilterCandidates: what top_k, top_p and min_p leave.
  __device__ Kept Filter() {
    const auto mass_of = [&](float logit) { return MassOf(logit); };
    Kept kept;
    if (spec_.top_k > 0 && spec_.top_k < row_.vocab()) {
      const unsigned long long k = static_cast<unsigned long long>(spec_.top_k);
      const auto last = row_.Select(
          kept, [](float) { return 1ull; }, k);
      kept = {last.key, static_cast<uint32_t>(k - last.above)};
    }
    if (spec_.top_p < 1) {
      // The fewest whose mass is at least that part of all.
      const double part = ceil(static_cast<double>(spec_.top_p) * static_cast<double>(row_.MeasureOf(kept, mass_of)));
      const unsigned long long wanted = part < 1 ? 1 : static_cast<unsigned long long>(part);
      const auto last = row_.Select(kept, mass_of, wanted);
      kept = {last.key, static_cast<uint32_t>(CeilDiv(wanted - last.above, MassOf(LogitOf(last.key))))};
    }
    if (spec_.min_p > 0) {
      const uint32_t least = KeyOf(max_ + spec_.temperature * logf(spec_.min_p));
      if (least > kept.key) kept = {least, kAllTies};
    }
    return kept;
  }

  // Sampler::DrawFromCandidates.
  __device__ int DrawFiltered() {
    const auto mass_of = [&](float logit) { return MassOf(logit); };
    const Kept kept = Filter();
    const unsigned long long mass = row_.MeasureOf(kept, mass_of);
    const double part = Uniform(RandomStream::kToken) * static_cast<double>(mass);
    const unsigned long long target = min(static_cast<unsigned long long>(part) + 1, mass);
    const auto drawn = row_.Select(kept, mass_of, target);
    return row_.NthOf(drawn.key, static_cast<int>((target - 1 - drawn.above) / MassOf(LogitOf(drawn.key))));
  }

  // Sampler::DrawSpeculatively.
  __device__ int DrawSpeculatively() {
    const Kept kept = HasFilter() ? Filter() : Kept{};
    const int last_tie = kept.ties == kAllTies ? INT32_MAX : row_.NthOf(kept.key, static_cast<int>(kept.ties) - 1);
    const auto weight = [&](int i) {
      const float logit = row_[i];
      const uint32_t key = KeyOf(logit);
      return key > kept.key || (key == kept.key && i <= last_tie) ? WeightOf(logit) : 0.0f;
    };
    const double inverse = 1 / row_.Sum(weight);
    const auto probability = [&](int i) { return static_cast<float>(weight(i) * inverse); };
    if (spec_.distribution >= 0) {
      float* const distribution = memory_.distributions + int64_t{spec_.distribution} * row_.vocab();
      for (int i = threadIdx.x; i < row_.vocab(); i += kThreads) distribution[i] = probability(i);
      return row_.Walk(weight, Uniform(RandomStream::kDraft));
    }
    const float* const proposal = memory_.distributions + int64_t{spec_.proposal} * row_.vocab();
    if (Uniform(RandomStream::kAcceptance) * proposal[spec_.draft] < probability(spec_.draft)) return spec_.draft;
    const auto residual = [&](int i) { return fmaxf(probability(i) - proposal[i], 0.0f); };
    row_.Sum(residual);
    const int token = row_.Walk(residual, Uniform(RandomStream::kResidual));
    return token < 0 ? spec_.draft : token;  // p equals q but for rounding
  }

  Row& row_;
  const float max_, inverse_temperature_;
  const DrawSpec& spec_;
  const DrawMemory& memory_;
};

static_assert(kMaxTopLogprobs <= kMaxContinuations && kMaxContinuations <= kOtherThreads);

// Of those kept whose logit is above `least`, the `wanted` largest: write(place, token) from place 0 on, largest first, of equals
// the lower id first; token -1 where there are fewer.
template <class Row, class Write>
__device__ void VisitTops(Row& row, const Kept& kept, float least, int wanted, DrawShared& shared, const Write& write) {
  constexpr int kThreads = kOtherThreads;
  const auto is_there = [&](float logit) { return logit > least ? 1ull : 0ull; };
  const int count = static_cast<int>(min(row.MeasureOf(kept, is_there), static_cast<unsigned long long>(wanted)));
  if (count == 0) {
    for (int t = threadIdx.x; t < wanted; t += kThreads) write(t, TopToken{-1, 0.0f});
    return;
  }
  const auto last = row.Select(kept, is_there, static_cast<unsigned long long>(count));
  const int last_tie = row.NthOf(last.key, count - static_cast<int>(last.above) - 1);
  if (threadIdx.x == 0) shared.num_tops = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < row.vocab(); i += kThreads) {
    const float logit = row[i];
    const uint32_t key = KeyOf(logit);
    if (key > last.key || (key == last.key && i <= last_tie)) shared.tops[atomicAdd(&shared.num_tops, 1u)] = {i, logit};
  }
  __syncthreads();
  const int t = static_cast<int>(threadIdx.x);
  if (t < count) {
    const TopToken mine = shared.tops[t];
    int before = 0;
    for (int other = 0; other < count; ++other) {
      const TopToken theirs = shared.tops[other];
      before += theirs.logit > mine.logit || (theirs.logit == mine.logit && theirs.token < mine.token);
    }
    write(before, mine);
  } else if (t < wanted) {
    write(t, TopToken{-1, 0.0f});
  }
}

// The tokens of tops: those kept whose logit is above `least`, with exp((logit - max) / temperature) / exp(log_sum).
struct TopsOf {
  Kept kept;
  float least = -INFINITY, max = 0, temperature = 1;
  double log_sum = 0;
};

// The most probable tokens of the row, most probable first, of equals the lower id.
template <class Row>
__device__ void WriteTops(Row& row, const TopsOf& of, int wanted, DrawShared& shared, TokenLogprob* tops) {
  VisitTops(row, of.kept, of.least, wanted, shared, [&](int place, const TopToken& top) {
    if (top.token < 0) {
      tops[place] = {-1, 0.0f};
    } else {
      tops[place] = {top.token, static_cast<float>((top.logit - of.max) / of.temperature - of.log_sum)};
    }
  });
}

// Log-probabilities at the temperature, but for what is equal in a row, with Gumbel noise: Sampler::ContinueStochastically.
template <class Logits>
struct NoisyLogits {
  static constexpr int kUnroll = 1;  // a token takes ten rounds of Philox
  Logits logits;
  float max, inverse_temperature;
  uint64_t seed;
  uint32_t sample, position;

  __device__ float operator[](int token) const {
    const float logit = logits[token];
    if (logit <= kBannedLogit) return -INFINITY;
    const PhiloxBlock block = GumbelBits(seed, sample, position, static_cast<uint32_t>(token) / 4);
    const uint32_t low = token % 2 == 0 ? block[0] : block[1], high = token % 2 == 0 ? block[2] : block[3];  // not by index: it
    const float uniform = (static_cast<float>(token % 4 < 2 ? low : high) + 0.5f) * 0x1p-32f;                // stays in registers
    return (logit - max) * inverse_temperature - logf(-log1pf(-uniform));
  }
};

// Sampler::Continue: the best continuations of a beam. `max` and `log_sum` are of the model's distribution.
template <class Logits, int kThreads>
__device__ void Continue(LogitRow<Logits, kThreads>& row, const Logits& logits, float max, double log_sum, const DrawSpec& spec,
                         const DrawMemory& memory, DrawShared& shared) {
  SelectedToken* const continuations = memory.continuations + spec.continuation_begin;
  if (!spec.stochastic) {
    VisitTops(row, Kept{}, kBannedLogit, spec.continuation_count, shared, [&](int place, const TopToken& top) {
      if (top.token < 0) {
        continuations[place] = SelectedToken{};
        return;
      }
      const float logprob = static_cast<float>(top.logit - max - log_sum);
      continuations[place] = {spec.beam, top.token, logprob, spec.beam_score + logprob};
    });
    return;
  }
  const float inverse = 1.0f / spec.temperature;
  const double log_mass = log(row.Sum([&](int i) {
    const float logit = logits[i];
    return logit <= kBannedLogit ? 0.0f : expf((logit - max) * inverse);
  }));
  const NoisyLogits<Logits> noisy_logits{logits, max, inverse, spec.seed, spec.sample, spec.position};
  LogitRow<NoisyLogits<Logits>, kThreads> noisy_row(noisy_logits, row.vocab(), shared.row);
  const double best = noisy_row.Max();
  VisitTops(noisy_row, Kept{}, -INFINITY, spec.continuation_count, shared, [&](int place, const TopToken& top) {
    if (top.token < 0) {
      continuations[place] = SelectedToken{};
      return;
    }
    const double noisy = spec.beam_score + top.logit - log_mass;
    const double gap = spec.beam_perturbed - noisy + log1p(-exp(top.logit - best));
    const double score = spec.beam_perturbed - fmax(0.0, gap) - log1p(exp(-fabs(gap)));
    const float logprob = static_cast<float>((logits[top.token] - max) * inverse - log_mass);
    continuations[place] = {spec.beam, top.token, logprob, static_cast<float>(score)};
  });
}

// Sampler::SetProcessed.
template <class Logits, int kThreads>
__device__ void WriteProcessed(LogitRow<Logits, kThreads>& row, float max, const DrawSpec& spec, const DrawMemory& memory,
                               DrawShared& shared, DrawnToken* drawn) {
  const auto processed = Drawer<Logits, kThreads>(row, max, spec, memory).Process();
  drawn->logprob = static_cast<float>((row[drawn->token] - max) / processed.temperature - processed.log_sum);
  if (spec.wants_rank) drawn->rank = row.RankOf(drawn->token);
  if (spec.top_count == 0) return;
  WriteTops(row, {processed.kept, kBannedLogit, max, processed.temperature, processed.log_sum}, spec.top_count, shared,
            memory.tops + spec.top_begin);
}

// Sampler::Sample.
template <int kThreads>
__device__ DrawnToken DrawRow(const float* logits, int vocab, const DrawSpec& spec, const DrawMemory& memory, DrawShared& shared) {
  constexpr bool kIsPlain = kThreads == kPlainThreads;
  LogitRow<PlainLogits, kThreads> model({logits}, vocab, shared.row);
  const float max = model.Max();
  const float scale = spec.temperature > 0 ? 1.0f / spec.temperature : 1.0f;
  const double sum = model.SumBlocks([&](int i, float* counted, float* walked) {
    const float distance = logits[i] - max;
    const float weight = expf(distance);
    *counted += weight;
    *walked += scale == 1.0f ? weight : expf(distance * scale);
  });
  if (!isfinite(max) || !isfinite(sum)) {
    for (int i = threadIdx.x; i < spec.top_count; i += kThreads) memory.tops[spec.top_begin + i] = {-1, 0.0f};
    for (int i = threadIdx.x; i < spec.continuation_count; i += kThreads)
      memory.continuations[spec.continuation_begin + i] = SelectedToken{};
    return {};
  }
  if constexpr (!kIsPlain) {
    if (spec.continuation_count > 0) {
      if (!Adjustment::IsNeeded(spec)) {
        Continue(model, PlainLogits{logits}, max, log(sum), spec, memory, shared);
      } else {
        if (threadIdx.x == 0) shared.adjustment = Adjustment::Of(spec, logits, memory);
        __syncthreads();
        LogitRow<AdjustedLogits, kThreads> adjusted({&shared.adjustment}, vocab, shared.row);
        Continue(adjusted, AdjustedLogits{&shared.adjustment}, max, log(sum), spec, memory, shared);
      }
      return {0, 0};
    }
  }
  DrawnToken drawn{kNothingAllowed, 0};
  if (kIsPlain || !Adjustment::IsNeeded(spec)) {
    drawn.token = Drawer<PlainLogits, kThreads>(model, max, spec, memory).Draw(/*summed=*/true);
    if constexpr (!kIsPlain) {
      if (spec.processed) {
        WriteProcessed(model, max, spec, memory, shared, &drawn);
        return drawn;
      }
    }
  } else if constexpr (!kIsPlain) {
    if (threadIdx.x == 0) shared.adjustment = Adjustment::Of(spec, logits, memory);
    __syncthreads();
    LogitRow<AdjustedLogits, kThreads> adjusted({&shared.adjustment}, vocab, shared.row);
    const float adjusted_max = adjusted.Max();
    if (adjusted_max > kBannedLogit)
      drawn.token = Drawer<AdjustedLogits, kThreads>(adjusted, adjusted_max, spec, memory).Draw(/*summed=*/false);
    if (spec.processed) {
      if (drawn.token >= 0) {
        WriteProcessed(adjusted, adjusted_max, spec, memory, shared, &drawn);
      } else {
        for (int i = threadIdx.x; i < spec.top_count; i += kThreads) memory.tops[spec.top_begin + i] = {-1, 0.0f};
      }
      return drawn;
    }
  }
  if (drawn.token >= 0) drawn.logprob = static_cast<float>(logits[drawn.token] - max - log(sum));
  if constexpr (!kIsPlain) {
    if (spec.wants_rank && drawn.token >= 0) drawn.rank = model.RankOf(drawn.token);
    if (spec.top_count > 0)
      WriteTops(model, {Kept{}, -INFINITY, max, 1.0f, log(sum)}, spec.top_count, shared, memory.tops + spec.top_begin);
  }
  return drawn;
}

// Null where it is not one of `logits`.
__device__ const float* RowOf(int row, const LogitMatrix& logits) {
  const int place = row - logits.first;
  return place >= 0 && place < logits.rows ? logits.data + place * logits.stride : nullptr;
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, /*min CTAs an SM=*/1)
    DrawKernel(const LogitMatrix logits, const DrawMemory memory, const DrawSpec* specs, DrawnToken* drawn) {
  __shared__ DrawShared shared;
  const DrawSpec& spec = specs[blockIdx.x];
  const float* const row = RowOf(spec.row, logits);
  if (row == nullptr) return;
  const DrawnToken token = DrawRow<kThreads>(row, logits.vocab, spec, memory, shared);
  if (threadIdx.x == 0) drawn[blockIdx.x] = token;
}

// Scores of continuations in a row, as if they were logits.
struct ContinuationScores {
  static constexpr int kUnroll = 8;
  const SelectedToken* continuations;
  __device__ float operator[](int i) const { return continuations[i].beam < 0 ? -INFINITY : continuations[i].score; }
};

// BatchSampler::Select: a CTA a selection.
__global__ void __launch_bounds__(kPlainThreads)
    SelectKernel(const SelectedToken* continuations, const SelectSpec* specs, SelectedToken* selected) {
  __shared__ RowShared shared;
  __shared__ TopToken found[kMaxSelected];
  __shared__ unsigned num_found;
  const SelectSpec spec = specs[blockIdx.x];
  const SelectedToken* const all = continuations + spec.begin;
  LogitRow<ContinuationScores, kPlainThreads> row({all}, spec.count, shared);
  const auto is_there = [](float score) { return score > -INFINITY ? 1ull : 0ull; };
  const int count = static_cast<int>(min(row.MeasureOf(Kept{}, is_there), static_cast<unsigned long long>(spec.wanted)));
  SelectedToken* const best = selected + spec.selected_begin;
  for (int place = count + static_cast<int>(threadIdx.x); place < spec.wanted; place += kPlainThreads)
    best[place] = SelectedToken{};
  if (count == 0) return;
  const auto last = row.Select(Kept{}, is_there, static_cast<unsigned long long>(count));
  const int last_tie = row.NthOf(last.key, count - static_cast<int>(last.above) - 1);
  if (threadIdx.x == 0) num_found = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < spec.count; i += kPlainThreads) {
    const float score = row[i];
    const uint32_t key = KeyOf(score);
    if (key > last.key || (key == last.key && i <= last_tie)) found[atomicAdd(&num_found, 1u)] = {i, score};
  }
  __syncthreads();
  for (int t = threadIdx.x; t < count; t += kPlainThreads) {
    const TopToken mine = found[t];
    int before = 0;
    for (int other = 0; other < count; ++other) {
      const TopToken theirs = found[other];
      before += theirs.logit > mine.logit || (theirs.logit == mine.logit && theirs.token < mine.token);
    }
    best[before] = all[mine.token];
  }
}

// Sampler::Score.
__global__ void __launch_bounds__(kPlainThreads) ScoreKernel(const LogitMatrix logits, const ScoreSpec* specs, TokenScore* scores) {
  __shared__ RowShared shared;
  const ScoreSpec spec = specs[blockIdx.x];
  const float* const values = RowOf(spec.row, logits);
  if (values == nullptr) return;
  LogitRow<PlainLogits, kPlainThreads> row({values}, logits.vocab, shared);
  const float max = row.Max();
  const float inverse = 1.0f / spec.temperature;
  const double sum = row.Sum([&](int i) { return expf((values[i] - max) * inverse); });
  const int rank = spec.wants_rank && isfinite(max) && isfinite(sum) ? row.RankOf(spec.token) : 0;
  if (threadIdx.x == 0) scores[blockIdx.x] = {static_cast<float>((values[spec.token] - max) / spec.temperature - log(sum)), rank};
}

__global__ void TakeDrawnKernel(const DrawnRow* rows, int count, const DrawnToken* drawn, int32_t* token_ids) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) token_ids[rows[i].row] = max(drawn[rows[i].draw].token, 0);
}

}  // namespace

Status LaunchDraw(const LogitMatrix& logits, const DrawMemory& memory, const DrawSpec* specs, int32_t count, bool plain,
                  DrawnToken* drawn, cudaStream_t stream) {
  if (count == 0) return OkStatus();
  if (plain) {
    DrawKernel<kPlainThreads><<<static_cast<unsigned>(count), kPlainThreads, 0, stream>>>(logits, memory, specs, drawn);
  } else {
    DrawKernel<kOtherThreads><<<static_cast<unsigned>(count), kOtherThreads, 0, stream>>>(logits, memory, specs, drawn);
  }
  return CudaStatus(cudaGetLastError(), "launching draws");
}

Status LaunchSelect(const SelectedToken* continuations, const SelectSpec* specs, int32_t count, SelectedToken* selected,
                    cudaStream_t stream) {
  if (count == 0) return OkStatus();
  SelectKernel<<<static_cast<unsigned>(count), kPlainThreads, 0, stream>>>(continuations, specs, selected);
  return CudaStatus(cudaGetLastError(), "launching selections");
}

Status LaunchScore(const LogitMatrix& logits, const ScoreSpec* specs, int32_t count, TokenScore* scores, cudaStream_t stream) {
  if (count == 0) return OkStatus();
  ScoreKernel<<<static_cast<unsigned>(count), kPlainThreads, 0, stream>>>(logits, specs, scores);
  return CudaStatus(cudaGetLastError(), "launching scores");
}

Status LaunchTakeDrawn(const DrawnRow* rows, int32_t count, const DrawnToken* drawn, int32_t* token_ids, cudaStream_t stream) {
  if (count == 0) return OkStatus();
  constexpr int kRowThreads = 128;
  TakeDrawnKernel<<<static_cast<unsigned>(CeilDiv(count, kRowThreads)), kRowThreads, 0, stream>>>(rows, count, drawn, token_ids);
  return CudaStatus(cudaGetLastError(), "launching the tokens of draws");
}

}  // namespace coppice::cuda
