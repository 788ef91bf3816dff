// Changes that BranchForest reports, against copies of the forests that it showed before; and plans updated by these reports,
// against plans that compare forests. CheckIntegrity and kv_cache_test.cc check the forest itself. Layer: cache, tests.
#include "cache/branch_forest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attention/plan.h"

namespace coppice {
namespace {

using attention::PrefixForestView;

constexpr int32_t kBranches = 12, kRowPages = 64;

// Branches on paths of a tree of random texts over two tokens, pages of one token, everything computed.
class Lives {
 public:
  explicit Lives(uint32_t seed) : random_(seed) {}

  int32_t Pick(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(random_); }
  BranchForest& forest() { return forest_; }

  // One of the edits that a cache makes, or a step of some branches.
  void Edit() {
    const int32_t kind = Pick(0, 99);
    const BranchId b = Pick(0, kBranches - 1);
    if (kind < 30) {
      if (at_[b] == kNoNode) Come(b);
    } else if (kind < 50) {
      if (at_[b] != kNoNode) Leave(b);
    } else if (kind < 60) {
      if (at_[b] != kNoNode) GoOn(b);
    } else if (kind < 70) {
      const BranchId parent = Pick(0, kBranches - 1);
      if (at_[b] == kNoNode && at_[parent] != kNoNode) LinkTo(b, at_[parent], kv_len_[parent]);
    } else if (kind < 75) {
      if (at_[b] != kNoNode) {  // leaves its node for the one above, and comes back
        forest_.Unlink(b);
        forest_.Link(b, tree_.node(at_[b]).parent, kv_len_[b]);
        forest_.Unlink(b);
        forest_.Link(b, at_[b], kv_len_[b]);
      }
    } else if (kind < 80) {
      tree_.EvictOne();
    } else if (kind < 81) {
      forest_.Clear();
      tree_.Clear();
      pool_.Clear();
      std::ranges::fill(at_, kNoNode);
      ++num_ends_;
    } else {
      forest_.BeginStep();
      for (BranchId q = 0, row = 0; q < kBranches; ++q) {
        if (at_[q] != kNoNode && Pick(0, 2) > 0) forest_.SetQueries(q, row++, 1, kv_len_[q]);
      }
      forest_.EndStep();
      ++num_ends_;
    }
  }
  int64_t num_ends() const { return num_ends_; }  // steps that ended, and calls of Clear

 private:
  std::vector<PageId> Pages(size_t count) {
    std::vector<PageId> pages(count);
    for (PageId& page : pages) page = pool_.Allocate();
    return pages;
  }
  std::vector<int32_t> Text() {
    std::vector<int32_t> text(static_cast<size_t>(Pick(1, 10)));
    for (int32_t& token : text) token = Pick(0, 4) == 0 ? 1 : 0;
    return text;
  }
  // A leaf below a node with no child of that beginning, or the end of what is there already.
  NodeId AddText(NodeId start, std::span<const int32_t> text) {
    const PrefixTree::Match match = tree_.FindBelow(start, text, {});
    const int32_t begin = tree_.node(start).end();
    NodeId node = start;
    if (match.length > begin) {
      node = tree_.SplitAt(match);
      if (node != match.node) forest_.OnSplit(node, match.node);
    }
    text = text.subspan(static_cast<size_t>(match.length - begin));
    if (text.empty()) return node;
    return tree_.AddLeaf(node, text, 0, PageRefs(&pool_, Pages(text.size())), match.length + static_cast<int32_t>(text.size()));
  }
  void LinkTo(BranchId b, NodeId node, int32_t kv_len) {
    tree_.Lock(node);
    at_[b] = node;
    kv_len_[b] = kv_len;
    forest_.Link(b, node, kv_len);
  }
  void Come(BranchId b) {
    const NodeId node = AddText(kRootNode, Text());
    LinkTo(b, node, tree_.node(node).end() + Pick(1, 3));
  }
  void Leave(BranchId b) {
    forest_.Unlink(b);
    tree_.Unlock(std::exchange(at_[b], kNoNode));
  }
  // New tokens of the branch become a node of the tree.
  void GoOn(BranchId b) {
    const NodeId from = at_[b];
    if (tree_.node(from).end() > kRowPages - 20) return;
    const NodeId to = AddText(from, Text());
    if (to == from) return;
    kv_len_[b] = tree_.node(to).end() + 1;
    tree_.Lock(to);
    if (tree_.node(to).parent == from && !forest_.LeadsToBranches(to)) {
      forest_.Descend(b, to);
    } else {
      forest_.Unlink(b);
      forest_.Link(b, to, kv_len_[b]);
    }
    tree_.Unlock(from);
    at_[b] = to;
  }

