#include "tests/support/attention_bodies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

namespace coppice::attention::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// So that a change of the planner or of the forests cannot empty the test unseen.
void ExpectCoverage(const PlanCoverage& by_hand, const PlanCoverage& planned, int64_t forests) {
  if (forests < 50) return;  // chance
  std::printf(
      "%lld forests, by hand / planned: %lld / %lld items begin inside a node, %lld / %lld merges of three or more, %lld / %lld "
      "items masked, %lld not\n",
      static_cast<long long>(forests), static_cast<long long>(by_hand.cuts), static_cast<long long>(planned.cuts),
      static_cast<long long>(by_hand.merges_of_three), static_cast<long long>(planned.merges_of_three),
      static_cast<long long>(by_hand.masked), static_cast<long long>(planned.masked), static_cast<long long>(planned.unmasked));
  EXPECT_GE(2 * by_hand.cuts, forests);
  EXPECT_GE(2 * by_hand.merges_of_three, forests);
  EXPECT_GE(8 * planned.merges_of_three, forests);
  EXPECT_GE(planned.masked, forests);
  EXPECT_GE(planned.unmasked, forests);
}

std::unique_ptr<DeviceMemory> Copy(TestDevice& device, std::span<const std::byte> host) {
  std::unique_ptr<DeviceMemory> memory = device.Allocate(host.size());
  memory->CopyFrom(host);
  return memory;
}

}  // namespace

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

HandPlanOptions RandomPlanOptions(uint64_t seed, bool deterministic) {
  std::mt19937_64 rng(seed);
  HandPlanOptions options;
  options.share = rng() % 4 != 0;
  options.read_per_child = rng() % 2 ? 0.3 : 0.0;
  options.cut_multiple = rng() % 2 ? 64 : 0;
  options.stream_only = rng() % 8 == 0;
  options.dense_min_rows = 1 + rng() % 16;
  options.lookahead = rng() % 2 ? 100 : 0;
  if (deterministic) options.share = false, options.cut_multiple = 0;
  return options;
}

PlannerOptions RandomPlannerOptions(uint64_t seed) {
  constexpr SharePolicy kPolicies[] = {SharePolicy::kTree, SharePolicy::kTree, SharePolicy::kOneLevel, SharePolicy::kStore};
  constexpr KindOrder kOrders[] = {KindOrder::kAuto, KindOrder::kAuto, KindOrder::kOverlapped, KindOrder::kSerial,
                                   KindOrder::kTwoLaunches};
  return {.policy = kPolicies[seed % 4],
          .force_sharing = seed / 4 % 2 == 0,
          .kinds = kOrders[seed % 5],
          .lookahead_tokens = seed % 3 == 0 ? 0 : 16};
}

CaseOptions SmallCase(int32_t branches, int32_t max_kv_len) {
  CaseOptions options;
  options.spec = {.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 64};
  options.forest = {.page_size = 16, .max_branches = branches, .max_kv_len = max_kv_len, .max_query_count = 2, .start_empty = true};
  return options;
}

void RunAndCompare(AttentionCase& test, PlanExecutor& executor, const PlanView& plan, bool with_lse) {
  const auto bound = test.Bind();
  ASSERT_TRUE(bound.ok()) << bound.status().ToString();
  const Status uploaded = executor.Upload(plan, test.forest().View(), nullptr);
  ASSERT_TRUE(uploaded.ok()) << uploaded.ToString();
  const Status status = executor.Run(**bound, test.Args(with_lse), nullptr);
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_EQ(test.Compare(test.Read(), MostContributions(plan), with_lse), "");
}

void RunAndCompare(AttentionCase& test, PlanExecutor& executor, const HandPlan& plan, bool with_lse) {
  RunAndCompare(test, executor, plan.View(), with_lse);
}

void RunAndCompare(AttentionCase& test, AttentionPlan& plan, bool with_lse) {
  RunPlan(test, plan, with_lse);
  if (::testing::Test::HasFatalFailure()) return;
  ASSERT_EQ(test.Compare(test.Read(), MostContributions(InspectablePlan::Of(plan).View()), with_lse), "");
}

void RunPlan(AttentionCase& test, AttentionPlan& plan, bool with_lse) {
  const auto bound = test.Bind();
  ASSERT_TRUE(bound.ok()) << bound.status().ToString();
  Status status = plan.Update(test.forest().View());
  ASSERT_TRUE(status.ok()) << status.ToString();
  status = plan.Upload();
  ASSERT_TRUE(status.ok()) << status.ToString();
  status = plan.Run(**bound, test.Args(with_lse));
  ASSERT_TRUE(status.ok()) << status.ToString();
}

