// Properties of plans over random forests, against what each query may see; policies, capacities, lives of plans, edits.
// Layer: attention, tests.
#include "attention/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <new>
#include <random>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "attention/testing/plan_test_forest.h"

namespace {
int64_t allocations = 0;
}  // namespace

// Not inlined: the compiler would otherwise warn that free() meets memory from operator new.
__attribute__((noinline)) void* operator new(size_t size) {
  ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace coppice::attention {
namespace {

using testing::RandomForest;
using testing::TestForest;

MachineModel TestMachine() { return ShippedMachineModel("zen5", 2).value(); }

struct PlanSetup {
  AttentionSpec spec{.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 64};
  PlannerOptions options;
  BackendTraits traits{.workers = 2, .dense_tile_rows = 64, .dense_min_rows = 8, .kv_tile = 64};
  MachineModel machine = TestMachine();

  std::unique_ptr<Planner> Make(const PlanCapacity& capacity) const {
    Result<std::unique_ptr<Planner>> planner = Planner::Create(spec, capacity, options, traits, machine);
    EXPECT_TRUE(planner.ok()) << planner.status().ToString();
    return std::move(planner).value();
  }
};

PlanCapacity Large() {
  return {.max_branches = 256, .max_queries = 8192, .max_nodes = 512, .max_page_slots = 1 << 20, .page_size = 16};
}

// Compares Stats() with counts item by item and query by query.
void CheckStats(const Planner& planner, const TestForest& forest) {
  const PlanView view = planner.View();
  const AttentionSpec& spec = planner.spec();
  const PlanStats stats = planner.Stats();
  PlanStats counted;
  const auto first_query = [&](const MergeSet& set) {
    return forest.branch_kv_len[set.branch] - forest.branch_query_count[set.branch] + set.query_begin;
  };
  const auto first_seen = [&](int32_t query) { return spec.window > 0 ? std::max(0, query - spec.window + 1) : 0; };
  for (const auto queue : {view.compute_queue, view.bandwidth_queue}) {
    for (const int32_t id : queue) {
      const WorkItem& item = view.items[id];
      int32_t begin = INT32_MAX;
      for (const int32_t set : view.members.subspan(item.member_begin, item.member_count)) {
        begin = std::min(begin, first_seen(first_query(view.merge_sets[set])));
      }
      const int32_t end = std::min(item.kv_end, forest.branch_kv_len[item.page_row]);
      counted.kv_tokens_read += std::max(0, end - std::max(begin, item.kv_begin));
      ++counted.num_items;
    }
  }
  int64_t states = 0, visible = 0;
  for (const MergeSet& set : view.merge_sets) {
    if (set.query_count == 0) continue;
    ++counted.num_merge_sets;
    counted.num_contributions += set.contribution_count;
    if (set.contribution_count > 1) states += int64_t{set.query_count} * spec.group_size() * set.contribution_count;
  }
  const int32_t set_queries = MaxSetQueries(spec.group_size());
  const int32_t tile = std::max(1, planner.traits().dense_tile_rows / (set_queries * spec.group_size())) * set_queries;
  for (size_t b = 0; b < forest.branch_node.size(); ++b) {
    const int32_t count = forest.branch_query_count[b], before = forest.branch_kv_len[b] - count;
    for (int32_t q = 0; q < count; ++q) {
      int32_t seen = before + q + 1;
      if (!forest.query_tree_mask.empty()) {
        seen = before;
        for (int32_t i = 0; i < count; ++i) seen += forest.query_tree_mask[forest.branch_query_begin[b] + q] >> i & 1;
      }
      visible += spec.window > 0 ? std::min(seen, spec.window) : seen;
      if (q % tile == 0) counted.kv_tokens_read_unshared += before + std::min(q + tile, count) - first_seen(before + q);
    }
  }
  ASSERT_EQ(stats.kv_tokens_read, counted.kv_tokens_read);
  ASSERT_EQ(stats.kv_tokens_read_unshared, counted.kv_tokens_read_unshared);
  ASSERT_EQ(stats.num_items, counted.num_items);
  ASSERT_EQ(stats.num_merge_sets, counted.num_merge_sets);
  ASSERT_EQ(stats.num_contributions, counted.num_contributions);
  ASSERT_EQ(stats.state_bytes, states * spec.num_kv_heads * 2 * (spec.head_dim + 2) * static_cast<int64_t>(sizeof(float)));
  ASSERT_EQ(stats.flops, visible * spec.group_size() * spec.num_kv_heads * 4 * spec.head_dim);
}

// plan.h, (a) to (d): each contribution is a term of the fold that defines a row's bits.
void CheckDeterministicCuts(const Planner& planner, const MergeSet& set, int32_t length) {
  if (set.contribution_count == 1) return;  // (d)
  const PlanView view = planner.View();
  const int32_t longest = length + std::max(0, planner.StepsLeft());
  const int32_t unit = planner.traits().deterministic_unit, superblock = kSuperblockUnits * unit;
  for (int32_t c = 0; c < set.contribution_count; ++c) {
    const bool last = c + 1 == set.contribution_count;
    const WorkItem& item = view.items[view.contributions[set.contribution_begin + c].item];
    const int32_t end = item.kv_end == kLive ? std::max(longest, item.kv_begin) : item.kv_end;
    ASSERT_EQ(item.kv_begin % unit, 0);
    if (!last) {
      ASSERT_EQ(end % unit, 0) << "only the last range may end inside a unit";
    }
    const int32_t into_superblock = item.kv_begin % superblock;
    if (c == 0 && into_superblock == 0 && end - item.kv_begin > superblock) {
      ASSERT_EQ(end % superblock, 0) << "(c) whole superblocks";
    } else if (into_superblock == 0) {
      ASSERT_LE(end - item.kv_begin, superblock) << "(a) inside one superblock";
    } else {
      ASSERT_LE(end - item.kv_begin, unit) << "(b) one unit";
    }
  }
}

// Every (query, token it may see) is in exactly one of the contributions of its merge set, contributions come in path order, each
// contribution's item names the set, states of different contributions never overlap, and rows fit the traits.
void CheckPlan(const Planner& planner, const TestForest& forest) {
  const PlanView view = planner.View();
  const AttentionSpec& spec = planner.spec();
  const int32_t group = spec.group_size();
  std::map<std::pair<int32_t, int32_t>, int32_t> set_of;  // (branch, query) -> set
  std::set<int32_t> queued;
  for (const auto queue : {view.compute_queue, view.bandwidth_queue}) {
    for (size_t i = 0; i < queue.size(); ++i) {
      const WorkItem& item = view.items[queue[i]];
      ASSERT_TRUE(queued.insert(queue[i]).second);
      ASSERT_GT(item.member_count, 0);
      ASSERT_EQ(item.kind, queue.data() == view.compute_queue.data() ? ItemKind::kDenseTile : ItemKind::kStreamTile);
      if (i > 0) {
        ASSERT_GE(view.items[queue[i - 1]].predicted_ns * 1.07 + 1, item.predicted_ns) << "longest first";
      }
      ASSERT_GE(item.heads_per_task, 1);
      ASSERT_LE(item.heads_per_task, spec.num_kv_heads);
      if (!spec.deterministic && item.kv_begin % planner.traits().kv_tile != 0) {
        // Only the begin of a node's range may be off the tile grid.
        const bool node_edge = std::ranges::find(forest.node_begin, item.kv_begin) != forest.node_begin.end() ||
                               std::ranges::find(forest.node_end, item.kv_begin) != forest.node_end.end();
        ASSERT_TRUE(node_edge) << "cut at " << item.kv_begin;
      }
      int32_t rows = 0;
      std::set<int32_t> branches;
      for (int32_t m = 0; m < item.member_count; ++m) {
        const MergeSet& set = view.merge_sets[view.members[item.member_begin + m]];
        rows += set.query_count * group;
        branches.insert(set.branch);
      }
      ASSERT_TRUE(branches.contains(item.page_row));
      if (item.kv_end == kLive) {
        ASSERT_EQ(branches.size(), 1u);
      }
      if (planner.traits().max_item_rows > 0 && item.member_count > 1) {
        ASSERT_LE(rows, planner.traits().max_item_rows);
      }
      ASSERT_EQ(item.kind == ItemKind::kDenseTile, rows >= planner.traits().dense_min_rows);
    }
  }
  for (size_t i = 0; i < view.items.size(); ++i) {
    if (view.items[i].member_count > 0) {
      ASSERT_TRUE(queued.contains(static_cast<int32_t>(i))) << "item " << i << " in no queue";
    }
  }
  std::vector<bool> state_used(static_cast<size_t>(view.num_states));
  int32_t contributions_of_items = 0, contributions_of_sets = 0;
  for (int32_t id : queued) contributions_of_items += view.items[id].member_count;
  for (size_t s = 0; s < view.merge_sets.size(); ++s) {
    const MergeSet& set = view.merge_sets[s];
    if (set.query_count == 0) continue;
    ASSERT_GT(forest.branch_query_count[set.branch], 0);
    ASSERT_LE(set.query_count, MaxSetQueries(group));
    ASSERT_GE(set.contribution_count, 1);
    contributions_of_sets += set.contribution_count;
    for (int32_t q = 0; q < set.query_count; ++q) {
      ASSERT_TRUE(set_of.emplace(std::pair(set.branch, set.query_begin + q), static_cast<int32_t>(s)).second)
          << "query in two sets";
    }
    const int32_t length = forest.branch_kv_len[set.branch];
    const int32_t first = length - forest.branch_query_count[set.branch] + set.query_begin;
    const int32_t first_seen = spec.window > 0 ? std::max(0, first - spec.window + 1) : 0;
    int32_t end = -1;
    int32_t lowest_begin = INT32_MAX;
    for (int32_t c = 0; c < set.contribution_count; ++c) {
      const Contribution& contribution = view.contributions[set.contribution_begin + c];
      ASSERT_TRUE(queued.contains(contribution.item));
      const WorkItem& item = view.items[contribution.item];
      int32_t row = 0, rows = 0, times = 0;
      for (int32_t m = 0; m < item.member_count; ++m) {
        const int32_t member = view.members[item.member_begin + m];
        if (member == static_cast<int32_t>(s)) row = rows, ++times;
        rows += view.merge_sets[member].query_count * group;
      }
      ASSERT_EQ(times, 1);
      if (end >= 0 && item.kv_begin != end) {  // only tokens that the whole set does not see may lie between
        ASSERT_GT(item.kv_begin, end) << "contributions must come in path order";
        ASSERT_LE(item.kv_begin, first_seen);
      }
      lowest_begin = std::min(lowest_begin, item.kv_begin);
      end = item.kv_end;
      if (set.contribution_count > 1) {
        ASSERT_GE(item.state_begin, 0);
        ASSERT_EQ(contribution.state_begin, item.state_begin + row);
        ASSERT_EQ(contribution.head_stride, rows);
        for (int32_t h = 0; h < spec.num_kv_heads; ++h) {
          for (int32_t r = 0; r < set.query_count * group; ++r) {
            const size_t state = static_cast<size_t>(contribution.state_begin + h * contribution.head_stride + r);
            ASSERT_LT(state, state_used.size());
            ASSERT_FALSE(state_used[state]) << "two contributions share a state";
            state_used[state] = true;
          }
        }
      }
      // Unmasked means: every row sees the whole range.
      if ((item.flags & kItemMasked) == 0) {
        const int32_t item_end = std::min(item.kv_end, length);
        ASSERT_LE(item_end, first + 1);
        if (spec.window > 0) {
          ASSERT_GE(item.kv_begin, first + set.query_count - spec.window);
        }
      }
    }
    if (spec.deterministic) CheckDeterministicCuts(planner, set, length);
    // From the first token that the first query sees to the last one that the last query sees.
    ASSERT_LE(lowest_begin, first_seen);
    if (spec.window == 0) {
      ASSERT_EQ(lowest_begin, 0);
    }
    ASSERT_GE(end, first + set.query_count);
    if (end != kLive) {
      ASSERT_LE(end - (first + set.query_count), std::max(planner.traits().dense_tile_rows, forest.branch_query_count[set.branch]));
    }
  }
  ASSERT_EQ(contributions_of_items, contributions_of_sets);
  for (size_t b = 0; b < forest.branch_node.size(); ++b) {
    for (int32_t q = 0; q < forest.branch_query_count[b]; ++q) {
      ASSERT_TRUE(set_of.contains({static_cast<int32_t>(b), q})) << "branch " << b << " query " << q << " is in no merge set";
    }
  }
  const PlanSizes& sizes = planner.sizes();
  ASSERT_LE(static_cast<int32_t>(view.items.size()), sizes.max_items);
  ASSERT_LE(static_cast<int32_t>(view.members.size()), sizes.max_members);
  ASSERT_LE(static_cast<int32_t>(view.contributions.size()), sizes.max_contributions);
  ASSERT_LE(view.num_states, sizes.max_states);
  ASSERT_EQ(static_cast<int32_t>(view.merge_sets.size()), sizes.max_merge_sets);
  CheckStats(planner, forest);
}

// A plan by content: independent of the slots that items and sets lie in.
using CanonicalItem = std::tuple<int32_t, int32_t, std::vector<std::tuple<int32_t, int32_t, int32_t>>, int32_t, int32_t, int32_t,
                                 int32_t, bool, uint32_t>;
struct CanonicalPlan {
  std::set<CanonicalItem> items;
  std::map<std::pair<int32_t, int32_t>, std::vector<CanonicalItem>> contributions;
  bool operator==(const CanonicalPlan&) const = default;
};

CanonicalPlan Canonical(const PlanView& view) {
  CanonicalPlan plan;
  const auto canonical = [&](const WorkItem& item) {
    std::vector<std::tuple<int32_t, int32_t, int32_t>> members;
    for (int32_t m = 0; m < item.member_count; ++m) {
      const MergeSet& set = view.merge_sets[view.members[item.member_begin + m]];
      members.emplace_back(set.branch, set.query_begin, set.query_count);
    }
    return CanonicalItem(item.kv_begin, item.kv_end, members, static_cast<int32_t>(item.kind), item.flags, item.heads_per_task,
                         item.page_row, item.state_begin >= 0, item.predicted_ns);
  };
  for (const auto queue : {view.compute_queue, view.bandwidth_queue}) {
    for (int32_t id : queue) plan.items.insert(canonical(view.items[id]));
  }
  for (const MergeSet& set : view.merge_sets) {
    if (set.query_count == 0) continue;
    auto& list = plan.contributions[{set.branch, set.query_begin}];
    for (int32_t c = 0; c < set.contribution_count; ++c) {
      list.push_back(canonical(view.items[view.contributions[set.contribution_begin + c].item]));
    }
  }
  return plan;
}

PlanSetup RandomSetup(std::mt19937& rng) {
  const auto pick = [&](int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(rng); };
  PlanSetup setup;
  constexpr int32_t kGroups[] = {1, 2, 3, 4, 7, 8, 16, 71};
  setup.spec.num_kv_heads = pick(1, 8);
  setup.spec.num_qo_heads = setup.spec.num_kv_heads * kGroups[pick(0, 7)];
  setup.spec.head_dim = 8 * pick(1, 32);
  setup.spec.window = pick(0, 3) == 0 ? pick(1, 900) : 0;
  setup.spec.deterministic = pick(0, 3) == 0;
  setup.options.policy = static_cast<SharePolicy>(pick(0, 4) % 3);
  setup.options.force_sharing = pick(0, 2) == 0;
  setup.options.lookahead_tokens = pick(0, 2) == 0 ? pick(0, 3) : 64;
  constexpr int32_t kWorkers[] = {1, 2, 16, 132};
  setup.traits.workers = kWorkers[pick(0, 3)];
  setup.traits.dense_tile_rows = 16 << pick(0, 3);
  setup.traits.kv_tile = 16 << pick(0, 3);
  setup.traits.max_item_rows = pick(0, 1) == 0 ? 0 : setup.traits.dense_tile_rows * pick(1, 4);
  setup.machine = ShippedMachineModel(pick(0, 1) == 0 ? "zen5" : "h200", setup.traits.workers).value();
  setup.traits.deterministic_unit = pick(0, 1) == 0 ? kDeterministicUnit : 128;
  return setup;
}

TEST(Plan, CoversEveryVisibleTokenOnceInPathOrder) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    const PlanSetup setup = RandomSetup(rng);
    TestForest forest = RandomForest(rng, seed % 5 == 0 ? 9000 : 700);
    const std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
    const Status status = planner->Update(forest.Forest());
    ASSERT_TRUE(status.ok()) << status.ToString();
    CheckPlan(*planner, forest);
    if (HasFatalFailure()) {
      std::puts(planner->Explain().c_str());
      return;
    }
  }
}

// ------------------------------------------------------------------------------------------------------------------------ edits

TEST(PlanEdits, GiveWhatAFreshPlanGives) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 rng(seed);
    const PlanSetup setup = RandomSetup(rng);
    TestForest forest = RandomForest(rng, seed % 6 == 0 ? 6000 : 300);
    PlanCapacity capacity = Large();
    capacity.page_size = forest.page_size;
    capacity.max_page_slots = 1 << 22;
    const std::unique_ptr<Planner> planner = setup.Make(capacity);
    int64_t replanned = 0;
    for (int32_t step = 0; step < 60; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      const Status status = planner->Update(forest.Forest());
      ASSERT_TRUE(status.ok()) << status.ToString();
      CheckPlan(*planner, forest);
      ASSERT_FALSE(HasFatalFailure());
      if (planner->Stats().updates_replanned > std::exchange(replanned, planner->Stats().updates_replanned)) {
        const std::unique_ptr<Planner> fresh = setup.Make(capacity);
        ASSERT_TRUE(fresh->Update(forest.Forest()).ok());
        ASSERT_EQ(Canonical(planner->View()), Canonical(fresh->View()));
        ASSERT_EQ(planner->StepsLeft(), fresh->StepsLeft());
        ASSERT_EQ(planner->Explain(), fresh->Explain());
      }
      RandomEdit(forest, rng);
    }
  }
}

