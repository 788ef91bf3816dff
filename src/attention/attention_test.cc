// Attention against the fp64 oracle: random forests with hand-made plans, so that every legal shape runs and not only those that
// the planner likes; the planner's own plans over edited forests; the named edge cases; deterministic mode bit by bit; state
// merges; writes into the pool. One body for every instruction set of the CPU.
//   COPPICE_ATTENTION_CASES=n   random forests on the best instruction set (default 500; the ctest label `long` runs 10,000)
//   COPPICE_ATTENTION_SEED=s    the first seed, to repeat a failure
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "attention/cpu/kernel_table.h"
#include "core/thread_pool.h"
#include "tests/support/attention_case.h"
#include "tests/support/hand_plan.h"

namespace coppice::attention {
namespace {

using cpu::Isa;
using testing::AttentionCase;
using testing::CaseOptions;
using testing::HandPlan;
using testing::HandPlanOptions;
using testing::MakeCpuTestDevice;

constexpr float kInf = std::numeric_limits<float>::infinity();

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

HandPlanOptions RandomPlanOptions(uint64_t seed, bool deterministic) {
  std::mt19937_64 rng(seed);
  HandPlanOptions options;
  options.share = rng() % 4 != 0;
  options.absorb = rng() % 2 ? 0.3 : 0.0;
  options.cut_multiple = rng() % 2 ? 64 : 0;
  options.stream_only = rng() % 8 == 0;
  options.dense_min_rows = 1 + rng() % 16;
  options.lookahead = rng() % 2 ? 100 : 0;
  if (deterministic) options.share = false, options.cut_multiple = 0;
  return options;
}

PlannerOptions RandomPlannerOptions(uint64_t seed) {
  constexpr SharePolicy kPolicies[] = {SharePolicy::kTree, SharePolicy::kTree, SharePolicy::kOneLevel, SharePolicy::kStore};
  return {.policy = kPolicies[seed % 4], .force_sharing = seed / 4 % 2 == 0, .lookahead_tokens = seed % 3 == 0 ? 0 : 16};
}

class AttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > cpu::DetectIsa()) GTEST_SKIP() << "this machine lacks " << cpu::Name(GetParam());
    device_ = MakeCpuTestDevice(4, GetParam());
  }

  // Runs a hand-made plan on the case's present state and compares with the oracle.
  static void RunAndCompare(AttentionCase& test, PlanExecutor& executor, const HandPlan& plan, bool with_lse = true) {
    const auto bound = test.Bind();
    ASSERT_TRUE(bound.ok()) << bound.status().ToString();
    ASSERT_TRUE(executor.Upload(plan.View(), test.forest().View(), nullptr).ok());
    const Status status = executor.Run(**bound, test.Args(with_lse), nullptr);
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_EQ(test.Compare(test.Read(), plan.max_contributions_of_a_set(), with_lse), "");
  }

  static void RunAndCompare(AttentionCase& test, AttentionPlan& plan, bool with_lse = true) {
    Run(test, plan, with_lse);
    if (HasFatalFailure()) return;
    int32_t contributions = 1;
    for (const MergeSet& set : plan.View().merge_sets) contributions = std::max(contributions, set.contribution_count);
    ASSERT_EQ(test.Compare(test.Read(), contributions, with_lse), "");
  }

  static void Run(AttentionCase& test, AttentionPlan& plan, bool with_lse = true) {
    const auto bound = test.Bind();
    ASSERT_TRUE(bound.ok()) << bound.status().ToString();
    Status status = plan.Update(test.forest().View());
    ASSERT_TRUE(status.ok()) << status.ToString();
    status = plan.Run(**bound, test.Args(with_lse));
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  static std::unique_ptr<AttentionPlan> Plan(testing::TestDevice& device, AttentionCase& test, const PlannerOptions& options = {}) {
    auto plan = AttentionPlan::Create(device.backend(), test.spec(), test.forest().Capacity(), options);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    return plan.ok() ? *std::move(plan) : nullptr;
  }

  uint64_t NumCases() const {
    const uint64_t cases = FromEnvironment("COPPICE_ATTENTION_CASES", 500);
    return GetParam() == cpu::DetectIsa() ? cases : std::max<uint64_t>(1, cases / 10);
  }

  std::unique_ptr<testing::TestDevice> device_;
};

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest,
                         ::testing::Values(Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16),
                         [](const auto& info) {
                           std::string name(cpu::Name(info.param));
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(AttentionTest, RandomForestsAgreeWithOracle) {
  const uint64_t first = FromEnvironment("COPPICE_ATTENTION_SEED", 0);
  for (uint64_t seed = first; seed < first + NumCases(); ++seed) {
    const CaseOptions options = testing::RandomCase(seed);
    SCOPED_TRACE(options.ToString());
    AttentionCase test(*device_, options);
    const auto planner = Plan(*device_, test, RandomPlannerOptions(seed));
    ASSERT_NE(planner, nullptr);
    for (int edit = 0; edit < 2; ++edit) {
      const HandPlan plan(test.spec(), test.forest().View(), RandomPlanOptions(seed + edit, test.spec().deterministic), seed);
      auto executor = device_->backend().MakeExecutor(test.spec(), test.forest().Capacity(), plan.Sizes());
      ASSERT_TRUE(executor.ok()) << executor.status().ToString();
      RunAndCompare(test, **executor, plan, edit == 0);
      if (HasFatalFailure()) return;
      if (test.forest().Grow()) {  // the same plan serves growing lengths
        test.Refresh();
        RunAndCompare(test, **executor, plan);
        if (HasFatalFailure()) return;
      }
      RunAndCompare(test, *planner, edit == 1);
      if (HasFatalFailure()) return;
      test.forest().Edit();
      test.Refresh();
    }
  }
}

// ------------------------------------------------------------------------------------------------------------------ edge list

CaseOptions SmallCase(int32_t branches, int32_t max_kv_len) {
  CaseOptions options;
  options.spec = {.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  options.forest = {.page_size = 16, .max_branches = branches, .max_kv_len = max_kv_len, .max_query_count = 2, .start_empty = true};
  return options;
}

TEST_P(AttentionTest, EdgeCases) {
  struct Edge {
    const char* name;
    std::vector<std::array<int32_t, 3>> forks;  // source (-1: root of its own), at, own tokens
  };
  std::vector<Edge> edges = {
      {"one token", {{-1, 0, 1}}},
      {"empty prefix, none share", {{-1, 0, 20}, {-1, 0, 33}, {-1, 0, 1}}},
      {"no suffix", {{-1, 0, 40}, {0, 40, 0}, {0, 40, 0}}},
      {"all share all but one", {{-1, 0, 64}, {0, 63, 1}, {0, 63, 1}, {0, 63, 1}}},
      {"deep chain", {{-1, 0, 120}, {0, 17, 5}, {0, 33, 5}, {0, 50, 5}, {0, 66, 5}, {0, 99, 5}}},
  };
  for (const int32_t boundary : {15, 16, 17, 31, 32, 33, 63, 64, 65}) {
    edges.push_back({"page boundary", {{-1, 0, boundary}, {0, boundary, 3}, {0, boundary - 1, 1}}});
  }
  for (const Edge& edge : edges) {
    for (const SharePolicy policy : {SharePolicy::kTree, SharePolicy::kOneLevel, SharePolicy::kStore}) {
      SCOPED_TRACE(edge.name);
      AttentionCase test(*device_, SmallCase(8, 160));
      std::vector<int32_t> counts(8, 0);
      for (const auto& [source, at, own] : edge.forks) {
        const int32_t b = source < 0 ? test.forest().AddRoot(own) : test.forest().Fork(source, at, own);
        ASSERT_GE(b, 0);
        counts[b] = 1;
      }
      test.forest().SetQueries(counts);
      test.Refresh();
      const auto plan = Plan(*device_, test, {.policy = policy, .force_sharing = true});
      RunAndCompare(test, *plan);
      if (HasFatalFailure()) return;
      // No queries at all: a legal step that writes nothing.
      test.forest().SetQueries(std::vector<int32_t>(8, 0));
      test.Refresh();
      Run(test, *plan);
      if (HasFatalFailure()) return;
    }
  }
}

// Scores all zero: the softmax of n equal scores has lse = ln n, whatever base the kernels work in, and out is the mean of V.
TEST_P(AttentionTest, LseIsNaturalLogarithm) {
  for (const int32_t n : {1, 2, 17, 100, 700}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      CaseOptions options = SmallCase(2, 700);
      options.spec.q_dtype = options.spec.kv_dtype = dtype;
      options.q_magnitude = 0;
      AttentionCase test(*device_, options);
      test.forest().AddRoot(n);
      test.forest().SetQueries({1, 0});
      test.Refresh();
      const auto plan = Plan(*device_, test);
      Run(test, *plan);
      if (HasFatalFailure()) return;
      for (const float lse : test.Read().lse) EXPECT_NEAR(lse, std::log(n), 2e-6) << "n = " << n;
    }
  }
}

// A draft tree whose first query may see nothing, not even itself.
TEST_P(AttentionTest, RowThatSeesNothing) {
  CaseOptions options = SmallCase(1, 8);
  options.forest.tree_masks = true;
  AttentionCase test(*device_, options);
  test.forest().AddRoot(2);
  test.forest().SetQueries({2});
  test.Refresh();
  const uint64_t masks[] = {0, 1};
  PrefixForestView view = test.forest().View();
  view.query_tree_mask = masks;
  const auto plan = Plan(*device_, test);
  const auto bound = test.Bind();
  ASSERT_TRUE(plan->Update(view).ok());
  ASSERT_TRUE(plan->Run(**bound, test.Args()).ok());
  const testing::AttentionOutput output = test.Read();
  const int32_t heads = test.spec().num_qo_heads, width = heads * test.spec().head_dim;
  for (int32_t h = 0; h < heads; ++h) EXPECT_EQ(output.lse[h], -kInf);
  for (int32_t e = 0; e < width; ++e) EXPECT_EQ(output.out[e], 0.0f);
  for (int32_t h = 0; h < heads; ++h) EXPECT_TRUE(std::isfinite(output.lse[heads + h]));
}

// ---------------------------------------------------------------------------------------------------------------- prompt phase

// RelayAttention algorithm 1: new prompts over a cached prefix read that prefix once for all of them.
TEST_P(AttentionTest, PromptsOverCachedPrefixReadItOnce) {
  if (GetParam() != cpu::DetectIsa()) GTEST_SKIP() << "once is enough: the oracle takes seconds";
  constexpr int32_t kPrefix = 2048, kPrompts = 32, kTokens = 64;
  CaseOptions options;
  options.spec = {.num_qo_heads = 2, .num_kv_heads = 1, .head_dim = 64};
  options.forest = {
      .page_size = 16, .max_branches = kPrompts, .max_kv_len = kPrefix + kTokens, .max_query_count = kTokens, .start_empty = true};
  AttentionCase test(*device_, options);
  test.forest().AddRoot(kPrefix + kTokens);
  for (int32_t b = 1; b < kPrompts; ++b) test.forest().Fork(0, kPrefix, kTokens);
  test.forest().SetQueries(std::vector<int32_t>(kPrompts, kTokens));
  test.Refresh();
  const int64_t once = kPrefix + kPrompts * kTokens, unshared = int64_t{kPrompts} * (kPrefix + kTokens);

  const HandPlan plan(test.spec(), test.forest().View(), {}, 1);
  int64_t tokens_read = 0;
  for (const WorkItem& item : plan.View().items) {
    tokens_read += std::min(item.kv_end, test.forest().View().branch_kv_len[item.page_row]) - item.kv_begin;
  }
  EXPECT_EQ(tokens_read, once);
  auto executor = device_->backend().MakeExecutor(test.spec(), test.forest().Capacity(), plan.Sizes());
  ASSERT_TRUE(executor.ok());
  RunAndCompare(test, **executor, plan);

  // The planner may read the prefix again for other blocks of rows, to keep all workers busy, but not for each prompt.
  PlanCapacity capacity = test.forest().Capacity();
  capacity.max_branches = capacity.max_queries;  // room for partial states of all rows
  const auto planned = *AttentionPlan::Create(device_->backend(), test.spec(), capacity, {.force_sharing = true});
  ASSERT_TRUE(planned->Update(test.forest().View()).ok());
  const PlanStats stats = planned->Stats();
  constexpr int64_t kTokenBytes = 2 * 64 * 2;
  EXPECT_EQ(stats.kv_bytes_read_unshared, unshared * kTokenBytes);
  EXPECT_EQ(stats.shared_nodes, 1);
  EXPECT_LT(stats.kv_bytes_read, unshared * kTokenBytes / 2);
}

// --------------------------------------------------------------------------------------------------------- deterministic mode

// The bits of one request's last query: alone or in a batch, shared or not, 1 or 4 threads, as a decode row or inside chunks of
// any length.
TEST_P(AttentionTest, DeterministicBits) {
  constexpr int32_t kLength = 4700;  // two superblocks; the second ends inside a unit
  struct Scenario {
    int32_t queries, threads;
    SharePolicy policy;
    bool batch;
  };
  const Scenario scenarios[] = {
      {1, 1, SharePolicy::kStore, false}, {1, 4, SharePolicy::kTree, true},  {1, 4, SharePolicy::kStore, true},
      {7, 4, SharePolicy::kTree, true},   {33, 1, SharePolicy::kTree, true}, {70, 4, SharePolicy::kStore, false},
  };
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    std::vector<std::byte> first_bits;
    float first_lse = 0;
    for (const Scenario& s : scenarios) {
      CaseOptions options = SmallCase(6, 4800);
      options.spec.deterministic = true;
      options.spec.head_dim = 32;
      options.spec.q_dtype = options.spec.kv_dtype = dtype;
      options.forest.max_query_count = 80;
      const auto device = MakeCpuTestDevice(s.threads, GetParam());
      AttentionCase test(*device, options);
      test.forest().AddRoot(kLength);
      std::vector<int32_t> counts(6, 1);
      counts[0] = s.queries;
      if (s.batch) {
        test.forest().Fork(0, 1100, 900);
        test.forest().Fork(0, 4200, 100);
        test.forest().Fork(0, 4200, 60);
        test.forest().AddRoot(700);
      }
      test.forest().SetQueries(s.batch ? (counts[5] = 0, counts) : std::vector<int32_t>{s.queries, 0, 0, 0, 0, 0});
      test.Refresh();
      const auto plan = Plan(*device, test, {.policy = s.policy, .force_sharing = true});
      Run(test, *plan);
      if (HasFatalFailure()) return;
      const testing::AttentionOutput output = test.Read();
      const int32_t row = test.forest().View().branch_query_begin[0] + s.queries - 1;
      const size_t row_bytes = test.spec().num_qo_heads * test.spec().head_dim * SizeOf(dtype);
      const std::vector<std::byte> bits(output.raw.begin() + row * row_bytes, output.raw.begin() + (row + 1) * row_bytes);
      const float lse = output.lse[row * test.spec().num_qo_heads];
      if (first_bits.empty()) {
        ASSERT_EQ(test.Compare(output, 16), "");
        first_bits = bits, first_lse = lse;
      }
      EXPECT_TRUE(bits == first_bits) << s.queries << " queries, " << s.threads << " threads, batch " << s.batch;
      EXPECT_EQ(lse, first_lse);
    }
  }
}

