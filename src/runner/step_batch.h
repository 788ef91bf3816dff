// One step's work as a runner takes it: edits to KV and sampling state, rows of tokens, and what is wanted of them. Arrays and
// numbers alone, no pointer into the engine, so that it can be copied, kept, sent to other ranks or laid out on a device. A token
// may be one that an earlier step draws: its value need not be known to the host. Reused from step to step, so that a step
// allocates nothing once warm. Layer: runner.
#pragma once

#include <cstdint>
#include <vector>

#include "coppice/attention/attention.h"
#include "coppice/runner/sampling.h"

namespace coppice {

// Draw `index` of StepBatch::draws of a step, named by its ticket. Only of the step launched last.
struct DrawRef {
  int64_t step = 0;
  int32_t index = -1;
};

// Parameters of a sampling slot.
struct SlotSampling {
  SamplingParams params;
  std::vector<int32_t> end_ids;  // what Draw::bans_end_ids bans
};

inline bool HasPenalties(const SamplingParams& params) {
  return params.presence_penalty != 0 || params.frequency_penalty != 0 || params.repetition_penalty != 1;
}

// A change to a sampling slot: parameters, and the history that penalties look at.
struct SlotEdit {
  enum class Kind : uint8_t {
    kSet,      // begins anew, whatever it was: parameters `index`, history `tokens`, the first `num_prompt` of them the prompt's
    kAdd,      // `tokens` were generated
    kAddDraw,  // what `draw` gives was generated
    kFork,     // becomes what slot `index` is, whatever it was
    kFree,     // is not used until it is set again
  };
  Kind kind = Kind::kSet;
  int32_t slot = 0;
  int32_t index = 0;                         // into StepBatch::parameters, or a slot
  int32_t token_begin = 0, token_count = 0;  // of StepBatch::history
  int32_t num_prompt = 0;
  DrawRef draw;
};

// Words of a mask over the vocabulary.
constexpr int32_t MaskWords(int32_t vocab_size) { return (vocab_size + 31) / 32; }

// A token to be chosen. Draws from one row with one slot that follow each other differ in `sample` alone.
struct Draw {
  int32_t row = 0;            // after which it comes
  int32_t slot = 0;           // sampling slot
  int32_t sample = 0;         // index of the sample in its request: the random stream
  int32_t position = 0;       // kv index of the token to be chosen: the counter of the random stream
  int32_t drafting = -1;      // in StepBatch::drafting
  int32_t beam = -1;          // in StepBatch::beams: it gives no token of its own, and has neither mask nor drafts
  int32_t mask = -1;          // of StepBatch::masks: the tokens it may give; -1: all
  bool bans_end_ids = false;  // min_tokens
  bool wants_rank = false;    // TokenDraw::rank
  uint8_t top_logprobs = 0;   // how many of the most probable tokens are wanted too; fewer if the vocabulary is smaller
  int32_t top_begin = 0;      // where they go in StepResult::top_logprobs; the same place for draws of one row and slot
};

// Further fields of a draw among drafted tokens.
struct Drafting {
  int32_t path_begin = 0,
          path_count = 0;  // of StepBatch::draft_tokens: tokens between the slot's history and the row, for penalties
  // Rows of the memory that a draft runner and its target have in common, [vocab] probabilities each; -1: none.
  int32_t distribution = -1;  // receives what the parameters leave, and the draw is a draft's: from a random stream apart
  int32_t proposal = -1;  // `token` was drawn from it: the draw is `token` with probability min(1, p / q), else of max(0, p - q)
  int32_t token = -1;
};

// A row whose continuations take part in a selection.
struct Beam {
  int32_t draw = 0;     // of StepBatch::draws: the row, its parameters and what may not come
  float score = 0;      // of what is before them: the sum of its log-probabilities
  float perturbed = 0;  // stochastic: that with its noise
};

// The best continuations of several rows together: a step of beam search.
struct Selection {
  // Of StepBatch::beams. Of continuations with equal scores, those of earlier beams are before others, and those of lower ids.
  int32_t beam_begin = 0, beam_count = 0;
  int32_t wanted = 0;          // of all its beams together
  int32_t wanted_of_beam = 0;  // of each at most; not more than `wanted`
  int32_t selected_begin = 0;  // where they go in StepResult::selected
  // By log-probabilities with Gumbel noise, at the temperature and with the seed of the slots' parameters (Kool et al. 2019,
  // algorithm 1); else by the model's own.
  bool stochastic = false;
};

// A token whose log-probability after a row is wanted.
struct Score {
  int32_t row = 0, token = 0;
  bool wants_rank = false;   // StepResult::score_ranks
  float temperature = 1;     // of the distribution that it is of; of one row the same, above 0
  uint8_t top_logprobs = 0;  // as Draw's; of one row the same number
  int32_t top_begin = 0;     // where they go in StepResult::top_logprobs; the same place for all scores of a row
};

struct StepBatch {
  // ---- Edits: moves, then copies, then sampling changes, each in order; all before the step's own KV is written.
  std::vector<attention::SlotMove> moves;   // of single tokens' KV, in all layers
  std::vector<attention::PageCopy> copies;  // of whole pages, in all layers
  std::vector<SlotEdit> slot_edits;
  std::vector<SlotSampling> parameters;
  std::vector<int32_t> history;

  // ---- Rows. Which of them belong to which branch, the forest says.
  struct DrawnToken {
    int32_t row = 0;
    DrawRef draw;
  };
  std::vector<int32_t> token_ids;        // [T]; of no meaning in rows of `drawn_tokens`
  std::vector<DrawnToken> drawn_tokens;  // rows whose token is a draw: by row. A draw that found no distribution counts as token 0
  std::vector<int32_t> positions;        // [T] rotary
  std::vector<int64_t> slot_mapping;     // [T] page * page_size + slot that receives the row's K and V; -1: it is there already

  // ---- Wanted. Rows of draws do not decrease, nor do those of scores.
  std::vector<Draw> draws;
  std::vector<Drafting> drafting;
  std::vector<int32_t> draft_tokens;
  std::vector<uint32_t> masks;  // [M][MaskWords(vocab)] bit t % 32 of word t / 32: token t may come
  std::vector<Score> scores;
  std::vector<Beam> beams;
  std::vector<Selection> selections;
  int32_t num_top_logprobs = 0;  // entries of StepResult::top_logprobs
  int32_t num_selected = 0;      // entries of StepResult::selected
  bool has_drafts = false;       // among the rows: how many there are changes from step to step

  int32_t num_rows() const { return static_cast<int32_t>(token_ids.size()); }
  bool has_edits() const { return !moves.empty() || !copies.empty() || !slot_edits.empty(); }
  void ClearEdits() {
    moves.clear();
    copies.clear();
    slot_edits.clear();
    parameters.clear();
    history.clear();
  }
  void ClearRows() {
    token_ids.clear();
    drawn_tokens.clear();
    positions.clear();
    slot_mapping.clear();
    draws.clear();
    drafting.clear();
    draft_tokens.clear();
    masks.clear();
    scores.clear();
    beams.clear();
    selections.clear();
    num_top_logprobs = 0;
    num_selected = 0;
    has_drafts = false;
  }
};

}  // namespace coppice
