// Draws of tokens from rows of logits in a GPU's memory, with the filters and random numbers of the host's Sampler (sampler.h), the
// most probable tokens of a row, the best continuations of beams, and the log-probabilities of given tokens. Layer: runner/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "coppice/core/status.h"
#include "coppice/runner/sampling.h"
#include "runner/cuda/slot_tables.h"
#include "runner/token_draw.h"

namespace coppice::cuda {

// One draw, in device memory. A negative row draws nothing.
struct DrawSpec {
  int32_t row = -1;  // of the logits
  uint32_t sample = 0, position = 0;
  int32_t top_k = 0;
  uint64_t seed = 0;
  float temperature = 1, top_p = 1, min_p = 0;
  float presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  int32_t slot = 0;                                                // of the tables
  bool has_counts = false, has_biases = false, bans_ends = false;  // what of the slot's tables changes the logits
  int32_t mask = -1;                                               // of DrawMemory::masks; -1: every token may come
  int32_t path_begin = 0, path_count = 0;                          // of DrawMemory::draft_tokens
  int32_t distribution = -1, proposal = -1, draft = -1;            // Drafting::distribution, proposal, token
  int32_t top_begin = 0, top_count = 0;                            // of DrawMemory::tops
  bool processed = false, wants_rank = false;                      // LogprobsMode::kProcessed; DrawnToken::rank
  // Of a beam: its continuations, in place of a token. `continuation_begin` of DrawMemory::continuations; none: it is no beam's.
  int32_t continuation_begin = 0, continuation_count = 0;  // at most kMaxContinuations
  int32_t beam = -1;                                       // SelectedToken::beam
  bool stochastic = false;                                 // Selection::stochastic
  float beam_score = 0, beam_perturbed = 0;                // Beam::score, perturbed

  // Whether temperature and filters are all that is wanted.
  bool is_plain() const {
    return !has_counts && !has_biases && mask < 0 && distribution < 0 && proposal < 0 && top_count == 0 && !processed &&
           !wants_rank && continuation_count == 0;
  }
};

// Of each beam at most.
inline constexpr int32_t kMaxContinuations = 512;

// The best of continuations [begin, begin + count), which are of one selection's beams, each beam's best first.
struct SelectSpec {
  int32_t begin = 0, count = 0;
  int32_t wanted = 0, selected_begin = 0;  // at most kMaxSelected
};
inline constexpr int32_t kMaxSelected = 2048;

struct DrawnToken {
  int32_t token = kNoDistribution;  // or kNothingAllowed
  float logprob = 0;
  int32_t rank = 0;  // 0: not wanted
};

// A row of a step whose token is a draw of the step before.
struct DrawnRow {
  int32_t row = 0, draw = 0;
};

struct ScoreSpec {
  int32_t row = 0, token = 0;
  bool wants_rank = false;
  float temperature = 1;
};

struct TokenScore {
  float logprob = 0;
  int32_t rank = 0;  // 0: not wanted, or the row holds no distribution
};

// Rows [first, first + rows) of those that draws and scores count.
struct LogitMatrix {
  const float* data = nullptr;
  int32_t first = 0, rows = 0;
  int64_t stride = 0;  // elements
  int32_t vocab = 0;   // at most kMaxDrawVocab
};
inline constexpr int32_t kMaxDrawVocab = 1 << 19;

// Device memory that draws read and write, beside their rows.
struct DrawMemory {
  SlotTables slots;
  const uint32_t* masks = nullptr;  // [][mask_words]
  int32_t mask_words = 0;
  const int32_t* draft_tokens = nullptr;
  float* distributions = nullptr;  // [][vocab]
  TokenLogprob* tops = nullptr;
  SelectedToken* continuations = nullptr;
};

// drawn[i] of specs[i], for those i in [0, count) whose row is of `logits`. A draw's result depends on its row, its spec and what
// that names alone. `plain`: all of them are, which is faster.
Status LaunchDraw(const LogitMatrix& logits, const DrawMemory& memory, const DrawSpec* specs, int32_t count, bool plain,
                  DrawnToken* drawn, cudaStream_t stream);

// Of the continuations that draws of this step have written, what each of `count` specs selects.
Status LaunchSelect(const SelectedToken* continuations, const SelectSpec* specs, int32_t count, SelectedToken* selected,
                    cudaStream_t stream);

// scores[i] = log-probability and rank of specs[i].token in its row, for those i in [0, count) whose row is of `logits`.
Status LaunchScore(const LogitMatrix& logits, const ScoreSpec* specs, int32_t count, TokenScore* scores, cudaStream_t stream);

// token_ids[rows[i].row] = drawn[rows[i].draw].token, 0 where that is none.
Status LaunchTakeDrawn(const DrawnRow* rows, int32_t count, const DrawnToken* drawn, int32_t* token_ids, cudaStream_t stream);

}  // namespace coppice::cuda
