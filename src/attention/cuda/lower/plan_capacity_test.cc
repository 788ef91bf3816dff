// Capacities never make a plan for a GPU fail: forests that fill them, edited in place, under every policy, on many SMs and few.
// The translation has room for all that the planner gives it, its states do not overlap, and each merge set's tasks read its path
// once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attention/cuda/lower/kernel_choice.h"
#include "attention/cuda/lower/plan_translator.h"
#include "attention/plan.h"
#include "attention/testing/plan_test_forest.h"

namespace coppice::attention::cuda {
namespace {

using attention::testing::RandomForest;
using attention::testing::TestForest;

constexpr size_t kGuardBytes = 4096;
constexpr auto kGuard = std::byte{0x5a};

// A planner and a translation into memory with a guard behind it.
class Lowered {
 public:
  Lowered(const AttentionSpec& spec, const PlanCapacity& capacity, const PlannerOptions& options, int sms)
      : spec_(spec),
        planner_(MakePlanner(spec, capacity, options, sms)),
        translator_(spec, planner_->capacity(), planner_->sizes(), planner_->machine().sm, planner_->traits()),
        memory_((translator_.layout().bytes + kGuardBytes) / sizeof(std::max_align_t) + 1) {
    std::fill_n(image() + translator_.layout().bytes, kGuardBytes, kGuard);
  }

  void Step(const TestForest& forest) {
    const Status updated = planner_->Update(forest.Forest());
    ASSERT_TRUE(updated.ok()) << updated.ToString();
    translator_.TranslatePlan(planner_->View(), forest.Forest());
    translator_.WriteImage(image());
    translator_.TranslateLengths(forest.Forest(), image());
    const PlanLayout& layout = translator_.layout();
    ASSERT_LE(translator_.num_items(), layout.max_items);
    ASSERT_LE(translator_.num_members(), layout.max_members);
    ASSERT_LE(translator_.num_contributions(), layout.max_contributions);
    ASSERT_LE(translator_.num_dense_tasks(), layout.max_tasks);
    ASSERT_LE(translator_.num_stream_tasks(), layout.max_tasks);
    ASSERT_TRUE(std::all_of(image() + layout.bytes, image() + layout.bytes + kGuardBytes, [](std::byte b) { return b == kGuard; }));
    CheckTasks(forest);
  }
  void LowerAtRandom(uint64_t seed) { translator_.LowerAtRandom(seed); }
  bool is_coarsened() const { return planner_->Explain().find("coarsening level 0") == std::string::npos; }
  // Of the tasks of all steps, under each kv head: those that begin after others of their path, those with a mask, and the members
  // of sets with three contributions or more.
  struct Coverage {
    int64_t later = 0, masked = 0, deep_members = 0;
  };
  const Coverage& coverage() const { return coverage_; }

 private:
  using Range = std::pair<int32_t, int32_t>;  // begin, end

  static std::unique_ptr<Planner> MakePlanner(const AttentionSpec& spec, const PlanCapacity& capacity,
                                              const PlannerOptions& options, int sms) {
    const KernelChoice kernel = ChooseKernel(CudaKernels::kAuto, 9, 0, spec, capacity.page_size).value();
    return Planner::Create(spec, capacity, options, TraitsOf(kernel, spec, sms), ShippedMachineModel("h200").value()).value();
  }
  std::byte* image() { return reinterpret_cast<std::byte*>(memory_.data()); }

  void CheckTasks(const TestForest& forest) {
    const PlanLayout& layout = translator_.layout();
    const auto* members = At<DeviceMember>(image(), layout.members);
    std::map<std::pair<int32_t, int32_t>, std::vector<Range>> reads;  // by merge set and kv head
    std::vector<uint8_t> state_used(layout.max_states);
    const auto check = [&](const Task* tasks, int64_t count) {
      for (const Task* task = tasks; task != tasks + count; ++task) {
        const DeviceItem& item = task->item;
        const int32_t end = std::min(item.kv_end, forest.branch_kv_len[item.branch]);
        coverage_.later += item.kv_begin > 0;
        coverage_.masked += item.masked;
        ASSERT_LE(item.rows, item.dense ? kDenseRows : StreamRows(spec_.deterministic));
        for (int32_t head = item.head_begin; head < item.head_begin + item.head_count; ++head) {
          for (int32_t m = item.member_begin; m < item.member_begin + item.member_count; ++m) {
            const DeviceMember& member = members[m];
            coverage_.deep_members += member.contribution_count >= 3;
            reads[{member.set, head}].push_back({item.kv_begin, std::max(end, item.kv_begin)});
            if (member.state_begin == kDirect) continue;
            const int64_t first = member.state_begin + int64_t{head} * member.head_stride;
            const int32_t rows = member.query_count * spec_.group_size();
            ASSERT_GE(first, 0);
            ASSERT_LE(first + rows, layout.max_states);
            for (int64_t s = first; s < first + rows; ++s) ASSERT_EQ(state_used[s]++, 0) << "state " << s << " has two owners";
          }
        }
      }
    };
    check(At<Task>(image(), layout.dense_tasks), translator_.num_dense_tasks());
    check(At<Task>(image(), layout.stream_tasks), translator_.num_stream_tasks());
    const PlanView plan = planner_->View();
    for (auto& [of, ranges] : reads) {
      std::ranges::sort(ranges);
      const MergeSet& set = plan.merge_sets[of.first];
      int32_t at = 0;
      for (const auto& [begin, end] : ranges) {
        ASSERT_TRUE(begin == at || begin == end) << "merge set " << of.first << ", kv head " << of.second;
        at = std::max(at, end);
      }
      const int32_t last_query =
          forest.branch_kv_len[set.branch] - forest.branch_query_count[set.branch] + set.query_begin + set.query_count - 1;
      ASSERT_GT(at, last_query) << "merge set " << of.first << " does not see all of its path";
    }
  }

