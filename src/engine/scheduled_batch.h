// One step's work as the engine sees it: which sequences run, and which rows, draws and scores of the runner's batch are theirs.
// Written by StepBuilder; reused from step to step, so that a step allocates nothing once warm. Layer: engine.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request_state.h"
#include "engine/step_predictor.h"
#include "runner/step_batch.h"

namespace coppice {

struct ScheduledBatch {
  struct Entry {
    Sequence* sequence = nullptr;
    int32_t begin = 0;
    int32_t count = 0;   // tokens of this sequence in this step; the first has kv index `begin`
    int32_t drafts = 0;  // of them, the last so many are the first of sequence->draft
    // Of the step's draws: none for a prefill chunk; else one for each sequence that goes on from its last known token (all samples
    // of a request where they begin), and one for each draft: what follows there, if it comes to that.
    int32_t first_draw = 0, num_draws = 0;
    int32_t first_score = 0, num_scores = 0;  // of the step's scores
    int32_t request_score = 0;                // and of RequestState::scores, where they are the same in number and order
    bool begins_samples = false;  // its draws are the first tokens of all samples of the request; none where max_tokens is 0
  };
  std::vector<Entry> entries;
  StepBatch step;
  std::vector<uint64_t> tree_masks;  // [T] or empty: PrefixForestView::query_tree_mask
  struct ConstraintMask {
    bool may_end = false;  // the output may end with the token that is drawn
    Status status;         // why there is no mask: it allows nothing
  };
  std::vector<ConstraintMask> masks;     // by mask of the step
  std::vector<RequestState*> selecting;  // by selection of the step
  std::vector<int32_t> beams;            // by beam of the step: its sequence's index
  int32_t prefill_tokens = 0;            // of T, those of sequences that prefill
  StepSums shape;
  double predicted_seconds = 0;  // with EngineOptions::target_tbt
  bool has_draft_tree = false;   // of some entry: a draft that is not linear

  bool empty() const { return entries.empty(); }
  int32_t num_tokens() const { return step.num_rows(); }
  // Keeps the edits, which wait for the next step whatever it is.
  void Clear() {
    entries.clear();
    step.ClearRows();
    tree_masks.clear();
    masks.clear();
    selecting.clear();
    beams.clear();
    prefill_tokens = 0;
    shape = {};
    predicted_seconds = 0;
    has_draft_tree = false;
  }
};

}  // namespace coppice