// --------------------------------------------------------------------------------------------------------------------- states

class StateTest : public ::testing::Test {
 protected:
  static constexpr int32_t kRows = 5, kHeads = 3, kDim = 24;

  struct State {
    std::vector<float> out = std::vector<float>(kRows * kHeads * kDim), lse = std::vector<float>(kRows * kHeads);
    StateView View() { return {out.data(), lse.data()}; }
  };
  State Random() {
    State s;
    std::normal_distribution<float> normal;
    for (float& x : s.out) x = normal(rng_);
    for (float& x : s.lse) x = 4 * normal(rng_);
    return s;
  }
  static State Empty() {
    State s;
    std::ranges::fill(s.lse, -kInf);
    return s;
  }
  State Merge(State into, std::vector<State> from, std::span<const uint8_t> mask = {}) {
    std::vector<StateView> views;
    for (State& s : from) views.push_back(s.View());
    const Status status = context_->MergeStates(into.View(), views, kRows, kHeads, kDim, DType::kF32, mask);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return into;
  }
  static void ExpectNear(const State& a, const State& b) {  // a few roundings of values near 4
    for (size_t i = 0; i < a.out.size(); ++i) ASSERT_NEAR(a.out[i], b.out[i], 4e-6) << "element " << i;
    for (size_t i = 0; i < a.lse.size(); ++i) {
      if (std::isinf(a.lse[i]) || std::isinf(b.lse[i])) {
        ASSERT_EQ(a.lse[i], b.lse[i]);
      } else {
        ASSERT_NEAR(a.lse[i], b.lse[i], 4e-6) << "lse " << i;
      }
    }
  }