// Copies of a plan's arrays, to compare the next one with.
struct KeptPlan {
  explicit KeptPlan(const PlanView& plan)
      : items(plan.items.begin(), plan.items.end()),
        members(plan.members.begin(), plan.members.end()),
        merge_sets(plan.merge_sets.begin(), plan.merge_sets.end()),
        contributions(plan.contributions.begin(), plan.contributions.end()),
        revision(plan.revision) {}
  std::vector<WorkItem> items;
  std::vector<int32_t> members;
  std::vector<MergeSet> merge_sets;
  std::vector<Contribution> contributions;
  uint64_t revision;
};

// Items and sets that a plan does not list as changed equal those of the plan before. `unlisted` counts them.
void ExpectUnlistedAsBefore(const PlanView& plan, const KeptPlan& before, int64_t& unlisted) {
  ASSERT_EQ(plan.changed_since, before.revision);
  const auto listed = [](std::span<const int32_t> list, int32_t id) { return std::ranges::find(list, id) != list.end(); };
  for (const auto queue : {plan.compute_queue, plan.bandwidth_queue}) {
    for (const int32_t id : queue) {
      if (listed(plan.changed_items, id)) continue;
      ++unlisted;
      ASSERT_LT(id, std::ssize(before.items));
      const WorkItem &now = plan.items[id], &was = before.items[id];
      const auto parts = [](const WorkItem& i) {
        return std::tuple(i.flags, i.page_row, i.kv_begin, i.kv_end, i.member_begin, i.member_count, i.state_begin);
      };
      ASSERT_EQ(parts(now), parts(was)) << "item " << id;
      for (int32_t m = now.member_begin; m < now.member_begin + now.member_count; ++m)
        ASSERT_EQ(plan.members[m], before.members[m]);
    }
  }
  for (int32_t s = 0; s < std::ssize(plan.merge_sets); ++s) {
    if (listed(plan.changed_sets, s)) continue;
    const MergeSet &now = plan.merge_sets[s], &was = before.merge_sets[s];
    const auto parts = [](const MergeSet& m) {
      return std::tuple(m.branch, m.query_begin, m.query_count, m.contribution_begin, m.contribution_count);
    };
    ASSERT_EQ(parts(now), parts(was)) << "set " << s;
    for (int32_t c = now.contribution_begin; c < now.contribution_begin + now.contribution_count; ++c) {
      const Contribution &here = plan.contributions[c], &there = before.contributions[c];
      if (listed(plan.changed_items, here.item)) continue;
      ++unlisted;
      ASSERT_EQ(std::tuple(here.item, here.state_begin, here.head_stride),
                std::tuple(there.item, there.state_begin, there.head_stride))
          << "contribution " << c << " of set " << s;
    }
  }
}

