// Every rule of PrefixForestView and of the spec is checked, with the node or branch and both values in the message.
// Layer: attention, tests.
#include "attention/forest.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "attention/owned_forest.h"
#include "attention/testing/plan_test_forest.h"

namespace coppice::attention {
namespace {

using testing::TestForest;

// Root 0 [0, 32); node 1 [32, 48) with branches 0 and 1 (leaves 2, 3); branch 2 on leaf 4 below the root.
TestForest Valid() {
  TestForest forest(16);
  const int32_t root = forest.AddNode(kNoParent, 32);
  const int32_t inner = forest.AddNode(root, 16);
  forest.AddBranch(inner, 5, 1);
  forest.AddBranch(inner, 9, 2);
  forest.AddBranch(root, 4, 1);
  return forest;
}

constexpr PlanCapacity kCapacity = {
    .max_branches = 8, .max_queries = 100, .max_nodes = 16, .max_page_slots = 1000, .page_size = 16};

// An index and its memory.
class OwnedIndex {
 public:
  explicit OwnedIndex(const PlanCapacity& capacity) : capacity_(capacity) {
    Arena count(nullptr);
    index_.Layout(count, capacity);
    memory_ = Buffer::Allocate(count.used()).value();
    Arena arena(memory_.data());
    index_.Layout(arena, capacity);
  }
  Status Build(const PrefixForestView& view) { return index_.Build(view, capacity_); }
  Status CheckStep(const PrefixForestView& view) { return index_.CheckStep(view, capacity_); }

