// How a batch is divided among machines: by prefix where that costs little time, and evenly.
#include "openai/batch_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace coppice::openai {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Ge;
using testing::Le;

struct Job {
  std::vector<int32_t> prompt;
  int64_t output_tokens = 0;
};

// `head` times its token, then one that no other request has.
Job Below(int32_t head, int32_t tokens, int32_t own, int64_t output_tokens = 0) {
  Job job = {.prompt = std::vector<int32_t>(static_cast<size_t>(tokens), head), .output_tokens = output_tokens};
  job.prompt.push_back(own);
  return job;
}

std::vector<BatchPart> Cut(std::vector<Job>* jobs, size_t parts) {
  std::ranges::stable_sort(*jobs, {}, &Job::prompt);
  return CutBatch({.count = jobs->size(),
                   .prompt = [=](size_t i) { return std::span<const int32_t>((*jobs)[i].prompt); },
                   .output_tokens = [=](size_t i) { return (*jobs)[i].output_tokens; }},
                  parts);
}

std::vector<int64_t> Costs(const std::vector<BatchPart>& parts) {
  std::vector<int64_t> costs;
  for (const BatchPart& part : parts) costs.push_back(part.prompt_tokens + part.output_tokens);
  return costs;
}

// Prompt tokens that a machine computes which has these requests alone: the nodes of their tree.
int64_t TreeTokens(const std::vector<Job>& jobs, const BatchPart& part) {
  std::set<std::vector<int32_t>> nodes;
  for (size_t i = part.begin; i < part.end; ++i) {
    for (size_t end = 1; end <= jobs[i].prompt.size(); ++end)
      nodes.emplace(jobs[i].prompt.begin(), jobs[i].prompt.begin() + static_cast<ptrdiff_t>(end));
  }
  return static_cast<int64_t>(nodes.size());
}

TEST(CutBatch, GroupsStayWhole) {
  std::vector<Job> jobs;
  for (int32_t i = 0; i < 400; ++i) jobs.push_back(Below(1 + i % 20, 100 + 10 * (i % 20 % 3), 1000 + i, 16));
  for (const size_t count : {2, 4, 5, 10, 20}) {
    const std::vector<BatchPart> parts = Cut(&jobs, count);
    ASSERT_EQ(parts.size(), count);
    for (const BatchPart& part : parts) {
      if (part.begin == 0) continue;
      EXPECT_NE(jobs[part.begin - 1].prompt.front(), jobs[part.begin].prompt.front()) << count;
    }
  }
}

TEST(CutBatch, AHeadOfAllIsNoGroup) {
  std::vector<Job> jobs;
  for (int32_t i = 0; i < 40; ++i) {
    Job job = Below(100 + i % 4, 50, 1000 + i, 8);
    job.prompt.insert(job.prompt.begin(), 30, 7);
    jobs.push_back(job);
  }
  const std::vector<BatchPart> parts = Cut(&jobs, 2);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[1].begin, 20U);
  EXPECT_NE(jobs[19].prompt[30], jobs[20].prompt[30]);
}

TEST(CutBatch, AGroupLargerThanAShareIsCutAtItsNextLevel) {
  std::vector<Job> jobs = {Below(1, 10, 2, 8)};
  for (int32_t i = 0; i < 60; ++i) {  // three groups below one head
    Job job = Below(100 + i % 3, 50, 1000 + i, 8);
    job.prompt.insert(job.prompt.begin(), 200, 7);
    jobs.push_back(job);
  }
  const std::vector<BatchPart> parts = Cut(&jobs, 3);
  ASSERT_EQ(parts.size(), 3U);
  for (size_t i = 1; i < 3; ++i) EXPECT_NE(jobs[parts[i].begin - 1].prompt[200], jobs[parts[i].begin].prompt[200]);
}

TEST(CutBatch, EqualPromptsAreCutToo) {
  std::vector<Job> jobs(100, Below(1, 50, 2, 100));
  EXPECT_THAT(Costs(Cut(&jobs, 4)), Each(51 + 25 * 100));
}

TEST(CutBatch, FewRequestsForManyMachines) {
  std::vector<Job> jobs = {Below(1, 5, 2), Below(2, 5, 2), Below(3, 5, 2)};
  EXPECT_EQ(Cut(&jobs, 8).size(), 3U);
  jobs.clear();
  EXPECT_TRUE(Cut(&jobs, 8).empty());
}

TEST(CutBatch, ALongRequestLeavesTheOthersToOtherMachines) {
  std::vector<Job> jobs = {Below(1, 5, 2, 1000)};
  for (int32_t i = 0; i < 10; ++i) jobs.push_back(Below(2 + i, 5, 2, 94));
  EXPECT_THAT(Costs(Cut(&jobs, 2)), testing::ElementsAre(1006, 1000));
}

// Against the definition: every request in one part, tokens those of the tree, and the longest part within the tolerance of the
// best one that any cut into ranges gives.
TEST(CutBatch, RandomTreesAreCutEvenly) {
  std::mt19937 random(7);
  const auto draw = [&](int32_t below) { return static_cast<int32_t>(random() % static_cast<uint32_t>(below)); };
  for (int round = 0; round < 200; ++round) {
    std::vector<Job> jobs(static_cast<size_t>(1 + draw(40)));
    for (Job& job : jobs) {
      job.output_tokens = draw(20);
      for (int32_t i = 0, size = 1 + draw(8); i < size; ++i) job.prompt.push_back(draw(2));
    }
    const auto count = static_cast<size_t>(1 + draw(6));
    const std::vector<BatchPart> parts = Cut(&jobs, count);
    ASSERT_LE(parts.size(), count);
    size_t end = 0;
    for (const BatchPart& part : parts) {
      EXPECT_EQ(part.begin, end);
      EXPECT_LT(part.begin, part.end);
      EXPECT_EQ(part.prompt_tokens, TreeTokens(jobs, part));
      end = part.end;
    }
    ASSERT_EQ(end, jobs.size());

    // best[k][i]: of the requests before i in k parts.
    const auto cost = [&](size_t begin, size_t at) {
      int64_t sum = TreeTokens(jobs, {.begin = begin, .end = at});
      for (size_t i = begin; i < at; ++i) sum += jobs[i].output_tokens;
      return sum;
    };
    std::vector<int64_t> best(jobs.size() + 1, INT64_MAX);
    best[0] = 0;
    for (size_t k = 0; k < count; ++k) {
      std::vector<int64_t> next = best;
      for (size_t at = 1; at <= jobs.size(); ++at) {
        for (size_t begin = 0; begin < at; ++begin)
          if (best[begin] != INT64_MAX) next[at] = std::min(next[at], std::max(best[begin], cost(begin, at)));
      }
      best = next;
    }
    EXPECT_THAT(Costs(parts), Each(AllOf(Ge(1), Le(std::llround(1.05 * static_cast<double>(best.back()))))));
  }
}

}  // namespace
}  // namespace coppice::openai
