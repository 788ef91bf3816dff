// The CUDA backend against the fp64 oracle on random forests and hand-made plans, graph replays over changing trees, and equal bits
// over repeated launches. Skips itself where there is no Hopper device.
//   COPPICE_ATTENTION_CASES=n, COPPICE_ATTENTION_SEED=s   as in attention_test.cc
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "attention/cuda/cuda_test_device.h"
#include "tests/support/attention_case.h"
#include "tests/support/hand_plan.h"

namespace coppice::attention {
namespace {

using testing::AttentionCase;
using testing::CaseOptions;
using testing::HandPlan;
using testing::HandPlanOptions;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

// A random case with what the kernels do not take replaced by what they do.
CaseOptions RandomCudaCase(uint64_t seed) {
  CaseOptions options = testing::RandomCase(seed);
  std::mt19937_64 rng(seed * 31 + 7);
  const auto pick = [&](std::initializer_list<int32_t> list) { return list.begin()[rng() % list.size()]; };
  options.spec.q_dtype = options.spec.kv_dtype = rng() % 2 ? DType::kBF16 : DType::kF16;
  options.spec.head_dim = std::min(options.spec.head_dim, 128);
  options.spec.deterministic = false;
  options.forest.page_size = pick({8, 16, 16, 32, 64, 256});
  if (rng() % 3 == 0) {  // wide forests, so that dense tiles are full and cut
    options.forest.max_branches = 60;
    options.forest.max_segment = 300;
    options.forest.max_kv_len = 900;
    options.forest.own_root = 0.05;
  }
  return options;
}

HandPlanOptions RandomPlanOptions(uint64_t seed) {
  std::mt19937_64 rng(seed);
  HandPlanOptions options;
  options.share = rng() % 4 != 0;
  options.absorb = rng() % 2 ? 0.3 : 0.0;
  options.cut_multiple = rng() % 2 ? 64 : 0;
  options.lookahead = rng() % 2 ? 100 : 0;
  return options;
}

class AttentionCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = testing::MakeCudaTestDevice();
    if (device_ == nullptr) GTEST_SKIP() << "no Hopper device";
  }
  static void RunAndCompare(AttentionCase& test, PlanExecutor& executor, const HandPlan& plan, bool with_lse) {
    const auto bound = test.Bind();
    ASSERT_TRUE(bound.ok()) << bound.status().ToString();
    const Status uploaded = executor.Upload(plan.View(), test.forest().View(), nullptr);
    ASSERT_TRUE(uploaded.ok()) << uploaded.ToString();
    const Status status = executor.Run(**bound, test.Args(with_lse), nullptr);
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
    ASSERT_EQ(test.Compare(test.Read(), plan.max_contributions_of_a_set(), with_lse), "");
  }

  std::unique_ptr<testing::TestDevice> device_;
};

TEST_F(AttentionCudaTest, RandomForestsAgreeWithOracle) {
  const uint64_t first = FromEnvironment("COPPICE_ATTENTION_SEED", 0), count = FromEnvironment("COPPICE_ATTENTION_CASES", 300);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const CaseOptions options = RandomCudaCase(seed);
    SCOPED_TRACE(options.ToString());
    AttentionCase test(*device_, options);
    for (int edit = 0; edit < 2; ++edit) {
      const HandPlan plan(test.spec(), test.forest().View(), RandomPlanOptions(seed + edit), seed);
      auto executor = device_->backend().MakeExecutor(test.spec(), test.forest().Capacity(), plan.Sizes());
      ASSERT_TRUE(executor.ok()) << executor.status().ToString();
      for (int step = 0; step < 2; ++step) {  // the same plan serves growing lengths
        RunAndCompare(test, **executor, plan, step == 0);
        if (HasFatalFailure()) return;
        if (!test.forest().Grow()) break;
        test.Refresh();
      }
      test.forest().Edit();
      test.Refresh();
    }
  }
}

// Whoever arrives last folds in the same order: the bits do not depend on timing.
TEST_F(AttentionCudaTest, RepeatedLaunchesGiveTheSameBits) {
  const uint64_t launches = FromEnvironment("COPPICE_ATTENTION_LAUNCHES", 2000);
  CaseOptions options = RandomCudaCase(3);
  options.spec = {.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128};
  options.forest.page_size = 16;
  options.forest.max_branches = 60;
  options.forest.max_segment = 300;
  options.forest.max_kv_len = 900;
  options.forest.own_root = 0.05;
  options.layout = testing::KvLayout::kNative;
  AttentionCase test(*device_, options);
  const HandPlan plan(test.spec(), test.forest().View(), {.share = true, .cut_multiple = 64}, 5);
  auto executor = device_->backend().MakeExecutor(test.spec(), test.forest().Capacity(), plan.Sizes());
  ASSERT_TRUE(executor.ok()) << executor.status().ToString();
  RunAndCompare(test, **executor, plan, true);
  if (HasFatalFailure()) return;
  const auto bound = test.Bind();
  const std::vector<std::byte> first = test.Read().raw;
  for (uint64_t i = 0; i < launches; ++i) {
    ASSERT_TRUE((*executor)->Run(**bound, test.Args(true), nullptr).ok());
    if (i % 100 == 99) {
      ASSERT_EQ(test.Read().raw, first) << "launch " << i;
    }
  }
}

// One captured launch serves every tree: lengths, counts and the plan are read on the device.
TEST_F(AttentionCudaTest, OneGraphServesChangingTrees) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    CaseOptions options = RandomCudaCase(seed);
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
      const HandPlan plan(test.spec(), test.forest().View(), RandomPlanOptions(seed * 10 + step), seed);
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
      ASSERT_EQ(cudaGraphLaunch(graph, stream), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      ASSERT_EQ(test.Compare(test.Read(), plan.max_contributions_of_a_set(), true), "") << "step " << step;
      if (!test.forest().Grow() || step % 2 == 1) test.forest().Edit();
      test.Refresh();
    }
    cudaGraphExecDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

TEST_F(AttentionCudaTest, RefusesWhatTheKernelsCannotDo) {
  const PlanCapacity capacity{.max_branches = 4, .max_queries = 4, .max_page_slots = 64};
  const AttentionSpec good{.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128};
  EXPECT_TRUE(device_->backend().Traits(good, capacity).ok());
  AttentionSpec wide = good, mixed = good;
  wide.head_dim = 512;
  mixed.kv_dtype = DType::kF16;
  PlanCapacity odd = capacity;
  odd.page_size = 100;
  EXPECT_EQ(device_->backend().Traits(wide, capacity).status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(device_->backend().Traits(mixed, capacity).status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(device_->backend().Traits(good, odd).status().code(), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace coppice::attention
