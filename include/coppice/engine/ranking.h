// Choosing among the finished samples of one prompt: ranking by mean log-probability, duplicates left out (Bifurcated
// Attention 5.4, pass@top3), and the majority vote over extracted answers (self-consistency; Wang et al. 2023). Pure functions of
// what the engine has said; they generate nothing. Layer: public API of coppice::engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"

namespace coppice {

// A finished sample. Its tokens' log-probabilities are those of StreamEvent: natural logarithm, of the model's own distribution.
struct RankedSample {
  std::string_view text;               // empty without a tokenizer
  std::span<const int32_t> token_ids;  // [tokens]
  std::span<const float> logprobs;     // [tokens]
};

// Mean log-probability of a sample's tokens; absent when there is none.
std::optional<double> MeanLogprob(std::span<const float> logprobs);

// Indices into `samples`, highest mean log-probability first; ties and samples without tokens in their own order, the latter last.
std::vector<int32_t> RankByMeanLogprob(std::span<const RankedSample> samples);

// Keeps the first of each run of equal samples in `order`: equal texts, or equal token ids where there is no text.
std::vector<int32_t> WithoutDuplicates(std::span<const RankedSample> samples, std::span<const int32_t> order);

// best_of: the indices of the n best of `samples`, without duplicates if `deduplicate`. Fewer if there are not so many.
std::vector<int32_t> BestOf(std::span<const RankedSample> samples, int32_t n, bool deduplicate);

// The answer of a text: the first group of the last match of `pattern` (PCRE2, Unicode), or the whole match where the
// pattern has no group, without surrounding white space. The last match, because a chain of thought ends in its answer. Absent
// without a match. INVALID_ARGUMENT for a pattern that does not compile, or that exceeds its match limit on this text.
Result<std::optional<std::string>> ExtractAnswer(std::string_view text, std::string_view pattern);

struct VotedAnswer {
  std::string answer;
  std::vector<int32_t> voters;         // indices of the samples that gave it, ascending
  std::optional<double> mean_logprob;  // of the best of its voters
};
// Answers of all samples by number of voters, most first; ties by the best voter's mean log-probability. Samples without an answer
// do not vote. Errors as ExtractAnswer.
Result<std::vector<VotedAnswer>> MajorityVote(std::span<const RankedSample> samples, std::string_view pattern);

}  // namespace coppice