std::unique_ptr<AttentionPlan> MakePlan(TestDevice& device, AttentionCase& test, const PlannerOptions& options) {
  auto plan = AttentionPlan::Create(device.backend(), test.spec(), test.forest().Capacity(), options);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? *std::move(plan) : nullptr;
}

void RandomForestsAgreeWithOracle(TestDevice& device, uint64_t first_seed, uint64_t num_seeds,
                                  const std::function<CaseOptions(uint64_t)>& make_case) {
  PlanCoverage by_hand, planned;
  for (uint64_t seed = first_seed; seed < first_seed + num_seeds; ++seed) {
    const CaseOptions options = make_case(seed);
    SCOPED_TRACE(options.ToString());
    AttentionCase test(device, options);
    const auto planner = MakePlan(device, test, RandomPlannerOptions(seed));
    ASSERT_NE(planner, nullptr);
    for (int edit = 0; edit < 2; ++edit) {
      const HandPlan plan(test.spec(), test.forest().View(), RandomPlanOptions(seed + edit, test.spec().deterministic), seed);
      auto executor = device.backend().MakeExecutor(test.spec(), test.forest().Capacity(), plan.Sizes());
      ASSERT_TRUE(executor.ok()) << executor.status().ToString();
      if (seed % 2 == 1) (*executor)->LowerAtRandom(seed);
      by_hand.Add(plan.View(), test.forest().View());
      RunAndCompare(test, **executor, plan, edit == 0);
      if (::testing::Test::HasFatalFailure()) return;
      if (test.forest().Grow()) {  // the same plan serves growing lengths
        test.Refresh();
        RunAndCompare(test, **executor, plan);
        if (::testing::Test::HasFatalFailure()) return;
      }
      RunAndCompare(test, *planner, edit == 1);
      if (::testing::Test::HasFatalFailure()) return;
      planned.Add(InspectablePlan::Of(*planner).View(), test.forest().View());
      test.forest().Edit();
      test.Refresh();
    }
  }
  ExpectCoverage(by_hand, planned, static_cast<int64_t>(num_seeds));
}