TEST(PlanEdits, ListWhatChanged) {
  int64_t unlisted = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 rng(seed);
    const PlanSetup setup = RandomSetup(rng);
    TestForest forest = RandomForest(rng, seed % 6 == 0 ? 6000 : 300);
    PlanCapacity capacity = Large();
    capacity.page_size = forest.page_size;
    capacity.max_page_slots = 1 << 22;
    const std::unique_ptr<Planner> planner = setup.Make(capacity);
    ASSERT_TRUE(planner->Update(forest.Forest()).ok());
    for (int32_t step = 0; step < 100; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      const KeptPlan before(planner->View());
      RandomEdit(forest, rng);
      ASSERT_TRUE(planner->Update(forest.Forest()).ok());
      if (planner->View().revision == before.revision) continue;
      ASSERT_NO_FATAL_FAILURE(ExpectUnlistedAsBefore(planner->View(), before, unlisted));
    }
  }
  EXPECT_GT(unlisted, 10000);
}

// All of a plan, slots too.
void ExpectSamePlan(const Planner& edited, const Planner& compares) {
  const PlanView a = edited.View(), b = compares.View();
  const auto same = [](const auto& x, const auto& y) { return std::ranges::equal(x, y); };
  ASSERT_EQ(a.revision, b.revision);
  ASSERT_TRUE(same(a.compute_queue, b.compute_queue) && same(a.bandwidth_queue, b.bandwidth_queue));
  ASSERT_TRUE(same(a.changed_items, b.changed_items) && same(a.changed_sets, b.changed_sets));
  const auto bytes = [](const auto& list) { return std::as_bytes(list); };
  ASSERT_TRUE(same(bytes(a.items), bytes(b.items)) && same(a.members, b.members));
  ASSERT_TRUE(same(bytes(a.merge_sets), bytes(b.merge_sets)) && same(bytes(a.contributions), bytes(b.contributions)));
  ASSERT_EQ(edited.StepsLeft(), compares.StepsLeft());
  ASSERT_EQ(edited.Stats().nodes_replanned, compares.Stats().nodes_replanned);
  ASSERT_EQ(edited.Explain(), compares.Explain());
}

// The caller names changes since the last forest or an older one, among others and more than once; or those of a forest that the
// plan has not seen, or whose version is of no use to it, and then not all of them.
TEST(PlanEdits, ThatAreNamedGiveWhatComparingGives) {
  int64_t reported_updates = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 rng(seed), names(1000 + seed);
    const auto pick = [&](int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(names); };
    const PlanSetup setup = RandomSetup(rng);
    TestForest forest = RandomForest(rng, seed % 6 == 0 ? 6000 : 300);
    if (seed % 2 == 0) {  // slots to spare: their number stays
      for (std::vector<int32_t>* nodes : {&forest.node_parent, &forest.node_begin, &forest.node_end})
        nodes->resize(nodes->size() + 40, kFreeSlot);
    }
    PlanCapacity capacity = Large();
    capacity.page_size = forest.page_size;
    capacity.max_page_slots = 1 << 22;
    const std::unique_ptr<Planner> edited = setup.Make(capacity), compares = setup.Make(capacity);
    std::vector<TestForest> taken;
    for (int32_t step = 0; step < 60; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      PrefixForestView view = forest.Forest();
      std::vector<int32_t> named;
      const int32_t slots = static_cast<int32_t>(view.node_parent.size());
      if (!taken.empty()) {
        const TestForest& last = taken.back();
        const bool in_place = slots == std::ssize(last.node_parent);
        const size_t since = taken.size() - static_cast<size_t>(pick(1, static_cast<int32_t>(std::min<size_t>(3, taken.size()))));
        view.changed_since = taken[since].version;
        const int32_t kind = pick(0, 9);
        if (kind == 0) {
          view.changed_since = 0;
        } else if (kind == 1) {
          view.changed_since = last.version + 1;
        } else if (in_place) {
          for (size_t i = since; i < taken.size(); ++i) {
            for (const int32_t n : DifferingNodes(taken[i], i + 1 < taken.size() ? taken[i + 1] : forest))
              if (n < slots) named.push_back(n);
          }
          for (int32_t extra = pick(0, 4); extra > 0; --extra) named.push_back(pick(0, slots - 1));
          if (!named.empty()) named.push_back(named[static_cast<size_t>(pick(0, static_cast<int32_t>(std::ssize(named)) - 1))]);
          std::ranges::shuffle(named, names);
          ++reported_updates;
        }
        view.changed_nodes = named;
      }
      if (pick(0, 5) == 0) {  // refused: the forest before stays the last one
        PrefixForestView refused = view;
        refused.version += 1000;
        const std::vector<int32_t> wrong = {0, slots};
        refused.changed_nodes = wrong;
        ASSERT_EQ(edited->Update(refused).code(), StatusCode::kInvalidArgument);
      }
      ASSERT_EQ(edited->Update(view).ToString(), "OK");
      ASSERT_EQ(compares->Update(forest.Forest()).ToString(), "OK");
      ASSERT_NO_FATAL_FAILURE(ExpectSamePlan(*edited, *compares));
      ASSERT_NO_FATAL_FAILURE(CheckPlan(*edited, forest));
      taken.push_back(forest);
      RandomEdit(forest, rng);
    }
  }
  EXPECT_GT(reported_updates, 1500);
}

