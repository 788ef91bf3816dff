// The CUDA backend under the bodies that the CPU runs (tests/support/attention_bodies.h), once for each kind of kernel: random
// forests against the fp64 oracle, edge cases, deterministic bits, states and pool; then what only a device has: graph replays over
// changing trees, several devices. Skips itself where the device is missing.
//   COPPICE_ATTENTION_CASES=n, COPPICE_ATTENTION_SEED=s   as in attention_test.cc
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "attention/cuda/testing/cuda_test_device.h"
#include "tests/support/attention_bodies.h"

namespace coppice::attention {
namespace {

using testing::AttentionCase;
using testing::CaseOptions;
using testing::HandPlan;

// A random case with what the kernels do not take replaced by what they do.
CaseOptions RandomCudaCase(uint64_t seed, CudaKernels kernels, bool small_pages) {
  CaseOptions options = testing::RandomCase(seed);
  std::mt19937_64 rng(seed * 31 + 7);
  const auto pick = [&](std::initializer_list<int32_t> list) { return list.begin()[rng() % list.size()]; };
  options.spec.q_dtype = options.spec.kv_dtype = rng() % 2 ? DType::kBF16 : DType::kF16;
  const int32_t page_size = pick({8, 16, 16, 32, 64, 256});
  if (kernels == CudaKernels::kHopper) {
    options.spec.head_dim = std::min(options.spec.head_dim, 128);
    options.forest.page_size = page_size;
  }
  if (small_pages) {
    options.forest.page_size = pick({1, 1, 2, 4});
    options.forest.next_page = std::array{0.0, 0.95, 0.995}[rng() % 3];
    options.spec.deterministic = false;
  }
  if (rng() % 10 == 0) {  // many query heads to a kv head: a set reaches over both halves of a dense tile
    options.spec.num_qo_heads = pick({48, 96, 128});
    options.spec.num_kv_heads = 1;
    options.forest.max_query_count = std::min(options.forest.max_query_count, 4);
  } else if (rng() % 3 == 0) {  // wide forests, so that dense tiles are full and cut
    options.forest.max_branches = 60;
    options.forest.max_segment = 300;
    options.forest.max_kv_len = 900;
    options.forest.own_root = 0.05;
  }
  return options;
}

// Five SMs: more tasks than they take at once, where small forests leave most of 132 without any.
struct TestedKernels {
  const char* name;
  CudaKernels kernels;
  int most_sms = INT_MAX;
  bool overlapped_tiles = false;
  bool small_pages = false;  // of one to four tokens, by kernels of their own
};

class AttentionCudaTest : public ::testing::TestWithParam<TestedKernels> {
 protected:
  void SetUp() override {
    device_ = testing::MakeCudaTestDevice(0, GetParam().kernels, GetParam().most_sms, GetParam().overlapped_tiles);
    if (device_ == nullptr) GTEST_SKIP() << "no device for these kernels";
  }
  CaseOptions RandomCase(uint64_t seed) const { return RandomCudaCase(seed, GetParam().kernels, GetParam().small_pages); }
  // Of a case that otherwise has pages of this size.
  static int32_t PageSize(int32_t usual, uint64_t seed = 0) { return GetParam().small_pages ? 1 << seed % 3 : usual; }
  static int NumSms() {
    int num_sms = 0;
    EXPECT_EQ(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
    return std::min(num_sms, GetParam().most_sms);
  }

  // The first launch agrees with the oracle, and as many more have its bits; one of every `read_every` is read.
  void LaunchesGiveTheSameBits(AttentionCase& test, const HandPlan& plan, uint64_t launches, uint64_t read_every) {
    auto executor = device_->backend().MakeExecutor(test.spec(), test.forest().Capacity(), plan.Sizes());
    ASSERT_TRUE(executor.ok()) << executor.status().ToString();
    testing::RunAndCompare(test, **executor, plan);
    if (HasFatalFailure()) return;
    const auto bound = test.Bind();
    const std::vector<std::byte> first = test.Read().raw;
    for (uint64_t i = 0; i < launches; ++i) {
      ASSERT_TRUE((*executor)->Run(**bound, test.Args(true), nullptr).ok());
      if (i % read_every == read_every - 1) {
        ASSERT_EQ(test.Read().raw, first) << test.spec().num_qo_heads << "/" << test.spec().num_kv_heads << " heads, launch " << i;
      }
    }
  }

  std::unique_ptr<testing::TestDevice> device_;
};

INSTANTIATE_TEST_SUITE_P(Kernels, AttentionCudaTest,
                         ::testing::Values(TestedKernels{"Hopper", CudaKernels::kHopper},
                                           TestedKernels{"HopperOnFiveSms", CudaKernels::kHopper, 5},
                                           TestedKernels{"HopperOverlappedTiles", CudaKernels::kHopper, INT_MAX, true},
                                           TestedKernels{"HopperOverlappedTilesOnFiveSms", CudaKernels::kHopper, 5, true},
                                           TestedKernels{"HopperSmallPages", CudaKernels::kHopper, INT_MAX, false, true},
                                           TestedKernels{"HopperSmallPagesOnFiveSms", CudaKernels::kHopper, 5, false, true},
                                           TestedKernels{"MmaSync", CudaKernels::kMmaSync}),
                         [](const auto& info) { return info.param.name; });

TEST_P(AttentionCudaTest, RandomForestsAgreeWithOracle) {
  testing::RandomForestsAgreeWithOracle(*device_, testing::FromEnvironment("COPPICE_ATTENTION_SEED", 0),
                                        testing::FromEnvironment("COPPICE_ATTENTION_CASES", 200),
                                        [&](uint64_t seed) { return RandomCase(seed); });
}

TEST_P(AttentionCudaTest, EdgeCases) { testing::EdgeCasesAgreeWithOracle(*device_); }

TEST_P(AttentionCudaTest, LseIsNaturalLogarithm) { testing::LseIsNaturalLogarithm(*device_, {DType::kBF16, DType::kF16}); }

TEST_P(AttentionCudaTest, RowThatSeesNothing) { testing::RowThatSeesNothing(*device_); }

// Any CTA that arrives last folds in the same order: the bits do not depend on timing. (attention_cuda_stress_test adds delays.)
TEST_P(AttentionCudaTest, RepeatedLaunchesGiveTheSameBits) {
  const uint64_t launches = testing::FromEnvironment("COPPICE_ATTENTION_LAUNCHES", 2000);
  CaseOptions options = RandomCase(3);
  options.spec = {.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128};
  options.forest = {.page_size = PageSize(16), .max_branches = 60, .max_segment = 300, .max_kv_len = 900, .own_root = 0.05};
  options.layout = testing::KvLayout::kNative;
  AttentionCase test(*device_, options);
  const HandPlan plan(test.spec(), test.forest().View(), {.share = true, .cut_multiple = 64}, 5);
  LaunchesGiveTheSameBits(test, plan, launches, 100);
}

// More stream tasks than warps: later ones find that all others of their sets have arrived and fold from shared memory, and several
// kv heads of few rows share a task, whose rows may not be a power of two.
TEST_P(AttentionCudaTest, ManyShortTasks) {
  for (const AttentionSpec& spec : {AttentionSpec{.num_qo_heads = 96, .num_kv_heads = 32, .head_dim = 64},
                                    AttentionSpec{.num_qo_heads = 32, .num_kv_heads = 32, .head_dim = 128},
                                    AttentionSpec{.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128},
                                    AttentionSpec{.num_qo_heads = 56, .num_kv_heads = 8, .head_dim = 128}}) {
    CaseOptions options = RandomCase(3);
    options.spec = spec;
    options.forest = {.page_size = PageSize(16, spec.num_qo_heads),
                      .max_branches = 600,
                      .max_segment = 60,
                      .max_kv_len = 300,
                      .max_query_count = 1,
                      .own_root = 0.02};
    options.layout = testing::KvLayout::kNative;
    AttentionCase test(*device_, options);
    const HandPlan plan(test.spec(), test.forest().View(), {.share = true}, 1);
    ASSERT_GT(plan.max_contributions_of_a_set(), 1);
    LaunchesGiveTheSameBits(test, plan, 50, 1);
    if (HasFatalFailure()) return;
  }
}

// Fewer stream tasks than SMs, which the stream warps of a CTA read together: sets of a row to sixteen, a piece or several.
TEST_P(AttentionCudaTest, CooperativeTasks) {
  if (GetParam().kernels == CudaKernels::kMmaSync) GTEST_SKIP() << "its kernel has no cooperative tasks";
  constexpr std::pair<int32_t, int32_t> kHeads[] = {{8, 1}, {9, 1}, {16, 1}, {8, 2}, {3, 3}, {1, 1}};
  int cooperative_tasks = 0, cut = 0;
  for (uint64_t seed = 0; seed < 90; ++seed) {
    CaseOptions options = RandomCase(seed);
    std::tie(options.spec.num_qo_heads, options.spec.num_kv_heads) = kHeads[seed / 6 % std::size(kHeads)];
    options.spec.deterministic = false;
    const bool is_short = seed % 2 == 0;
    options.forest.max_branches = seed % 6 + 1;
    options.forest.max_segment = is_short ? 60 : 3000, options.forest.max_kv_len = is_short ? 100 : 6000;
    options.forest.max_query_count = seed % 5 == 0 ? 2 : 1;
    AttentionCase test(*device_, options);
    const HandPlan plan(test.spec(), test.forest().View(), {.share = true}, seed);
    const testing::DeviceTasks tasks = testing::TasksOf(test, plan, NumSms());
    if (!tasks.cooperative) continue;
    ++cooperative_tasks, cut += tasks.stream > static_cast<int64_t>(plan.View().items.size()) * test.spec().num_kv_heads;
    LaunchesGiveTheSameBits(test, plan, 20, 1);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(cooperative_tasks, 20);
  EXPECT_GT(cut, 5);
}

// Three sets of nine rows over one short range are three row blocks, where two would hold their rows: more tasks than SMs, after
// all.
TEST_P(AttentionCudaTest, CooperativeTasksTakeASecondOne) {
  if (GetParam().kernels == CudaKernels::kMmaSync) GTEST_SKIP() << "its kernel has no cooperative tasks";
  const int groups = NumSms() / 5;
  CaseOptions options = RandomCase(1);
  options.spec = {.num_qo_heads = 9, .num_kv_heads = 1, .head_dim = 128};
  options.forest = {.page_size = PageSize(16, 1), .max_branches = 3 * groups, .start_empty = true};
  AttentionCase test(*device_, options);
  for (int g = 0; g < groups; ++g) {
    const int32_t first = test.forest().AddRoot(30);
    for (int i = 0; i < 2; ++i) test.forest().Fork(first, 16, 5 + 20 * i);
  }
  test.forest().SetQueries(std::vector<int32_t>(3 * groups, 1));
  test.Refresh();
  const HandPlan plan(test.spec(), test.forest().View(), {.share = true}, 1);
  const testing::DeviceTasks tasks = testing::TasksOf(test, plan, NumSms());
  ASSERT_TRUE(tasks.cooperative);
  ASSERT_GT(tasks.stream, NumSms());
  LaunchesGiveTheSameBits(test, plan, 20, 1);
}

// Which warps read a request depends on the moment; its bits do not.
TEST_P(AttentionCudaTest, OverlappedTilesGiveTheBitsOfStreamTiles) {
  if (!GetParam().overlapped_tiles) GTEST_SKIP() << "plans have no overlapped tiles";
  const auto test = testing::CaseWithOverlappedTiles(*device_);
  const HandPlan plan(test->spec(), test->forest().View(), {.share = true}, 1);
  const testing::DeviceTasks tasks = testing::TasksOf(*test, plan, NumSms(), /*overlapped_tiles=*/true);
  ASSERT_TRUE(tasks.overlapped);
  ASSERT_GT(tasks.dense, 0);
  ASSERT_GT(tasks.stream, NumSms());
  LaunchesGiveTheSameBits(*test, plan, testing::FromEnvironment("COPPICE_ATTENTION_LAUNCHES", 2000), 100);
}

TEST_P(AttentionCudaTest, DeterministicBits) {
  if (GetParam().small_pages) GTEST_SKIP() << "such pages are not read in this mode";
  std::vector<std::pair<DType, int32_t>> dtypes_and_head_dims = {
      {DType::kBF16, 32}, {DType::kF16, 64}, {DType::kF16, 128}, {DType::kBF16, 128}};
  if (GetParam().kernels == CudaKernels::kMmaSync) dtypes_and_head_dims.push_back({DType::kBF16, 256});
  testing::DeterministicBitsDependOnTheRequestAlone(
      [](int) { return testing::MakeCudaTestDevice(0, GetParam().kernels, GetParam().most_sms); }, dtypes_and_head_dims);
}

// A row's bits are the same in a dense tile and in a stream tile, at any height, whatever requests there are besides and wherever
// ranges are cut: a request alone is a stream tile, or a dense one if it has many queries.
TEST_P(AttentionCudaTest, DeterministicBitsInRandomForests) {
  if (GetParam().small_pages) GTEST_SKIP() << "such pages are not read in this mode";
  static constexpr std::pair<int32_t, int32_t> kHeads[] = {{4, 1}, {20, 1}, {8, 2}, {9, 1}, {4, 4}, {64, 1}};
  testing::DeterministicBitsAreThoseOfTheRequestAlone(*device_, 0, 48, [](uint64_t seed) {
    CaseOptions options;
    options.seed = seed;
    std::tie(options.spec.num_qo_heads, options.spec.num_kv_heads) = kHeads[seed % std::size(kHeads)];
    options.spec.head_dim = std::array{64, 128, 40}[seed / 2 % 3];
    options.spec.q_dtype = options.spec.kv_dtype = seed % 2 ? DType::kBF16 : DType::kF16;
    options.spec.window = seed % 4 == 3 ? 700 : 0;
    options.spec.soft_cap = seed % 7 == 5 ? 20.0f : 0.0f;
    options.q_magnitude = seed % 5 == 2 ? 8 : 1;
    const bool wide = seed % 3 == 0;  // many requests, so that shared nodes are dense tiles
    options.forest = {.page_size = std::array{16, 8, 64}[seed % 3],
                      .max_branches = wide ? 40 : 7,
                      .max_segment = wide ? 400 : 2500,
                      .max_kv_len = wide ? 1500 : 6000,
                      .max_query_count = seed % 2 ? 3 : 40,
                      .own_root = 0.05};
    options.forest.query_gap = 0;
    return options;
  });
}

// Steps of a few branches that share nothing, by the kernel that they have: captured launches serve growing lengths and changing
// branches; the steps between, which it does not take, run by the others.
TEST_P(AttentionCudaTest, ShortDecodeSteps) {
  if (GetParam().kernels != CudaKernels::kHopper || NumSms() < 128) GTEST_SKIP() << "no such kernel";
  static constexpr std::pair<int32_t, int32_t> kHeads[] = {{32, 8}, {32, 4}, {32, 32}, {8, 1}, {28, 4}, {3, 1}, {64, 2}, {6, 2}};
  int shorts = 0, wide = 0, others = 0, longest = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const bool is_long = seed >= 48;  // one branch
    CaseOptions options = RandomCase(seed);
    std::tie(options.spec.num_qo_heads, options.spec.num_kv_heads) = kHeads[seed % std::size(kHeads)];
    options.spec.head_dim = seed / 8 % 2 ? 64 : 128;
    options.spec.deterministic = false;
    options.spec.window = seed % 5 == 4 ? 70 : 0;
    options.spec.soft_cap = seed % 7 == 6 ? 15.0f : 0.0f;
    options.forest = {.page_size = PageSize(std::array{8, 16, 256}[seed % 3], seed),
                      .max_branches = is_long ? 1 : static_cast<int32_t>(1 + seed % 6),
                      .max_segment = is_long ? 4200 : (seed % 4 == 0 ? 1500 : 300),
                      .max_kv_len = is_long ? 4300 : (seed % 4 == 0 ? 1600 : 400),
                      .max_query_count = 1,
                      .own_root = seed % 11 == 10 ? 0.5 : 1.0,
                      .idle_branch = 0.2};
    AttentionCase test(*device_, options);
    PlanCapacity capacity = test.forest().Capacity();
    capacity.device_images = 2;
    auto plan = AttentionPlan::Create(device_->backend(), test.spec(), capacity).value();
    const auto bound = test.Bind();
    ASSERT_TRUE(bound.ok()) << bound.status().ToString();
    cudaStream_t stream;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    std::map<LaunchKey, cudaGraphExec_t> graphs;
    for (int step = 0; step < 4; ++step) {
      ASSERT_TRUE(plan->Update(test.forest().View()).ok());
      ASSERT_TRUE(plan->Upload(stream).ok());
      const std::string explained = plan->Explain();
      const bool is_short = explained.find("kernel of short decode steps") != std::string::npos;
      (is_short ? shorts : others) += 1;
      wide += explained.find("clusters of 16 CTAs") != std::string::npos ? 1 : 0;
      if (is_short) longest = std::max(longest, std::ranges::max(test.forest().View().branch_kv_len));
      cudaGraphExec_t& graph = graphs[plan->launch_key()];
      if (graph == nullptr) {
        cudaGraph_t captured;
        ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        const Status ran = plan->Run(**bound, test.Args(true), stream);
        ASSERT_EQ(cudaStreamEndCapture(stream, &captured), cudaSuccess);
        ASSERT_TRUE(ran.ok()) << ran.ToString();
        ASSERT_EQ(cudaGraphInstantiate(&graph, captured, 0), cudaSuccess);
        cudaGraphDestroy(captured);
      }
      ASSERT_EQ(cudaGraphLaunch(graph, stream), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      ASSERT_EQ(test.Compare(test.Read(), 2, true), "") << "seed " << seed << ", step " << step << (is_short ? ", short" : "");
      if (!test.forest().Grow() || step % 2 == 1) test.forest().Edit();
      test.Refresh();
    }
    for (const auto& [key, graph] : graphs) cudaGraphExecDestroy(graph);
    cudaStreamDestroy(stream);
  }
  EXPECT_GT(shorts, 60);
  EXPECT_GT(others, 10);
  EXPECT_GT(wide, 8);
  EXPECT_GT(longest, 2048);
}

// One captured launch serves every tree: lengths, counts and the plan are read on the device, and counters and tickets are left as
// the next replay needs them.
TEST_P(AttentionCudaTest, OneGraphServesChangingTrees) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    CaseOptions options = RandomCase(seed);
    options.forest.max_branches = 20;
    options.forest.max_query_count = 4;
    AttentionCase test(*device_, options);
    const PlanCapacity capacity = test.forest().Capacity();
    const PlanSizes sizes{
        .max_items = 4000, .max_members = 8000, .max_merge_sets = 400, .max_contributions = 8000, .max_states = 400000};
    auto executor = device_->backend().MakeExecutor(test.spec(), capacity, sizes);
    ASSERT_TRUE(executor.ok()) << executor.status().ToString();
    const auto bound = test.Bind();
    ASSERT_TRUE(bound.ok()) << bound.status().ToString();
    cudaStream_t stream;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    cudaGraphExec_t graph = nullptr;
    for (int step = 0; step < 6; ++step) {
      const HandPlan plan(test.spec(), test.forest().View(),
                          testing::RandomPlanOptions(seed * 10 + step, test.spec().deterministic), seed);
      const Status uploaded = (*executor)->Upload(plan.View(), test.forest().View(), stream);
      ASSERT_TRUE(uploaded.ok()) << uploaded.ToString();
      if (graph == nullptr) {
        cudaGraph_t captured;
        ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        ASSERT_TRUE((*executor)->Run(**bound, test.Args(true), stream).ok());
        ASSERT_EQ(cudaStreamEndCapture(stream, &captured), cudaSuccess);
        ASSERT_EQ(cudaGraphInstantiate(&graph, captured, 0), cudaSuccess);
        cudaGraphDestroy(captured);
      }
      for (int replay = 0; replay < 3; ++replay) ASSERT_EQ(cudaGraphLaunch(graph, stream), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      ASSERT_EQ(test.Compare(test.Read(), plan.max_contributions_of_a_set(), true), "") << "step " << step;
      if (!test.forest().Grow() || step % 2 == 1) test.forest().Edit();
      test.Refresh();
    }
    cudaGraphExecDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

// Contexts on two devices, from two threads at once: nothing is shared between them, and the caller's current device stays.
TEST_P(AttentionCudaTest, TwoDevicesAtOnce) {
  const auto other = testing::MakeCudaTestDevice(1, GetParam().kernels, GetParam().most_sms);
  if (other == nullptr) GTEST_SKIP() << "one device";
  const auto run = [&](testing::TestDevice& device, uint64_t seed) {
    testing::RandomForestsAgreeWithOracle(device, seed, 20, [&](uint64_t s) { return RandomCase(s); });
    int current = -1;
    EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, 0);
  };
  std::thread second([&] { run(*other, 100); });
  run(*device_, 200);
  second.join();
}

TEST_P(AttentionCudaTest, RefusesWhatTheKernelsCannotDo) {
  const PlanCapacity capacity{.max_branches = 4, .max_queries = 4, .max_page_slots = 64};
  const AttentionSpec good{.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128};
  EXPECT_TRUE(device_->backend().Traits(good, capacity).ok());
  AttentionSpec wide = good, mixed = good, single = good;
  wide.head_dim = 264;
  mixed.kv_dtype = DType::kF16;
  single.q_dtype = single.kv_dtype = DType::kF32;
  for (const AttentionSpec& spec : {wide, mixed, single}) {
    EXPECT_EQ(device_->backend().Traits(spec, capacity).status().code(), StatusCode::kUnimplemented);
  }
  PlanCapacity odd = capacity;
  odd.page_size = 100;
  wide.head_dim = 256;
  const bool hopper = GetParam().kernels == CudaKernels::kHopper;
  EXPECT_EQ(device_->backend().Traits(good, odd).ok(), !hopper);
  EXPECT_EQ(device_->backend().Traits(wide, capacity).ok(), !hopper);
}

// -------------------------------------------------------------------------------------------------------------- any kind of kernel

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = testing::MakeCudaTestDevice(0);
    if (device_ == nullptr) GTEST_SKIP() << "no CUDA device";
  }
  std::unique_ptr<testing::TestDevice> device_;
};

TEST_F(CudaTest, MergeIsTheSoftmaxOfTheUnion) { testing::MergedStatesAreTheSoftmaxOfTheUnion(*device_); }

TEST_F(CudaTest, AppendedTokensLandInTheirSlotsInEveryLayout) { testing::AppendedTokensLandInTheirSlots(*device_, 8); }

TEST_F(CudaTest, CopiedPagesAreEqual) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) testing::CopiedPagesAreEqual(*device_, dtype);
}