  std::mt19937_64 rng_{7};
  ThreadPool pool_{2};
  std::unique_ptr<Context> context_ = *Context::CreateCpu(&pool_);
};

TEST_F(StateTest, MergeIsTheSoftmaxOfTheUnion) {
  const State a = Random(), b = Random();
  const State merged = Merge(a, {b});
  for (int32_t i = 0; i < kRows * kHeads; ++i) {
    const double wa = std::exp(double{a.lse[i]}), wb = std::exp(double{b.lse[i]});
    EXPECT_NEAR(merged.lse[i], std::log(wa + wb), 2e-6);
    for (int32_t e = 0; e < kDim; ++e) {
      EXPECT_NEAR(merged.out[i * kDim + e], (wa * a.out[i * kDim + e] + wb * b.out[i * kDim + e]) / (wa + wb), 2e-6);
    }
  }
}

TEST_F(StateTest, MergeIsCommutativeAssociativeAndNary) {
  const State a = Random(), b = Random(), c = Random();
  ExpectNear(Merge(a, {b}), Merge(b, {a}));
  ExpectNear(Merge(Merge(a, {b}), {c}), Merge(a, {Merge(b, {c})}));
  ExpectNear(Merge(a, {b, c}), Merge(Merge(a, {b}), {c}));
}