TEST(PlanEdits, OfAnotherForestAreFoundByComparing) {
  TestForest forest;
  const int32_t root = forest.AddNode(kNoParent, 1024);
  for (int32_t b = 0; b < 4; ++b) forest.AddBranch(root, 40, 1);
  const std::unique_ptr<Planner> edited = PlanSetup().Make(Large()), compares = PlanSetup().Make(Large());
  const auto update = [&](uint64_t version, uint64_t since) {
    PrefixForestView view = forest.Forest();
    view.version = version;
    ASSERT_TRUE(compares->Update(view).ok());
    view.changed_since = since;
    view.changed_nodes.emplace();  // none, which is wrong
    ASSERT_TRUE(edited->Update(view).ok());
    ASSERT_NO_FATAL_FAILURE(ExpectSamePlan(*edited, *compares));
  };
  update(10, 10);
  forest.SplitNode(root, 100);
  forest.RemoveBranch(3);
  update(20, 11);
  forest.SplitNode(root, 300);
  forest.AddBranch(root, 3, 1);
  update(19, 15);
  forest.RemoveBranch(0);
  update(0, 15);
  forest.AddBranch(root, 7, 1);
  update(30, 0);
}

// As under an equal version: what the caller takes for unchanged is not looked at, and nothing of it is read.
TEST(PlanEdits, OfNodesThatAreNotNamedAreNotSeen) {
  TestForest forest;
  const int32_t root = forest.AddNode(kNoParent, 1024), prompt = forest.AddNode(root, 512), other = forest.AddNode(root, 512);
  const int32_t leaf = forest.branch_node[forest.AddBranch(prompt, 40, 1)];
  for (int32_t b = 0; b < 3; ++b) forest.AddBranch(prompt, 40, 1);
  const std::unique_ptr<Planner> planner = PlanSetup().Make(Large());
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  const std::string before = planner->Explain();
  const TestForest sound = forest;
  auto update = [&, version = forest.version](std::vector<int32_t> named) mutable {
    PrefixForestView view = forest.Forest();
    view.changed_since = forest.version;
    view.version = ++version;
    view.changed_nodes = named;
    return planner->Update(view);
  };
  forest.node_parent[leaf] = 1 << 30;
  ASSERT_TRUE(update({root}).ok());
  EXPECT_EQ(planner->Explain(), before);
  EXPECT_EQ(planner->forest().node_parent[leaf], prompt);
  EXPECT_EQ(update({root, leaf}).message(), "node 3: parent is 1073741824, expected another node of the 7, kNoParent or kFreeSlot");
  forest = sound;
  // Children of a named node are checked with it.
  forest.node_end[prompt] = 1500;
  EXPECT_EQ(update({prompt}).message(), "node 3: begins at 1536, but its parent 1 ends at 1500; expected the same");
  forest.node_parent[prompt] = kFreeSlot;
  EXPECT_EQ(update({prompt}).message(), "node 3: parent 1 is a free slot");
  forest = sound;
  forest.node_parent[other] = other + 1;
  forest.node_begin[other] = 1536;
  EXPECT_EQ(update({other}).message(), "node 2: parent 3 ends at kLive, but only leaves may");
  forest = sound;
  ASSERT_TRUE(update({root, prompt, leaf, other}).ok());
  EXPECT_EQ(planner->Explain(), before);
}

TEST(PlanEdits, TouchOnlyChangedNodesTheirAncestorsAndMembers) {
  TestForest forest;
  std::vector<int32_t> prompts, branches;
  for (int32_t root = 0; root < 4; ++root) {
    const int32_t system = forest.AddNode(kNoParent, 1024);
    for (int32_t p = 0; p < 4; ++p) {
      prompts.push_back(forest.AddNode(system, 512));
      for (int32_t b = 0; b < 8; ++b) branches.push_back(forest.AddBranch(prompts.back(), 40, 1));
    }
  }
  PlanSetup setup;
  setup.options.force_sharing = true;
  const std::unique_ptr<Planner> planner = setup.Make(Large());
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  EXPECT_EQ(planner->Stats().nodes_replanned, 4 + 16 + 128);
  EXPECT_EQ(planner->Stats().merge_sets_replanned, 128);

  // A branch joins the second prompt of the third tree: its leaf, the prompt and the system prompt; the sets of that tree.
  forest.AddBranch(prompts[9], 5, 1);
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  EXPECT_EQ(planner->Stats().nodes_replanned, 3);
  EXPECT_EQ(planner->Stats().merge_sets_replanned, 33);

  // One leaves the first tree: its prompt and system prompt.
  forest.RemoveBranch(branches[0]);
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  EXPECT_EQ(planner->Stats().nodes_replanned, 2);
  EXPECT_EQ(planner->Stats().merge_sets_replanned, 31);

  // A prompt splits; the new upper node has an only consumer, so no merge set changes its reads but the tree's items are redone.
  forest.SplitNode(prompts[4], 256);
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  EXPECT_EQ(planner->Stats().nodes_replanned, 3);
  CheckPlan(*planner, forest);

  // One step longer: nothing at all. A new version without a change: nothing either.
  forest.Grow();
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  EXPECT_EQ(planner->Stats().updates_skipped, 1);
  ++forest.version;
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  EXPECT_EQ(planner->Stats().nodes_replanned, 0);
  EXPECT_EQ(planner->Stats().merge_sets_replanned, 0);
}

// -------------------------------------------------------------------------------------------------------------- what is shared

// Two levels: P tokens for all of n branches with `own` tokens each.
TestForest TwoLevels(int32_t prefix, int32_t n, int32_t own, int32_t queries = 1) {
  TestForest forest;
  const int32_t root = forest.AddNode(kNoParent, prefix);
  for (int32_t b = 0; b < n; ++b) forest.AddBranch(root, own + b, queries);
  return forest;
}

