// The translation of plans for the device: host code, needs no device.
#include "attention/cuda/lower/plan_translator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/cuda/lower/cut_rules.h"
#include "attention/cuda/lower/explain_tasks.h"
#include "attention/cuda/lower/kernel_choice.h"
#include "attention/cuda/lower/kv_cuts.h"
#include "attention/cuda/lower/lowered_plan.h"
#include "attention/cuda/lower/sm_costs.h"
#include "attention/cuda/lower/step_ranges.h"
#include "attention/cuda/plan_device.h"
#include "attention/plan.h"
#include "attention/plan_units.h"
#include "attention/testing/plan_test_forest.h"
#include "core/math.h"

namespace coppice::attention::cuda {
namespace {

using attention::testing::H200Traits;
using attention::testing::RandomForest;
using attention::testing::TestForest;

static_assert(MaxPlannedContributions({.num_qo_heads = 1, .num_kv_heads = 1}) == 511, "as H200Traits says");

constexpr AttentionSpec kSpec{.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128};
constexpr int kSms = 132;

// The plan of a forest on one H200, as the device reads it.
class Translated {
 public:
  explicit Translated(const TestForest& forest, SharePolicy policy = SharePolicy::kTree, const AttentionSpec& spec = kSpec,
                      bool overlapped_tiles = true, const BackendTraits& traits = H200Traits()) {
    auto planner = Planner::Create(spec, forest.Capacity(), {.policy = policy}, traits, ShippedMachineModel("h200", kSms).value());
    EXPECT_TRUE(planner.ok()) << planner.status().ToString();
    EXPECT_TRUE((*planner)->Update(forest.Forest()).ok());
    SmRates rates = (*planner)->machine().sm;
    if (!overlapped_tiles) rates.overlapped_step_ns = 1e12;
    PlanTranslator translator(spec, forest.Capacity(), (*planner)->sizes(), rates, traits);
    image_.resize(translator.layout().bytes + 64);
    std::byte* image = image_.data() + (64 - reinterpret_cast<uintptr_t>(image_.data()) % 64);
    translator.TranslatePlan((*planner)->View(), forest.Forest());
    translator.WriteImage(image);
    translator.TranslateLengths(forest.Forest(), image);
    const auto& header = *reinterpret_cast<const PlanHeader*>(image + translator.layout().header);
    dense_ctas = header.dense_ctas, cooperative = header.cooperative != 0, overlapped = header.overlapped != 0;
    const auto tasks = [&](size_t offset, int64_t count) {
      return std::span(reinterpret_cast<const Task*>(image + offset), static_cast<size_t>(count));
    };
    dense = tasks(translator.layout().dense_tasks, translator.num_dense_tasks());
    stream = tasks(translator.layout().stream_tasks, translator.num_stream_tasks());
    int64_t queued = 0;
    for (const QueuedItem& item : translator.queued().items()) {
      if (item.dense) queued += int64_t{item.blocks} * translator.queued().pieces(item.item).count * spec.num_kv_heads;
    }
    EXPECT_EQ(std::ssize(dense), queued) << "dense tasks are as many as cuts are chosen for";
  }

  std::span<const Task> dense, stream;
  int32_t dense_ctas = 0;
  bool cooperative = false, overlapped = false;

