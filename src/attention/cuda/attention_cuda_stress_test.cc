// Many launches of kernels that pause at random where the order of arrivals is decided: every launch must give the bits of the
// first, and the first those of the oracle. Races that racecheck cannot see (it looks at shared memory only) show here: a ticket
// drawn too early, a state read before it is there, a counter that is not put back. Needs a Hopper device.
//   COPPICE_STRESS_LAUNCHES=n   for each kind of kernel (default 1,000,000)
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <span>

#include "attention/cuda/device_memory.h"
#include "attention/cuda/plan_executor.h"
#include "attention/cuda/testing/cuda_test_device.h"
#include "attention/cuda/testing/stress_kernels.h"
#include "attention/plan.h"
#include "tests/support/attention_bodies.h"

namespace coppice::attention {
namespace {

using testing::AttentionCase;
using testing::CaseOptions;
using testing::HandPlan;

class StressTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::MakeCudaTestDevice(0, CudaKernels::kHopper) == nullptr) GTEST_SKIP() << "no Hopper device";
    ASSERT_EQ(cudaDeviceGetAttribute(&num_sms_, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
  }
  void TearDown() override { cudaStreamDestroy(stream_); }

  // Of so many cases that a kind of kernel runs.
  static uint64_t LaunchesOfACase(uint64_t cases) { return testing::FromEnvironment("COPPICE_STRESS_LAUNCHES", 1'000'000) / cases; }

  // So many launches of the plan, or a few more.
  void Launch(AttentionCase& test, testing::TestDevice& device, const cuda::KernelVariant& variant, const MachineModel& machine,
              const PlanView& plan, const PlanSizes& sizes, uint64_t launches) {
    const auto executor =
        cuda::CudaPlanExecutor::Create(0, num_sms_, variant, test.spec(), test.forest().Capacity(), sizes, machine);
    ASSERT_TRUE(executor.ok()) << executor.status().ToString();
    ASSERT_GT(testing::MostContributions(plan), 1);
    testing::RunAndCompare(test, **executor, plan);
    if (HasFatalFailure()) return;
    const auto bound = test.Bind();
    const RunArgs args = test.Args();

    const int64_t rows = test.num_rows(), words[] = {rows * args.out_row_stride / 2, rows * test.spec().num_qo_heads};
    uint32_t* const got[] = {static_cast<uint32_t*>(args.out), reinterpret_cast<uint32_t*>(args.lse)};
    const auto want = device.Allocate((words[0] + words[1]) * sizeof(uint32_t)), count = device.Allocate(sizeof(uint64_t));
    uint32_t* const want_words[] = {static_cast<uint32_t*>(want->data()), static_cast<uint32_t*>(want->data()) + words[0]};
    auto* const differences = static_cast<unsigned long long*>(count->data());
    ASSERT_EQ(cudaMemset(differences, 0, sizeof(uint64_t)), cudaSuccess);
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(cudaMemcpy(want_words[i], got[i], words[i] * sizeof(uint32_t), cudaMemcpyDeviceToDevice), cudaSuccess);
    }
    constexpr uint64_t kLaunchesPerGraph = 200;
    const uint64_t replays = launches / kLaunchesPerGraph + 1;
    cudaGraph_t captured;
    cudaGraphExec_t graph;
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    for (uint64_t i = 0; i < kLaunchesPerGraph; ++i) {
      ASSERT_TRUE((*executor)->Run(**bound, args, stream_).ok());
      for (int j = 0; j < 2; ++j) cuda::CompareAndPoison(got[j], want_words[j], words[j], differences, stream_);
    }
    ASSERT_EQ(cudaStreamEndCapture(stream_, &captured), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&graph, captured, 0), cudaSuccess);
    for (uint64_t i = 0; i < replays; ++i) ASSERT_EQ(cudaGraphLaunch(graph, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    uint64_t different = 0;
    count->CopyTo(std::as_writable_bytes(std::span(&different, 1)));
    EXPECT_EQ(different, 0u) << "words that differ in " << replays * kLaunchesPerGraph << " launches";
    cudaGraphExecDestroy(graph);
    cudaGraphDestroy(captured);
  }

  // Sharing at several levels, cut into pieces: every output is folded from several items of both kinds. Page sizes take turns.
  void LaunchRandomForests(CudaKernels kernels, const cuda::KernelVariant& variant, std::span<const int32_t> page_sizes) {
    const auto device = testing::MakeCudaTestDevice(0, kernels);
    const MachineModel machine = ShippedMachineModel("h200", num_sms_).value();
    // The fourth forest has more stream tasks than an H200 has stream warps, so that some fold by tickets and some because all
    // others have arrived. The last has cooperative stream tasks.
    constexpr int32_t kBranches[] = {8, 8, 24, 600, 2};
    constexpr uint64_t kForests = std::size(kBranches);
    for (uint64_t seed = 0; seed < kForests; ++seed) {
      SCOPED_TRACE(seed);
      CaseOptions options;
      options.seed = seed;
      options.spec = {.num_qo_heads = seed % 2 ? 12 : 8, .num_kv_heads = seed % 2 ? 3 : 1, .head_dim = 64};
      const int32_t longer = seed == 4 ? 20 : 1;
      options.forest = {.page_size = page_sizes[seed % page_sizes.size()],
                        .max_branches = kBranches[seed],
                        .max_segment = 150 * longer,
                        .max_kv_len = 600 * longer,
                        .own_root = 0.05};
      if (options.forest.page_size < 8 && seed % 2 == 0) options.forest.next_page = 0.95;  // most come in boxes
      AttentionCase test(*device, options);
      const HandPlan plan(test.spec(), test.forest().View(), {.share = true, .cut_multiple = 64}, seed);
      ASSERT_GT(plan.max_contributions_of_a_set(), 3);
      if (options.forest.page_size == kPages[0]) {  // other pages, other forests
        ASSERT_EQ(testing::TasksOf(test, plan, num_sms_).cooperative, seed == 4);
      }
      Launch(test, *device, variant, machine, plan.View(), plan.Sizes(), LaunchesOfACase(kForests));
      if (HasFatalFailure()) return;
    }
  }

  static constexpr int32_t kPages[] = {16}, kSmallPages[] = {1, 2, 4};
  int num_sms_ = 0;
  cudaStream_t stream_ = nullptr;
};

TEST_F(StressTest, Hopper) { LaunchRandomForests(CudaKernels::kHopper, cuda::kStressHopper, kPages); }

TEST_F(StressTest, SmallPages) { LaunchRandomForests(CudaKernels::kHopper, cuda::kStressSmallPages, kSmallPages); }

TEST_F(StressTest, MmaSync) { LaunchRandomForests(CudaKernels::kMmaSync, cuda::kStressMmaSync, kPages); }

TEST_F(StressTest, OverlappedTiles) {
  const auto device = testing::MakeCudaTestDevice(0, CudaKernels::kHopper, INT_MAX, /*overlapped_tiles=*/true);
  const auto test = testing::CaseWithOverlappedTiles(*device);
  const HandPlan plan(test->spec(), test->forest().View(), {.share = true}, 1);
  ASSERT_TRUE(testing::TasksOf(*test, plan, num_sms_, /*overlapped_tiles=*/true).overlapped);
  Launch(*test, *device, cuda::kStressOverlapped, device->backend().machine(), plan.View(), plan.Sizes(), LaunchesOfACase(1));
}

// Tiles of both kinds, and superblocks that are kept in device memory.
TEST_F(StressTest, Deterministic) {
  const auto device = testing::MakeCudaTestDevice(0, CudaKernels::kHopper);
  constexpr uint64_t kForests = 3;
  for (uint64_t seed = 0; seed < kForests; ++seed) {
    SCOPED_TRACE(seed);
    CaseOptions options;
    options.seed = seed;
    options.spec = {.num_qo_heads = seed == 1 ? 12 : 8, .num_kv_heads = seed == 1 ? 3 : 1, .head_dim = 64, .deterministic = true};
    options.forest = {.max_branches = seed == 2 ? 80 : 12, .max_segment = 900, .max_kv_len = 2500, .own_root = 0.05};
    AttentionCase test(*device, options);
    const auto planner =
        Planner::Create(test.spec(), test.forest().Capacity(), {.force_sharing = true},
                        device->backend().Traits(test.spec(), test.forest().Capacity()).value(), device->backend().machine());
    ASSERT_TRUE(planner.ok()) << planner.status().ToString();
    ASSERT_TRUE((*planner)->Update(test.forest().View()).ok());
    Launch(test, *device, cuda::kStressDeterministic, device->backend().machine(), (*planner)->View(), (*planner)->sizes(),
           LaunchesOfACase(kForests));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace coppice::attention
