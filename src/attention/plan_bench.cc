// Planning time at 1,024 requests: a fresh plan, one edit, a skipped update, and the mean over 256 decode steps with one change of
// the tree every 16; then with what a GPU's plan costs the host beside, but for the copies, also for measured shapes. Goals: less
// than 10 us a step; on an H200, 300 us a change and 50 us a mean step. Layer: attention, benchmarks.
#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "attention/cuda/lower/kernel_choice.h"
#include "attention/cuda/lower/plan_translator.h"
#include "attention/cuda/page_rows.h"
#include "attention/owned_forest.h"
#include "attention/testing/plan_test_forest.h"

namespace coppice::attention {
namespace {

constexpr int32_t kGroups = 32, kBranchesPerGroup = 32;

// A system prompt, 32 prompts below it, 32 samples of each.
testing::TestForest Samples() {
  testing::TestForest forest;
  const int32_t root = forest.AddNode(kNoParent, 2048);
  for (int32_t g = 0; g < kGroups; ++g) {
    const int32_t prompt = forest.AddNode(root, 512);
    for (int32_t b = 0; b < kBranchesPerGroup; ++b) forest.AddBranch(prompt, 1 + (37 * (g + b)) % 300, 1, 256);
  }
  return forest;
}

std::unique_ptr<Planner> MakePlanner(const testing::TestForest& forest, const char* machine, int32_t workers) {
  const AttentionSpec spec{.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128};
  PlanCapacity capacity = forest.Capacity();
  capacity.max_nodes = 0;
  const BackendTraits traits{.workers = workers, .dense_tile_rows = 64, .dense_min_rows = 8, .kv_tile = 64};
  return Planner::Create(spec, capacity, {}, traits, ShippedMachineModel(machine, workers).value()).value();
}

// A request leaves its group and a new one joins another group. Returns the nodes that changed.
std::array<int32_t, 2> Replace(testing::TestForest& forest, int32_t branch) {
  const int32_t leaf = forest.branch_node[branch], from = forest.node_parent[leaf];
  int32_t to = forest.node_parent[forest.branch_node[(branch + 5 * kBranchesPerGroup) % (kGroups * kBranchesPerGroup)]];
  if (to == from) to = forest.node_parent[forest.branch_node[0]];
  forest.RemoveBranch(branch);
  return {leaf, forest.branch_node[forest.AddBranch(to, 1, 1, 256)]};
}

void BM_FreshPlan(benchmark::State& state) {
  testing::TestForest forest = Samples();
  const std::unique_ptr<Planner> planner = MakePlanner(forest, "h200", 132);
  testing::TestForest empty;
  for (auto _ : state) {
    state.PauseTiming();
    ++empty.version;
    empty.version = ++forest.version;
    if (!planner->Update(empty.Forest()).ok()) state.SkipWithError("empty");
    ++forest.version;
    state.ResumeTiming();
    if (!planner->Update(forest.Forest()).ok()) state.SkipWithError("forest");
  }
}
BENCHMARK(BM_FreshPlan)->Unit(benchmark::kMicrosecond);

// range(0): whether the caller says which nodes changed.
void BM_OneEdit(benchmark::State& state) {
  testing::TestForest forest = Samples();
  const std::unique_ptr<Planner> planner = MakePlanner(forest, "h200", 132);
  int32_t branch = 0;
  for (auto _ : state) {
    state.PauseTiming();
    const uint64_t since = forest.version;
    const std::array<int32_t, 2> changed = Replace(forest, branch = (branch + 37) % (kGroups * kBranchesPerGroup));
    PrefixForestView view = forest.Forest();
    if (state.range(0) != 0) view.changed_since = since, view.changed_nodes = changed;
    state.ResumeTiming();
    if (!planner->Update(view).ok()) state.SkipWithError("update");
  }
}
BENCHMARK(BM_OneEdit)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

void BM_LengthsOnly(benchmark::State& state) {
  testing::TestForest forest = Samples();
  const std::unique_ptr<Planner> planner = MakePlanner(forest, "h200", 132);
  for (auto _ : state) benchmark::DoNotOptimize(planner->Update(forest.Forest()).ok());
}
BENCHMARK(BM_LengthsOnly)->Unit(benchmark::kMicrosecond);

// Time of one iteration is that of one decode step.
void BM_DecodeSteps(benchmark::State& state) {
  testing::TestForest forest = Samples();
  const std::unique_ptr<Planner> planner =
      MakePlanner(forest, state.range(0) == 0 ? "zen5" : "h200", state.range(0) == 0 ? 2 : 132);
  const testing::TestForest start = forest;
  int32_t step = 0;
  for (auto _ : state) {
    state.PauseTiming();
    if (step % 256 == 0) {
      const uint64_t version = forest.version;
      forest = start;
      forest.version = version + 1;
      if (!planner->Update(forest.Forest()).ok()) state.SkipWithError("update");
    }
    ++step;
    forest.Grow();
    if (step % 16 == 0) Replace(forest, (37 * step) % (kGroups * kBranchesPerGroup));
    state.ResumeTiming();
    if (!planner->Update(forest.Forest()).ok()) state.SkipWithError("update");
  }
}
BENCHMARK(BM_DecodeSteps)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond)->Iterations(1024);

// A plan of the whole H200, lowered to its tasks.
class LoweredPlan {
 public:
  explicit LoweredPlan(const OwnedForest& forest, int32_t kv_heads = 8, bool deterministic = false)
      : machine_(ShippedMachineModel("h200").value()),
        planner_(MakePlanner(forest, kv_heads, deterministic, machine_)),
        translator_(planner_->spec(), planner_->capacity(), planner_->sizes(), machine_.sm, planner_->traits()),
        page_rows_(planner_->capacity()),
        image_(translator_.layout().bytes / sizeof(std::max_align_t) + 1) {
    if (!Update(forest.Forest())) std::abort();
  }