TEST_F(StateTest, EmptyStateIsNeutral) {
  const State a = Random();
  ExpectNear(Merge(a, {Empty()}), a);
  ExpectNear(Merge(Empty(), {a}), a);
  const State none = Merge(Empty(), {Empty(), Empty()});
  for (const float lse : none.lse) EXPECT_EQ(lse, -kInf);
  for (const float x : none.out) EXPECT_EQ(x, 0.0f);
}

TEST_F(StateTest, MaskedRowsStay) {
  const State a = Random(), b = Random(), all = Merge(a, {b});
  const uint8_t mask[kRows] = {1, 0, 1, 0, 0};
  const State some = Merge(a, {b}, mask);
  for (int32_t row = 0; row < kRows; ++row) {
    const State& want = mask[row] ? all : a;
    for (int32_t i = row * kHeads; i < (row + 1) * kHeads; ++i) EXPECT_EQ(some.lse[i], want.lse[i]);
    for (int32_t i = row * kHeads * kDim; i < (row + 1) * kHeads * kDim; ++i) EXPECT_EQ(some.out[i], want.out[i]);
  }
}

TEST_F(StateTest, BadArgumentsAreNamed) {
  State a = Random();
  const uint8_t mask[2] = {};
  const Status status = context_->MergeStates(a.View(), {}, kRows, kHeads, kDim, DType::kF32, mask);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("2 entries for 5 rows"), std::string::npos) << status.message();
  EXPECT_FALSE(context_->MergeStates({}, {}, kRows, kHeads, kDim, DType::kF32, {}).ok());
  EXPECT_FALSE(context_->MergeStates(a.View(), {}, kRows, kHeads, 512, DType::kF32, {}).ok());
}