// Bifurcated Attention eq. 5-6: P + the sum of own tokens with sharing, n P + the same sum without.
TEST(PlanPolicy, ReadsWhatTheFormulaSays) {
  for (const int32_t prefix : {1, 15, 16, 17, 512, 5000}) {
    for (const int32_t n : {1, 2, 64}) {
      TestForest forest = TwoLevels(prefix, n, 3);
      for (int32_t step = 0; step < 3; ++step, forest.Grow()) {
        int64_t own = 0;
        for (int32_t length : forest.branch_kv_len) own += length - prefix;
        PlanSetup setup;
        setup.options.force_sharing = true;
        std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
        ASSERT_TRUE(planner->Update(forest.Forest()).ok());
        EXPECT_EQ(planner->Stats().kv_tokens_read, prefix + own) << prefix << " x " << n;
        EXPECT_EQ(planner->Stats().kv_tokens_read_unshared, int64_t{n} * prefix + own);
        const AttentionSpec& spec = planner->spec();
        EXPECT_EQ(planner->Stats().kv_bytes_distinct,
                  (prefix + own) * 2 * spec.num_kv_heads * spec.head_dim * static_cast<int64_t>(SizeOf(spec.kv_dtype)));
        EXPECT_EQ(planner->Stats().kv_bytes_read, (prefix + own) * 2 * 2 * 64 * 2);
        EXPECT_EQ(planner->Stats().flops, (int64_t{n} * prefix + own) * 4 * 64 * 8);

        setup.options.policy = SharePolicy::kStore;
        planner = setup.Make(forest.Capacity());
        ASSERT_TRUE(planner->Update(forest.Forest()).ok());
        EXPECT_EQ(planner->Stats().kv_tokens_read, int64_t{n} * prefix + own);
        EXPECT_EQ(planner->Stats().shared_nodes, 0);
      }
    }
  }
}

// A decode step, a prompt chunk and a draft tree over one prefix, by hand. A row tile has 64 rows, that is 16 queries of 4 heads.
TEST(PlanCounters, MixedStepsAreCountedByHand) {
  TestForest forest;
  const int32_t root = forest.AddNode(kNoParent, 100);
  forest.AddBranch(root, 50, 1);   // query 149
  forest.AddBranch(root, 40, 40);  // queries 100..139 in row tiles of 100..115, 116..131 and 132..139
  forest.AddBranch(root, 30, 5);   // queries 125..129
  const struct {
    int32_t window;
    int64_t tokens;
  } cases[] = {{0, 150 + (116 + 132 + 140) + 130},  // a tile reads up to its last query
               {50, 50 + (65 + 65 + 57) + 54},      // and from 49 tokens before its first
               {1, 1 + 40 + 5}};
  for (const bool draft : {false, true}) {
    if (draft) forest.query_tree_mask.assign(46, ~uint64_t{0});
    ++forest.version;
    for (const auto& [window, tokens] : cases) {
      for (const SharePolicy policy : {SharePolicy::kStore, SharePolicy::kOneLevel, SharePolicy::kTree}) {
        SCOPED_TRACE("window " + std::to_string(window) + ", policy " + std::to_string(static_cast<int>(policy)));
        PlanSetup setup;
        setup.spec.window = window;
        setup.options = {.policy = policy, .force_sharing = true};
        const std::unique_ptr<Planner> planner = setup.Make(Large());
        ASSERT_TRUE(planner->Update(forest.Forest()).ok());
        const PlanStats stats = planner->Stats();
        EXPECT_EQ(stats.kv_tokens_read_unshared, tokens);
        EXPECT_EQ(stats.kv_bytes_read_unshared, tokens * 2 * 2 * 64 * 2);
        if (policy == SharePolicy::kStore) {
          EXPECT_EQ(stats.kv_tokens_read, tokens);
        } else if (window == 0) {
          // The prefix once, and the chunk's tiles 16, 32 and 40 tokens of their own.
          EXPECT_EQ(stats.kv_tokens_read, 100 + 50 + (16 + 32 + 40) + 30);
        }
      }
    }
  }
}

TEST(PlanCounters, UnsharedIsWhatStoreReads) {
  std::mt19937 rng(11);
  for (int i = 0; i < 300; ++i) {
    TestForest forest = testing::RandomForest(rng);
    PlanSetup setup;
    setup.spec.window = i % 3 == 0 ? 0 : std::uniform_int_distribution<int32_t>(1, 900)(rng);
    setup.spec.deterministic = i % 5 == 0;
    setup.options.force_sharing = i % 2 == 0;
    setup.traits.dense_tile_rows = 32 << i % 4;
    const auto tree = setup.Make(forest.Capacity());
    setup.options.policy = SharePolicy::kStore;
    const auto store = setup.Make(forest.Capacity());
    for (int step = 0; step < 4; ++step, forest.Grow(step)) {
      SCOPED_TRACE("forest " + std::to_string(i) + ", step " + std::to_string(step));
      ASSERT_EQ(tree->Update(forest.Forest()).ToString(), "OK");
      ASSERT_EQ(store->Update(forest.Forest()).ToString(), "OK");
      EXPECT_EQ(store->Stats().kv_tokens_read, store->Stats().kv_tokens_read_unshared);
      EXPECT_EQ(tree->Stats().kv_tokens_read_unshared, store->Stats().kv_tokens_read);
    }
  }
}

TEST(PlanPolicy, LengthsAreCountedLive) {
  TestForest forest = TwoLevels(1000, 8, 10);
  PlanSetup setup;
  setup.options.force_sharing = true;
  const std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  const int64_t before = planner->Stats().kv_tokens_read;
  forest.Grow(5);
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  EXPECT_EQ(planner->Stats().updates_replanned, 1);
  EXPECT_EQ(planner->Stats().kv_tokens_read, before + 8 * 5);
}

TEST(PlanPolicy, OneLevelSharesOnlyWhatAllHaveInCommon) {
  TestForest forest;
  const int32_t root = forest.AddNode(kNoParent, 1024);
  const int32_t left = forest.AddNode(root, 1024), right = forest.AddNode(root, 1024);
  for (int32_t b = 0; b < 8; ++b) forest.AddBranch(b < 4 ? left : right, 8, 1);
  PlanSetup setup;
  setup.options.policy = SharePolicy::kOneLevel;
  setup.options.force_sharing = true;
  const std::unique_ptr<Planner> planner = setup.Make(Large());
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  EXPECT_EQ(planner->Stats().kv_tokens_read, 1024 + 8 * (1024 + 8));
  // The right side pauses: now both levels of the left side are common to all. They are one range: the left node's item reads it.
  for (int32_t b = 4; b < 8; ++b) forest.branch_query_count[b] = 0;
  ++forest.version;
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  EXPECT_EQ(planner->Stats().kv_tokens_read, 2048 + 4 * 8);
  EXPECT_EQ(planner->Stats().shared_nodes, 1);
  CheckPlan(*planner, forest);
}

