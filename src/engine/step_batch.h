// One step's work: which sequences run, how many tokens each, and the token arrays of the forward pass. Filled by the scheduler,
// read by everybody after it; reused from step to step, so that a step allocates nothing once warm. Layer: engine.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request_state.h"
#include "model/transformer.h"

namespace coppice {

struct StepBatch {
  struct Entry {
    Sequence* sequence = nullptr;
    int32_t count = 0;            // tokens of this sequence in this step; the first has kv index sequence->computed
    int32_t drafts = 0;           // of them, the last so many are the first of sequence->draft
    int32_t first_logit_row = 0;  // its rows of the logits
    int32_t logit_rows = 0;       // 0: a prefill chunk; 1: its last token; count: prompt log-probabilities, drafts
    bool samples = false;         // its last token, drafts apart, is the last known one: the next is to be chosen
  };
  std::vector<Entry> entries;
  std::vector<int32_t> token_ids, positions;  // [T]
  std::vector<int64_t> slot_mapping;          // [T]
  std::vector<int32_t> logit_rows;            // [R]
  std::vector<uint64_t> tree_masks;           // [T] or empty: PrefixForestView::query_tree_mask
  int32_t prefill_tokens = 0;                 // of T, those of sequences that prefill

  bool empty() const { return entries.empty(); }
  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  ForwardBatch Forward() const {
    return {.token_ids = token_ids, .positions = positions, .slot_mapping = slot_mapping, .logit_rows = logit_rows};
  }
  void Clear() {
    entries.clear();
    token_ids.clear();
    positions.clear();
    slot_mapping.clear();
    logit_rows.clear();
    tree_masks.clear();
    prefill_tokens = 0;
  }
};

}  // namespace coppice
