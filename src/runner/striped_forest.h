// A step's forest as a rank sees it that holds a part of the tokens: lengths and nodes in its own kv indices, over the same page
// rows. A query sees those of the tokens up to its own that the rank holds, so several queries of a branch may see as many, which
// branches say that end alike. Layer: runner.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coppice/attention/attention.h"
#include "runner/token_stripe.h"

namespace coppice {

// Thread-compatible.
class StripedForest {
 public:
  // `capacity`: of the plans that whole forests would have.
  StripedForest(const TokenStripe& stripe, const attention::PlanCapacity& capacity);

  // The capacity that a plan of the rank's forests needs.
  static attention::PlanCapacity CapacityOf(const TokenStripe& stripe, attention::PlanCapacity capacity);

  // Plans are updated with every view, in order. It is valid until the next call; branches and nodes of `forest` keep their slots,
  // and others follow.
  // A row of which the rank holds no token that it sees belongs to no branch. REQUIRES: `forest` is of whole pages, without masks.
  attention::PrefixForestView View(const attention::PrefixForestView& forest);
  // Where the rank stores tokens: by row, -1 where it does not. Valid until the next call.
  std::span<const int64_t> Slots(std::span<const int64_t> slots);

  const TokenStripe& stripe() const { return stripe_; }
  // Whether the last view has branches that are pieces of others, which then seem to share what they read.
  bool has_pieces() const { return has_pieces_; }

 private:
  // Consecutive queries of a branch, and what the last of them sees.
  struct Piece {
    int32_t query_begin = 0, query_count = 0, kv_len = 0;
  };
  void TakeNodes(const attention::PrefixForestView& forest);
  void TakeBranches(const attention::PrefixForestView& forest);
  // A branch of several queries, of which the last ones stay with it and the others become branches that end where they see.
  void CutBranch(const attention::PrefixForestView& forest, int32_t branch);
  void AddPiece(int32_t branch, const Piece& piece);
  // The node at which a path through `node` ends after `end` tokens; made, if there is none.
  int32_t NodeEndingAt(int32_t node, int32_t end);
  uint64_t SinceOf(const attention::PrefixForestView& forest) const;

  const TokenStripe stripe_;
  std::vector<int32_t> parent_, begin_, end_;
  std::vector<int32_t> node_, query_begin_, query_count_, kv_len_, page_begin_, page_capacity_;
  std::vector<int32_t> counts_before_;  // query_count_ of the view before
  std::vector<int64_t> slots_;
  bool has_pieces_ = false;

  // Versions of views, newest last, since the last one with pieces, and of the forests that they were made of.
  struct Version {
    uint64_t of_forest = 0, of_view = 0;
  };
  std::vector<Version> versions_;
  uint64_t version_ = 0;
};

}  // namespace coppice
