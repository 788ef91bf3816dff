#include "engine/kept_scores.h"

#include <limits>
#include <span>

namespace coppice {
namespace {

// Whether a score is of the prompt's own token, which the cache knows.
bool IsOfPrompt(const RequestState& request, const PromptScore& wanted) {
  return wanted.position + 1 < request.prompt_length() && request.params.prompt_ids[wanted.position + 1] == wanted.token;
}

// The fields of a score that a request wants of each token.
TokenScore WantedOf(const PromptScores& scores) {
  return {.temperature = scores.temperature, .top_token = scores.num_top > 0 ? 0 : -1, .rank = scores.ranks.empty() ? 0 : 1};
}

void Take(const TokenScore& score, size_t i, PromptScores* scores) {
  scores->logprobs[i] = score.logprob;
  if (!scores->ranks.empty()) scores->ranks[i] = score.rank;
  if (scores->num_top > 0) scores->top[i] = {.token = score.top_token, .logprob = score.top_logprob};
}

}  // namespace

std::optional<int32_t> KeptScores::Find(Sequence* sequence, const KvCache& cache) {
  RequestState& request = *sequence->request;
  PromptScores& scores = request.scores;
  const int32_t first = scores.wanted.front().position;
  if (scores.num_top > 1) return first;  // one alternative is kept
  const int32_t begin = first + 1;       // the token that the first score is of
  const KvCache::Overlap overlap = cache.FindOverlap(request.params.prompt_ids, SaltOf(*sequence), &sequence->found);
  if (overlap.cached <= begin) return first;
  if (overlap.ready < overlap.cached) return std::nullopt;
  scores_.assign(static_cast<size_t>(overlap.cached - begin), TokenScore());
  cache.tree().CopyScores(sequence->found.node, begin, scores_);
  const TokenScore wanted = WantedOf(scores);
  for (size_t i = 0; i < scores.wanted.size(); ++i) {
    const PromptScore& one = scores.wanted[i];
    const bool is_cached = one.position + 1 < overlap.cached && IsOfPrompt(request, one);
    if (!is_cached || !scores_[one.position + 1 - begin].Covers(wanted)) return one.position;
    Take(scores_[one.position + 1 - begin], i, &scores);
  }
  return std::numeric_limits<int32_t>::max();
}

void KeptScores::Keep(const Sequence& sequence, int32_t first, int32_t count, KvCache* cache) {
  if (sequence.branch == kNoBranch) return;
  const PromptScores& scores = sequence.request->scores;
  const auto wanted = std::span(scores.wanted).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  const int32_t begin = wanted.front().position + 1;
  scores_.assign(static_cast<size_t>(wanted.back().position + 2 - begin), TokenScore());
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!IsOfPrompt(*sequence.request, wanted[i])) continue;
    const size_t place = static_cast<size_t>(first) + i;
    TokenScore& score = scores_[wanted[i].position + 1 - begin];
    score = {.logprob = scores.logprobs[place], .temperature = scores.temperature};
    if (!scores.ranks.empty()) score.rank = scores.ranks[place];
    if (scores.num_top == 0) continue;
    const TokenLogprob& top = scores.top[place * static_cast<size_t>(scores.num_top)];
    score.top_token = top.token;
    score.top_logprob = top.logprob;
  }
  cache->KeepScores(sequence.branch, begin, scores_);
}

}  // namespace coppice