// ------------------------------------------------------------------------------------------------------------------------ pool

class PoolTest : public ::testing::Test {
 protected:
  static constexpr AttentionSpec kSpec = {.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 16};
  ThreadPool pool_{2};
  std::unique_ptr<Context> context_ = *Context::CreateCpu(&pool_);
};

TEST_F(PoolTest, AppendedTokensLandInTheirSlotsInEveryLayout) {
  constexpr int32_t kPages = 40, kPageSize = 8, kTokens = 300, kRow = 2 * 16 + 5;
  std::vector<BF16> k(kTokens * kRow), v(kTokens * kRow);
  for (size_t i = 0; i < k.size(); ++i) k[i].bits = static_cast<uint16_t>(i), v[i].bits = static_cast<uint16_t>(~i);
  std::vector<int64_t> slots(kTokens);
  for (int32_t t = 0; t < kTokens; ++t) slots[t] = t % 7 == 3 ? -1 : (t * 11) % (kPages * kPageSize);
  const int64_t plane = int64_t{kPages} * kPageSize * 2 * 16;
  std::vector<BF16> memory(2 * plane);
  const KvLayerView views[] = {
      KvPoolShape{kPages, kPageSize, 2, 16, DType::kBF16}.View(memory.data()),
      {memory.data(), memory.data() + plane, kPageSize * 32, 16, 32, kPages, kPageSize, DType::kBF16},
  };
  for (const KvLayerView& view : views) {
    std::ranges::fill(memory, BF16{0x7fff});
    ASSERT_TRUE(context_->AppendKv(kSpec, view, {k.data(), v.data(), kRow, slots}).ok());
    int64_t written = 0;
    for (int32_t t = 0; t < kTokens; ++t) {
      if (slots[t] < 0) continue;
      for (int32_t h = 0; h < 2; ++h) {
        const int64_t at = slots[t] / kPageSize * view.page_stride + h * view.head_stride + slots[t] % kPageSize * view.slot_stride;
        const size_t bytes = 16 * sizeof(BF16);
        EXPECT_EQ(std::memcmp(static_cast<BF16*>(view.k) + at, &k[t * kRow + h * 16], bytes), 0) << "token " << t;
        EXPECT_EQ(std::memcmp(static_cast<BF16*>(view.v) + at, &v[t * kRow + h * 16], bytes), 0) << "token " << t;
        written += 2 * 16;
      }
    }
    const int64_t untouched = std::ranges::count(memory, 0x7fff, &BF16::bits);
    EXPECT_GE(untouched, static_cast<int64_t>(memory.size()) - written);
  }
}

