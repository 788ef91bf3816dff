#include "runner/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "core/check.h"
#include "ops/logit_scan.h"
#include "runner/philox.h"

namespace coppice {
namespace {

using ops::kLogitBlock, ops::NumLogitBlocks, ops::ScanExps, ops::ScanExpSums, ops::ScanMaxima;

// Takes the place of -infinity: sums over it stay finite.
constexpr float kBannedLogit = std::numeric_limits<float>::lowest();

bool NeedsAdjustment(const SampleTask& task) {
  const SamplingParams& p = *task.params;
  return p.presence_penalty != 0 || p.frequency_penalty != 0 || p.repetition_penalty != 1 || !p.logit_bias.empty() ||
         !task.banned.empty() || !task.mask.empty();
}

bool HasFilter(const SamplingParams& params) { return params.top_k > 0 || params.top_p < 1 || params.min_p > 0; }

// Whether what is drawn from, with temperature 0 as 1, is another distribution than the model's.
bool IsProcessed(const SampleTask& task) {
  const SamplingParams& p = *task.params;
  return NeedsAdjustment(task) || (p.temperature != 0 && (p.temperature != 1 || HasFilter(p)));
}

double CandidateWeight(float logit, float max, float temperature) {
  return std::exp(static_cast<double>((logit - max) / temperature));
}

// The token at which the running sum of `weights` passes `uniform` of their total; -1 if they are all zero.
int32_t DrawFromWeights(std::span<const float> weights, double uniform) {
  double total = 0;
  for (const float weight : weights) total += weight;
  double left = uniform * total;
  int32_t largest = -1;  // should rounding carry the walk past the end
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    left -= weights[i];
    if (left < 0) return static_cast<int32_t>(i);
    if (largest < 0 || weights[i] > weights[largest]) largest = static_cast<int32_t>(i);
  }
  return largest;
}

// The first entry that equals the maximum.
int32_t ArgMax(std::span<const float> logits, std::span<const float> maxima, float max) {
  const auto block = std::find(maxima.begin(), maxima.end(), max) - maxima.begin();
  return static_cast<int32_t>(std::find(logits.begin() + block * kLogitBlock, logits.end(), max) - logits.begin());
}

// From 1 on: how many tokens are before it in the order of probability, of equals those of lower ids.
int32_t RankOf(std::span<const float> logits, int32_t token) {
  const float logit = logits[token];
  int32_t rank = 1;
  for (const float other : logits) rank += other > logit;
  for (const float other : logits.first(token)) rank += other == logit;
  return rank;
}

}  // namespace

Sampler::Sampler(Executor* executor, int32_t vocab_size) : executor_(executor), scratch_(executor->num_workers()) {
  for (Scratch& scratch : scratch_) {
    scratch.adjusted.resize(vocab_size);
    scratch.maxima.resize(NumLogitBlocks(vocab_size));
    scratch.sums.resize(NumLogitBlocks(vocab_size));
    scratch.order.resize(NumLogitBlocks(vocab_size));
    scratch.distribution.resize(vocab_size);
  }
}

void Sampler::Run(std::span<const SampleTask> samples, std::span<const ScoreTask> scores, std::span<const BeamTask> beams) {
  const int64_t num_samples = std::ssize(samples), num_scores = std::ssize(scores);
  executor_->ParallelFor(num_samples + num_scores + std::ssize(beams), [&](int64_t i, int worker) {
    if (i < num_samples) {
      Sample(samples[i], scratch_[worker]);
    } else if (i < num_samples + num_scores) {
      Score(scores[i - num_samples], scratch_[worker]);
    } else {
      Continue(beams[i - num_samples - num_scores], scratch_[worker]);
    }
  });
}

void Sampler::Continue(const BeamTask& task, Scratch& scratch) {
  const float max = ScanMaxima(task.logits, scratch.maxima);
  const double sum = ScanExpSums(task.logits, max, 1.0f, scratch.sums);
  if (!std::isfinite(max) || !std::isfinite(sum)) return;
  task.draw->token = 0;
  if (task.stochastic) return ContinueStochastically(task, max, scratch);
  const Normaliser normaliser = {.max = max, .log_sum = std::log(sum)};
  CollectTop(task.logits, task.best.size() + task.banned.size(), scratch);
  std::vector<Candidate>& candidates = scratch.candidates;
  std::erase_if(candidates, [&](const Candidate& candidate) {
    return !std::isfinite(candidate.logit) || std::ranges::find(task.banned, candidate.token) != task.banned.end();
  });
  const size_t count = std::min(task.best.size(), candidates.size());
  if (count < candidates.size())
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count), candidates.end(), Before);
  for (size_t i = 0; i < count; ++i) {
    const float logprob = normaliser.LogprobOf(candidates[i].logit);
    task.best[i] = {.beam = task.index, .token = candidates[i].token, .logprob = logprob, .score = task.beam.score + logprob};
  }
}

