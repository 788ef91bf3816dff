// Two programs' log-probabilities of the same tokens, side by side: how far they are apart, and what that says of the two
// distributions. Reads JSON lines and knows no models. Layer: cli.
// The estimates k1 and k3: J. Schulman, "Approximating KL Divergence", 2020; docs/trainers.md, "Parity".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::cli {

// Log-probabilities of a sequence's tokens, natural logarithms; null where nothing is said of a token.
struct LogprobSequence {
  std::string name;                // the line's id, or "line 3", with the choice behind it where a line has several
  std::vector<int32_t> token_ids;  // of each; empty: not given
  std::vector<std::optional<double>> logprobs;
};

// The sequences of JSON lines: {"logprobs": [..], "token_ids": [..], "id"}, where the last two may be absent, or answers of a
// server, whose choices are a sequence each (logprobs.token_logprobs or logprobs.content). INVALID_ARGUMENT names line and field.
Result<std::vector<LogprobSequence>> ReadLogprobs(const std::string& text);

struct LogprobComparison {
  struct Token {
    std::string sequence;
    size_t place = 0;       // in its sequence
    int32_t token_id = -1;  // -1: neither side has it
    double rollout = 0, trainer = 0;
    double difference() const { return trainer - rollout; }
  };
  int64_t sequences = 0, tokens = 0;  // compared
  int64_t left_out = 0;               // tokens of which a side says nothing
  double mean = 0, largest = 0;       // of |trainer - rollout|
  double bias = 0;                    // the mean of trainer - rollout
  double deviation = 0;               // its standard deviation
  // KL(rollout || trainer) in nats a token, of tokens that were drawn from the rollout's distribution: the mean of
  // log rollout - log trainer, and that of e^d - 1 - d with d = trainer - rollout, which is never negative.
  double k1 = 0, k3 = 0;
  double largest_ratio = 1;  // e^|d|
  std::vector<Token> worst;  // by |d|, the largest first
};

// Sequences are paired in their order. INVALID_ARGUMENT: other numbers of sequences or tokens, other ids, no token to compare.
Result<LogprobComparison> CompareLogprobs(const std::vector<LogprobSequence>& rollout, const std::vector<LogprobSequence>& trainer,
                                          size_t num_worst);

// For people, and as one JSON object; both end with a line break.
std::string TextOf(const LogprobComparison& comparison);
std::string JsonOf(const LogprobComparison& comparison);

}  // namespace coppice::cli
