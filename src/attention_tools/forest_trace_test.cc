// Forests that were traced against those that are read again, over random edits; pages of a forest that was read; lines that are
// no trace's.
#include "attention_tools/forest_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "attention/plan.h"
#include "attention/testing/plan_test_forest.h"

namespace coppice::attention {
namespace {

using testing::RandomEdit;
using testing::RandomForest;
using testing::TestForest;

// Nodes and branches that a trace keeps of a forest, for comparison.
struct Kept {
  std::map<int32_t, std::vector<int32_t>> nodes, branches;
  bool operator==(const Kept&) const = default;
};

Kept KeptOf(const PrefixForestView& forest) {
  Kept kept;
  for (int32_t n = 0; n < std::ssize(forest.node_parent); ++n) {
    if (forest.node_parent[n] != kFreeSlot) kept.nodes[n] = {forest.node_parent[n], forest.node_begin[n], forest.node_end[n]};
  }
  for (int32_t b = 0; b < std::ssize(forest.branch_node); ++b) {
    if (forest.branch_node[b] != kFreeSlot)
      kept.branches[b] = {forest.branch_node[b], forest.branch_kv_len[b], forest.branch_query_count[b]};
  }
  return kept;
}

std::string ErrorOf(const std::vector<std::string>& lines) {
  ForestTraceReader reader;
  for (const std::string& line : lines) {
    if (const Status read = reader.ReadStep(line); !read.ok()) return read.message();
  }
  const Result<OwnedForest> forest = LayOutPages(reader.forest(), 16);
  return forest.ok() ? "" : forest.status().message();
}

TEST(ForestTrace, StepsAreReadAsTheyWereTraced) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    TestForest forest = RandomForest(rng);
    ForestTraceWriter writer;
    ForestTraceReader reader;
    for (int step = 0; step < 60; ++step) {
      std::string line;
      writer.AppendStep(forest.Forest(), &line);
      ASSERT_EQ(line.find('\n'), line.size() - 1);
      const Status read = reader.ReadStep(line);
      ASSERT_TRUE(read.ok()) << read.message() << " in " << line;
      const Result<OwnedForest> laid_out = LayOutPages(reader.forest(), forest.page_size);
      ASSERT_TRUE(laid_out.ok()) << laid_out.status().message();
      ASSERT_EQ(KeptOf(laid_out->Forest()), KeptOf(forest.Forest())) << "step " << step;
      // Decode steps under an equal version, and edits.
      if (rng() % 3 != 0) {
        forest.Grow();
      } else {
        for (uint32_t edits = rng() % 4; edits > 0; --edits) RandomEdit(forest, rng);
      }
    }
  }
}

TEST(ForestTrace, DecodingTakesNoWords) {
  TestForest forest;
  const int32_t prompt = forest.AddNode(kNoParent, 100);
  for (int i = 0; i < 3; ++i) forest.AddBranch(prompt, 1, 1);
  ForestTraceWriter writer;
  std::string lines;
  for (int step = 0; step < 3; ++step) {
    writer.AppendStep(forest.Forest(), &lines);
    forest.Grow();
  }
  forest.RemoveBranch(1);
  writer.AppendStep(forest.Forest(), &lines);
  EXPECT_EQ(lines, R"({"nodes":[[0,-1,100],[1,0,-1],[2,0,-1],[3,0,-1]],"branches":[[0,1,101,1],[1,2,101,1],[2,3,101,1]]}
{}
{}
{"nodes_gone":[2],"branches_gone":[1]}
)");
}

TEST(ForestTrace, BranchesReadThePagesOfTheirPath) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    const TestForest forest = RandomForest(rng);
    std::string line;
    ForestTraceWriter().AppendStep(forest.Forest(), &line);
    ForestTraceReader reader;
    ASSERT_TRUE(reader.ReadStep(line).ok());
    const OwnedForest read = LayOutPages(reader.forest(), forest.page_size).value();
    // A page is read at one place in the rows of the branches below one node, and nowhere else.
    std::map<int32_t, std::pair<int32_t, std::vector<int32_t>>> readers;  // page -> place, branches
    for (int32_t b = 0; b < read.num_branches(); ++b) {
      for (int32_t j = 0; j < read.branch_page_capacity[b]; ++j) {
        auto& [place, branches] =
            readers.try_emplace(read.page_indices[read.branch_page_begin[b] + j], j, std::vector<int32_t>()).first->second;
        ASSERT_EQ(place, j);
        branches.push_back(b);
      }
    }
    const auto lies_below = [&](int32_t branch, int32_t node) {
      for (int32_t n = read.branch_node[branch]; n != kNoParent; n = read.node_parent[n]) {
        if (n == node) return true;
      }
      return false;
    };
    for (const auto& [page, of] : readers) {
      const auto& [place, branches] = of;
      if (branches.size() == 1) continue;
      const int32_t last = (place + 1) * read.page_size;  // behind its last token
      int32_t owner = read.branch_node[branches.front()];
      while (owner != kNoParent && read.node_begin[owner] >= last) owner = read.node_parent[owner];
      ASSERT_NE(owner, kNoParent);
      EXPECT_LE(last, read.node_end[owner]);
      for (const int32_t b : branches) EXPECT_TRUE(lies_below(b, owner)) << "page " << page << ", branch " << b;
    }
  }
}