  std::mt19937 random_;
  PagePool pool_{4096, 1};
  PrefixTree tree_{&pool_};
  BranchForest forest_ =
      BranchForest::Create(&tree_, {.max_branches = kBranches, .pages_per_branch = kRowPages, .page_size = 1}).value();
  std::vector<NodeId> at_ = std::vector<NodeId>(kBranches, kNoNode);
  std::vector<int32_t> kv_len_ = std::vector<int32_t>(kBranches);
  int64_t num_ends_ = 0;
};

struct Shown {
  explicit Shown(const PrefixForestView& view)
      : version(view.version),
        nodes{std::vector(view.node_parent.begin(), view.node_parent.end()),
              std::vector(view.node_begin.begin(), view.node_begin.end()),
              std::vector(view.node_end.begin(), view.node_end.end())} {}
  bool DiffersAt(const PrefixForestView& view, size_t n) const {
    return nodes[0][n] != view.node_parent[n] || nodes[1][n] != view.node_begin[n] || nodes[2][n] != view.node_end[n];
  }
  uint64_t version;
  std::vector<int32_t> nodes[3];
};

TEST(BranchForest, NamesEveryNodeThatChanged) {
  int64_t differing = 0, exact = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    Lives lives(seed);
    std::deque<Shown> shown = {Shown(lives.forest().View())};
    for (int32_t edit = 0; edit < 500; ++edit) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " edit " + std::to_string(edit));
      lives.Edit();
      ASSERT_EQ(lives.forest().CheckIntegrity().ToString(), "OK");
      const PrefixForestView view = lives.forest().View();
      ASSERT_TRUE(view.changed_nodes);
      std::vector<int32_t> times(view.node_parent.size());
      for (const int32_t n : *view.changed_nodes) {
        ASSERT_TRUE(n >= 0 && n < std::ssize(times)) << n;
        ASSERT_LE(++times[n], 2) << "memory for two";
      }
      for (const Shown& before : shown) {
        if (before.version < view.changed_since) continue;
        exact += before.version == view.changed_since;
        for (size_t n = 0; n < times.size(); ++n) {
          if (!before.DiffersAt(view, n)) continue;
          ++differing;
          ASSERT_GT(times[n], 0) << "node " << n << " since version " << before.version << ", named since " << view.changed_since;
          ASSERT_GT(view.version, before.version);
        }
      }
      shown.emplace_back(view);
      if (shown.size() > 30) shown.pop_front();
    }
  }
  EXPECT_GT(differing, 10000);
  EXPECT_GT(exact, 1000);
}

// A runner one step behind reads the view of the step before.
TEST(BranchForest, ListsOfAViewOutliveOneStep) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Lives lives(seed);
    lives.forest().EndStep();
    PrefixForestView view = lives.forest().View();
    std::vector<int32_t> nodes(view.changed_nodes->begin(), view.changed_nodes->end());
    std::vector<int32_t> branches(view.changed_branches.begin(), view.changed_branches.end());
    int64_t seen = lives.num_ends();
    for (int32_t edit = 0; edit < 500; ++edit) {
      lives.Edit();
      if (lives.num_ends() == seen + 2) {
        view = lives.forest().View();
        nodes.assign(view.changed_nodes->begin(), view.changed_nodes->end());
        branches.assign(view.changed_branches.begin(), view.changed_branches.end());
        seen = lives.num_ends();
      }
      ASSERT_TRUE(std::ranges::equal(*view.changed_nodes, nodes));
      ASSERT_TRUE(std::ranges::equal(view.changed_branches, branches));
    }
  }
}

