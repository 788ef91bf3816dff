// How long the next step will take, learned from those that ran: what EngineOptions::target_tbt chooses a step's prompt tokens by.
// Knows no requests, no devices and no clock. Layer: engine. The trade-off of chunk sizes: POD-Attention, table 6.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "coppice/engine/engine.h"

namespace coppice {

// A step as sums.
struct StepSums {
  int32_t prompt_rows = 0, decode_rows = 0;  // drafts count as decode rows
  int64_t prompt_kv = 0;                     // tokens that stand before a prompt's rows in this step, for each of these rows
  int64_t decode_kv = 0;                     // tokens that decode rows attend to

  int32_t rows() const { return prompt_rows + decode_rows; }
  // `rows` tokens of a prompt behind its first `before`.
  void AddPrompt(int32_t rows, int32_t before) {
    prompt_rows += rows;
    prompt_kv += int64_t{rows} * before;
  }
  void AddDecode(int32_t rows, int32_t kv_len) {
    decode_rows += rows;
    decode_kv += int64_t{rows} * kv_len;
  }
};

// Seconds are a sum: what so many rows took when prompts were measured at the start, and shares of the decode rows, the prompts'
// and the decode rows' tokens of KV, and a constant. The factors are fitted to the steps, of which older ones weigh less, by least
// squares of relative errors; none is negative, so that more rows never take less. The factors contain how much the samples share,
// and so follow the traffic. Thread-compatible.
class StepPredictor {
 public:
  // probe: prompts that were measured, ascending tokens. REQUIRES: not empty, positive.
  explicit StepPredictor(std::span<const ChunkSpeed> probe);

  // A step took so long.
  void Add(const StepSums& shape, double seconds);
  double Seconds(const StepSums& shape) const;
  // The most rows, `most` at most, of a prompt behind its first `before` tokens that `step` has room for in `target` seconds.
  int32_t MostPromptRows(const StepSums& step, int32_t before, double target, int32_t most) const;

 private:
  static constexpr int kTerms = 5, kProbed = 4;  // kProbed: what so many rows took when they were measured
  using Terms = std::array<double, kTerms>;

  double ProbeSeconds(int32_t rows) const;
  Terms TermsOf(const StepSums& shape) const;
  void Fit();

  struct Point {
    double rows, seconds;
  };
  std::vector<Point> probe_;
  std::array<Terms, kTerms> products_ = {};  // sums of terms by terms, and of terms by seconds, each in units of its step's seconds
  Terms right_ = {};
  Terms factors_ = {};
};

}  // namespace coppice