// Log-probabilities plus Gumbel noise are in the order of races, weight / E with an exponential E; only those in front need its
// logarithm. Their scores keep that order, under the condition that the best one has the beam's own score.
void Sampler::ContinueStochastically(const BeamTask& task, float max, Scratch& scratch) {
  std::vector<float>& weights = scratch.distribution;
  double sum = ScanExps(task.logits, max, 1.0f / task.params->temperature, weights);
  for (const int32_t token : task.banned) sum -= std::exchange(weights[token], 0.0f);
  const size_t count = std::min(task.best.size(), weights.size());
  std::vector<std::pair<double, int32_t>>& races = scratch.races;  // a heap, the slowest on top
  races.clear();
  const auto is_faster = [](const auto& a, const auto& b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
  };
  for (size_t token = 0; token < weights.size(); token += 4) {
    const PhiloxBlock bits = GumbelBits(task.params->seed, task.draw->sample, task.position, static_cast<uint32_t>(token / 4));
    for (size_t i = 0; i < 4 && token + i < weights.size(); ++i) {
      const double weight = weights[token + i], uniform = (bits[i] + 0.5) * 0x1p-32;  // E >= uniform
      if (weight <= 0 || (races.size() == count && weight < races.front().first * uniform)) continue;
      const std::pair<double, int32_t> race(weight / -std::log1p(-uniform), static_cast<int32_t>(token + i));
      if (races.size() == count) {
        if (!is_faster(race, races.front())) continue;
        std::ranges::pop_heap(races, is_faster);
        races.back() = race;
      } else {
        races.push_back(race);
      }
      std::ranges::push_heap(races, is_faster);
    }
  }
  if (races.empty()) return;
  const double best = std::log(std::ranges::max(races).first);
  for (size_t i = 0; i < races.size(); ++i) {
    const auto& [race, token] = races[i];
    const double behind = std::log(race) - best, log_sum = std::log(sum);  // of the noisy log-probability, at most 0
    const double noisy = task.beam.score + std::log(race) - log_sum;
    const double gap = task.beam.perturbed - noisy + std::log1p(-std::exp(behind));
    const double score = task.beam.perturbed - std::max(0.0, gap) - std::log1p(std::exp(-std::abs(gap)));
    const double logprob = (task.logits[token] - max) / task.params->temperature - log_sum;
    task.best[i] = {.beam = task.index, .token = token, .logprob = static_cast<float>(logprob), .score = static_cast<float>(score)};
  }
}

void Sampler::Score(const ScoreTask& task, Scratch& scratch) {
  const float temperature = task.scores.empty() ? 1.0f : task.scores.front().temperature;
  const float max = ScanMaxima(task.logits, scratch.maxima);
  const double sum = ScanExpSums(task.logits, max, 1.0f / temperature, scratch.sums);
  const Normaliser normaliser = {.max = max, .temperature = temperature, .log_sum = std::log(sum)};
  for (size_t i = 0; i < task.scores.size(); ++i) task.logprobs[i] = normaliser.LogprobOf(task.logits[task.scores[i].token]);
  if (!std::isfinite(max) || !std::isfinite(sum)) {
    std::ranges::fill(task.top_logprobs, TokenLogprob{});
    return;
  }
  for (size_t i = 0; i < task.scores.size(); ++i) {
    if (task.scores[i].wants_rank) task.ranks[i] = RankOf(task.logits, task.scores[i].token);
  }
  if (!task.top_logprobs.empty()) FillTopLogprobs(task.logits, normaliser, scratch, task.top_logprobs);
}

