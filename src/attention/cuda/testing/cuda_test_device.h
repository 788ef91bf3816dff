// The CUDA device as the attention tests see it. Layer: attention/cuda, tests.
#pragma once

#include <climits>
#include <cstdint>
#include <memory>

#include "tests/support/attention_case.h"
#include "tests/support/hand_plan.h"

namespace coppice::attention::testing {

// Null if there is no such device, or none that runs these kernels. most_sms: that a launch takes; with few, small forests make
// plans that take large ones otherwise.
// overlapped_tiles: plans have them wherever a kernel does and they are possible, worth it or not.
std::unique_ptr<TestDevice> MakeCudaTestDevice(int device = 0, CudaKernels kernels = CudaKernels::kAuto, int most_sms = INT_MAX,
                                               bool overlapped_tiles = false);

// A plan's tasks for Hopper's kernels on so many SMs.
struct DeviceTasks {
  bool cooperative;  // the stream warps of a CTA read each stream task together
  bool overlapped;   // CTAs overlap stream tasks with their dense tasks
  int64_t dense, stream;
};
// REQUIRES: a spec that they serve.
DeviceTasks TasksOf(AttentionCase& test, const HandPlan& plan, int num_sms, bool overlapped_tiles = false);

// 100 requests of four rows a kv head behind a prefix of 2,048 tokens: full dense tiles, and many requests to stream meanwhile.
std::unique_ptr<AttentionCase> CaseWithOverlappedTiles(TestDevice& device);

}  // namespace coppice::attention::testing
