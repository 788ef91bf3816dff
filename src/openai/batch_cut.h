// How a batch is divided among machines: parts of about equal predicted time, cut where the requests on both sides have least in
// common, so that a prefix is computed by one machine wherever time allows. Layer: openai.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace coppice::openai {

// Requests of a batch, sorted by the tokens of their prompts.
struct SortedRequests {
  size_t count = 0;
  std::function<std::span<const int32_t>(size_t)> prompt;
  std::function<int64_t(size_t)> output_tokens;  // of all its samples at most
};

// Requests [begin, end), and what a machine that has them alone computes.
struct BatchPart {
  size_t begin = 0, end = 0;
  int64_t prompt_tokens = 0;  // without those that a request shares with the one before it
  int64_t output_tokens = 0;
};

// `parts` of them at most, in order; none is empty. The longest one takes as little time as parts that are ranges can, and at most
// a twentieth more where this cuts at a higher level of the prompts' tree. Salts are not looked at: they make no difference but to
// the prediction. Logarithmic in the time of the whole batch, else linear in the prompts' tokens. REQUIRES: parts > 0.
std::vector<BatchPart> CutBatch(const SortedRequests& requests, size_t parts);

}  // namespace coppice::openai