TEST(ForestTrace, HeadsAreReadAsTheyWereWritten) {
  const ForestTraceHead head = {
      .page_size = 32,
      .layers = {{.num_layers = 4, .spec = {.num_qo_heads = 4, .num_kv_heads = 1, .head_dim = 256}},
                 {.num_layers = 22, .spec = {.num_qo_heads = 4, .num_kv_heads = 1, .head_dim = 256, .window = 512}}}};
  const std::string line = ForestTraceWriter::HeadLine(head);
  EXPECT_TRUE(line.starts_with(kForestTraceBegin));
  const Result<ForestTraceHead> read = ParseForestTraceHead(line);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, head);
}

TEST(ForestTrace, WrongHeadsAreNamed) {
  const std::pair<std::string, std::string> wrong[] = {
      {"", "not valid JSON"},
      {"[1]", "the line is [1], expected an object"},
      {"{}", "format is null, expected \"coppice forest trace\""},
      {R"({"format":"coppice forest trace"})", "there is no version"},
      {R"({"format":"coppice forest trace","version":2})", "version is 2, expected an integer, 1 to 1"},
      {R"({"format":"coppice forest trace","version":1,"page_size":0})", "page_size is 0, expected an integer, 1 to 256"},
      {R"({"format":"coppice forest trace","version":1,"page_size":16,"layers":[]})", "layers is [], expected a list of objects"},
      {R"({"format":"coppice forest trace","version":1,"page_size":16,"layers":[7]})",
       "an entry of layers is 7, expected an object"},
      {R"({"format":"coppice forest trace","version":1,"page_size":16,"layers":[{"layers":2,"qo_heads":"9"}]})",
       "qo_heads is \"9\", expected an integer, 1 to 65535"},
  };
  for (const auto& [line, message] : wrong) {
    const Result<ForestTraceHead> read = ParseForestTraceHead(line);
    ASSERT_FALSE(read.ok()) << line;
    EXPECT_NE(read.status().message().find(message), std::string::npos) << read.status().message() << " for " << line;
  }
}

TEST(ForestTrace, WrongStepsAreNamed) {
  const std::string one = R"({"nodes":[[0,-1,-1]],"branches":[[0,0,5,1]]})";
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"{"}, "not valid JSON"},
      {{"7"}, "the line is 7, expected an object"},
      {{R"({"node":[]})"}, "there is no field \"node\""},
      {{R"({"nodes":5})"}, "nodes is 5, expected a list"},
      {{R"({"nodes":[[0,-1]]})"}, "an entry of nodes is [0,-1], expected a list of 3 integers"},
      {{R"({"nodes":[[0,-1,1.5]]})"}, "a value in nodes is 1.5, expected an integer, -1 to 2147483647"},
      {{R"({"nodes":[[131072,-1,1]]})"}, "a value in nodes is 131072, expected an integer, 0 to 131071"},
      {{R"({"nodes":[[0,-1,16777217]]})"}, "node 0 has 16777217 tokens, expected 0 to 16777216"},
      {{R"({"nodes_gone":[3]})"}, "node 3 is gone, and was not there"},
      {{R"({"branches_gone":[3]})"}, "branch 3 is gone, and was not there"},
      {{R"({"branches":[[0,2,5,1]]})"}, "branch 0 ends at node 2, which is none of the step's nodes"},
      {{one, R"({"nodes_gone":[0]})"}, "branch 0 ends at node 0, which is none of the step's nodes"},
      {{one, R"({"branches":[[0,0,5,6]]})"}, "branch 0 has 6 queries, expected 0 to 5, the number of its tokens"},
      {{R"({"nodes":[[0,-1,9],[1,0,-1]],"branches":[[4,1,8,1]]})"},
       "branch 4 has 8 tokens, expected at least 9, where its node 1 begins"},
      {{R"({"nodes":[[0,-1,9]],"branches":[[0,0,10,1]]})"}, "branch 0 has 10 tokens, expected 9, where its node 0 ends"},
      {{R"({"nodes":[[0,3,1]]})"}, "node 0 has parent 3, which is none of the step's nodes"},
      {{R"({"nodes":[[0,1,1],[1,0,1]]})"}, "is its own ancestor"},
      {{R"({"nodes":[[0,-1,-1],[1,0,1]]})"}, "node 1 has parent 0, which ends with its branch"},
      {{R"({"nodes":[[0,-1,16000000],[1,0,16000000]]})"}, "the path to node 1 has 32000000 tokens"},
  };
  for (const auto& [lines, message] : wrong) {
    EXPECT_NE(ErrorOf(lines).find(message), std::string::npos) << '"' << ErrorOf(lines) << "\" for " << lines.back();
  }
}

}  // namespace
}  // namespace coppice::attention