void Sampler::Sample(const SampleTask& task, Scratch& scratch) {
  const SamplingParams& params = *task.params;
  const float model_max = ScanMaxima(task.logits, scratch.maxima);
  const double model_sum = ScanExpSums(task.logits, model_max, 1.0f, scratch.sums);
  if (!std::isfinite(model_max) || !std::isfinite(model_sum)) {
    for (TokenDraw& draw : task.draws) draw = {.sample = draw.sample};
    std::ranges::fill(task.top_logprobs, TokenLogprob{});
    return;
  }
  const bool processed = params.logprobs_mode == LogprobsMode::kProcessed && IsProcessed(task);
  const Normaliser of_model = {.max = model_max, .log_sum = std::log(model_sum)};
  if (!task.top_logprobs.empty() && !processed) FillTopLogprobs(task.logits, of_model, scratch, task.top_logprobs);
  std::span<const float> logits = task.logits;
  float max = model_max;
  const bool adjusted = NeedsAdjustment(task);
  if (adjusted) {
    logits = Adjust(task, scratch);
    max = ScanMaxima(logits, scratch.maxima);
    if (max == kBannedLogit) {
      for (TokenDraw& draw : task.draws) draw.token = kNothingAllowed;
      return;
    }
  }
  std::optional<double> mass;
  if (params.temperature == 0) {
    const int32_t token = ArgMax(logits, scratch.maxima, max);
    for (TokenDraw& draw : task.draws) draw.token = token;
  } else if (!task.distribution.empty() || !task.proposal.empty()) {
    DrawSpeculatively(task, logits, max, scratch);
  } else if (HasFilter(params)) {
    mass = DrawFromCandidates(task, logits, max, scratch);
  } else {
    if (adjusted || params.temperature != 1) ScanExpSums(logits, max, 1.0f / params.temperature, scratch.sums);
    mass = DrawFromAll(task, logits, max, scratch);
  }
  if (processed) return SetProcessed(task, logits, max, mass, scratch);
  for (TokenDraw& draw : task.draws) {
    draw.logprob = of_model.LogprobOf(task.logits[draw.token]);
    if (task.wants_rank) draw.rank = RankOf(task.logits, draw.token);
  }
}

void Sampler::SetProcessed(const SampleTask& task, std::span<const float> logits, float max, std::optional<double> mass,
                           Scratch& scratch) {
  const SamplingParams& params = *task.params;
  const bool filtered = params.temperature > 0 && HasFilter(params);
  Normaliser normaliser = {.max = max, .temperature = params.temperature > 0 ? params.temperature : 1.0f};
  if (!mass) {
    mass = filtered ? FilterCandidates(params, logits, max, scratch)
                    : ScanExpSums(logits, max, 1.0f / normaliser.temperature, scratch.sums);
  }
  normaliser.log_sum = std::log(*mass);
  for (TokenDraw& draw : task.draws) {
    draw.logprob = normaliser.LogprobOf(logits[draw.token]);
    if (task.wants_rank) draw.rank = RankOf(logits, draw.token);
  }
  if (task.top_logprobs.empty()) return;
  if (filtered) {
    WriteCandidates(normaliser, scratch, task.top_logprobs);
  } else {
    FillTopLogprobs(logits, normaliser, scratch, task.top_logprobs);
  }
}

std::span<const float> Sampler::Adjust(const SampleTask& task, Scratch& scratch) {
  const SamplingParams& params = *task.params;
  std::vector<float>& logits = scratch.adjusted;
  std::copy(task.logits.begin(), task.logits.end(), logits.begin());
  const auto repeat = [&](int32_t token) {
    logits[token] = logits[token] > 0 ? logits[token] / params.repetition_penalty : logits[token] * params.repetition_penalty;
  };
  const bool repeats = params.repetition_penalty != 1;
  if (repeats && task.prompt) {
    for (const TokenCounts::Entry& entry : task.prompt->entries()) repeat(entry.token);
  }
  if (task.generated) {
    for (const TokenCounts::Entry& entry : task.generated->entries()) {
      if (repeats && !entry.in_prompt) repeat(entry.token);
      logits[entry.token] -= params.presence_penalty + params.frequency_penalty * static_cast<float>(entry.count);
    }
  }
  for (size_t i = 0; i < task.drafted.size(); ++i) {  // few
    const int32_t token = task.drafted[i];
    const bool is_generated = (task.generated && task.generated->Contains(token)) ||
                              std::find(task.drafted.begin(), task.drafted.begin() + i, token) != task.drafted.begin() + i;
    if (!is_generated) {
      if (repeats && !(task.prompt && task.prompt->Contains(token))) repeat(token);
      logits[token] -= params.presence_penalty;
    }
    logits[token] -= params.frequency_penalty;
  }
  for (const auto& [token, bias] : params.logit_bias) logits[token] = std::max(logits[token] + bias, kBannedLogit);
  for (const int32_t token : task.banned) logits[token] = kBannedLogit;
  if (!task.mask.empty()) {
    for (size_t token = 0; token < logits.size(); ++token) {
      if ((task.mask[token / 32] >> token % 32 & 1) == 0) logits[token] = kBannedLogit;
    }
  }
  return logits;
}

