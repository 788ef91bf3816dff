// How a plan reads the tokens of each node of its forest, and why: for programs that show a plan to people.
// Layer: public API of coppice::attention.
#pragma once

#include <cstdint>
#include <vector>

#include "coppice/attention/attention.h"

namespace coppice::attention {

// Why a node's tokens are read once for all branches below it, or apart for each.
enum class ReadReason : uint8_t {
  kOneReader,   // fewer than two branches below have queries: there is nothing to share
  kFaster,      // the choice is the one that was predicted to take less time
  kForced,      // read together since PlannerOptions::force_sharing says so
  kPolicy,      // read apart since PlannerOptions::policy allows no other way here
  kNoRoom,      // read apart, since the plan's capacity has no room for another shared read
  kStepNoGain,  // read apart: reading together would save time by itself, but the whole step would end no sooner
  kNotSeen,     // no query sees a token of it: it has none, or lies before every window
};

struct NodeRead {
  int32_t branches = 0;  // with queries, below the node
  bool together = false;
  ReadReason reason = ReadReason::kOneReader;
  // Predicted cost of the two choices in one layer, beyond one read of the tokens, which both have; 0: they were not compared.
  double together_us = 0, apart_us = 0;
};

// Of the plan's last Update, by node slot of its forest; empty before the first one. O(nodes).
std::vector<NodeRead> NodeReads(const AttentionPlan& plan);

}  // namespace coppice::attention