  AttentionSpec spec_;
  std::unique_ptr<Planner> planner_;
  PlanTranslator translator_;
  std::vector<std::max_align_t> memory_;
  Coverage coverage_;
};

// A request leaves at each of so many nodes in a chain, and many at its end.
TestForest Comb(int32_t depth, int32_t tokens, int32_t requests) {
  TestForest forest;
  int32_t above = kNoParent;
  for (int32_t i = 0; i < depth; ++i) {
    above = forest.AddNode(above, tokens);
    forest.AddBranch(above, 10, 1);
  }
  for (int32_t b = 0; b < requests; ++b) forest.AddBranch(above, 10, 1);
  return forest;
}

AttentionSpec RandomSpec(std::mt19937& rng) {
  constexpr std::pair<int32_t, int32_t> kHeads[] = {{8, 2}, {32, 8}, {4, 4}, {8, 1}, {64, 1}, {128, 1}, {9, 3}};
  const auto [qo, kv] = kHeads[rng() % std::size(kHeads)];
  return {.num_qo_heads = qo, .num_kv_heads = kv, .head_dim = rng() % 2 == 0 ? 128 : 64, .deterministic = rng() % 4 == 0};
}

PlannerOptions RandomOptions(std::mt19937& rng) {
  return {.policy = static_cast<SharePolicy>(rng() % 3), .force_sharing = rng() % 2 == 0};
}

// at_random: PlanTranslator::LowerAtRandom. Covered cases are counted, so that a change cannot empty the test unseen.
void RunForestsThatFillCapacities(bool at_random) {
  int64_t later = 0, masked = 0, deep_members = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    TestForest forest = RandomForest(rng, seed % 5 == 0 ? 60000 : seed % 2 == 0 ? 9000 : 700);
    Lowered lowered(RandomSpec(rng), forest.Capacity(), RandomOptions(rng), seed % 3 == 0 ? 5 : 132);
    if (at_random) lowered.LowerAtRandom(seed);
    for (int edit = 0; edit < 4; ++edit) {
      ASSERT_NO_FATAL_FAILURE(lowered.Step(forest));
      // Requests leave and come back with the same rows, so that capacities stay full.
      const auto b = static_cast<int32_t>(rng() % forest.branch_node.size());
      const int32_t count = forest.branch_query_count[b];
      forest.branch_query_count[b] = 0;
      ++forest.version;
      forest.LayOutQueries();
      ASSERT_NO_FATAL_FAILURE(lowered.Step(forest));
      forest.branch_query_count[b] = count;
      ++forest.version;
      forest.LayOutQueries();
      forest.Grow();
    }
    later += lowered.coverage().later;
    masked += lowered.coverage().masked;
    deep_members += lowered.coverage().deep_members;
  }
  std::printf("%s: %lld tasks begin after others of their path, %lld are masked, %lld members have three contributions or more\n",
              at_random ? "at random" : "as cut", static_cast<long long>(later), static_cast<long long>(masked),
              static_cast<long long>(deep_members));
  EXPECT_GT(later, 10000);
  EXPECT_GT(masked, 10000);
  EXPECT_GT(deep_members, 10000);
}

TEST(PlanCapacity, RandomForestsThatFillThem) { RunForestsThatFillCapacities(/*at_random=*/false); }
TEST(PlanCapacity, RandomForestsCutAtRandom) { RunForestsThatFillCapacities(/*at_random=*/true); }

TEST(PlanCapacity, CombsDeeperThanStatesWereSizedFor) {
  int is_coarsened = 0;
  for (uint32_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    const TestForest forest = Comb(20 + 30 * static_cast<int32_t>(seed % 4), seed % 2 == 0 ? 300 : 48, seed % 3 == 0 ? 200 : 8);
    const AttentionSpec spec = RandomSpec(rng);
    Lowered lowered(spec, forest.Capacity(), {.force_sharing = seed % 4 != 3}, seed % 5 == 0 ? 5 : 132);
    ASSERT_NO_FATAL_FAILURE(lowered.Step(forest));
    is_coarsened += lowered.is_coarsened();
  }
  EXPECT_GT(is_coarsened, 5) << "the cases ask for too little";
}

// One request's rows, over so many tokens that every SM wants its own piece: each row may be cut into all of them.
TEST(PlanCapacity, OneRequestOnManySms) {
  for (const int32_t queries : {1, 3, 64, 200}) {
    for (const int32_t tokens : {1000, 100000, 1 << 22}) {
      SCOPED_TRACE(std::to_string(queries) + " queries, " + std::to_string(tokens) + " tokens");
      TestForest forest(256);
      forest.AddBranch(kNoParent, tokens, queries);
      for (const auto& [qo, kv] : {std::pair{1, 1}, {8, 1}, {128, 1}, {32, 8}}) {
        Lowered lowered({.num_qo_heads = qo, .num_kv_heads = kv, .head_dim = 128}, forest.Capacity(), {}, 132);
        ASSERT_NO_FATAL_FAILURE(lowered.Step(forest));
      }
    }
  }
}

}  // namespace
}  // namespace coppice::attention::cuda
