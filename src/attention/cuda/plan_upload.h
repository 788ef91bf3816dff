// Translates a plan and the forest's live arrays into the form that the kernel reads (plan_device.h): items cut into blocks of at
// most kDenseRows rows, tasks laid out so that blocks which read the same KV run side by side, states and tickets resolved per
// member. Host memory only; plan_executor.cc copies what changed. Layer: attention/cuda.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/plan_device.h"
#include "coppice/attention/attention.h"

namespace coppice::attention::cuda {

// Byte offsets of the arrays in one block of memory, the same on host and device, and how much each may hold.
struct PlanLayout {
  PlanLayout(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int num_sms);

  int64_t own_states;  // beside the plan's, for pieces
  int64_t max_items, max_members, max_tasks, max_contributions, max_states;
  size_t header, dense_tasks, stream_tasks, members, contributions, branches, page_indices, tree_mask;
  size_t bytes;
};

// The step for which i -> (i * step mod 2^32) * n / 2^32 permutes 0 .. n - 1 such that any run of consecutive numbers comes from
// places evenly spread. n: below 2^16.
uint32_t SpreadStep(int32_t n);

// Writes the image of a plan. Allocates in its constructor only.
//
// The planner knows of workers and of items, not of blocks of 128 rows in SMs and stream tiles in warps: its items are cut further
// along KV, with states of their own, until all SMs and warps have work to the end. Live items keep their open end in the last
// piece.
class PlanTranslator {
 public:
  // kv_tile: tokens of a dense step of the kernel.
  PlanTranslator(const AttentionSpec& spec, const PlanCapacity& capacity, const PlanSizes& sizes, int num_sms, int kv_tile);

  const PlanLayout& layout() const { return layout_; }
  // RESOURCE_EXHAUSTED if the plan exceeds the sizes given at creation.
  Status TranslatePlan(const PlanView& plan, const PrefixForestView& forest, std::byte* image);
  // Branches and draft masks; page rows are copied by the caller.
  void TranslateLengths(const PrefixForestView& forest, std::byte* image) const;

  bool team() const { return team_; }
  int64_t num_items() const { return num_items_; }
  int64_t num_members() const { return num_members_; }
  int64_t num_contributions() const { return num_contributions_; }
  int64_t num_dense_tasks() const { return num_dense_; }
  int64_t num_stream_tasks() const { return num_stream_; }

 private:
  // How a plan item is run.
  struct Pieces {
    int32_t count = 1;                 // along KV. 0: joined to an item before it
    int32_t ends_begin = 0;            // in piece_ends_: where all but the last end, from kv_begin
    int32_t kv_begin = 0, kv_end = 0;  // with the items joined to it
    int32_t state_begin = 0;           // count > 1: of its first piece
    int32_t rows = 0;
    int32_t block_rows = kDenseRows;  // rows of a task at most; kStreamRows: a stream tile's
    bool masked = false;
    bool read_once = false;  // by one task, each kv head
  };
  // Of a merge set, an item's pieces in place of the item.
  struct SetContributions {
    int32_t begin, count;
  };
  struct Length {
    int32_t item, rows, blocks, tokens;
    bool dense;
    double memory_tokens;  // read from memory, if what several tasks read is read once: this item's share
  };
  int32_t RowsOf(const MergeSet& set) const { return set.query_count * spec_.group_size(); }
  bool IsDense(const PlanView& plan, const Length& length) const;
  int32_t EndOf(const WorkItem& item, const PrefixForestView& forest) const;
  void CutItems(const PlanView& plan, const PrefixForestView& forest);
  // The length of a team's pieces in tokens, or 0 where the stream warps of a CTA have a task each.
  int32_t TeamPiece(const PlanView& plan) const;
  void JoinItems(const PlanView& plan, const PrefixForestView& forest);
  bool JoinPromptTiles(const PlanView& plan);
  // Sets read_once and memory_tokens.
  void CountReads(const PlanView& plan, const PrefixForestView& forest);
  // What stream tasks read, how much of it from memory, and their steps and number before any cut.
  struct StreamWork {
    double bytes, memory_share;
    int64_t steps, tasks;
  };
  struct Simulated {
    double ns = 0, dense_ns = 0;
    int64_t states = 0;  // of dense pieces
  };
  // Sets dense_ctas_; the length of dense pieces in tokens.
  int32_t DivideSms(const StreamWork& stream);
  Simulated Simulate(int32_t piece, int32_t dense_ctas, const StreamWork& stream);
  double DenseTokenNs() const;                    // of one block of rows under one kv head
  int64_t WholeDenseSteps(int64_t tokens) const;  // rounded up
  void CutEvenly(int32_t tokens, int64_t count, int64_t unit);
  void CutGuided(int32_t tokens, int32_t shortest, int32_t longest, int64_t most);
  Status CountContributions(const PlanView& plan);
  Status EmitItem(const PlanView& plan, const PrefixForestView& forest, int32_t item, std::byte* image);
  void EmitTasks(const PrefixForestView& forest, std::byte* image);

  AttentionSpec spec_;
  PlanSizes sizes_;
  PlanLayout layout_;
  int num_sms_;
  int32_t dense_piece_unit_;  // tokens; the ends of dense pieces are multiples of it
  int32_t dense_ctas_ = 0;    // CTAs that take dense tasks
  bool team_ = false;         // the stream warps of a CTA read each task together
  int64_t num_items_ = 0, num_members_ = 0, num_contributions_ = 0, num_dense_ = 0, num_stream_ = 0;
  std::vector<Pieces> pieces_;                       // [plan item]
  std::vector<Length> lengths_, joined_;             // of the queued items
  std::vector<int32_t> tiles_;                       // of a prompt
  std::vector<DeviceItem> items_;                    // pieces and blocks, in queue order
  std::vector<SetContributions> set_contributions_;  // [merge set]
  std::vector<int32_t> arrivals_;                    // [merge set]
  std::vector<int32_t> node_reads_;                  // [node] tasks of a kv head that read some of it, pieces along KV apart
  std::vector<int32_t> piece_ends_;
  std::vector<double> sm_busy_until_;
};

}  // namespace coppice::attention::cuda