TEST_F(CudaTest, MovedSlotsKeepTheirOrder) { testing::MovedSlotsKeepTheirOrder(*device_); }

TEST_F(CudaTest, BadArgumentsAreNamed) { testing::BadArgumentsAreNamed(*device_); }

// A graph that holds them reads slots and states as they are when it is replayed; lists of the host are refused under capture.
TEST_F(CudaTest, AppendsAndMergesAreCaptured) {
  constexpr int32_t kHeads = 2, kDim = 16, kSlots = 16;
  const AttentionSpec spec{.num_qo_heads = kHeads, .num_kv_heads = kHeads, .head_dim = kDim};
  const KvPoolShape shape{.num_pages = 2, .page_size = kSlots / 2, .num_kv_heads = kHeads, .head_dim = kDim};
  const auto pool = device_->Allocate(shape.bytes());
  const std::vector<uint16_t> empty(shape.bytes() / sizeof(uint16_t), 0), row(kHeads * kDim, 0x3f80);  // 1
  const auto rows = device_->Allocate(row.size() * sizeof(uint16_t));
  rows->CopyFrom(std::as_bytes(std::span(row)));
  const auto slot = device_->Allocate(sizeof(int64_t));
  const std::array<float, kDim + 1> one_state{};  // out 0, lse 0
  const auto into = device_->Allocate(sizeof(one_state)), from = device_->Allocate(sizeof(one_state));
  from->CopyFrom(std::as_bytes(std::span(one_state)));
  const auto state = [](testing::DeviceMemory& memory) {
    auto* const floats = static_cast<float*>(memory.data());
    return StateView{.out = floats, .lse = floats + kDim};
  };
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const int64_t on_host = 3;
  const AppendArgs args{.k = rows->data(), .v = rows->data(), .row_stride = kHeads * kDim};
  const auto append = [&](std::span<const int64_t> slots) {
    AppendArgs given = args;
    given.slot_mapping = slots;
    return device_->backend().AppendKv(spec, shape.View(pool->data()), given, stream);
  };
  cudaGraph_t captured;
  cudaGraphExec_t graph;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const Status refused = append(std::span(&on_host, 1));
  const Status appended = append(std::span(static_cast<const int64_t*>(slot->data()), 1));
  const Status merged = device_->backend().MergeStates(state(*into), std::array{state(*from)}, 1, 1, kDim, DType::kF32, {}, stream);
  ASSERT_EQ(cudaStreamEndCapture(stream, &captured), cudaSuccess);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused.ToString();
  ASSERT_TRUE(appended.ok() && merged.ok()) << appended.ToString() << merged.ToString();
  ASSERT_EQ(cudaGraphInstantiate(&graph, captured, 0), cudaSuccess);
  for (int64_t to = 0; to < kSlots; to += 5) {
    pool->CopyFrom(std::as_bytes(std::span(empty)));
    slot->CopyFrom(std::as_bytes(std::span(&to, 1)));
    into->CopyFrom(std::as_bytes(std::span(one_state)));
    ASSERT_EQ(cudaGraphLaunch(graph, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    std::vector<uint16_t> memory(empty.size());
    pool->CopyTo(std::as_writable_bytes(std::span(memory)));
    const KvLayerView view = shape.View(memory.data());
    const auto* const first =
        static_cast<const uint16_t*>(view.k) + to / view.page_size * view.page_stride + to % view.page_size * view.slot_stride;
    EXPECT_EQ(first[0], 0x3f80) << "slot " << to;
    EXPECT_EQ(std::ranges::count(memory, 0x3f80), 2 * kHeads * kDim) << "slot " << to;
    std::array<float, kDim + 1> now{};
    into->CopyTo(std::as_writable_bytes(std::span(now)));
    EXPECT_FLOAT_EQ(now[kDim], std::log(2.0f));
  }
  cudaGraphExecDestroy(graph);
  cudaGraphDestroy(captured);
  cudaStreamDestroy(stream);
}

// Refused before anything is read: 2^31 CTAs and more would be cut to 32 bits.
TEST_F(CudaTest, MoreRowsThanAGridHoldsAreRefused) {
  alignas(16) uint16_t element = 0;
  float lse = 0;
  const StateView state{.out = &element, .lse = &lse};
  const Status merge = device_->backend().MergeStates(state, std::array{state}, int64_t{1} << 36, 1, 8, DType::kBF16, {}, nullptr);
  EXPECT_NE(merge.message().find("CTAs, expected at most 2147483647"), std::string::npos) << merge.ToString();

  const AttentionSpec spec{.num_qo_heads = 1, .num_kv_heads = 1, .head_dim = 256};
  const KvLayerView kv = KvPoolShape{.num_pages = 1, .num_kv_heads = 1, .head_dim = 256}.View(&element);
  const int64_t slot = 0;
  const AppendArgs args{.k = &element, .v = &element, .row_stride = 256, .slot_mapping = std::span(&slot, size_t{1} << 35)};
  const Status append = device_->backend().AppendKv(spec, kv, args, nullptr);
  EXPECT_NE(append.message().find("CTAs, expected at most 2147483647"), std::string::npos) << append.ToString();
}

}  // namespace
}  // namespace coppice::attention