  // Of a forest in which this branch changed since the last one; -1: none did.
  bool Update(PrefixForestView forest, int32_t changed = -1) {
    if (changed >= 0) {
      forest.changed_since = version_;
      forest.changed_branches = std::span(&changed, 1);
    }
    version_ = forest.version;
    if (!planner_->Update(forest).ok()) return false;
    auto* image = reinterpret_cast<std::byte*>(image_.data());
    const PlanView plan = planner_->View();
    if (plan.revision != revision_) translator_.TranslatePlan(plan, forest);
    revision_ = plan.revision;
    translator_.WriteImage(image);
    translator_.TranslateLengths(forest, image);
    page_rows_.FindChanges(forest);
    page_rows_.Take(forest);
    return true;
  }

 private:
  static std::unique_ptr<Planner> MakePlanner(const OwnedForest& forest, int32_t kv_heads, bool deterministic,
                                              const MachineModel& machine) {
    const AttentionSpec spec{.num_qo_heads = 32, .num_kv_heads = kv_heads, .head_dim = 128, .deterministic = deterministic};
    PlanCapacity capacity = forest.Capacity();
    capacity.max_nodes = 0;
    const cuda::KernelChoice kernel = cuda::ChooseKernel(CudaKernels::kAuto, 9, 0, spec, capacity.page_size).value();
    return Planner::Create(spec, capacity, {}, cuda::TraitsOf(kernel, spec, machine.sm.num_sms), machine).value();
  }

  MachineModel machine_;
  std::unique_ptr<Planner> planner_;
  cuda::PlanTranslator translator_;
  cuda::PageRows page_rows_;
  std::vector<std::max_align_t> image_;
  uint64_t revision_ = 0, version_ = 0;
};

// Argument: deterministic mode.
void BM_OneEditForGpu(benchmark::State& state) {
  testing::TestForest forest = Samples();
  LoweredPlan plan(forest, 8, state.range(0) != 0);
  int32_t branch = 0;
  for (auto _ : state) {
    state.PauseTiming();
    Replace(forest, branch = (branch + 37) % (kGroups * kBranchesPerGroup));
    state.ResumeTiming();
    if (!plan.Update(forest.Forest(), branch)) state.SkipWithError("update");
  }
}
BENCHMARK(BM_OneEditForGpu)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

// Time of one iteration is that of one decode step. Argument: deterministic mode.
void BM_DecodeStepsForGpu(benchmark::State& state) {
  testing::TestForest forest = Samples();
  LoweredPlan plan(forest, 8, state.range(0) != 0);
  int32_t step = 0;
  for (auto _ : state) {
    state.PauseTiming();
    forest.Grow();
    const int32_t branch = ++step % 16 == 0 ? (37 * step) % (kGroups * kBranchesPerGroup) : -1;
    if (branch >= 0) Replace(forest, branch);
    state.ResumeTiming();
    if (!plan.Update(forest.Forest(), branch)) state.SkipWithError("update");
  }
}
BENCHMARK(BM_DecodeStepsForGpu)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond)->Iterations(256);

// A change of a measured shape (docs/kernels/hopper.md) as its device bench makes it: the last request leaves or comes.
struct Shape {
  const char* name;
  int32_t kv_heads;
  std::vector<TreeLevel> levels;
};
const std::vector<Shape>& Shapes() {
  static const std::vector<Shape> shapes = {
      {"tree 1", 32, {{.tokens = 2048}, {.tokens = 32, .fan_out = 1024}}},
      {"tree 5",
       32,
       {{.tokens = 256},
        {.tokens = 32, .fan_out = 4},
        {.tokens = 256, .fan_out = 4},
        {.tokens = 64, .fan_out = 4},
        {.tokens = 32, .fan_out = 4},
        {.tokens = 256, .fan_out = 4}}},
      {"D", 8, {{.tokens = 16384}, {.tokens = 128, .fan_out = 1024}}},
      {"A3", 32, {{.tokens = 32768}, {.tokens = 256, .fan_out = 1024}}},
  };
  return shapes;
}

void BM_ShapeChangeForGpu(benchmark::State& state) {
  const Shape& shape = Shapes()[state.range(0)];
  state.SetLabel(shape.name);
  OwnedForest forest;
  AddUniformTree(
      {
          .levels = shape.levels,
      },
      forest);
  LoweredPlan plan(forest, shape.kv_heads);
  const auto last = static_cast<int32_t>(forest.branch_node.size()) - 1;
  const int32_t leaf = forest.branch_node[last], above = forest.node_parent[leaf];
  for (auto _ : state) {
    const bool leaves = forest.branch_node[last] != kFreeSlot;
    forest.branch_node[last] = leaves ? kFreeSlot : leaf;
    forest.node_parent[leaf] = leaves ? kFreeSlot : above;
    forest.branch_query_count[last] = leaves ? 0 : 1;
    ++forest.version;
    if (!plan.Update(forest.Forest(), last)) state.SkipWithError("update");
  }
}
BENCHMARK(BM_ShapeChangeForGpu)->DenseRange(0, 3)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace coppice::attention

BENCHMARK_MAIN();