TEST(PlanCost, SharesLongPrefixesAndReadsShortOnesPerChild) {
  for (const char* machine : {"zen4", "zen5", "sapphire-rapids", "generic-x86", "h100", "h200"}) {
    SCOPED_TRACE(machine);
    PlanSetup setup;
    setup.spec = {.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
    setup.traits.workers = machine[0] == 'h' ? 132 : 2;
    setup.machine = ShippedMachineModel(machine, setup.traits.workers).value();
    const auto shared_nodes = [&](int32_t prefix, int32_t n) {
      const TestForest forest = TwoLevels(prefix, n, 100);
      const std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
      EXPECT_TRUE(planner->Update(forest.Forest()).ok());
      return planner->Stats().shared_nodes;
    };
    EXPECT_EQ(shared_nodes(4096, 64), 1);
    EXPECT_EQ(shared_nodes(2, 2), 0);
    EXPECT_EQ(shared_nodes(1, 64), 0);
    // Once sharing saves time at a length, it does at all greater ones.
    bool saved_time = false;
    for (int32_t prefix = 1; prefix <= 8192; prefix *= 2) {
      const bool saves_time = shared_nodes(prefix, 64) > 0;
      EXPECT_TRUE(saves_time || !saved_time) << prefix;
      saved_time |= saves_time;
    }
  }
}

TEST(PlanCost, NodeReadsAreTheDecisions) {
  PlanSetup setup;
  setup.spec = {.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  TestForest forest;
  const int32_t root = forest.AddNode(kNoParent, 4096), middle = forest.AddNode(root, 2);
  for (int32_t b = 0; b < 16; ++b) forest.AddBranch(root, 100, 1);
  for (int32_t b = 0; b < 2; ++b) forest.AddBranch(middle, 100, 1);
  const auto reads_of = [&](SharePolicy policy) {
    setup.options.policy = policy;
    const std::unique_ptr<Planner> planner = setup.Make(Large());
    EXPECT_TRUE(planner->NodeReads().empty());  // no plan yet
    const Status status = planner->Update(forest.Forest());
    EXPECT_TRUE(status.ok()) << status.ToString();
    const std::vector<NodeRead> reads = planner->NodeReads();
    EXPECT_EQ(std::ranges::count_if(reads, &NodeRead::together), planner->Stats().shared_nodes);
    return reads;
  };
  const std::vector<NodeRead> tree = reads_of(SharePolicy::kTree);
  EXPECT_EQ(tree[root].branches, 18);
  EXPECT_TRUE(tree[root].together);
  EXPECT_EQ(tree[root].reason, ReadReason::kFaster);
  EXPECT_LT(tree[root].together_us, tree[root].apart_us);
  EXPECT_EQ(tree[middle].branches, 2);
  EXPECT_FALSE(tree[middle].together);  // two tokens
  EXPECT_EQ(tree[middle].reason, ReadReason::kFaster);
  EXPECT_GE(tree[middle].together_us, tree[middle].apart_us);
  EXPECT_EQ(tree[forest.branch_node[0]].branches, 1);
  EXPECT_EQ(tree[forest.branch_node[0]].reason, ReadReason::kOneReader);
  const std::vector<NodeRead> store = reads_of(SharePolicy::kStore);
  EXPECT_FALSE(store[root].together);
  EXPECT_EQ(store[root].reason, ReadReason::kPolicy);

  // Where one child has all queries, the node is read as the child is.
  for (int32_t b = 0; b < 16; ++b) forest.branch_query_count[b] = 0;
  ++forest.version;
  const std::vector<NodeRead> few = reads_of(SharePolicy::kStore);
  EXPECT_EQ(few[root].branches, 2);
  EXPECT_EQ(few[root].reason, few[middle].reason);
}

// A GPU's step that lasts no longer than the wait for a merge is planned as if nothing could be shared; with more requests it
// shares.
TEST(PlanCost, ShortStepsOfAGpuShareNothing) {
  const AttentionSpec spec{.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  const BackendTraits gpu = testing::H200Traits();
  const MachineModel h200 = ShippedMachineModel("h200").value();
  for (const int32_t branches : {8, 256}) {
    TestForest forest;
    const int32_t root = forest.AddNode(kNoParent, 512);
    for (int32_t b = 0; b < branches; ++b) forest.AddBranch(root, 64, 1);
    const auto tree = Planner::Create(spec, forest.Capacity(), {}, gpu, h200).value();
    const auto store = Planner::Create(spec, forest.Capacity(), {.policy = SharePolicy::kStore}, gpu, h200).value();
    ASSERT_TRUE(tree->Update(forest.Forest()).ok() && store->Update(forest.Forest()).ok());
    EXPECT_EQ(tree->Stats().shared_nodes, branches == 8 ? 0 : 1);
    EXPECT_EQ(tree->Stats().kv_tokens_read == store->Stats().kv_tokens_read, branches == 8);
    EXPECT_LE(tree->Stats().predicted_ns, store->Stats().predicted_ns);
    EXPECT_GT(tree->Stats().predicted_ns, h200.launch_ns);
  }
}

// Where the warps of a worker read a task together, few requests end sooner, shared or not; a long prefix is shared by them.
TEST(PlanCost, CooperativeTasksEndStepsOfFewRequestsSooner) {
  const AttentionSpec spec{.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  const BackendTraits cooperative_tasks = testing::H200Traits();
  BackendTraits alone = cooperative_tasks;
  alone.cooperative_warps = 0;
  const MachineModel h200 = ShippedMachineModel("h200").value();
  for (const int32_t prefix : {512, 32768}) {
    for (const int32_t branches : {4, 64}) {
      SCOPED_TRACE(std::to_string(prefix) + " x " + std::to_string(branches));
      TestForest forest;
      const int32_t root = forest.AddNode(kNoParent, prefix);
      for (int32_t b = 0; b < branches; ++b) forest.AddBranch(root, 64, 1);
      const auto predicted_ns = [&](const BackendTraits& traits, SharePolicy policy) {
        const auto planner = Planner::Create(spec, forest.Capacity(), {.policy = policy}, traits, h200).value();
        EXPECT_TRUE(planner->Update(forest.Forest()).ok());
        if (policy == SharePolicy::kTree && traits.cooperative_warps > 0) {
          EXPECT_EQ(planner->Stats().shared_nodes, prefix == 512 && branches == 4 ? 0 : 1);
        }
        return planner->Stats().predicted_ns;
      };
      const double cooperative_ns = predicted_ns(cooperative_tasks, SharePolicy::kStore),
                   alone_ns = predicted_ns(alone, SharePolicy::kStore);
      if (branches == 4) {
        EXPECT_LT(cooperative_ns, alone_ns);
      } else {
        EXPECT_EQ(cooperative_ns, alone_ns) << "more tasks than workers";
      }
      EXPECT_LE(predicted_ns(cooperative_tasks, SharePolicy::kTree), cooperative_ns);
    }
  }
}

// Lengths are classes where whole steps are predicted: a new request's few tokens count too, by the middle of the first one.
TEST(PlanCost, ShortLeavesCountAsTheirClassDoes) {
  constexpr int32_t kPrefix = 8192;
  const AttentionSpec spec{.num_qo_heads = 32, .num_kv_heads = 32, .head_dim = 128};
  const MachineModel h200 = ShippedMachineModel("h200").value();
  double least_ns = 0;
  for (const int32_t own : {1, 16, 32, 33, 64, 96, 97, 200, 512, 600, 3000}) {
    SCOPED_TRACE(own);
    TestForest forest;
    const int32_t root = forest.AddNode(kNoParent, kPrefix);
    for (int32_t b = 0; b < 1024; ++b) forest.AddBranch(root, own, 1);
    const auto planner = Planner::Create(spec, forest.Capacity(), {}, testing::H200Traits(), h200).value();
    ASSERT_TRUE(planner->Update(forest.Forest()).ok());
    const int32_t typical = planner->TypicalLength(0) - kPrefix;
    EXPECT_GE(typical, std::max(own, 16) / 2);
    EXPECT_LE(typical, std::max(2 * own, 16));
    EXPECT_GE(planner->Stats().predicted_ns, least_ns);
    least_ns = planner->Stats().predicted_ns;
    const double read_bytes = (kPrefix + 1024.0 * typical) * 2 * 32 * 128 * 2;
    EXPECT_GT(least_ns, 1e9 * read_bytes / h200.read_bytes_per_s);
  }
}

// Where times are sums of work, a plan that shares is predicted to end sooner than the one that shares nothing, whatever the prices
// that each node was decided with: near the point where sharing begins to save time they disagree.
TEST(PlanCost, NeverSharesAgainstTheSum) {
  const BackendTraits amx{.workers = 2, .dense_tile_rows = 16, .dense_min_rows = 5, .kv_tile = 512};
  const MachineModel machine = ShippedMachineModel("sapphire-rapids", 2).value();
  int32_t gains_nothing = 0, shares = 0;
  for (const AttentionSpec& spec : {AttentionSpec{.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128},
                                    AttentionSpec{.num_qo_heads = 9, .num_kv_heads = 3, .head_dim = 64}}) {
    for (int32_t prefix = 16; prefix <= 1024; prefix *= 2) {
      for (const int32_t own : {16, 128, 512}) {
        for (const int32_t requests : {2, 4, 16}) {
          TestForest forest;
          const int32_t root = forest.AddNode(kNoParent, prefix);
          for (int32_t b = 0; b < requests; ++b) forest.AddBranch(root, own, 1);
          const auto tree = Planner::Create(spec, forest.Capacity(), {}, amx, machine).value();
          const auto store = Planner::Create(spec, forest.Capacity(), {.policy = SharePolicy::kStore}, amx, machine).value();
          ASSERT_TRUE(tree->Update(forest.Forest()).ok() && store->Update(forest.Forest()).ok());
          if (tree->Explain().find(Name(Decision::kNoGain)) != std::string::npos) ++gains_nothing;
          if (tree->Stats().shared_nodes == 0) {
            EXPECT_EQ(tree->Stats().predicted_ns, store->Stats().predicted_ns);
          } else {
            EXPECT_LT(tree->Stats().predicted_ns, store->Stats().predicted_ns) << prefix << "," << own << "x" << requests;
            ++shares;
          }
        }
      }
    }
  }
  EXPECT_GT(gains_nothing, 0);
  EXPECT_GT(shares, 30);
}

// RelayAttention algorithm 1: the cached prefix is read once for all new prompts.
TEST(PlanCost, NewPromptsReadACachedPrefixOnce) {
  const TestForest forest = [] {
    TestForest f;
    const int32_t root = f.AddNode(kNoParent, 2048);
    for (int32_t b = 0; b < 32; ++b) f.AddBranch(root, 64, 64);
    return f;
  }();
  PlanSetup setup;
  setup.spec = {.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  setup.options.force_sharing = true;
  const std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  CheckPlan(*planner, forest);
  const PlanView view = planner->View();
  int64_t prefix_tokens = 0;
  for (const WorkItem& item : view.items) {
    if (item.member_count == 0) continue;
    if (item.kv_end <= 2048) {
      EXPECT_EQ(item.flags, 0) << "all rows see the whole prefix";
      EXPECT_EQ(item.kind, ItemKind::kDenseTile);
      int32_t queries = 0;
      for (int32_t m = 0; m < item.member_count; ++m) queries += view.merge_sets[view.members[item.member_begin + m]].query_count;
      prefix_tokens += int64_t{item.kv_end - item.kv_begin} * queries;
    } else {
      EXPECT_EQ(item.flags, kItemMasked);
    }
  }
  EXPECT_EQ(prefix_tokens, 2048 * 32 * 64) << "every query sees the prefix through shared items";
  EXPECT_LT(planner->Stats().kv_tokens_read, 3 * 2048 + 32 * 64 * 4);
}

// A tile of a prompt chunk reads no further than its last query.
TEST(PlanCost, CausalTailsEndWithTheirTile) {
  TestForest forest;
  forest.AddBranch(forest.AddNode(kNoParent, 0), 1000, 512);
  PlanSetup setup;
  const std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  CheckPlan(*planner, forest);
  for (const MergeSet& set : planner->View().merge_sets) {
    if (set.query_count == 0) continue;
    const PlanView view = planner->View();
    const Contribution& last = view.contributions[set.contribution_begin + set.contribution_count - 1];
    const int32_t end = std::min(view.items[last.item].kv_end, 1000);
    EXPECT_LE(end, 1000 - 512 + set.query_begin + set.query_count + setup.traits.dense_tile_rows);
  }
}

// ------------------------------------------------------------------------------------------------------------------- life of a
// plan

TEST(PlanLife, HoldsForTheStepsLaidOutAhead) {
  TestForest forest = TwoLevels(300, 5, 20);
  PlanSetup setup;
  const std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  ASSERT_EQ(planner->StepsLeft(), 64);
  const CanonicalPlan plan = Canonical(planner->View());
  for (int32_t step = 1; step <= 64; ++step) {
    forest.Grow();
    ASSERT_TRUE(planner->Update(forest.Forest()).ok());
    ASSERT_EQ(planner->StepsLeft(), 64 - step);
    ASSERT_EQ(planner->Stats().updates_replanned, 1);
    CheckPlan(*planner, forest);
  }
  EXPECT_EQ(Canonical(planner->View()), plan);
  forest.Grow();
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  EXPECT_EQ(planner->Stats().updates_replanned, 2);
  EXPECT_EQ(planner->StepsLeft(), 64);
}

TEST(PlanLife, EndsWithThePageRow) {
  TestForest forest(16);
  forest.AddBranch(kNoParent, 30, 1);
  forest.branch_page_capacity[0] = 2;
  PlanSetup setup;
  const std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  EXPECT_EQ(planner->StepsLeft(), 2);
  forest.Grow(3);
  const Status status = planner->Update(forest.Forest());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("branch 0: kv_len is 33, but its page row holds 2 pages of 16"), std::string::npos)
      << status.message();
}

TEST(PlanLife, NoticesQueryCountsWithoutANewVersion) {
  TestForest forest = TwoLevels(300, 5, 20);
  PlanSetup setup;
  PlanCapacity capacity = Large();
  const std::unique_ptr<Planner> planner = setup.Make(capacity);
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  forest.branch_query_count[2] = 0;  // the caller forgot to grow the version
  forest.LayOutQueries();
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  CheckPlan(*planner, forest);
}

TEST(PlanLife, KeepsItsStateWhenAnUpdateFails) {
  TestForest forest = TwoLevels(300, 5, 20);
  PlanSetup setup;
  const std::unique_ptr<Planner> planner = setup.Make(Large());
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  const CanonicalPlan plan = Canonical(planner->View());
  TestForest broken = forest;
  ++broken.version;
  broken.node_begin[2] += 1;
  EXPECT_FALSE(planner->Update(broken.Forest()).ok());
  EXPECT_EQ(Canonical(planner->View()), plan);
  forest.AddBranch(0, 7, 1);
  ++forest.version;
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  CheckPlan(*planner, forest);
}

TEST(PlanLife, AllocatesNothingAfterCreate) {
  std::mt19937 rng(7);
  TestForest forest = RandomForest(rng);
  PlanCapacity capacity = Large();
  capacity.page_size = forest.page_size;
  capacity.max_page_slots = 1 << 22;
  const std::unique_ptr<Planner> planner = PlanSetup().Make(capacity);
  for (int32_t step = 0; step < 200; ++step) {
    const PrefixForestView view = forest.Forest();
    const int64_t before = allocations;
    const bool ok = planner->Update(view).ok();
    const int64_t allocated = allocations - before;
    ASSERT_TRUE(ok);
    ASSERT_EQ(allocated, 0) << "step " << step;
    RandomEdit(forest, rng);
  }
}

TEST(PlanLife, SameInputSameOutput) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 rng(seed);
    const PlanSetup setup = RandomSetup(rng);
    const TestForest forest = RandomForest(rng);
    const std::unique_ptr<Planner> a = setup.Make(forest.Capacity()), b = setup.Make(forest.Capacity());
    ASSERT_TRUE(a->Update(forest.Forest()).ok());
    ASSERT_TRUE(b->Update(forest.Forest()).ok());
    EXPECT_EQ(DumpPlan(*a), DumpPlan(*b));
  }
}

// --------------------------------------------------------------------------------------------------------------------- capacities

// More levels than states and contributions were sized for: shares are dropped, the weakest first, and the plan stays right.
TEST(PlanCapacityTest, DropsSharesAndSplitsButNeverFails) {
  TestForest forest;
  std::vector<int32_t> level = {forest.AddNode(kNoParent, 300)};
  for (int32_t depth = 0; depth < 40; ++depth) {  // a comb: one branch leaves at each level
    forest.AddBranch(level.back(), 10, 1);
    level.push_back(forest.AddNode(level.back(), 300));
  }
  for (int32_t b = 0; b < 200; ++b) forest.AddBranch(level.back(), 10, 1);
  for (const bool deterministic : {false, true}) {
    PlanSetup setup;
    setup.spec.deterministic = deterministic;
    setup.options.force_sharing = true;
    setup.traits.workers = 132;
    const std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
    ASSERT_TRUE(planner->Update(forest.Forest()).ok());
    CheckPlan(*planner, forest);
    EXPECT_NE(planner->Explain().find("for lack of capacity"), std::string::npos);
    // With less to do the plan shares fully again.
    for (int32_t b = 0; b < 230; ++b) forest.branch_query_count[static_cast<size_t>(b)] = 0;
    forest.LayOutQueries();
    ++forest.version;
    ASSERT_TRUE(planner->Update(forest.Forest()).ok());
    CheckPlan(*planner, forest);
    EXPECT_EQ(planner->Explain().find("for lack of capacity"), std::string::npos);
    for (int32_t b = 0; b < 230; ++b) forest.branch_query_count[static_cast<size_t>(b)] = 1;
    forest.LayOutQueries();
    ++forest.version;
  }
}

// Two workers want the prefix in more pieces along KV than there is room for states of every query; in fewer it fits.
TEST(PlanCapacityTest, CutsLessBeforeItSharesLess) {
  TestForest forest;
  const int32_t root = forest.AddNode(kNoParent, 8192);
  for (int32_t b = 0; b < 32; ++b) forest.AddBranch(root, 64, 64);
  PlanSetup setup;
  setup.spec = {.num_qo_heads = 2, .num_kv_heads = 1, .head_dim = 64};
  setup.options.force_sharing = true;
  setup.traits = {.workers = 2, .dense_tile_rows = 16, .dense_min_rows = 9, .kv_tile = 64};
  PlanCapacity capacity = forest.Capacity();
  capacity.max_branches = capacity.max_queries;
  const std::unique_ptr<Planner> planner = setup.Make(capacity);
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  CheckPlan(*planner, forest);
  EXPECT_EQ(planner->Explain().find("coarsening level 0"), std::string::npos) << "the case asks for too little";
  EXPECT_EQ(planner->Stats().shared_nodes, 1);
}

// A GPU cuts one long prefix into as many pieces as it has workers, each of which is a contribution to every request.
TEST(PlanCapacityTest, HasRoomForTheCutsOfOneLongPrefix) {
  for (const int32_t requests : {64, 256}) {
    TestForest forest;
    const int32_t root = forest.AddNode(kNoParent, 32768);
    for (int32_t b = 0; b < requests; ++b) forest.AddBranch(root, 16, 1);
    PlanSetup setup;
    setup.spec = {.num_qo_heads = 8, .num_kv_heads = 1, .head_dim = 128};
    setup.traits = testing::H200Traits();
    setup.machine = ShippedMachineModel("h200", 132).value();
    const std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
    ASSERT_TRUE(planner->Update(forest.Forest()).ok());
    EXPECT_NE(planner->Explain().find("coarsening level 0"), std::string::npos) << planner->Explain();
    EXPECT_EQ(planner->Stats().shared_nodes, 1);
  }
}

TEST(PlanCapacityTest, SizesAreWhatCreateReserves) {
  const PlanSetup setup;
  const PlanCapacity capacity = Large();
  const PlanSizes sizes = ComputePlanSizes(setup.spec, capacity, setup.traits);
  EXPECT_EQ(sizes.max_merge_sets, 256 + 8192 / 16);
  EXPECT_GE(sizes.max_items, sizes.max_merge_sets) << "one unsplit item per merge set must always fit";
  EXPECT_GE(sizes.workspace_bytes, static_cast<size_t>(sizes.max_states) * (64 + 2) * 4);
  EXPECT_EQ(setup.Make(capacity)->sizes().host_bytes, sizes.host_bytes);
}

// ------------------------------------------------------------------------------------------------------------- parallel splits

TEST(PlanSplit, FillsTheWorkersWithOneLongRequest) {
  TestForest forest;
  forest.AddBranch(kNoParent, 32768, 1);
  PlanSetup setup;
  setup.spec = {.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  setup.traits.workers = 132;
  setup.machine = ShippedMachineModel("h200", 132).value();
  const std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  CheckPlan(*planner, forest);
  EXPECT_GE(planner->Stats().num_items * 8, 132);
  EXPECT_LE(planner->Stats().num_items * 8, 132 * 6);
}

// A backend that cuts ranges itself is given them whole; only deterministic mode, whose cuts define the bits, cuts before.
TEST(PlanSplit, LeavesRangesWholeForBackendsThatCut) {
  int32_t whole = 0, cut = 0;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    PlanSetup setup = RandomSetup(rng);
    const TestForest forest = RandomForest(rng, seed % 3 == 0 ? 9000 : 700);
    const auto items_of_sets = [&] {
      const std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
      EXPECT_TRUE(planner->Update(forest.Forest()).ok());
      CheckPlan(*planner, forest);
      const PlanView view = planner->View();
      std::map<std::vector<int32_t>, int32_t> pieces;  // by members
      for (const auto queue : {view.compute_queue, view.bandwidth_queue}) {
        for (const int32_t id : queue) {
          const auto members = view.members.subspan(view.items[id].member_begin, view.items[id].member_count);
          ++pieces[std::vector<int32_t>(members.begin(), members.end())];
        }
      }
      return pieces;
    };
    cut += std::ranges::any_of(items_of_sets(), [](const auto& of_set) { return of_set.second > 2; });
    setup.traits.cuts_kv = true;
    if (setup.spec.deterministic) continue;
    // A shared node and a leaf below it may have the same members.
    const auto pieces = items_of_sets();
    whole += std::ranges::all_of(pieces, [](const auto& of_set) { return of_set.second <= 2; });
  }
  EXPECT_GT(cut, 10);
  EXPECT_GT(whole, 50);
}

// The same request alone, beside others, with and without a shared prefix: the fold of its states has the same terms.
TEST(PlanDeterministic, TermsDoNotDependOnTheBatch) {
  PlanSetup setup;
  setup.spec.deterministic = true;
  for (const int32_t length : {1, 511, 512, 513, 4095, 4096, 4097, 9000, 13000}) {
    for (const int32_t shared : {0, 100, 512, 4096, 5000, 8192}) {
      if (shared >= length) continue;
      TestForest forest;
      const int32_t root = forest.AddNode(kNoParent, shared);
      for (int32_t b = 0; b < 12; ++b) forest.AddBranch(root, length - shared + b, b % 3 + 1);
      setup.options.force_sharing = true;
      const std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
      ASSERT_TRUE(planner->Update(forest.Forest()).ok());
      CheckPlan(*planner, forest);
      ASSERT_FALSE(HasFatalFailure()) << length << " " << shared << "\n" << planner->Explain();
    }
  }
}

// A live range is cut for the lengths that its branch may have before the next update, no further; and all steps until then keep to
// the defined terms.
TEST(PlanDeterministic, LeavesAreCutAsFarAsTheyMayGrow) {
  PlanSetup setup;
  setup.spec.deterministic = true;
  setup.traits = testing::H200Traits();
  setup.traits.deterministic_unit = 128;
  setup.options.force_sharing = true;
  for (const int32_t own : {1, 63, 64, 65, 127, 128, 256, 700, 1500}) {
    TestForest forest;
    const int32_t root = forest.AddNode(kNoParent, 1280);
    for (int32_t b = 0; b < 12; ++b) forest.AddBranch(root, own, 1);
    const std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
    for (int32_t step = 0; step < 200; ++step) {
      ASSERT_TRUE(planner->Update(forest.Forest()).ok());
      CheckPlan(*planner, forest);
      ASSERT_FALSE(HasFatalFailure()) << own << " tokens, step " << step << "\n" << planner->Explain();
      const PlanView view = planner->View();
      for (const MergeSet& set : view.merge_sets) {
        int32_t empty = 0;
        for (const Contribution& c : view.contributions.subspan(set.contribution_begin, set.contribution_count)) {
          empty += view.items[c.item].kv_begin >= forest.branch_kv_len[0];
        }
        ASSERT_LE(empty, 1) << own << " tokens, step " << step << "\n" << planner->Explain();
      }
      for (int32_t& length : forest.branch_kv_len) ++length;
    }
  }
}

// ------------------------------------------------------------------------------------------------------------------- explain, dump

TEST(PlanIo, ADumpReplaysToTheSamePlan) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    std::mt19937 rng(seed);
    const PlanSetup setup = RandomSetup(rng);
    const TestForest forest = RandomForest(rng);
    const std::unique_ptr<Planner> planner = setup.Make(forest.Capacity());
    ASSERT_TRUE(planner->Update(forest.Forest()).ok());
    const std::string text = DumpPlan(*planner);
    Result<PlanDump> dump = ParsePlanDump(text);
    ASSERT_TRUE(dump.ok()) << dump.status().ToString();
    Result<std::unique_ptr<Planner>> replayed = ReplayPlan(*dump);
    ASSERT_TRUE(replayed.ok()) << replayed.status().ToString();
    EXPECT_EQ((*replayed)->Explain(), planner->Explain());
    EXPECT_EQ(DumpPlan(**replayed), text);
  }
}

TEST(PlanIo, ExplainNamesDecisionsAndCosts) {
  const TestForest forest = TwoLevels(4096, 16, 10);
  const std::unique_ptr<Planner> planner = PlanSetup().Make(forest.Capacity());
  EXPECT_NE(planner->Explain().find("no plan yet"), std::string::npos);
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  const std::string text = planner->Explain();
  for (const char* part : {"node 0 [0, 4096), 16 branches, 64 rows: shared (4096 tokens: read once", "reads [0, 4096) for 64 rows",
                           "reads [4096, live) for 4 rows", "KV read:", "without sharing", "predicted:"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

}  // namespace
}  // namespace coppice::attention
