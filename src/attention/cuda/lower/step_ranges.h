// The ranges of a step: their kinds, and what each reads from memory. The lowering of a plan and the prediction of a step that is
// not planned yet go by the same. Layer: attention/cuda.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "attention/cuda/lower/sm_costs.h"

namespace coppice::attention::cuda {

// A range with something to read, for some rows under each kv head.
struct QueuedItem {
  int32_t item;  // of the plan
  int32_t node;  // whose path it reads a part of
  int32_t kv_begin, rows;
  int32_t blocks;  // of rows, in dense tiles, which hold whole merge sets
  int32_t tokens;
  int32_t cut_tokens;     // PromptCuts
  int32_t most_set_rows;  // of its merge sets
  int32_t prompt = -1;    // the branch that it is masked for: most likely it is a row tile of a prompt; -1: not masked
  bool dense;
  bool read_once;        // by one task, each kv head
  double memory_tokens;  // read from memory, if what several tasks read is read once: this item's share
};

// Puts merge sets into blocks of so many rows at most, one after the other and none in two blocks.
class BlockPacker {
 public:
  explicit BlockPacker(int32_t block_rows) : block_rows_(block_rows) {}
  // The first row of the next set in its block: 0 begins a block.
  int32_t Add(int32_t set_rows) {
    if (blocks_ == 0 || end_ + set_rows > block_rows_) ++blocks_, end_ = 0;
    return std::exchange(end_, end_ + set_rows);
  }
  int32_t blocks() const { return blocks_; }

 private:
  int32_t block_rows_, end_ = 0, blocks_ = 0;
};
// The blocks of dense tiles that it makes of so many rows in merge sets of set_rows each.
int32_t DenseBlocks(int32_t rows, int32_t set_rows);

// The tokens of all tasks, uncut, where the step's tasks are cooperative: all its items stream, and each SM can have one task
// (stream_cuts.h).
std::optional<int64_t> CooperativeTokens(std::span<const QueuedItem> items, int64_t heads, int num_sms);

// Which items are dense. Few rows or few tokens leave a dense tile's SM idle for most of its task; stream tiles read the range
// again for every few rows, and those of more than eight are fast only as cooperative tasks.
void ChooseKinds(std::span<QueuedItem> items, int32_t heads, int num_sms, const SmCosts& costs);

// Row tiles of a prompt end one after the other, but what they read begins at one place: cut at the same places they share it.
// Allocates in its constructor only.
class PromptCuts {
 public:
  PromptCuts(int32_t max_branches, size_t max_items) : prompts_(max_branches) { tiles_.reserve(max_items); }
  // Of dense items of one prompt that begin where its first one does, cut_tokens becomes the tokens of the longest. REQUIRES:
  // kinds.
  void Align(std::span<QueuedItem> items);

 private:
  struct Prompt {
    int32_t kv_begin = 0, longest = 0;  // of the tiles that begin there, in tokens
  };
  std::vector<Prompt> prompts_;     // [branch]
  std::vector<QueuedItem*> tiles_;  // of any prompt
};

// The nodes of a forest, by slot.
struct ForestNodes {
  std::span<const int32_t> parent, begin, end;
};

// Allocates in its constructor only.
class ReadCounts {
 public:
  explicit ReadCounts(int32_t max_nodes) { reads_.reserve(max_nodes); }
  // Finds the ranges whose KV one task reads, those with one block of rows on nodes of which nothing else reads the same tokens,
  // and each range's share of what is read from memory. REQUIRES: their kinds.
  void Count(std::span<QueuedItem> items, const ForestNodes& nodes, const SmCosts& costs);

 private:
  // The part of a node that tasks of one kv head read, together without gaps.
  struct NodeReads {
    int32_t begin = INT32_MAX, end = 0;
    int64_t tokens = 0;  // of all tasks
  };
  std::vector<NodeReads> reads_;  // [node]
};

}  // namespace coppice::attention::cuda