TEST(BranchForest, NamesFewNodesOfOneChange) {
  PagePool pool(64, 1);
  PrefixTree tree(&pool);
  BranchForest forest = BranchForest::Create(&tree, {.max_branches = 256, .pages_per_branch = 8, .page_size = 1}).value();
  const std::vector<int32_t> text = {1, 2};
  const NodeId prompt = tree.AddLeaf(kRootNode, text, 0, PageRefs(&pool, {pool.Allocate(), pool.Allocate()}), 2);
  for (BranchId b = 0; b < 200; ++b) forest.Link(b, prompt, 3);
  const auto named = [&] {
    const PrefixForestView view = forest.View();
    std::vector<int32_t> nodes(view.changed_nodes->begin(), view.changed_nodes->end());
    std::ranges::sort(nodes);
    return nodes;
  };
  EXPECT_EQ(named().size(), 201u);
  forest.EndStep();
  EXPECT_EQ(named().size(), 201u) << "for a reader of the step before";
  forest.EndStep();
  EXPECT_EQ(named(), std::vector<int32_t>());
  forest.Link(200, prompt, 3);
  EXPECT_EQ(named(), std::vector<int32_t>{200});
  forest.EndStep();
  forest.Unlink(7);
  EXPECT_EQ(named(), (std::vector<int32_t>{7, 200}));
  forest.NoteRowChange(9);
  EXPECT_EQ(named(), (std::vector<int32_t>{7, 200}));
  forest.EndStep();
  EXPECT_EQ(named(), std::vector<int32_t>{7});
  // One that parts in the middle of the prompt: a junction, the remaining child below it, its own leaf.
  const NodeId upper = tree.SplitAt({.node = prompt, .length = 1, .due = 1});
  forest.OnSplit(upper, prompt);
  EXPECT_EQ(named(), std::vector<int32_t>{7});
  forest.Link(7, upper, 2);
  EXPECT_EQ(named(), (std::vector<int32_t>{7, 7, 256, 257}));
  forest.Clear();
  EXPECT_EQ(named(), std::vector<int32_t>());
  EXPECT_EQ(forest.View().changed_since, forest.View().version);
}

// Plans updated at every step, at every second one (whose changes the lists still name) and seldom (where they name too few).
TEST(BranchForest, PlansGoByWhatItNames) {
  const attention::AttentionSpec spec{.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  const attention::PlanCapacity capacity{
      .max_branches = kBranches, .max_queries = kBranches, .max_page_slots = kBranches * kRowPages, .page_size = 1};
  const attention::BackendTraits traits{.workers = 2, .dense_tile_rows = 64, .dense_min_rows = 8, .kv_tile = 64};
  const auto machine = attention::ShippedMachineModel("zen5", 2).value();
  for (uint32_t seed = 0; seed < 20; ++seed) {
    for (const int32_t every : {1, 2, 5}) {
      Lives lives(seed);
      const attention::PlannerOptions options{.force_sharing = true};
      const auto edited = attention::Planner::Create(spec, capacity, options, traits, machine).value();
      const auto compares = attention::Planner::Create(spec, capacity, options, traits, machine).value();
      int64_t seen = 0;
      for (int32_t edit = 0; edit < 500; ++edit) {
        SCOPED_TRACE("seed " + std::to_string(seed) + " every " + std::to_string(every) + " edit " + std::to_string(edit));
        lives.Edit();
        if (lives.num_ends() < seen + every) continue;
        seen = lives.num_ends();
        PrefixForestView view = lives.forest().View();
        ASSERT_EQ(edited->Update(view).ToString(), "OK");
        view.changed_nodes.reset();
        ASSERT_EQ(compares->Update(view).ToString(), "OK");
        ASSERT_EQ(edited->Explain(), compares->Explain());
        ASSERT_EQ(edited->Stats().nodes_replanned, compares->Stats().nodes_replanned);
        ASSERT_EQ(edited->Stats().num_contributions, compares->Stats().num_contributions);
      }
    }
  }
}

}  // namespace
}  // namespace coppice
