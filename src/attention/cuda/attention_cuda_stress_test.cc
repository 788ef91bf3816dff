// Many launches of kernels that pause at random where the order of arrivals is decided: every launch must give the bits of the
// first, and the first those of the oracle. What racecheck cannot see (it looks at shared memory only) shows here: a ticket drawn
// too early, a state read before it is there, a counter that is not put back. Needs a Hopper device.
//   COPPICE_STRESS_LAUNCHES=n   for each kind of kernel (default 1,000,000)
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "attention/cuda/cuda_test_device.h"
#include "attention/cuda/device_memory.h"
#include "attention/cuda/plan_executor.h"
#include "attention/cuda/stress_kernels.h"
#include "attention/machine_model.h"
#include "tests/support/attention_bodies.h"

namespace coppice::attention {
namespace {

using testing::AttentionCase;
using testing::CaseOptions;
using testing::HandPlan;

class StressTest : public ::testing::TestWithParam<CudaKernels> {};

INSTANTIATE_TEST_SUITE_P(Kernels, StressTest, ::testing::Values(CudaKernels::kHopper, CudaKernels::kMmaSync),
                         [](const auto& info) { return info.param == CudaKernels::kHopper ? "Hopper" : "MmaSync"; });

TEST_P(StressTest, BitsDoNotDependOnTheOrderOfArrivals) {
  const auto device = testing::MakeCudaTestDevice(0, GetParam());
  if (device == nullptr || testing::MakeCudaTestDevice(0, CudaKernels::kHopper) == nullptr) GTEST_SKIP() << "no Hopper device";
  const cuda::KernelVariant& variant = GetParam() == CudaKernels::kHopper ? cuda::kStressHopper : cuda::kStressMmaSync;
  int num_sms = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  const MachineModel machine = ShippedMachineModel("h200", num_sms).value();
  constexpr uint64_t kForests = 5, kLaunchesPerGraph = 200;
  const uint64_t replays = testing::FromEnvironment("COPPICE_STRESS_LAUNCHES", 1'000'000) / (kForests * kLaunchesPerGraph) + 1;
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  for (uint64_t seed = 0; seed < kForests; ++seed) {
    CaseOptions options;
    options.seed = seed;
    options.spec = {.num_qo_heads = seed % 2 ? 12 : 8, .num_kv_heads = seed % 2 ? 3 : 1, .head_dim = 64};
    // Sharing at several levels, cut into pieces: every output is folded from several items of both kinds. The fourth forest has
    // more stream tasks than an H200 has stream warps, so that some fold by tickets and some because all others have arrived. The
    // last is read by teams of warps.
    constexpr int32_t kBranches[kForests] = {8, 8, 24, 600, 2};
    const int32_t longer = seed == 4 ? 20 : 1;
    options.forest = {.max_branches = kBranches[seed], .max_segment = 150 * longer, .max_kv_len = 600 * longer, .own_root = 0.05};
    AttentionCase test(*device, options);
    const HandPlan plan(test.spec(), test.forest().View(), {.share = true, .cut_multiple = 64}, seed);
    ASSERT_GT(plan.max_contributions_of_a_set(), 3);
    ASSERT_EQ(testing::TasksOf(test, plan, num_sms).team, seed == 4);
    const auto executor =
        cuda::CudaPlanExecutor::Create(0, num_sms, variant, test.spec(), test.forest().Capacity(), plan.Sizes(), machine);
    ASSERT_TRUE(executor.ok()) << executor.status().ToString();
    testing::RunAndCompare(test, **executor, plan);
    if (HasFatalFailure()) return;

    const auto bound = test.Bind();
    const RunArgs args = test.Args();
    const int64_t rows = test.num_rows(), words[] = {rows * args.out_row_stride / 2, rows * test.spec().num_qo_heads};
    uint32_t* const got[] = {static_cast<uint32_t*>(args.out), reinterpret_cast<uint32_t*>(args.lse)};
    const auto want = device->Allocate((words[0] + words[1]) * sizeof(uint32_t)), count = device->Allocate(sizeof(uint64_t));
    uint32_t* const want_words[] = {static_cast<uint32_t*>(want->data()), static_cast<uint32_t*>(want->data()) + words[0]};
    auto* const differences = static_cast<unsigned long long*>(count->data());
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(cudaMemcpy(want_words[i], got[i], words[i] * sizeof(uint32_t), cudaMemcpyDeviceToDevice), cudaSuccess);
    }
    cudaGraph_t captured;
    cudaGraphExec_t graph;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    for (uint64_t i = 0; i < kLaunchesPerGraph; ++i) {
      ASSERT_TRUE((*executor)->Run(**bound, args, stream).ok());
      for (int j = 0; j < 2; ++j) cuda::CompareAndPoison(got[j], want_words[j], words[j], differences, stream);
    }
    ASSERT_EQ(cudaStreamEndCapture(stream, &captured), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&graph, captured, 0), cudaSuccess);
    for (uint64_t i = 0; i < replays; ++i) ASSERT_EQ(cudaGraphLaunch(graph, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    uint64_t different = 0;
    count->CopyTo(std::as_writable_bytes(std::span(&different, 1)));
    EXPECT_EQ(different, 0u) << "words that differ in " << replays * kLaunchesPerGraph << " launches on forest " << seed;
    cudaGraphExecDestroy(graph);
    cudaGraphDestroy(captured);
  }
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace coppice::attention