void EdgeCasesAgreeWithOracle(TestDevice& device) {
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
      AttentionCase test(device, SmallCase(8, 160));
      std::vector<int32_t> counts(8, 0);
      for (const auto& [source, at, own] : edge.forks) {
        const int32_t b = source < 0 ? test.forest().AddRoot(own) : test.forest().Fork(source, at, own);
        ASSERT_GE(b, 0);
        counts[b] = 1;
      }
      test.forest().SetQueries(counts);
      test.Refresh();
      const auto plan = MakePlan(device, test, {.policy = policy, .force_sharing = true});
      RunAndCompare(test, *plan);
      if (::testing::Test::HasFatalFailure()) return;
      // No queries at all: a legal step that writes nothing.
      test.forest().SetQueries(std::vector<int32_t>(8, 0));
      test.Refresh();
      RunPlan(test, *plan);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

void LseIsNaturalLogarithm(TestDevice& device, std::initializer_list<DType> dtypes) {
  for (const int32_t n : {1, 2, 17, 100, 700}) {
    for (const DType dtype : dtypes) {
      CaseOptions options = SmallCase(2, 700);
      options.spec.q_dtype = options.spec.kv_dtype = dtype;
      options.q_magnitude = 0;
      AttentionCase test(device, options);
      test.forest().AddRoot(n);
      test.forest().SetQueries({1, 0});
      test.Refresh();
      const auto plan = MakePlan(device, test);
      RunPlan(test, *plan);
      if (::testing::Test::HasFatalFailure()) return;
      for (const float lse : test.Read().lse) EXPECT_NEAR(lse, std::log(n), 2e-6) << "n = " << n;
    }
  }
}

void RowThatSeesNothing(TestDevice& device) {
  CaseOptions options = SmallCase(1, 8);
  options.forest.tree_masks = true;
  AttentionCase test(device, options);
  test.forest().AddRoot(2);
  test.forest().SetQueries({2});
  test.Refresh();
  const uint64_t masks[] = {0, 1};
  PrefixForestView view = test.forest().View();
  view.query_tree_mask = masks;
  const auto plan = MakePlan(device, test);
  const auto bound = test.Bind();
  ASSERT_TRUE(plan->Update(view).ok());
  ASSERT_TRUE(plan->Upload().ok());
  ASSERT_TRUE(plan->Run(**bound, test.Args()).ok());
  const AttentionOutput output = test.Read();
  const int32_t heads = test.spec().num_qo_heads, width = heads * test.spec().head_dim;
  for (int32_t h = 0; h < heads; ++h) EXPECT_EQ(output.lse[h], -kInf);
  for (int32_t e = 0; e < width; ++e) EXPECT_EQ(output.out[e], 0.0f);
  for (int32_t h = 0; h < heads; ++h) EXPECT_TRUE(std::isfinite(output.lse[heads + h]));
}

void DeterministicBitsDependOnTheRequestAlone(const std::function<std::unique_ptr<TestDevice>(int num_threads)>& make_device,
                                              const std::vector<std::pair<DType, int32_t>>& dtypes_and_head_dims) {
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
  for (const auto& [dtype, head_dim] : dtypes_and_head_dims) {
    std::vector<std::byte> first_bits;
    float first_lse = 0;
    for (const Scenario& s : scenarios) {
      CaseOptions options = SmallCase(6, 4800);
      options.spec.deterministic = true;
      options.spec.head_dim = head_dim;
      options.spec.q_dtype = options.spec.kv_dtype = dtype;
      options.forest.max_query_count = 80;
      const auto device = make_device(s.threads);
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
      const auto plan = MakePlan(*device, test, {.policy = s.policy, .force_sharing = true});
      RunPlan(test, *plan);
      if (::testing::Test::HasFatalFailure()) return;
      const AttentionOutput output = test.Read();
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

CaseOptions DeterministicCase(uint64_t seed) {
  CaseOptions options;
  options.seed = seed;
  options.spec = {.num_qo_heads = seed % 3 == 0 ? 20 : 4, .num_kv_heads = 1, .head_dim = seed % 2 ? 64 : 40};
  options.spec.window = seed % 4 == 3 ? 1500 : 0;
  options.forest = {.page_size = seed % 2 ? 16 : 24, .max_branches = 7, .max_segment = 3500, .max_kv_len = 9000};
  options.forest.max_query_count = seed % 2 ? 3 : 40;
  options.forest.query_gap = 0;
  return options;
}

void DeterministicBitsAreThoseOfTheRequestAlone(TestDevice& device, uint64_t first_seed, uint64_t num_seeds,
                                                const std::function<CaseOptions(uint64_t)>& options_of) {
  for (uint64_t seed = first_seed; seed < first_seed + num_seeds; ++seed) {
    CaseOptions options = options_of(seed);
    options.spec.deterministic = true;
    AttentionCase test(device, options);
    const auto plan = MakePlan(device, test, {.force_sharing = seed % 2 == 0});
    const auto alone = MakePlan(device, test, {.policy = SharePolicy::kStore});
    ASSERT_TRUE(plan != nullptr && alone != nullptr);
    RunPlan(test, *plan);
    if (::testing::Test::HasFatalFailure()) return;
    const AttentionOutput batch = test.Read();
    const PrefixForestView view = test.forest().View();
    const std::vector<int32_t> begins(view.branch_query_begin.begin(), view.branch_query_begin.end());
    const std::vector<int32_t> counts(view.branch_query_count.begin(), view.branch_query_count.end());
    const size_t row_bytes = options.spec.num_qo_heads * options.spec.head_dim * SizeOf(options.spec.q_dtype);
    for (size_t b = 0; b < counts.size(); ++b) {
      if (view.branch_node[b] == kFreeSlot || counts[b] == 0) continue;
      std::vector<int32_t> only(counts.size(), 0);
      only[b] = counts[b];
      test.forest().SetQueries(only);
      test.Refresh();
      RunPlan(test, *alone);
      if (::testing::Test::HasFatalFailure()) return;
      const AttentionOutput single = test.Read();
      const auto there = batch.raw.begin() + begins[b] * row_bytes;
      const auto here = single.raw.begin() + test.forest().View().branch_query_begin[b] * row_bytes;
      EXPECT_TRUE(std::equal(here, here + counts[b] * row_bytes, there)) << "branch " << b << ", " << options.ToString();
    }
  }
}

// --------------------------------------------------------------------------------------------------------------------- states

namespace {

constexpr int32_t kStateRows = 5, kStateHeads = 3, kStateDim = 24;

struct State {
  std::vector<float> out = std::vector<float>(kStateRows * kStateHeads * kStateDim),
                     lse = std::vector<float>(kStateRows * kStateHeads);

  static State Random(std::mt19937_64& rng) {
    State s;
    std::normal_distribution<float> normal;
    for (float& x : s.out) x = normal(rng);
    for (float& x : s.lse) x = 4 * normal(rng);
    return s;
  }
  static State Empty() {
    State s;
    std::ranges::fill(s.lse, -kInf);
    return s;
  }
};

struct DeviceState {
  DeviceState(TestDevice& device, const State& s)
      : out(Copy(device, std::as_bytes(std::span(s.out)))), lse(Copy(device, std::as_bytes(std::span(s.lse)))) {}
  StateView View() const { return {out->data(), static_cast<float*>(lse->data())}; }

  std::unique_ptr<DeviceMemory> out, lse;
};

State Merge(TestDevice& device, State into, const std::vector<State>& from, std::span<const uint8_t> mask = {}) {
  const DeviceState to(device, into);
  std::vector<DeviceState> states;
  std::vector<StateView> views;
  for (const State& s : from) views.push_back(states.emplace_back(device, s).View());
  const Status status = device.backend().MergeStates(to.View(), views, kStateRows, kStateHeads, kStateDim, DType::kF32, mask);
  EXPECT_TRUE(status.ok()) << status.ToString();
  to.out->CopyTo(std::as_writable_bytes(std::span(into.out)));
  to.lse->CopyTo(std::as_writable_bytes(std::span(into.lse)));
  return into;
}

void ExpectNear(const State& a, const State& b) {  // a few roundings of values near 4
  for (size_t i = 0; i < a.out.size(); ++i) ASSERT_NEAR(a.out[i], b.out[i], 4e-6) << "element " << i;
  for (size_t i = 0; i < a.lse.size(); ++i) {
    if (std::isinf(a.lse[i]) || std::isinf(b.lse[i])) {
      ASSERT_EQ(a.lse[i], b.lse[i]);
    } else {
      ASSERT_NEAR(a.lse[i], b.lse[i], 4e-6) << "lse " << i;
    }
  }
}

}  // namespace

void MergedStatesAreTheSoftmaxOfTheUnion(TestDevice& device) {
  std::mt19937_64 rng(7);
  const State a = State::Random(rng), b = State::Random(rng), c = State::Random(rng), empty = State::Empty();
  const auto merge = [&](const State& into, const std::vector<State>& from, std::span<const uint8_t> mask = {}) {
    return Merge(device, into, from, mask);
  };
  const State merged = merge(a, {b});
  for (int32_t i = 0; i < kStateRows * kStateHeads; ++i) {
    const double wa = std::exp(double{a.lse[i]}), wb = std::exp(double{b.lse[i]});
    EXPECT_NEAR(merged.lse[i], std::log(wa + wb), 2e-6);
    for (int32_t e = i * kStateDim; e < (i + 1) * kStateDim; ++e) {
      EXPECT_NEAR(merged.out[e], (wa * a.out[e] + wb * b.out[e]) / (wa + wb), 2e-6);
    }
  }
  ExpectNear(merged, merge(b, {a}));
  ExpectNear(merge(merged, {c}), merge(a, {merge(b, {c})}));
  ExpectNear(merge(a, {b, c}), merge(merged, {c}));
  ExpectNear(merge(a, std::vector<State>(40, empty)), a);  // more than one launch folds on a GPU
  ExpectNear(merge(empty, {a}), a);
  const State none = merge(empty, {empty, empty});
  for (const float lse : none.lse) EXPECT_EQ(lse, -kInf);
  for (const float x : none.out) EXPECT_EQ(x, 0.0f);
  State unwritten = empty;  // its out is not read
  std::ranges::fill(unwritten.out, std::numeric_limits<float>::quiet_NaN());
  ExpectNear(merge(a, {unwritten}), a);
  ExpectNear(merge(unwritten, {a}), a);
  ExpectNear(merge(unwritten, {unwritten}), empty);

  const uint8_t mask[kStateRows] = {1, 0, 1, 0, 0};
  const State some = merge(a, {b}, mask);
  for (int32_t row = 0; row < kStateRows; ++row) {
    const State& want = mask[row] ? merged : a;
    for (int32_t i = row * kStateHeads; i < (row + 1) * kStateHeads; ++i) EXPECT_EQ(some.lse[i], want.lse[i]);
    for (int32_t i = row * kStateHeads * kStateDim; i < (row + 1) * kStateHeads * kStateDim; ++i) {
      EXPECT_EQ(some.out[i], want.out[i]);
    }
  }
}

// ------------------------------------------------------------------------------------------------------------------------ pool

void AppendedTokensLandInTheirSlots(TestDevice& device, int32_t row_padding) {
  constexpr int32_t kPages = 40, kPageSize = 8, kTokens = 300, kHeads = 2, kDim = 16;
  constexpr AttentionSpec kSpec = {.num_qo_heads = 4, .num_kv_heads = kHeads, .head_dim = kDim};
  const int32_t row = kHeads * kDim + row_padding;
  std::vector<BF16> k(kTokens * row), v(kTokens * row);
  for (size_t i = 0; i < k.size(); ++i) k[i].bits = static_cast<uint16_t>(i), v[i].bits = static_cast<uint16_t>(~i);
  std::vector<int64_t> slots(kTokens);
  for (int32_t t = 0; t < kTokens; ++t) slots[t] = t % 7 == 3 ? -1 : (t * 11) % (kPages * kPageSize);
  const int64_t plane = int64_t{kPages} * kPageSize * kHeads * kDim;
  std::vector<BF16> memory(2 * plane);
  const auto pool = device.Allocate(memory.size() * sizeof(BF16));
  const auto device_k = Copy(device, std::as_bytes(std::span(k))), device_v = Copy(device, std::as_bytes(std::span(v)));
  BF16* const base = static_cast<BF16*>(pool->data());
  const KvLayerView views[] = {
      KvPoolShape{kPages, kPageSize, kHeads, kDim, DType::kBF16}.View(base),
      {base, base + plane, kPageSize * kHeads * kDim, kDim, kHeads * kDim, kPages, kPageSize, DType::kBF16},
  };
  for (const KvLayerView& view : views) {
    std::ranges::fill(memory, BF16{0x7fff});
    pool->CopyFrom(std::as_bytes(std::span(memory)));
    const Status status = device.backend().AppendKv(kSpec, view, {device_k->data(), device_v->data(), row, slots});
    ASSERT_TRUE(status.ok()) << status.ToString();
    pool->CopyTo(std::as_writable_bytes(std::span(memory)));
    const BF16* const pool_k = memory.data() + (static_cast<const BF16*>(view.k) - base);
    const BF16* const pool_v = memory.data() + (static_cast<const BF16*>(view.v) - base);
    int64_t written = 0;
    for (int32_t t = 0; t < kTokens; ++t) {
      if (slots[t] < 0) continue;
      for (int32_t h = 0; h < kHeads; ++h) {
        const int64_t at = slots[t] / kPageSize * view.page_stride + h * view.head_stride + slots[t] % kPageSize * view.slot_stride;
        EXPECT_EQ(std::memcmp(pool_k + at, &k[t * row + h * kDim], kDim * sizeof(BF16)), 0) << "token " << t;
        EXPECT_EQ(std::memcmp(pool_v + at, &v[t * row + h * kDim], kDim * sizeof(BF16)), 0) << "token " << t;
        written += 2 * kDim;
      }
    }
    const int64_t untouched = std::ranges::count(memory, 0x7fff, &BF16::bits);
    EXPECT_GE(untouched, static_cast<int64_t>(memory.size()) - written);
  }
}

void CopiedPagesAreEqual(TestDevice& device, DType dtype) {
  const KvPoolShape shape = {6, 4, 2, 16, dtype};
  const AttentionSpec spec = {.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 16, .q_dtype = dtype, .kv_dtype = dtype};
  std::vector<uint16_t> memory(shape.bytes() / sizeof(uint16_t));
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint16_t>(i);
  const auto pool = Copy(device, std::as_bytes(std::span(memory)));
  const PageCopy copies[] = {{0, 3}, {1, 5}};
  const Status status = device.backend().CopyPages(spec, shape.View(pool->data()), copies);
  ASSERT_TRUE(status.ok()) << status.ToString();
  pool->CopyTo(std::as_writable_bytes(std::span(memory)));
  const int64_t page = std::ssize(memory) / 6;
  for (int64_t i = 0; i < page; ++i) {
    EXPECT_EQ(memory[3 * page + i], i);
    EXPECT_EQ(memory[5 * page + i], page + i);
    EXPECT_EQ(memory[4 * page + i], 4 * page + i);
  }
}

void MovedSlotsKeepTheirOrder(TestDevice& device) {
  const KvPoolShape shape = {3, 4, 2, 16, DType::kBF16};
  const AttentionSpec spec = {.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 16};
  std::vector<uint16_t> before(shape.bytes() / sizeof(uint16_t));
  for (size_t i = 0; i < before.size(); ++i) before[i] = static_cast<uint16_t>(i);
  const auto pool = Copy(device, std::as_bytes(std::span(before)));
  const KvLayerView view = shape.View(pool->data());
  const SlotMove moves[] = {{5, 3}, {6, 5}, {9, 6}, {2, 2}};  // 5 and 6 are read before they are written
  ASSERT_TRUE(device.backend().MoveSlots(spec, view, moves).ok());
  std::vector<uint16_t> after(before.size());
  pool->CopyTo(std::as_writable_bytes(std::span(after)));
  const KvLayerView old_view = shape.View(before.data()), new_view = shape.View(after.data());
  const auto at = [&](const void* base, int64_t slot, int32_t head) {
    return static_cast<const uint16_t*>(base) + slot / 4 * view.page_stride + head * view.head_stride + slot % 4 * view.slot_stride;
  };
  for (int64_t slot = 0; slot < 12; ++slot) {
    const int64_t from = slot == 3 ? 5 : slot == 5 ? 6 : slot == 6 ? 9 : slot;
    for (int32_t head = 0; head < 2; ++head) {
      EXPECT_EQ(std::memcmp(at(new_view.k, slot, head), at(old_view.k, from, head), 16 * sizeof(uint16_t)), 0) << slot;
      EXPECT_EQ(std::memcmp(at(new_view.v, slot, head), at(old_view.v, from, head), 16 * sizeof(uint16_t)), 0) << slot;
    }
  }
  const SlotMove bad[] = {{0, 12}};
  EXPECT_EQ(device.backend().MoveSlots(spec, view, bad).message(), "MoveSlots: move 0 names slot 12; the pool has 12 slots");
}

void BadArgumentsAreNamed(TestDevice& device) {
  constexpr AttentionSpec kSpec = {.num_qo_heads = 4, .num_kv_heads = 2, .head_dim = 16};
  Backend& backend = device.backend();
  const KvPoolShape shape = {4, 8, 2, 16, DType::kBF16};
  const auto pool = device.Allocate(shape.bytes()), row = device.Allocate(64);
  const KvLayerView view = shape.View(pool->data());
  const int64_t slots[] = {32};
  Status status = backend.AppendKv(kSpec, view, {row->data(), row->data(), 32, slots});
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_NE(status.message().find("slot_mapping[0] = 32; the pool has 32 slots"), std::string::npos) << status.message();
  EXPECT_FALSE(backend.AppendKv(kSpec, view, {row->data(), row->data(), 31, slots}).ok());
  EXPECT_FALSE(backend.AppendKv(kSpec, view, {nullptr, row->data(), 32, slots}).ok());

  const PageCopy copies[] = {{0, 4}};
  status = backend.CopyPages(kSpec, view, copies);
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_NE(status.message().find("page 4; the pool has 4 pages"), std::string::npos) << status.message();

  KvLayerView wrong = view;
  wrong.dtype = DType::kF16;
  EXPECT_EQ(backend.BindKv(kSpec, wrong).status().code(), StatusCode::kInvalidArgument);
  wrong = view;
  wrong.slot_stride = 8;
  EXPECT_NE(backend.BindKv(kSpec, wrong).status().message().find("slot_stride = 8"), std::string::npos);

  const DeviceState state(device, State::Empty());
  const uint8_t mask[2] = {};
  status = backend.MergeStates(state.View(), {}, kStateRows, kStateHeads, kStateDim, DType::kF32, mask);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("2 entries for 5 rows"), std::string::npos) << status.message();
  EXPECT_FALSE(backend.MergeStates({}, {}, kStateRows, kStateHeads, kStateDim, DType::kF32, {}).ok());
  EXPECT_FALSE(backend.MergeStates(state.View(), {}, kStateRows, kStateHeads, 512, DType::kF32, {}).ok());
}

}  // namespace coppice::attention::testing
