// Traces of prefix forests as text: a line that says which attention was computed, then a line a step, of what differs from the
// step before. docs/traces.md has the format. Lengths and ids alone: no tokens. Knows no files. Layer: attention, private.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attention/owned_forest.h"
#include "coppice/attention/attention.h"
#include "coppice/core/status.h"

namespace coppice::attention {

// The beginning of every trace.
inline constexpr std::string_view kForestTraceBegin = R"({"format":"coppice forest trace")";

// Layers of a model that attend alike. Of `spec` a trace has the heads, head_dim and window.
struct TracedLayers {
  int32_t num_layers = 0;
  AttentionSpec spec;
  bool operator==(const TracedLayers&) const = default;
};

// The first line.
struct ForestTraceHead {
  int32_t page_size = 16;
  std::vector<TracedLayers> layers;
  bool operator==(const ForestTraceHead&) const = default;
};

// A step's forest without its pages: nodes and branches by their slots. Slots behind the last one in use may be missing.
struct TracedForest {
  struct Node {
    int32_t parent = kFreeSlot;
    int32_t tokens = 0;  // of its own; kLive: up to the length of its branch
    bool operator==(const Node&) const = default;
  };
  struct Branch {
    int32_t node = kFreeSlot;
    int32_t kv_len = 0, queries = 0;
    bool operator==(const Branch&) const = default;
  };
  std::vector<Node> nodes;
  std::vector<Branch> branches;
};

// Lines of a trace. Thread-compatible.
class ForestTraceWriter {
 public:
  static std::string HeadLine(const ForestTraceHead& head);
  // The next step's line, with its line break. O(nodes + branches), O(branches) under an equal version. REQUIRES: a forest that
  // AttentionPlan::Update accepts.
  void AppendStep(const PrefixForestView& forest, std::string* out);

 private:
  TracedForest before_;
  uint64_t version_ = 0;
  bool is_first_ = true;
};

// The head of a trace's first line. INVALID_ARGUMENT or DATA_LOSS name the field, its value and what is expected.
Result<ForestTraceHead> ParseForestTraceHead(std::string_view line);

// Reads the lines behind the head, in order. Thread-compatible.
class ForestTraceReader {
 public:
  // Slots and lengths beyond these are refused: no step of an engine has them, and memory is taken by them.
  static constexpr int32_t kMostSlots = 1 << 17, kMostTokens = 1 << 24;

  // Errors as ParseForestTraceHead; the forest is then neither the step before nor the step.
  Status ReadStep(std::string_view line);
  const TracedForest& forest() const { return forest_; }

 private:
  TracedForest forest_;
};

// The forest with pages of its own, handed out in the order of first use: a page belongs to the node of its last token, and nodes
// below hold copies of the tokens before theirs, as where copy-on-write parts them. Branches without queries have no pages.
// INVALID_ARGUMENT names a node that lies on a cycle, below a free one or too deep, or a branch whose length is not that of its
// node.
Result<OwnedForest> LayOutPages(const TracedForest& traced, int32_t page_size);

}  // namespace coppice::attention