 private:
  std::vector<std::byte> image_;
};

// Tokens of a node that tasks read under one kv head.
struct Read {
  int32_t begin, end;
  const Task* task;
};

std::map<std::pair<int32_t, int32_t>, std::vector<Read>> ReadsByNodeAndHead(const Translated& plan, const TestForest& forest) {
  std::map<std::pair<int32_t, int32_t>, std::vector<Read>> reads;
  for (const auto tasks : {plan.dense, plan.stream}) {
    for (const Task& task : tasks) {
      const DeviceItem& item = task.item;
      const int32_t end = std::min(item.kv_end, forest.branch_kv_len[item.branch]);
      for (int32_t n = forest.branch_node[item.branch]; n != kNoParent; n = forest.node_parent[n]) {
        const Read read{std::max(item.kv_begin, forest.node_begin[n]), std::min(end, forest.node_end[n]), &task};
        if (read.begin >= read.end) continue;
        for (int32_t h = 0; h < item.head_count; ++h) reads[{n, item.head_begin + h}].push_back(read);
      }
    }
  }
  return reads;
}

TEST(PlanUpload, ReadOnceMeansThatNoOtherTaskReadsTheKv) {
  int64_t once = 0, shared = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    const TestForest forest = RandomForest(rng, seed % 5 == 0 ? 9000 : 700);
    const Translated plan(forest, static_cast<SharePolicy>(seed % 3));
    for (const auto& [node, reads] : ReadsByNodeAndHead(plan, forest)) {
      for (const Read& read : reads) {
        ++(read.task->item.read_once ? once : shared);
        if (!read.task->item.read_once) continue;
        for (const Read& other : reads) {
          ASSERT_TRUE(other.task == read.task || other.end <= read.begin || other.begin >= read.end)
              << "node " << node.first << ", kv head " << node.second << ": [" << read.begin << ", " << read.end << ") and ["
              << other.begin << ", " << other.end << ")";
        }
      }
    }
  }
  EXPECT_GT(once, 1000);
  EXPECT_GT(shared, 1000);
}

TEST(PlanUpload, WithoutSharingAllKvIsReadOnce) {
  TestForest forest;
  for (int i = 0; i < 40; ++i) forest.AddBranch(kNoParent, 3000 + i, 1);
  const Translated plan(forest);
  ASSERT_FALSE(plan.stream.empty());
  for (const Task& task : plan.stream) EXPECT_TRUE(task.item.read_once);
}

// Ranges that the planner cut itself: no piece reads what another does.
TEST(PlanUpload, DeterministicPiecesReadTheirKvOnce) {
  AttentionSpec exact = kSpec;
  exact.deterministic = true;
  TestForest forest;
  for (int i = 0; i < 40; ++i) forest.AddBranch(kNoParent, 3000 + i, 1);
  const Translated plan(forest, SharePolicy::kTree, exact);
  EXPECT_GT(plan.stream.size(), 2u * 2 * 40);
  for (const Task& task : plan.stream) EXPECT_TRUE(task.item.read_once);
}

// `requests` over one prefix.
TestForest OnePrefix(int32_t prefix, int32_t own, int requests) {
  TestForest forest;
  const int32_t root = forest.AddNode(kNoParent, prefix);
  for (int i = 0; i < requests; ++i) forest.AddBranch(root, own, 1);
  return forest;
}

TEST(PlanUpload, SmsArePartitionedWhereDenseAndStreamingWorkAreLong) {
  constexpr AttentionSpec kAllHeads{.num_qo_heads = 32, .num_kv_heads = 32, .head_dim = 128};
  const Translated plan(OnePrefix(32768, 256, 1024), SharePolicy::kTree, kAllHeads);
  EXPECT_LT(plan.dense_ctas, kSms);
  EXPECT_GE(plan.dense_ctas, kSms / 3);
  const auto tasks = static_cast<int32_t>(plan.dense.size()), rounds = CeilDiv(tasks, plan.dense_ctas);
  EXPECT_LT(rounds * plan.dense_ctas - tasks, rounds) << tasks << " dense tasks on " << plan.dense_ctas << " SMs: whole rounds";
}

// Cases whose best split was measured (docs/kernels/hopper.md, "SM partition"), in kernels without overlapped tiles.
TEST(PlanUpload, ShorterStepsArePartitionedToo) {
  constexpr AttentionSpec kAllHeads{.num_qo_heads = 32, .num_kv_heads = 32, .head_dim = 128};
  constexpr AttentionSpec kGrouped{.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  EXPECT_EQ(Translated(OnePrefix(32768, 256, 256), SharePolicy::kTree, kAllHeads, /*overlapped_tiles=*/false).dense_ctas, 96);
  EXPECT_EQ(Translated(OnePrefix(8192, 256, 256), SharePolicy::kTree, kGrouped, /*overlapped_tiles=*/false).dense_ctas, 86);
  EXPECT_EQ(Translated(OnePrefix(16384, 128, 1024), SharePolicy::kTree, kGrouped, /*overlapped_tiles=*/false).dense_ctas, kSms)
      << "computation is the longer part";
}

// A chunk of so many queries that ends a prompt, beside requests of as many tokens as the prompt that decode.
TestForest ChunkWithDecode(int32_t queries, int32_t tokens, int requests) {
  TestForest forest;
  forest.AddBranch(kNoParent, tokens, queries);
  for (int i = 0; i < requests; ++i) forest.AddBranch(kNoParent, tokens, 1);
  return forest;
}

// A prompt of 2,048 tokens beside 128 requests of as many (H1 of docs/kernels/overlap.md): few items, but long ones, which are cut.
TEST(PlanUpload, SmsArePartitionedWhereFewItemsAreLong) {
  constexpr AttentionSpec kSevenRows{.num_qo_heads = 28, .num_kv_heads = 4, .head_dim = 128};
  const Translated plan(ChunkWithDecode(2048, 2048, 128), SharePolicy::kTree, kSevenRows);
  EXPECT_TRUE(plan.overlapped);
  EXPECT_LT(plan.dense_ctas, kSms - 16);
  EXPECT_GE(plan.dense_ctas, kSms / 2);
}

// A chunk whose tiles are done early has nothing to gain from more pieces, which cost states and folds.
TEST(PlanUpload, AShortChunkBesideManyRequestsIsNotCut) {
  constexpr AttentionSpec kGrouped{.num_qo_heads = 16, .num_kv_heads = 4, .head_dim = 128};
  const Translated plan(ChunkWithDecode(512, 4096, 441), SharePolicy::kTree, kGrouped);
  EXPECT_EQ(plan.dense.size(), 64u) << "16 tiles under each kv head";
  EXPECT_LE(plan.dense_ctas, 64);
}

// Tiles of one prompt that are cut along KV read each part of it at the same time, so that it comes from memory once.
TEST(PlanUpload, TilesOfAPromptAreCutAtTheSamePlaces) {
  constexpr AttentionSpec kAllHeads{.num_qo_heads = 16, .num_kv_heads = 16, .head_dim = 128};
  for (const int32_t above : {0, 8192}) {  // tokens of the prompt in a node above its last one
    SCOPED_TRACE(above);
    TestForest forest;
    forest.AddBranch(above == 0 ? kNoParent : forest.AddNode(kNoParent, above), 20480 - above, 1024);
    for (int i = 0; i < 11; ++i) forest.AddBranch(kNoParent, 20480, 1);
    const Translated plan(forest, SharePolicy::kTree, kAllHeads);
    std::map<int32_t, std::vector<int32_t>> begins_of_tile;                    // by its first query
    std::map<std::pair<int32_t, int32_t>, std::vector<ptrdiff_t>> tasks_from;  // by where they begin and kv head
    for (const Task& task : plan.dense) {
      ASSERT_EQ(task.item.branch, 0);
      if (task.item.head_begin == 0) begins_of_tile[task.first.query_begin].push_back(task.item.kv_begin);
      tasks_from[{task.item.kv_begin, task.item.head_begin}].push_back(&task - plan.dense.data());
    }
    ASSERT_EQ(begins_of_tile.size(), 8u) << "1,024 queries in tiles of 128";
    for (auto& [query, begins] : begins_of_tile) {
      std::ranges::sort(begins);
      EXPECT_GT(begins.size(), 1u) << "query " << query;
      EXPECT_EQ(begins, begins_of_tile.begin()->second) << "query " << query;
    }
    for (const auto& [from, tasks] : tasks_from) {
      EXPECT_EQ(tasks.size(), 8u);
      EXPECT_EQ(tasks.back() - tasks.front(), 7) << "token " << from.first << ", kv head " << from.second;
    }
  }
}

// With any prompts beside any requests, the tasks of a tile read all tokens that its rows see, once.
TEST(PlanUpload, PiecesOfATileReadItOnce) {
  int cut = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    const auto up_to = [&](uint32_t n) { return 1 + static_cast<int32_t>(rng() % n); };
    TestForest forest;
    const int32_t root = rng() % 2 == 0 ? kNoParent : forest.AddNode(kNoParent, up_to(20000));
    const int prompts = up_to(3);
    for (int i = 0; i < prompts; ++i) {
      const int32_t tokens = up_to(20000);
      forest.AddBranch(rng() % 2 == 0 ? root : kNoParent, tokens, std::min(tokens, up_to(2048)));
    }
    for (int i = up_to(40); i > 0; --i) forest.AddBranch(rng() % 2 == 0 ? root : kNoParent, up_to(20000), 1);
    const int32_t kv_heads = 1 << rng() % 5;
    const Translated plan(forest, SharePolicy::kStore, {.num_qo_heads = 16, .num_kv_heads = kv_heads, .head_dim = 128});
    std::map<std::array<int32_t, 3>, std::vector<Read>> reads;  // by branch, first query and kv head
    for (const Task& task : plan.dense) {
      const DeviceItem& item = task.item;
      reads[{item.branch, task.first.query_begin, item.head_begin}].push_back({item.kv_begin, item.kv_end, &task});
    }
    for (auto& [tile, of_tile] : reads) {
      std::ranges::sort(of_tile, {}, &Read::begin);
      cut += of_tile.size() > 1;
      const auto& [branch, query, head] = tile;
      int32_t read = 0;
      for (const Read& piece : of_tile) {
        ASSERT_EQ(piece.begin, read) << "branch " << branch << ", query " << query << ", kv head " << head;
        read = piece.end;
      }
      const DeviceMember& first = of_tile.back().task->first;
      const int32_t length = forest.branch_kv_len[branch], last_query = first.query_begin + first.query_count - 1;
      ASSERT_GE(read, length - forest.branch_query_count[branch] + last_query + 1);
    }
  }
  EXPECT_GT(cut, 500);
}

// Shorter tiles have fewer pieces, none of which is short.
TEST(PlanUpload, TheLastPieceOfATileIsNoRemnant) {
  const SmCosts costs(ShippedMachineModel("h200", kSms).value().sm, kSpec, H200Traits());
  for (int32_t tokens = 128; tokens <= 8192; tokens += 64) {
    const QueuedItem tile{.rows = 128, .blocks = 1, .tokens = tokens, .cut_tokens = 8192, .dense = true};
    std::vector<int32_t> ends;
    CutDenseItem(tile, /*longest=*/2000, /*most=*/100, costs, ends);
    EXPECT_EQ(std::ssize(ends) + 1, DensePieces(tile, 2000, costs)) << tokens;
    for (size_t i = 0; i < ends.size(); ++i)
      EXPECT_EQ(ends[i], 1664 * static_cast<int32_t>(i + 1)) << tokens;  // 8192 / 5, in steps
    if (ends.empty()) continue;
    EXPECT_GE(tokens - ends.back(), 1664 / 2) << tokens;
    EXPECT_LT(tokens - ends.back(), 1664 * 3 / 2) << tokens;
  }
}

// Steps whose CTAs overlap streaming with dense tasks, by measurement (docs/kernels/overlap.md).
TEST(PlanUpload, OverlappedTilesWhereDenseTasksAreLong) {
  constexpr AttentionSpec kAllHeads{.num_qo_heads = 32, .num_kv_heads = 32, .head_dim = 128};
  constexpr AttentionSpec kGrouped{.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  constexpr AttentionSpec kOneHead{.num_qo_heads = 8, .num_kv_heads = 1, .head_dim = 128};
  AttentionSpec half = kGrouped, exact = kGrouped, wide = kGrouped;
  half.head_dim = 64;
  exact.deterministic = true;
  wide.num_qo_heads = 72;
  EXPECT_TRUE(Translated(OnePrefix(16384, 128, 1024), SharePolicy::kTree, kGrouped).overlapped);
  EXPECT_TRUE(Translated(OnePrefix(32768, 256, 1024), SharePolicy::kTree, kAllHeads).overlapped);
  EXPECT_TRUE(Translated(OnePrefix(8192, 256, 256), SharePolicy::kTree, kGrouped).overlapped);
  EXPECT_TRUE(Translated(OnePrefix(32768, 512, 256), SharePolicy::kTree, kOneHead).overlapped);
  EXPECT_FALSE(Translated(OnePrefix(32768, 2048, 256), SharePolicy::kTree, kOneHead).overlapped)
      << "most streams outlast the dense tasks";
  EXPECT_FALSE(Translated(OnePrefix(2048, 32, 1024), SharePolicy::kTree, kGrouped).overlapped) << "short dense tasks";
  EXPECT_FALSE(Translated(OnePrefix(16384, 0, 1024), SharePolicy::kTree, kGrouped).overlapped) << "nothing streams";
  EXPECT_FALSE(Translated(OnePrefix(16384, 128, 1024), SharePolicy::kStore, kGrouped).overlapped) << "nothing is dense";
  EXPECT_FALSE(Translated(OnePrefix(16384, 128, 1024), SharePolicy::kTree, half).overlapped) << "no kernel has them";
  EXPECT_FALSE(Translated(OnePrefix(16384, 128, 1024), SharePolicy::kTree, exact).overlapped) << "deterministic mode";
  EXPECT_FALSE(Translated(OnePrefix(16384, 128, 1024), SharePolicy::kTree, wide).overlapped) << "nine rows of a request";
}

TEST(SpreadStep, AnyRunOfNumbersIsSpreadEvenly) {
  EXPECT_EQ(SpreadStep(0), 0u);
  for (uint32_t n = 1; n <= 100; ++n) {
    const uint32_t step = SpreadStep(static_cast<int32_t>(n));
    std::vector<uint32_t> place(n, n);
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t number = static_cast<uint32_t>(uint64_t{i * step} * n >> 32);
      ASSERT_LT(number, n);
      ASSERT_EQ(place[number], n) << "two places have number " << number << " of " << n;
      place[number] = i;
    }
    if (n < 8) continue;
    // Of the first half of the numbers, each quarter of the places has its part.
    std::array<uint32_t, 4> quarters{};
    for (uint32_t number = 0; number < n / 2; ++number) ++quarters[4 * place[number] / n];
    for (const uint32_t count : quarters) EXPECT_NEAR(count, n / 8.0, 2.1) << n;
  }
}

TEST(SmCosts, MemoryIsSharedOutSoftlyNearItsRate) {
  const AttentionSpec spec{.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  for (const char* const card : {"h200", "h100"}) {
    const SmCosts costs(ShippedMachineModel(card).value().sm, spec, H200Traits());
    const double rate = costs.memory_bytes_per_ns();
    EXPECT_EQ(costs.MemoryShare(0), 1.0);
    double before = 1.0;
    for (double demand = 0.25; demand < 8; demand += 0.25) {
      const double share = costs.MemoryShare(demand * rate);
      EXPECT_NEAR(share, std::pow(1 + std::pow(demand, 8), -1.0 / 8), 1e-12);
      EXPECT_LT(share, before);
      EXPECT_LT(share * demand, 1.0);  // never more than there is
      before = share;
    }
    EXPECT_GT(costs.MemoryShare(0.5 * rate), 0.999);
    EXPECT_NEAR(costs.MemoryShare(2 * rate), 0.5, 0.001);
  }
}

TEST(PlanUpload, SmsAreNotPartitionedWhereOneKindOfWorkIsShort) {
  EXPECT_EQ(Translated(OnePrefix(8192, 256, 256)).dense_ctas, kSms) << "few stream tasks";
  EXPECT_EQ(Translated(OnePrefix(64, 256, 256)).dense_ctas, kSms) << "hardly a prefix";
  EXPECT_EQ(Translated(OnePrefix(32768, 1, 1024)).dense_ctas, kSms) << "hardly more than a prefix";
  EXPECT_EQ(Translated(OnePrefix(8192, 256, 256), SharePolicy::kStore).dense_ctas, kSms) << "no dense task";
}

// Kinds of ranges of {rows, tokens} under 32 kv heads, none of them of one set.
std::vector<bool> AreDense(std::vector<std::pair<int32_t, int32_t>> ranges, CudaKernels kernels = CudaKernels::kAuto,
                           bool deterministic = false) {
  const AttentionSpec spec{.num_qo_heads = 32, .num_kv_heads = 32, .head_dim = 128, .deterministic = deterministic};
  const KernelChoice kernel = ChooseKernel(kernels, 9, 0, spec, /*page_size=*/16).value();
  const SmCosts costs(ShippedMachineModel("h200", kSms).value().sm, spec, TraitsOf(kernel, spec, kSms));
  std::vector<QueuedItem> items;
  for (const auto& [rows, tokens] : ranges) {
    items.push_back({.rows = rows, .blocks = DenseBlocks(rows, 1), .tokens = tokens, .cut_tokens = tokens, .most_set_rows = 1});
  }
  ChooseKinds(items, spec.num_kv_heads, kSms, costs);
  std::vector<bool> dense;
  for (const QueuedItem& item : items) dense.push_back(item.dense);
  return dense;
}

TEST(DenseBlocks, HoldWholeMergeSets) {
  EXPECT_EQ(DenseBlocks(1024, 1), 8);
  EXPECT_EQ(DenseBlocks(1024, 4), 8);
  EXPECT_EQ(DenseBlocks(256 * 7, 7), 15) << "18 sets of 7 rows in a block of 128";
  EXPECT_EQ(DenseBlocks(3 * 100, 100), 3);
  for (int32_t set_rows = 1; set_rows <= kDenseRows; ++set_rows) {
    BlockPacker packer(kDenseRows);
    for (int32_t rows = set_rows; rows <= 1000; rows += set_rows) {
      packer.Add(set_rows);
      ASSERT_EQ(DenseBlocks(rows, set_rows), packer.blocks()) << rows << " rows in sets of " << set_rows;
    }
  }
  const AttentionSpec groups_of_seven{.num_qo_heads = 14, .num_kv_heads = 2, .head_dim = 64};
  EXPECT_EQ(Translated(OnePrefix(32768, 64, 256), SharePolicy::kTree, groups_of_seven).dense.size() % 15, 0u);
}

TEST(ChooseKinds, RangesOfMoreThanEightRowsAreDense) {
  const std::pair<int32_t, int32_t> suffix = {1, 64};
  const auto with_suffixes = [&](int32_t rows, int32_t tokens) {
    std::vector<std::pair<int32_t, int32_t>> ranges(17, suffix);
    ranges.front() = {rows, tokens};
    return ranges;
  };
  for (const int32_t rows : {1, 8, 9, 16, 17}) {
    for (const int32_t tokens : {255, 256, 32768}) {
      const std::vector<bool> dense = AreDense(with_suffixes(rows, tokens));
      EXPECT_EQ(dense.front(), rows > 16 || (rows > 8 && tokens >= 256)) << rows << " rows, " << tokens << " tokens";
      EXPECT_FALSE(dense.back());
    }
  }
  EXPECT_FALSE(AreDense({{16, 8192}}).front()) << "a cooperative task";
  EXPECT_TRUE(AreDense({{16, 8192}, {40, 8192}}).front()) << "no cooperative tasks with dense tiles";
  EXPECT_FALSE(AreDense(with_suffixes(16, 8192), CudaKernels::kMmaSync).front()) << "mma.sync multiplies sixteen rows at a time";
  EXPECT_FALSE(AreDense(with_suffixes(8, 8192), CudaKernels::kAuto, /*deterministic=*/true).front());
}

TEST(ChooseKinds, ManyRangesOfFewRowsAreReadByStreamTilesWhereDenseOnesComputeLong) {
  constexpr int64_t kHeads = 32;  // as AreDense has them
  const auto enough = static_cast<int32_t>(CeilDiv(kTwoColumnTasksPerSm * kSms, kHeads));
  const SmRates rates = ShippedMachineModel("h200", kSms).value().sm;
  const double token_ns = 4.0 * 128 * 128 * 1e9 * kSms / rates.dense_flops_per_s;  // of a block of 128 rows
  const auto tokens =
      static_cast<int32_t>(kTwoColumnStarts * rates.dense_task_ns * kSms / (token_ns * static_cast<double>(enough * kHeads)));
  const auto first_of = [](int32_t ranges, int32_t each) -> bool {
    return AreDense(std::vector(ranges, std::pair<int32_t, int32_t>(16, each))).front();
  };
  EXPECT_FALSE(first_of(enough, tokens + 1));
  EXPECT_TRUE(first_of(enough, tokens - 1)) << "the step is too short";
  EXPECT_TRUE(first_of(enough - 1, 2 * tokens)) << "too few tasks";
}

// A chain of shared nodes, a request leaving at each: deeper than a set's tickets can be counted, were all of them read once and
// cut.
TEST(PlanUpload, AChainOfNodesKeepsTicketsCountable) {
  TestForest forest;
  int32_t above = kNoParent;
  for (int depth = 0; depth < 900; ++depth) {
    above = forest.AddNode(above, 48);
    forest.AddBranch(above, 16, 1);
  }
  forest.AddBranch(above, 16, 1);
  for (const bool force : {false, true}) {
    auto planner = Planner::Create(kSpec, forest.Capacity(), {.force_sharing = force}, H200Traits(),
                                   ShippedMachineModel("h200", kSms).value());
    ASSERT_TRUE(planner.ok());
    ASSERT_TRUE((*planner)->Update(forest.Forest()).ok());
    PlanTranslator translator(kSpec, forest.Capacity(), (*planner)->sizes(), (*planner)->machine().sm, H200Traits());
    std::vector<std::max_align_t> image(translator.layout().bytes / sizeof(std::max_align_t) + 1);
    translator.TranslatePlan((*planner)->View(), forest.Forest());
    translator.WriteImage(reinterpret_cast<std::byte*>(image.data()));
    for (const MergeSet& set : (*planner)->View().merge_sets) {
      EXPECT_LE(set.contribution_count, H200Traits().max_set_contributions);
    }
  }
}

TestForest Unshared(int32_t tokens, int requests) {
  TestForest forest;
  for (int i = 0; i < requests; ++i) forest.AddBranch(kNoParent, tokens, 1);
  return forest;
}

TEST(PlanUpload, TasksAreCooperativeWhereEachSmHasOneAtMost) {
  for (const int32_t tokens : {1, 100, 500, 1000, 5000, 60000}) {
    for (const int requests : {1, 5, kSms / kSpec.num_kv_heads}) {
      SCOPED_TRACE(std::to_string(requests) + " requests of " + std::to_string(tokens));
      const TestForest forest = Unshared(tokens, requests);
      const Translated plan(forest);
      if (int64_t{tokens} * requests * kSpec.num_kv_heads > 16384 * kSms) {
        EXPECT_FALSE(plan.cooperative);
        continue;
      }
      ASSERT_TRUE(plan.cooperative);
      EXPECT_TRUE(plan.dense.empty());
      EXPECT_LE(std::ssize(plan.stream), kSms);
      EXPECT_GT(2 * std::ssize(plan.stream), std::min<int64_t>(kSms, requests * kSpec.num_kv_heads * (tokens / 512))) << "SMs idle";
      std::map<std::pair<int32_t, int32_t>, int64_t> read;  // by branch and kv head
      for (const Task& task : plan.stream) {
        EXPECT_EQ(task.item.head_count, 1);
        read[{task.item.branch, task.item.head_begin}] += std::min(task.item.kv_end, tokens) - task.item.kv_begin;
        const bool whole = task.first.contribution_count == 1;
        EXPECT_TRUE(whole || tokens > 512) << "two steps cost less than a merge";
        EXPECT_TRUE(task.item.kv_end >= tokens || task.item.kv_end - task.item.kv_begin >= 192);
      }
      EXPECT_EQ(std::ssize(read), requests * kSpec.num_kv_heads);
      for (const auto& [unit, sum] : read) EXPECT_EQ(sum, tokens);
    }
  }
}

TEST(PlanUpload, WarpsWorkAloneWhereThereAreMoreTasksThanSms) {
  EXPECT_TRUE(Translated(Unshared(1000, kSms / kSpec.num_kv_heads)).cooperative);
  EXPECT_FALSE(Translated(Unshared(1000, kSms / kSpec.num_kv_heads + 1)).cooperative);
  EXPECT_FALSE(Translated(OnePrefix(8192, 10, 30)).cooperative) << "a dense task";
}

// sm80_kernel.cuh: every CTA takes dense tiles, then streams, each warp a task of its own.
TEST(PlanUpload, MmaSyncHasNeitherCooperativeTasksNorAPartition) {
  constexpr AttentionSpec kAllHeads{.num_qo_heads = 32, .num_kv_heads = 32, .head_dim = 128};
  const KernelChoice kernel = ChooseKernel(CudaKernels::kMmaSync, 9, 0, kAllHeads, /*page_size=*/16).value();
  const BackendTraits mma_sync = TraitsOf(kernel, kAllHeads, kSms);
  const auto translated = [&](const TestForest& forest, const BackendTraits& traits) {
    return Translated(forest, SharePolicy::kTree, kAllHeads, /*overlapped_tiles=*/true, traits);
  };
  const TestForest few = Unshared(1000, 4), long_steps = OnePrefix(32768, 256, 1024);
  ASSERT_TRUE(translated(few, H200Traits()).cooperative);
  EXPECT_FALSE(translated(few, mma_sync).cooperative);
  ASSERT_LT(translated(long_steps, H200Traits()).dense_ctas, kSms);
  const Translated plan = translated(long_steps, mma_sync);
  EXPECT_EQ(plan.dense_ctas, kSms);
  EXPECT_FALSE(plan.overlapped);
}

TEST(CountCuts, CountsPiecesAndTheirStates) {
  const TestForest forest = OnePrefix(32768, 2048, 64);
  const auto planner =
      Planner::Create(kSpec, forest.Capacity(), {}, H200Traits(), ShippedMachineModel("h200", kSms).value()).value();
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  const PlanStats planned = planner->Stats();
  PlanStats cut = planned;
  const LoweredPlan lowered(*planner);
  CountCuts(lowered.view(), &cut);
  EXPECT_EQ(planned.num_items, 1 + 64);
  EXPECT_GT(cut.num_items, planned.num_items);
  EXPECT_GT(cut.num_contributions, planned.num_contributions);
  const int64_t row = kSpec.head_dim + 2;  // floats of a state
  EXPECT_EQ(cut.state_bytes, 2 * 4 * row * kSpec.num_qo_heads * cut.num_contributions) << "every request has several";
  EXPECT_EQ(cut.kv_bytes_read, planned.kv_bytes_read);
}

// ------------------------------------------------------------------------------------------------------------------------ edits

// A plan as it lies in device memory.
class Image {
 public:
  explicit Image(const PlanLayout& layout) : layout_(layout), memory_(std::make_unique_for_overwrite<std::byte[]>(layout.bytes)) {}
  std::byte* data() { return memory_.get(); }
  std::span<const Task> Tasks(bool dense, int64_t count) {
    return {At<Task>(data(), dense ? layout_.dense_tasks : layout_.stream_tasks), static_cast<size_t>(count)};
  }
  std::span<const DeviceMember> MembersOf(const DeviceItem& item) {
    return {At<DeviceMember>(data(), layout_.members) + item.member_begin, item.member_count};
  }
  std::span<const DeviceContribution> ContributionsOf(const DeviceMember& member) {
    const size_t count = member.state_begin == kDirect ? 0 : member.contribution_count;
    return {At<DeviceContribution>(data(), layout_.contributions) + member.contribution_begin, count};
  }

 private:
  PlanLayout layout_;
  std::unique_ptr<std::byte[]> memory_;
};

void ExpectSame(Image& image, Image& fresh, bool dense, int64_t tasks) {
  const auto of_image = image.Tasks(dense, tasks), of_fresh = fresh.Tasks(dense, tasks);
  for (int64_t t = 0; t < tasks; ++t) {
    const DeviceItem& item = of_image[t].item;
    ASSERT_TRUE(of_image[t] == of_fresh[t]) << (dense ? "dense" : "stream") << " task " << t;
    ASSERT_TRUE(std::ranges::equal(image.MembersOf(item), fresh.MembersOf(item)));
    for (const DeviceMember& member : image.MembersOf(item)) {
      ASSERT_TRUE(std::ranges::equal(image.ContributionsOf(member), fresh.ContributionsOf(member)));
    }
  }
}

// Plans edited in place, some of which are never translated, some twice at other lengths; and two device images.
TEST(PlanUpload, AnEditedPlanIsTranslatedAsAFreshOne) {
  constexpr std::pair<int32_t, int32_t> kHeads[] = {{8, 2}, {32, 8}, {4, 4}, {8, 1}, {64, 1}, {28, 4}};
  int64_t emitted = 0, queued = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 rng(seed);
    TestForest forest = RandomForest(rng, seed % 5 == 0 ? 9000 : 700);
    const auto [qo, kv] = kHeads[rng() % std::size(kHeads)];
    AttentionSpec spec{.num_qo_heads = qo, .num_kv_heads = kv, .head_dim = 128, .deterministic = rng() % 4 == 0};
    if (rng() % 6 == 0) spec.window = 100;
    const PlannerOptions options{.policy = static_cast<SharePolicy>(rng() % 3), .force_sharing = rng() % 3 == 0};
    const PlanCapacity capacity{.max_branches = 32,
                                .max_queries = 4096,
                                .max_nodes = 128,
                                .max_page_slots = 1 << 20,
                                .page_size = forest.page_size,
                                .device_images = 2};
    const int sms = seed % 3 == 0 ? 5 : 20;
    const MachineModel machine = ShippedMachineModel("h200", sms).value();
    BackendTraits traits = H200Traits();
    traits.workers = sms;
    auto planner = Planner::Create(spec, capacity, options, traits, machine);
    ASSERT_TRUE(planner.ok()) << planner.status().ToString();
    const auto make = [&] { return PlanTranslator(spec, capacity, (*planner)->sizes(), machine.sm, traits); };
    PlanTranslator translator = make();
    std::array<Image, 2> images = {Image(translator.layout()), Image(translator.layout())};
    for (int32_t step = 0; step < 60; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      ASSERT_TRUE((*planner)->Update(forest.Forest()).ok());
      if (rng() % 8 != 0) {
        translator.TranslatePlan((*planner)->View(), forest.Forest());
        translator.WriteImage(images[step % 2].data(), step % 2);
        PlanTranslator fresh = make();
        Image whole(fresh.layout());
        fresh.TranslatePlan((*planner)->View(), forest.Forest());
        fresh.WriteImage(whole.data());
        ASSERT_EQ(translator.num_dense_tasks(), fresh.num_dense_tasks());
        ASSERT_EQ(translator.num_stream_tasks(), fresh.num_stream_tasks());
        ASSERT_EQ(translator.num_members(), fresh.num_members());
        ASSERT_EQ(translator.num_contributions(), fresh.num_contributions());
        ASSERT_NO_FATAL_FAILURE(ExpectSame(images[step % 2], whole, /*dense=*/true, fresh.num_dense_tasks()));
        ASSERT_NO_FATAL_FAILURE(ExpectSame(images[step % 2], whole, /*dense=*/false, fresh.num_stream_tasks()));
        emitted += translator.num_emitted();
        queued += std::ssize(translator.queued().items());
      }
      testing::RandomEdit(forest, rng);
    }
  }
  EXPECT_LT(emitted, queued * 7 / 10);
}

// Pages of any size hold the same tokens: tasks differ in where their rows of pages begin, and in nothing else.
TEST(PlanUpload, PageSizesHaveTheSameTasks) {
  const auto forest_of = [](int32_t page_size) {
    TestForest forest(page_size);
    const int32_t root = forest.AddNode(kNoParent, 3000), inner = forest.AddNode(root, 77);
    for (int32_t i = 0; i < 90; ++i) forest.AddBranch(i % 3 == 0 ? inner : root, 1 + i * 13 % 600, i % 7 == 0 ? 5 : 1);
    return forest;
  };
  // Plans of gathered pages have no overlapped tiles.
  for (const auto& [usual_size, page_size] : {std::pair{1, 2}, {1, 4}, {16, 8}, {16, 256}}) {
    const TestForest usual = forest_of(usual_size), other = forest_of(page_size);
    const Translated plan(usual);
    ASSERT_FALSE(plan.dense.empty());
    ASSERT_FALSE(plan.stream.empty());
    const Translated of_other(other);
    EXPECT_EQ(of_other.dense_ctas, plan.dense_ctas);
    EXPECT_EQ(of_other.overlapped, plan.overlapped);
    const auto expect_same = [&](std::span<const Task> tasks, std::span<const Task> expected) {
      ASSERT_EQ(tasks.size(), expected.size());
      for (size_t i = 0; i < tasks.size(); ++i) {
        Task task = tasks[i];
        EXPECT_EQ(task.item.page_begin, other.branch_page_begin[task.item.branch]);
        task.item.page_begin = expected[i].item.page_begin;
        ASSERT_TRUE(std::memcmp(&task, &expected[i], sizeof(Task)) == 0) << "task " << i << ", pages of " << page_size;
      }
    };
    ASSERT_NO_FATAL_FAILURE(expect_same(of_other.dense, plan.dense));
    ASSERT_NO_FATAL_FAILURE(expect_same(of_other.stream, plan.stream));
  }
}

// A request that joins 255 others is read by itself and with the common prefix; no other item is emitted again.
TEST(PlanUpload, ARequestThatComesChangesItsOwnItems) {
  TestForest forest = OnePrefix(4096, 50, 256);
  const int32_t root = forest.node_parent[forest.branch_node[0]];
  auto planner = Planner::Create(kSpec, forest.Capacity(), {}, H200Traits(), ShippedMachineModel("h200", kSms).value());
  ASSERT_TRUE(planner.ok());
  PlanTranslator translator(kSpec, forest.Capacity(), (*planner)->sizes(), (*planner)->machine().sm, H200Traits());
  const auto step = [&] {
    EXPECT_TRUE((*planner)->Update(forest.Forest()).ok());
    translator.TranslatePlan((*planner)->View(), forest.Forest());
    return translator.num_emitted();
  };
  forest.RemoveBranch(255);
  EXPECT_EQ(step(), 255 + 1);  // the first plan: all
  forest.AddBranch(root, 50, 1);
  EXPECT_EQ(step(), 1 + 1);
}

}  // namespace
}  // namespace coppice::attention::cuda