 private:
  const PlanCapacity capacity_;
  ForestIndex index_;
  Buffer memory_;
};

Status Build(const PrefixForestView& view, const PlanCapacity& capacity = kCapacity) { return OwnedIndex(capacity).Build(view); }

TEST(Forest, AcceptsAnyParentOrderGapsAndEmptyNodes) {
  TestForest forest = Valid();
  EXPECT_TRUE(Build(forest.Forest()).ok());
  forest.SplitNode(0, 10);  // the new upper node has a higher slot than its child
  EXPECT_GT(forest.node_parent[0], 0);
  EXPECT_TRUE(Build(forest.Forest()).ok());
  forest.AddNode(1, 0);
  forest.RemoveBranch(0);
  EXPECT_TRUE(Build(forest.Forest()).ok());
  EXPECT_TRUE(Build(PrefixForestView{.page_size = 16}).ok()) << "nothing to do is legal";
}

struct BrokenRule {
  const char* message;
  std::function<void(TestForest&)> edit;
  StatusCode code = StatusCode::kInvalidArgument;
};

TEST(Forest, NamesTheNodeOrBranchAndBothValues) {
  const BrokenRule rules[] = {
      {"forest: page_size is 8, the plan was created for 16", [](TestForest& f) { f.page_size = 8; }},
      {"forest: node_begin has 4 entries, node_parent has 5", [](TestForest& f) { f.node_begin.pop_back(); }},
      {"forest: node_end has 4 entries, node_parent has 5", [](TestForest& f) { f.node_end.pop_back(); }},
      {"forest: branch_query_begin has 4 entries, branch_node has 3", [](TestForest& f) { f.branch_query_begin.push_back(0); }},
      {"forest: branch_query_count has 2 entries, branch_node has 3", [](TestForest& f) { f.branch_query_count.pop_back(); }},
      {"forest: branch_kv_len has 2 entries, branch_node has 3", [](TestForest& f) { f.branch_kv_len.pop_back(); }},
      {"forest: branch_page_begin has 2 entries, branch_node has 3", [](TestForest& f) { f.branch_page_begin.pop_back(); }},
      {"forest: branch_page_capacity has 2 entries, branch_node has 3", [](TestForest& f) { f.branch_page_capacity.pop_back(); }},
      {"forest: 17 node slots, but the plan's capacity is 16",
       [](TestForest& f) {
         while (f.node_parent.size() < 17) f.AddNode(0, 0);
       },
       StatusCode::kResourceExhausted},
      {"forest: 9 branch slots, but the plan's capacity is 8",
       [](TestForest& f) {
         while (f.branch_node.size() < 9) f.AttachBranch(0, 32, 1);
       },
       StatusCode::kResourceExhausted},
      {"forest: 1001 page slots, but the plan's capacity is 1000", [](TestForest& f) { f.page_indices.resize(1001); },
       StatusCode::kResourceExhausted},
      {"node 1: parent is 5, expected another node of the 5", [](TestForest& f) { f.node_parent[1] = 5; }},
      {"node 1: parent is 1, expected another node", [](TestForest& f) { f.node_parent[1] = 1; }},
      {"node 1: parent is -3, expected another node", [](TestForest& f) { f.node_parent[1] = -3; }},
      {"node 1: covers [32, 31), expected 0 <= begin <= end", [](TestForest& f) { f.node_end[1] = 31; }},
      {"node 0: covers [-1, 32), expected 0 <= begin <= end", [](TestForest& f) { f.node_begin[0] = -1; }},
      {"node 0: is a root and begins at 1, expected 0", [](TestForest& f) { f.node_begin[0] = 1; }},
      {"node 1: parent 0 is a free slot", [](TestForest& f) { f.node_parent[0] = kFreeSlot; }},
      {"node 2: parent 1 ends at kLive, but only leaves may", [](TestForest& f) { f.node_end[1] = kLive; }},
      {"node 1: begins at 33, but its parent 0 ends at 32", [](TestForest& f) { f.node_begin[1] = 33; }},
      {"is its own ancestor through parent",
       [](TestForest& f) {
         f.node_begin[0] = f.node_end[0] = f.node_begin[1] = f.node_end[1] = 0;
         for (int32_t n = 2; n < 5; ++n) f.node_begin[n] = 0;
         f.node_parent[0] = 1;
       }},
      {"branch 0: is a free slot but has 1 queries, expected 0", [](TestForest& f) { f.branch_node[0] = kFreeSlot; }},
      {"branch 0: ends at node 9, expected one of the 5", [](TestForest& f) { f.branch_node[0] = 9; }},
      {"branch 2: ends at node 4, which is a free slot", [](TestForest& f) { f.node_parent[4] = kFreeSlot; }},
      {"node 3: ends at kLive but belongs to branches 0 and 1", [](TestForest& f) { f.branch_node[0] = 3; }},
      {"branch 0: has -1 queries, expected 0 or more", [](TestForest& f) { f.branch_query_count[0] = -1; }},
      {"branch 0: kv_len is 0, expected at least its 1 queries", [](TestForest& f) { f.branch_kv_len[0] = 0; }},
      {"branch 0: kv_len is 47, but its node 2 covers [48, kLive); expected at least its begin",
       [](TestForest& f) { f.branch_kv_len[0] = 47; }},
      {"branch 0: kv_len is 53, but its node 2 covers [48, 60); expected its end", [](TestForest& f) { f.node_end[2] = 60; }},
      {"branch 0: page row is [-1, ", [](TestForest& f) { f.branch_page_begin[0] = -1; }},
      {"), expected within page_indices of", [](TestForest& f) { f.branch_page_capacity[2] = 900; }},
      {"branch 0: kv_len is 53, but its page row holds 3 pages of 16 tokens", [](TestForest& f) { f.branch_page_capacity[0] = 3; }},
      {"branch 0: queries begin at -1, expected 0 or more", [](TestForest& f) { f.branch_query_begin[0] = -1; }},
      {"branch 0: queries end at row 101, but the plan's capacity is 100", [](TestForest& f) { f.branch_query_begin[0] = 100; },
       StatusCode::kResourceExhausted},
      {"branch 1: query row 2 also belongs to branch 2", [](TestForest& f) { f.branch_query_begin[2] = 2; }},
      {"branch 1: queries end at row 3, but query_tree_mask has 2 entries",
       [](TestForest& f) {
         f.query_tree_mask.resize(2);
         f.branch_query_begin[2] = 3, f.branch_node[2] = kFreeSlot, f.branch_query_count[2] = 0;
       }},
      {"branch 1: has 65 queries under a tree mask, expected at most 64",
       [](TestForest& f) {
         f.branch_query_count[1] = 65;
         f.branch_kv_len[1] = 120;
         f.branch_query_begin[1] = 10;
         f.query_tree_mask.resize(100);
       }},
  };
  for (const BrokenRule& rule : rules) {
    TestForest forest = Valid();
    rule.edit(forest);
    const Status status = Build(forest.Forest());
    EXPECT_EQ(status.code(), rule.code) << rule.message << "\n got: " << status.ToString();
    EXPECT_NE(status.message().find(rule.message), std::string::npos) << rule.message << "\n got: " << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
}

TEST(Forest, NamedNodesAreNodeSlots) {
  const TestForest forest = Valid();
  PrefixForestView view = forest.Forest();
  for (const int32_t id : {-1, kFreeSlot, 5, INT32_MAX, INT32_MIN}) {
    const int32_t named[] = {4, 0, id};
    view.changed_nodes = named;
    EXPECT_EQ(Build(view).ToString(),
              "INVALID_ARGUMENT: forest: changed_nodes[2] is " + std::to_string(id) + ", expected one of the 5 node slots");
    view.changed_nodes = std::span(named).first(2);
    EXPECT_EQ(Build(view).ToString(), "OK");
  }
}

TEST(Forest, IdleBranchesKeepTheirPlaceWithoutLengths) {
  TestForest forest = Valid();
  forest.branch_query_count[0] = 0;
  forest.branch_kv_len[0] = -7;
  EXPECT_TRUE(Build(forest.Forest()).ok());
}

// Rows as at the last check that passed are compared with it, all others checked one by one: the answers are the same.
TEST(Forest, StepsAreCheckedWhetherOrNotRowsMove) {
  const TestForest valid = Valid();
  for (const bool moved : {false, true}) {
    OwnedIndex index(kCapacity);
    ASSERT_TRUE(index.Build(valid.Forest()).ok());
    TestForest forest = valid;
    if (moved) std::swap(forest.branch_query_begin[0], forest.branch_query_begin[2]);
    EXPECT_TRUE(index.CheckStep(forest.Forest()).ok());
    const BrokenRule faults[] = {
        {"branch 1: page row", [](TestForest& f) { f.branch_page_begin[1] = -1; }},
        {"branch 1: page row", [](TestForest& f) { f.branch_page_capacity[1] = 1 << 30; }},
        {"but its page row holds", [](TestForest& f) { f.branch_kv_len[1] = f.branch_page_capacity[1] * 16 + 1; }},
        {"also belongs to branch", [](TestForest& f) { f.branch_query_begin[1] = f.branch_query_begin[0]; }},
        {"branch 1: queries end at row 101", [](TestForest& f) { f.branch_query_begin[1] = 99; }, StatusCode::kResourceExhausted},
    };
    for (const BrokenRule& rule : faults) {
      TestForest broken = forest;
      rule.edit(broken);
      for (int again = 0; again < 2; ++again) {  // what was refused is not kept
        const Status status = index.CheckStep(broken.Forest());
        EXPECT_EQ(status.code(), rule.code);
        EXPECT_NE(status.message().find(rule.message), std::string::npos) << status.message();
      }
    }
    EXPECT_TRUE(index.CheckStep(forest.Forest()).ok());
  }
}

TEST(Spec, RefusesWhatNoBackendCouldCompute) {
  const AttentionSpec valid{.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 64};
  EXPECT_TRUE(ValidateSpec(valid).ok());
  const std::pair<const char*, std::function<void(AttentionSpec&)>> rules[] = {
      {"num_kv_heads is 0", [](AttentionSpec& s) { s.num_kv_heads = 0; }},
      {"num_qo_heads is 7, expected a multiple of num_kv_heads 2", [](AttentionSpec& s) { s.num_qo_heads = 7; }},
      {"num_qo_heads is 0", [](AttentionSpec& s) { s.num_qo_heads = 0; }},
      {"head_dim is 100", [](AttentionSpec& s) { s.head_dim = 100; }},
      {"head_dim is 264", [](AttentionSpec& s) { s.head_dim = 264; }},
      {"sm_scale is not finite", [](AttentionSpec& s) { s.sm_scale = NAN; }},
      {"soft_cap is -1", [](AttentionSpec& s) { s.soft_cap = -1; }},
      {"window is -1", [](AttentionSpec& s) { s.window = -1; }},
  };
  for (const auto& [message, edit] : rules) {
    AttentionSpec spec = valid;
    edit(spec);
    EXPECT_NE(ValidateSpec(spec).message().find(message), std::string::npos) << message << ": " << ValidateSpec(spec).message();
  }
}

TEST(Capacity, ResolvesNodesAndRefusesNothing) {
  constexpr AttentionSpec kSpec{.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 64};
  const Result<PlanCapacity> resolved = ResolveCapacity(kSpec, {.max_branches = 4, .max_queries = 4, .max_page_slots = 4});
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->max_nodes, 8);
  EXPECT_FALSE(ResolveCapacity(kSpec, {}).ok());
  // Twice the branches must still be a number of nodes.
  EXPECT_EQ(ResolveCapacity(kSpec, {.max_branches = kMaxBranches, .max_queries = 4, .max_page_slots = 4})->max_nodes, 1 << 29);
  for (const int32_t branches : {kMaxBranches + 1, (1 << 30) + 1, INT32_MAX})
    EXPECT_FALSE(ResolveCapacity(kSpec, {.max_branches = branches, .max_queries = 4, .max_page_slots = 4}).ok()) << branches;
  EXPECT_FALSE(ResolveCapacity(kSpec, {.max_branches = 4, .max_queries = kMaxRows / 4 + 1, .max_page_slots = 4}).ok());
  EXPECT_FALSE(ResolveCapacity(kSpec, {.max_branches = 4, .max_queries = 4, .max_page_slots = 4, .page_size = 257}).ok());
  for (const int32_t images : {0, 3}) {
    EXPECT_FALSE(ResolveCapacity(kSpec, {.max_branches = 4, .max_queries = 4, .max_page_slots = 4, .device_images = images}).ok());
  }
}

TEST(OwnedForest, CountsEachTokenOnce) {
  OwnedForest shared, copies;
  AddUniformTree({.levels = {{.tokens = 1024}, {.tokens = 32, .fan_out = 16}}}, shared);
  AddUniformTree({.levels = {{.tokens = 1024}, {.tokens = 32, .fan_out = 16}}, .share = false}, copies);
  EXPECT_EQ(shared.num_tokens(), 1024 + 16 * 32);
  EXPECT_EQ(copies.num_tokens(), 16 * (1024 + 32));
}

}  // namespace
}  // namespace coppice::attention