// Inverse transform sampling: a prefix walk over block sums finds the block, a walk inside finds the token.
double Sampler::DrawFromAll(const SampleTask& task, std::span<const float> logits, float max, Scratch& scratch) {
  const float scale = 1.0f / task.params->temperature;
  double total = 0;
  for (const float sum : scratch.sums) total += sum;
  for (TokenDraw& draw : task.draws) {
    double left = UniformAt(task.params->seed, draw.sample, task.position) * total;
    size_t block = 0, last_block = 0;
    for (; block < scratch.sums.size() && left >= scratch.sums[block]; ++block) {
      if (scratch.sums[block] > 0) last_block = block;
      left -= scratch.sums[block];
    }
    if (block == scratch.sums.size()) block = last_block;  // rounding carried it past the end
    const size_t end = std::min(logits.size(), (block + 1) * static_cast<size_t>(kLogitBlock));
    for (size_t i = block * kLogitBlock; i < end; ++i) {
      const double weight = std::exp(static_cast<double>((logits[i] - max) * scale));
      left -= weight;
      if (weight > 0) draw.token = static_cast<int32_t>(i);  // the last one, should rounding carry the walk past the block's end
      if (left < 0) break;
    }
  }
  return total;
}

void Sampler::CollectAtLeast(std::span<const float> logits, float threshold, Scratch& scratch) {
  scratch.candidates.clear();
  for (size_t block = 0; block < scratch.maxima.size(); ++block) {
    if (scratch.maxima[block] < threshold) continue;
    const size_t end = std::min(logits.size(), (block + 1) * static_cast<size_t>(kLogitBlock));
    for (size_t i = block * kLogitBlock; i < end; ++i) {
      if (logits[i] >= threshold) scratch.candidates.push_back({logits[i], static_cast<int32_t>(i)});
    }
  }
}

void Sampler::CollectTop(std::span<const float> logits, size_t k, Scratch& scratch) {
  std::vector<Candidate>& candidates = scratch.candidates;
  // The k-th largest block maximum is at most the k-th largest logit: nothing below it can be among the top k.
  float bound = std::numeric_limits<float>::lowest();
  if (k <= scratch.maxima.size()) {
    std::vector<float>& order = scratch.order;
    std::copy(scratch.maxima.begin(), scratch.maxima.end(), order.begin());
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<>());
    bound = order[k - 1];
  }
  CollectAtLeast(logits, bound, scratch);
  if (candidates.size() > k) {
    std::nth_element(candidates.begin(), candidates.begin() + (k - 1), candidates.end(), Before);
    candidates.resize(k);
  }
}

void Sampler::FillTopLogprobs(std::span<const float> logits, const Normaliser& normaliser, Scratch& scratch,
                              std::span<TokenLogprob> top) {
  std::vector<Candidate>& candidates = scratch.candidates;
  CollectTop(logits, top.size(), scratch);
  std::sort(candidates.begin(), candidates.end(), Before);
  WriteCandidates(normaliser, scratch, top);
}

void Sampler::WriteCandidates(const Normaliser& normaliser, const Scratch& scratch, std::span<TokenLogprob> top) {
  std::ranges::fill(top, TokenLogprob{});  // where logits are -infinity, banned or filtered out there may be fewer
  const size_t count = std::min(top.size(), scratch.candidates.size());
  for (size_t i = 0; i < count; ++i) {
    const Candidate& candidate = scratch.candidates[i];
    if (candidate.logit <= kBannedLogit) break;
    top[i] = {.token = candidate.token, .logprob = normaliser.LogprobOf(candidate.logit)};
  }
}