TEST_F(PoolTest, CopiedPagesAreEqual) {
  const KvPoolShape shape = {6, 4, 2, 16, DType::kF32};
  AttentionSpec spec = kSpec;
  spec.kv_dtype = DType::kF32;
  std::vector<float> memory(shape.bytes() / sizeof(float));
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const PageCopy copies[] = {{0, 3}, {1, 5}};
  ASSERT_TRUE(context_->CopyPages(spec, shape.View(memory.data()), copies).ok());
  const int64_t page = shape.elements_per_page();
  for (int64_t i = 0; i < page; ++i) {
    EXPECT_EQ(memory[3 * page + i], static_cast<float>(i));
    EXPECT_EQ(memory[5 * page + i], static_cast<float>(page + i));
    EXPECT_EQ(memory[4 * page + i], static_cast<float>(4 * page + i));
  }
}

TEST_F(PoolTest, BadArgumentsAreNamed) {
  std::vector<BF16> memory(KvPoolShape{4, 8, 2, 16, DType::kBF16}.bytes() / 2), row(32);
  const KvLayerView view = KvPoolShape{4, 8, 2, 16, DType::kBF16}.View(memory.data());
  const int64_t slots[] = {32};
  Status status = context_->AppendKv(kSpec, view, {row.data(), row.data(), 32, slots});
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_NE(status.message().find("slot_mapping[0] = 32; the pool has 32 slots"), std::string::npos) << status.message();
  EXPECT_FALSE(context_->AppendKv(kSpec, view, {row.data(), row.data(), 31, slots}).ok());
  EXPECT_FALSE(context_->AppendKv(kSpec, view, {nullptr, row.data(), 32, slots}).ok());

  const PageCopy copies[] = {{0, 4}};
  status = context_->CopyPages(kSpec, view, copies);
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_NE(status.message().find("page 4; the pool has 4 pages"), std::string::npos) << status.message();

  KvLayerView wrong = view;
  wrong.dtype = DType::kF16;
  EXPECT_EQ(context_->BindKv(kSpec, wrong).status().code(), StatusCode::kInvalidArgument);
  wrong = view;
  wrong.slot_stride = 8;
  EXPECT_NE(context_->BindKv(kSpec, wrong).status().message().find("slot_stride = 8"), std::string::npos);
  EXPECT_EQ(Context::CreateCpu(nullptr).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace coppice::attention
