#include "cache/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace coppice {
namespace {

constexpr int kPageSize = 4;

class PrefixTreeTest : public ::testing::Test {
 protected:
  // Adds `tokens` below `parent` with fresh pages, ready up to ready_end (-1: all).
  NodeId Add(NodeId parent, std::vector<int32_t> tokens, int32_t ready_end = -1, uint32_t salt = 0) {
    const int32_t begin = tree_.node(parent).end(), end = begin + static_cast<int32_t>(tokens.size());
    std::vector<PageId> pages;
    for (int32_t j = begin / kPageSize; j * kPageSize < end; ++j) pages.push_back(pool_.Allocate());
    return tree_.AddLeaf(parent, tokens, salt, PageRefs(&pool_, pages), ready_end < 0 ? end : ready_end);
  }
  void ExpectIntact() {
    std::vector<int32_t> references(pool_.num_pages()), uses(pool_.num_pages());
    Status status = tree_.CheckIntegrity(references, uses);
    ASSERT_TRUE(status.ok()) << status.message();
    status = pool_.CheckIntegrity(references, uses);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  PagePool pool_{64, kPageSize};
  PrefixTree tree_{&pool_};
};

TEST_F(PrefixTreeTest, MatchesTokenByToken) {
  const NodeId node = Add(kRootNode, {1, 2, 3, 4, 5, 6});
  const std::vector<int32_t> tokens = {1, 2, 3, 9};
  const PrefixTree::Match match = tree_.Find(tokens, {});
  EXPECT_EQ(match.node, node);
  EXPECT_EQ(match.length, 3);
  EXPECT_EQ(match.ready, 3);
  EXPECT_EQ(tree_.Find(std::vector<int32_t>{7}, {}).length, 0);
  EXPECT_EQ(tree_.Find(std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7}, {}).length, 6);
}

TEST_F(PrefixTreeTest, SplitInsideAPageSharesThatPage) {
  const NodeId lower = Add(kRootNode, {1, 2, 3, 4, 5, 6, 7});
  const PageId second = tree_.node(lower).pages[1];
  tree_.Lock(lower);
  const NodeId upper = tree_.SplitAt({.node = lower, .length = 6, .due = 6});
  EXPECT_NE(upper, lower);
  EXPECT_EQ(tree_.node(upper).end(), 6);
  EXPECT_EQ(tree_.node(lower).begin, 6);
  EXPECT_EQ(tree_.node(upper).pages.size(), 2u);
  ASSERT_EQ(tree_.node(lower).pages.size(), 1u);
  EXPECT_EQ(tree_.node(lower).pages[0], second);
  EXPECT_EQ(pool_.references(second), 2);
  ExpectIntact();
  tree_.Unlock(lower);
  ExpectIntact();
  EXPECT_EQ(pool_.num_in_use(), 0);
}

TEST_F(PrefixTreeTest, SplitOnAPageBoundarySharesNothing) {
  const NodeId lower = Add(kRootNode, {1, 2, 3, 4, 5, 6});
  tree_.SplitAt({.node = lower, .length = 4, .due = 4});
  EXPECT_EQ(tree_.node(lower).pages.size(), 1u);
  EXPECT_EQ(pool_.references(tree_.node(lower).pages[0]), 1);
  ExpectIntact();
}

TEST_F(PrefixTreeTest, ScoresAreSplitAndDroppedWithTheirTokens) {
  const NodeId lower = Add(kRootNode, {1, 2, 3, 4, 5, 6, 7}, /*ready_end=*/6);
  const auto score = [](float logprob) { return TokenScore{.logprob = logprob}; };
  tree_.KeepScores(lower, 2, std::vector{score(-2), TokenScore(), score(-4), score(-5), score(-6), score(-7)});  // past the end too
  const NodeId upper = tree_.SplitAt({.node = lower, .length = 3, .due = 3});
  const NodeId child = Add(upper, {8});
  ExpectIntact();
  const auto of = [&](NodeId node) {
    std::vector<TokenScore> found(8);
    tree_.CopyScores(node, 0, found);
    std::vector<float> logprobs;
    for (const TokenScore& one : found) logprobs.push_back(one.is_known() ? one.logprob : 0);
    return logprobs;
  };
  EXPECT_EQ(of(lower), (std::vector<float>{0, 0, -2, 0, -4, -5, -6, 0}));
  EXPECT_EQ(of(child), (std::vector<float>{0, 0, -2, 0, 0, 0, 0, 0}));
  tree_.KeepScores(child, 1, std::vector{score(-1), score(-9), score(-3)});
  EXPECT_EQ(of(child), (std::vector<float>{0, -1, -2, -3, 0, 0, 0, 0}));  // what is kept stays
  EXPECT_EQ(of(lower), (std::vector<float>{0, -1, -2, 0, -4, -5, -6, 0}));
  tree_.KeepScores(child, 1, std::vector{TokenScore{.logprob = -1.5f, .temperature = 2}, TokenScore{.logprob = -2.5f, .rank = 3}});
  EXPECT_EQ(of(child), (std::vector<float>{0, -1.5f, -2.5f, -3, 0, 0, 0, 0}));  // what says something else or more takes its place
  tree_.DropUnready(lower);
  EXPECT_EQ(of(lower), (std::vector<float>{0, -1.5f, -2.5f, 0, -4, -5, 0, 0}));
  ExpectIntact();
}

TEST_F(PrefixTreeTest, SaltsNeverMatchEachOther) {
  Add(kRootNode, {1, 2, 3}, -1, /*salt=*/1);
  const std::vector<int32_t> tokens = {1, 2, 3};
  EXPECT_EQ(tree_.Find(tokens, {.id = 1}).length, 3);
  EXPECT_EQ(tree_.Find(tokens, {.id = 2}).length, 0);
  EXPECT_EQ(tree_.Find(tokens, {}).length, 0);
}

TEST_F(PrefixTreeTest, APrivateTailSeesThePublicPartAndNoMore) {
  Add(kRootNode, {1, 2, 3, 4, 5});
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
  EXPECT_EQ(tree_.Find(tokens, {.id = 7, .begin = 2}).length, 2);
  EXPECT_EQ(tree_.Find(tokens, {.id = 7, .begin = 5}).length, 5);
}

TEST_F(PrefixTreeTest, UnreadyTokensAreReportedAndDroppedWithTheirComputer) {
  const NodeId node = Add(kRootNode, {1, 2, 3, 4, 5, 6, 7, 8, 9}, /*ready_end=*/0);
  tree_.Lock(node);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(tree_.Find(tokens, {}).ready, 0);
  tree_.Mark(node, 5, KvProgress::kReady);
  EXPECT_EQ(tree_.Find(tokens, {}).ready, 5);
  EXPECT_EQ(tree_.Find(tokens, {}).length, 9);
  ExpectIntact();
  tree_.Unlock(node);
  tree_.DropUnready(node);
  EXPECT_EQ(tree_.Find(tokens, {}).length, 5);
  EXPECT_EQ(tree_.Find(tokens, {}).ready, 5);
  EXPECT_EQ(pool_.num_owned(), 2);
  EXPECT_EQ(pool_.claimed_slots(tree_.node(node).pages.back()), 1);  // the next writer may continue at kv index 5
  ExpectIntact();
}

TEST_F(PrefixTreeTest, NothingIsLeftOfAPromptThatNeverBegan) {
  const NodeId node = Add(kRootNode, {1, 2, 3}, 0);
  tree_.DropUnready(node);
  EXPECT_EQ(tree_.num_nodes(), 0);
  EXPECT_EQ(pool_.num_owned(), 0);
  ExpectIntact();
}

TEST_F(PrefixTreeTest, EvictsLeavesInLruOrderAndKeepsLockedPaths) {
  const NodeId a = Add(kRootNode, {1, 2});
  const NodeId b = Add(a, {3, 4});
  const NodeId c = Add(kRootNode, {5});
  tree_.Lock(b);
  EXPECT_TRUE(tree_.EvictOne());  // only c may go
  EXPECT_EQ(tree_.Find(std::vector<int32_t>{5}, {}).length, 0);
  EXPECT_FALSE(tree_.EvictOne());
  tree_.Unlock(b);
  const NodeId d = Add(kRootNode, {6});
  EXPECT_TRUE(tree_.EvictOne());
  EXPECT_EQ(tree_.Find(std::vector<int32_t>{1, 2, 3, 4}, {}).length, 2);  // b before a, its parent
  EXPECT_TRUE(tree_.EvictOne());
  EXPECT_EQ(tree_.Find(std::vector<int32_t>{6}, {}).node, d);
  EXPECT_TRUE(tree_.EvictOne());
  EXPECT_FALSE(tree_.EvictOne());
  EXPECT_EQ(pool_.num_owned(), 0);
  (void)c;
  ExpectIntact();
}

// Insert, match, lock, unlock, evict at random; a list of strings says what must be found.
TEST_F(PrefixTreeTest, RandomOperationsMatchANaiveModel) {
  std::mt19937 random(7);
  std::vector<NodeId> locked;
  for (int step = 0; step < 10000; ++step) {
    std::vector<int32_t> tokens(1 + random() % 12);
    for (int32_t& token : tokens) token = random() % 3;
    const SaltRange salt{.id = static_cast<uint32_t>(random() % 3), .begin = static_cast<int32_t>(random() % 4)};
    const PrefixTree::Match match = tree_.Find(tokens, salt);
    // Naive: the longest common prefix with any root-to-leaf string of (salt, token) symbols.
    int32_t longest = 0;
    for (NodeId id = 1; id < tree_.node_capacity(); ++id) {
      if (!tree_.node(id).in_tree) continue;
      std::vector<std::pair<uint32_t, int32_t>> path;
      for (NodeId n = id; n != kRootNode; n = tree_.node(n).parent) {
        for (auto t = tree_.node(n).tokens.rbegin(); t != tree_.node(n).tokens.rend(); ++t)
          path.emplace_back(tree_.node(n).salt, *t);
      }
      std::reverse(path.begin(), path.end());
      int32_t same = 0;
      while (same < static_cast<int32_t>(std::min(path.size(), tokens.size())) &&
             path[same] == std::pair(salt.At(same), tokens[same])) {
        ++same;
      }
      longest = std::max(longest, same);
    }
    ASSERT_EQ(match.length, longest);
    switch (random() % 4) {
      case 0:
      case 1: {  // insert the rest, one node per salt
        NodeId at = tree_.SplitAt(match);
        for (int32_t begin = match.length; begin < static_cast<int32_t>(tokens.size());) {
          const int32_t stop =
              begin < salt.begin ? std::min<int32_t>(salt.begin, tokens.size()) : static_cast<int32_t>(tokens.size());
          std::vector<PageId> pages;
          tree_.Lock(at);
          for (int32_t j = begin / kPageSize; j * kPageSize < stop; ++j) {
            while (pool_.num_free() == 0 && tree_.EvictOne()) {
            }
            pages.push_back(pool_.Allocate());
          }
          tree_.Unlock(at);
          if (std::find(pages.begin(), pages.end(), kNoPage) != pages.end()) {
            for (const PageId page : pages) {
              if (page != kNoPage) pool_.DropReference(page);
            }
            break;
          }
          at = tree_.AddLeaf(at, std::span(tokens).subspan(begin, stop - begin), salt.At(begin), PageRefs(&pool_, pages), stop);
          begin = stop;
        }
        break;
      }
      case 2:
        if (match.length > 0 && locked.size() < 4) {
          locked.push_back(match.node);
          tree_.Lock(match.node);
        } else if (!locked.empty()) {
          tree_.Unlock(locked.back());
          locked.pop_back();
        }
        break;
      case 3: tree_.EvictOne(); break;
    }
    ASSERT_NO_FATAL_FAILURE(ExpectIntact());
  }
}

}  // namespace
}  // namespace coppice
