// Kinds and reads of a step's ranges. Layer: attention/cuda.
#include "attention/cuda/lower/step_ranges.h"

#include <algorithm>

#include "attention/cuda/lower/cut_rules.h"
#include "attention/cuda/lower/kernel_choice.h"
#include "attention/cuda/plan_device.h"
#include "attention/plan_units.h"
#include "attention/stream_cuts.h"
#include "core/math.h"

namespace coppice::attention::cuda {
namespace {

// By its rows alone, in blocks of stream tiles or of dense ones.
bool IsDense(const QueuedItem& item, const SmCosts& costs) {
  if (costs.rates().all_dense) return true;
  if (item.rows <= costs.stream_rows()) return false;
  if (item.most_set_rows > costs.stream_rows()) return true;  // sets are not cut
  return static_cast<double>(item.blocks) * costs.DenseTaskNs(item.tokens) <= costs.StreamItemNs(item.rows, item.tokens);
}

// Not dense by its rows, though a stream tile multiplies twice for it.
bool IsTwoColumn(const QueuedItem& item, const SmCosts& costs) {
  return !item.dense && item.rows > kStreamRows / 2 && item.rows <= costs.stream_rows() &&
         item.tokens >= kFewestTwoColumnDenseTokens;
}

// Whether stream tiles keep the memory busy whatever they multiply: the starts of so many dense tasks would only delay them.
bool MemoryHidesTwoColumnItems(std::span<const QueuedItem> items, int64_t heads, int num_sms, const SmCosts& costs) {
  int64_t two_column_tasks = 0, tokens = 0;
  for (const QueuedItem& item : items) {
    if (item.dense) continue;
    two_column_tasks += IsTwoColumn(item, costs) ? heads : 0;
    tokens += CeilDiv(item.rows, kStreamRows) * heads * item.tokens;
  }
  return two_column_tasks >= kTwoColumnTasksPerSm * num_sms &&
         static_cast<double>(tokens) * costs.DenseTokenNs() >= kTwoColumnStarts * costs.rates().dense_task_ns * num_sms;
}

}  // namespace

int32_t DenseBlocks(int32_t rows, int32_t set_rows) {
  set_rows = std::max(set_rows, 1);
  const int32_t block_sets = std::max(kDenseRows / set_rows, 1);
  return CeilDiv(CeilDiv(rows, set_rows), block_sets);
}

void PromptCuts::Align(std::span<QueuedItem> items) {
  tiles_.clear();
  for (QueuedItem& item : items) {
    if (!item.dense || item.prompt < 0) continue;
    tiles_.push_back(&item);
    prompts_[item.prompt] = {.kv_begin = kLive, .longest = 0};
  }
  for (const QueuedItem* tile : tiles_) {
    Prompt& prompt = prompts_[tile->prompt];
    if (tile->kv_begin < prompt.kv_begin) prompt = {.kv_begin = tile->kv_begin, .longest = 0};
    if (tile->kv_begin == prompt.kv_begin) prompt.longest = std::max(prompt.longest, tile->tokens);
  }
  for (QueuedItem* tile : tiles_) {
    const Prompt& prompt = prompts_[tile->prompt];
    if (tile->kv_begin == prompt.kv_begin) tile->cut_tokens = prompt.longest;
  }
}

std::optional<int64_t> CooperativeTokens(std::span<const QueuedItem> items, int64_t heads, int num_sms) {
  int64_t tasks = 0, tokens = 0;
  for (const QueuedItem& item : items) {
    if (item.dense) return std::nullopt;
    const int64_t blocks = CeilDiv(item.rows, kStreamRows) * heads;
    tasks += blocks;
    tokens += blocks * item.tokens;
  }
  return StreamsCooperatively(tasks, tokens, num_sms) ? std::optional(tokens) : std::nullopt;
}

void ChooseKinds(std::span<QueuedItem> items, int32_t heads, int num_sms, const SmCosts& costs) {
  for (QueuedItem& item : items) item.dense = IsDense(item, costs);
  if (costs.path() != KernelPath::kHopper || CooperativeTokens(items, heads, num_sms)) return;
  if (MemoryHidesTwoColumnItems(items, heads, num_sms, costs)) return;
  for (QueuedItem& item : items) item.dense |= IsTwoColumn(item, costs);
}

void ReadCounts::Count(std::span<QueuedItem> items, const ForestNodes& nodes, const SmCosts& costs) {
  const auto blocks_of = [&](const QueuedItem& item) { return item.dense ? item.blocks : CeilDiv(item.rows, costs.stream_rows()); };
  const auto for_each_node = [&](const QueuedItem& item, auto&& visit) {  // with what of it the item reads
    const int32_t begin = item.kv_begin, end = begin + item.tokens;
    for (int32_t n = item.node; n != kNoParent && begin < nodes.end[n]; n = nodes.parent[n]) {
      const int32_t from = std::max(begin, nodes.begin[n]), to = std::min(end, nodes.end[n]);
      if (from < to) visit(n, from, to);
    }
  };
  reads_.assign(nodes.parent.size(), {});
  for (const QueuedItem& item : items) {
    for_each_node(item, [&, blocks = blocks_of(item)](int32_t n, int32_t begin, int32_t end) {
      NodeReads& reads = reads_[n];
      reads.begin = std::min(reads.begin, begin), reads.end = std::max(reads.end, end);
      reads.tokens += int64_t{end - begin} * blocks;
    });
  }
  for (QueuedItem& item : items) {
    item.read_once = true;
    item.memory_tokens = 0;
    for_each_node(item, [&, blocks = blocks_of(item)](int32_t n, int32_t begin, int32_t end) {
      const NodeReads& reads = reads_[n];
      const int64_t tokens = int64_t{end - begin} * blocks, distinct = reads.end - reads.begin;
      item.read_once &= reads.tokens == distinct;
      item.memory_tokens += static_cast<double>(tokens) * static_cast<double>(distinct) / static_cast<double>(reads.tokens);
    });
  }
}

}  // namespace coppice::attention::cuda