double Sampler::FilterCandidates(const SamplingParams& params, std::span<const float> logits, float max, Scratch& scratch) {
  std::vector<Candidate>& candidates = scratch.candidates;
  const auto weight = [&](float logit) { return CandidateWeight(logit, max, params.temperature); };
  constexpr float kEverything = std::numeric_limits<float>::lowest();
  const size_t k = params.top_k > 0 ? std::min<size_t>(params.top_k, logits.size()) : logits.size();
  // min_p against the largest probability is a threshold on logits, whatever the other filters leave.
  const float min_p_logit = params.min_p > 0 ? max + params.temperature * std::log(params.min_p) : kEverything;

  if (params.top_k > 0) {
    CollectTop(logits, k, scratch);
  } else if (params.top_p < 1) {
    // Everything within `depth` of the maximum, deeper until the mass is there; the tail is never sorted.
    const double wanted = params.top_p * ScanExpSums(logits, max, 1.0f / params.temperature, scratch.sums);
    for (float depth = 4.0f;; depth *= 2) {
      const bool is_last = depth > 100.0f;  // e^-100: nothing is left below
      CollectAtLeast(logits, is_last ? kEverything : max - depth * params.temperature, scratch);
      double mass = 0;
      for (const Candidate& candidate : candidates) mass += weight(candidate.logit);
      if (mass >= wanted * (1 + 1e-5) || is_last) break;  // a margin over the rounding of the two ways to sum
    }
  } else {
    CollectAtLeast(logits, min_p_logit, scratch);
  }
  std::sort(candidates.begin(), candidates.end(), Before);

  double mass = 0;
  if (params.top_p < 1) {
    double wanted = 0;
    if (params.top_k > 0) {
      for (const Candidate& candidate : candidates) wanted += weight(candidate.logit);
    } else {
      for (const float sum : scratch.sums) wanted += sum;
    }
    wanted *= params.top_p;
    size_t keep = 0;
    while (keep < candidates.size() && (keep == 0 || mass < wanted)) mass += weight(candidates[keep++].logit);
    candidates.resize(keep);
  }
  while (candidates.size() > 1 && candidates.back().logit < min_p_logit) candidates.pop_back();
  mass = 0;
  for (const Candidate& candidate : candidates) mass += weight(candidate.logit);

  return mass;
}

double Sampler::DrawFromCandidates(const SampleTask& task, std::span<const float> logits, float max, Scratch& scratch) {
  const double mass = FilterCandidates(*task.params, logits, max, scratch);
  for (TokenDraw& draw : task.draws) {
    double left = UniformAt(task.params->seed, draw.sample, task.position) * mass;
    draw.token = scratch.candidates.front().token;  // should rounding carry the walk past the end
    for (const Candidate& candidate : scratch.candidates) {
      left -= CandidateWeight(candidate.logit, max, task.params->temperature);
      if (left < 0) {
        draw.token = candidate.token;
        break;
      }
    }
  }
  return mass;
}

void Sampler::FillDistribution(const SamplingParams& params, std::span<const float> logits, float max, Scratch& scratch,
                               std::span<float> distribution) {
  if (HasFilter(params)) {
    const double mass = FilterCandidates(params, logits, max, scratch);
    std::ranges::fill(distribution, 0.0f);
    for (const Candidate& candidate : scratch.candidates) {
      distribution[candidate.token] = static_cast<float>(CandidateWeight(candidate.logit, max, params.temperature) / mass);
    }
    return;
  }
  const double inverse_sum = 1 / ScanExps(logits, max, 1.0f / params.temperature, distribution);
  for (float& weight : distribution) weight *= static_cast<float>(inverse_sum);
}

void Sampler::DrawSpeculatively(const SampleTask& task, std::span<const float> logits, float max, Scratch& scratch) {
  COPPICE_DCHECK(task.draws.size() == 1);
  TokenDraw& draw = task.draws.front();
  const auto uniform = [&](RandomStream stream) { return UniformAt(task.params->seed, draw.sample, task.position, stream); };
  if (!task.distribution.empty()) {
    FillDistribution(*task.params, logits, max, scratch, task.distribution);
    draw.token = DrawFromWeights(task.distribution, uniform(RandomStream::kDraft));
    return;
  }
  const std::span<float> p = scratch.distribution;
  FillDistribution(*task.params, logits, max, scratch, p);
  if (uniform(RandomStream::kAcceptance) * task.proposal[task.draft] < p[task.draft]) {
    draw.token = task.draft;
    return;
  }
  for (size_t i = 0; i < p.size(); ++i) p[i] = std::max(p[i] - task.proposal[i], 0.0f);
  draw.token = DrawFromWeights(p, uniform(RandomStream::kResidual));
  if (draw.token < 0) draw.token = task.draft;  // p equals q but for rounding
}

}  // namespace coppice
