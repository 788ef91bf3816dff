// An executor's uploads and the parameters that a kernel gets, over a stand-in for the CUDA runtime.
#include "attention/cuda/plan_executor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/cuda/testing/fake_cuda_runtime.h"
#include "attention/launch_key.h"
#include "attention/plan.h"
#include "attention/plan_units.h"
#include "attention/testing/plan_test_forest.h"

namespace coppice::attention::cuda {
namespace {

using attention::testing::H200Traits;
using attention::testing::RandomForest;
using attention::testing::TestForest;
using testing::Runtime;

constexpr AttentionSpec kSpec{.num_qo_heads = 8, .num_kv_heads = 2, .head_dim = 128};
constexpr int kSms = 132;
constexpr int32_t kRowPages = 512;  // of requests under edit
constexpr KernelVariant kVariant{.path = KernelPath::kHopper,
                                 .dtype = DType::kBF16,
                                 .head_dim = 128,
                                 .kv_tile = 128,
                                 .threads = 384,
                                 .shared_bytes = 0,
                                 .ctas_per_sm = 1,
                                 .fold_bytes_per_cta = 0,
                                 .function = nullptr};
constexpr char kOverlappedKernel = 0;  // its address stands for the kernel
constexpr KernelVariant kOverlappedVariant = [] {
  KernelVariant overlapped = kVariant;
  overlapped.threads = 512;
  overlapped.function = &kOverlappedKernel;
  return overlapped;
}();

template <class T>
bool SameBytes(const T* a, const T* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(T)) == 0;
}

LaunchKey Key(KernelId kernel, uint8_t image, int cluster = 0) {
  return LaunchKeyOf(image, LaunchChoice{.kernel = kernel, .short_launch = {.cluster = cluster}}.number());
}

// A planner and an executor with room for edits.
class Session {
 public:
  explicit Session(const TestForest& forest, int32_t device_images = 1, const KernelVariant& variant = kVariant)
      : capacity_(forest.Capacity()) {
    capacity_.device_images = device_images;
    capacity_.max_branches += 8;
    capacity_.max_queries += 64;
    capacity_.max_nodes += 16;
    capacity_.max_page_slots += 1 << 16;
    planner_ = Planner::Create(kSpec, capacity_, {}, H200Traits(), ShippedMachineModel("h200", kSms).value()).value();
    executor_ = CudaPlanExecutor::Create(0, kSms, variant, kSpec, capacity_, planner_->sizes(), planner_->machine()).value();
  }

  // Plans, uploads and launches; what the kernel was given, and the bytes that were copied.
  KernelParams Step(const TestForest& forest) {
    const KernelParams params = Step(forest.Forest());
    NotePlan(forest);
    return params;
  }
  KernelParams Step(const PrefixForestView& forest) {
    EXPECT_TRUE(planner_->Update(forest).ok());
    Runtime().bytes_to_device = 0;
    const Status uploaded = executor_->Upload(planner_->View(), forest, nullptr);
    EXPECT_TRUE(uploaded.ok()) << uploaded.ToString();
    const BoundCudaKv kv(kSpec, {.num_pages = 1, .page_size = capacity_.page_size, .dtype = DType::kBF16}, KernelPath::kHopper,
                         TensorMaps{});
    alignas(16) float memory[4];
    const Status ran = executor_->Run(kv, {.q = memory, .q_row_stride = 1024, .out = memory, .out_row_stride = 1024}, nullptr);
    EXPECT_TRUE(ran.ok()) << ran.ToString();
    return Runtime().launches.back();
  }
  // Plans and uploads, of which only so many copies succeed.
  void FailedStep(const TestForest& forest, int copies) {
    EXPECT_TRUE(planner_->Update(forest.Forest()).ok());
    Runtime().copies_until_failure = copies;
    EXPECT_FALSE(executor_->Upload(planner_->View(), forest.Forest(), nullptr).ok());
    Runtime().copies_until_failure = -1;
    NotePlan(forest);
  }
  static size_t bytes_copied() { return Runtime().bytes_to_device; }
  LaunchKey launch_key() const { return executor_->launch_key(); }
  // Of the persistent kernel.
  int32_t device_image() const { return launch_key() == Key(KernelId::kPersistent, 1) ? 1 : 0; }
  const PlanExecutor& executor() const { return *executor_; }
  // Of the image that a launch reads.
  std::vector<std::byte> BytesOf(const KernelParams& params) const {
    const PlanLayout layout(kSpec, capacity_, planner_->sizes(), kSms);
    const auto* image = reinterpret_cast<const std::byte*>(params.header) - layout.header;
    return {image, image + layout.bytes};
  }

  // Everything that the kernel may read of the plan, against a translation of its own. A plan is lowered once, for the lengths that
  // it was made for.
  void ExpectFresh(const KernelParams& params, const TestForest& forest) {
    PlanTranslator fresh(kSpec, capacity_, planner_->sizes(), planner_->machine().sm, planner_->traits());
    image_.resize(fresh.layout().bytes);
    fresh.TranslatePlan(planner_->View(), planned_.Forest());
    fresh.WriteImage(image_.data());
    fresh.TranslateLengths(forest.Forest(), image_.data());
    const auto at = [&]<class T>(const T*, size_t offset) { return reinterpret_cast<const T*>(image_.data() + offset); };
    const PlanLayout& layout = fresh.layout();
    ASSERT_TRUE(SameBytes(params.header, at(params.header, layout.header), 1));
    ASSERT_TRUE(SameBytes(params.dense_tasks, at(params.dense_tasks, layout.dense_tasks), fresh.num_dense_tasks()));
    ASSERT_TRUE(SameBytes(params.stream_tasks, at(params.stream_tasks, layout.stream_tasks), fresh.num_stream_tasks()));
    const auto expect_members = [&](const Task& task) {
      const DeviceItem& item = task.item;
      ASSERT_TRUE(
          SameBytes(params.members + item.member_begin, at(params.members, layout.members) + item.member_begin, item.member_count));
      for (const DeviceMember& member : std::span(params.members + item.member_begin, item.member_count)) {
        if (member.state_begin == kDirect) continue;
        ASSERT_TRUE(SameBytes(params.contributions + member.contribution_begin,
                              at(params.contributions, layout.contributions) + member.contribution_begin,
                              member.contribution_count));
      }
    };
    for (const auto tasks :
         {std::span(params.dense_tasks, fresh.num_dense_tasks()), std::span(params.stream_tasks, fresh.num_stream_tasks())}) {
      for (const Task& task : tasks) {
        if (task.item.head_begin > 0) continue;  // the members are those of the first kv head
        ASSERT_NO_FATAL_FAILURE(expect_members(task));
      }
    }
  }
  static void ExpectLengthsAndPages(const KernelParams& params, const TestForest& forest) {
    for (size_t b = 0; b < forest.branch_node.size(); ++b) {
      if (forest.branch_node[b] == kFreeSlot) continue;
      ASSERT_EQ(params.branches[b].kv_len, forest.branch_kv_len[b]);
      ASSERT_EQ(params.branches[b].query_begin, forest.branch_query_begin[b]);
      const int32_t begin = forest.branch_page_begin[b],
                    pages = static_cast<int32_t>(CeilDiv(forest.branch_kv_len[b], forest.page_size));
      ASSERT_TRUE(SameBytes(params.page_indices + begin, &forest.page_indices[begin], pages)) << "pages of branch " << b;
    }
  }

 private:
  void NotePlan(const TestForest& forest) {
    if (planner_->View().revision != revision_) planned_ = forest;
    revision_ = planner_->View().revision;
  }

  PlanCapacity capacity_;
  std::unique_ptr<Planner> planner_;
  std::unique_ptr<PlanExecutor> executor_;
  TestForest planned_;  // that the plan was made for
  uint64_t revision_ = 0;
  std::vector<std::byte> image_;
};

TEST(PlanExecutor, TheDeviceHasWhatAFreshUploadWouldHave) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    const auto pick = [&](size_t count) { return static_cast<int32_t>(rng() % count); };
    TestForest forest = RandomForest(rng, seed % 5 == 0 ? 9000 : 700);
    Session session(forest);
    for (int edit = 0; edit < 6; ++edit) {
      const KernelParams params = session.Step(forest);
      session.ExpectFresh(params, forest);
      Session::ExpectLengthsAndPages(params, forest);
      forest.Grow();
      Session::ExpectLengthsAndPages(session.Step(forest), forest);
      // A request leaves; another comes, with other pages; pages move.
      if (pick(3) == 0 && forest.branch_node.size() > 1) {
        if (const int32_t b = pick(forest.branch_node.size()); forest.branch_node[b] != kFreeSlot) forest.RemoveBranch(b);
      }
      if (pick(3) == 0) forest.AddBranch(kNoParent, 1 + pick(300), 1);
      for (int i = 0; i < 3; ++i) forest.page_indices[pick(forest.page_indices.size())] = pick(1000);
      ++forest.version;
    }
  }
}

// One edit of a forest at random: requests come and go, grow, move to another node, and nodes are split.
void Edit(TestForest& forest, std::mt19937& rng) {
  const auto pick = [&](size_t count) { return static_cast<int32_t>(rng() % count); };
  const auto any_branch = [&] {
    const int32_t b = pick(forest.branch_node.size());
    return forest.branch_node[b] != kFreeSlot ? b : -1;
  };
  const auto any_inner_node = [&] {
    const int32_t n = pick(forest.node_parent.size());
    return forest.node_parent[n] != kFreeSlot && forest.node_end[n] != kLive ? n : kNoParent;
  };
  // Below a node that stays when the branch goes.
  const auto add = [&] {
    if (std::ranges::count(forest.branch_node, kFreeSlot) > 0) forest.AddBranch(any_inner_node(), 1 + pick(300), 1, kRowPages);
  };
  switch (pick(6)) {
    case 0: return forest.Grow(1 + pick(3));
    case 1: return add();
    case 2: {
      const int32_t b = any_branch();
      if (b >= 0 && std::ranges::count(forest.branch_node, kFreeSlot) + 2 < std::ssize(forest.branch_node)) forest.RemoveBranch(b);
      return;
    }
    case 3: {  // one request takes another's place in the tree
      const int32_t b = any_branch();
      if (b < 0) return;
      forest.RemoveBranch(b);
      return add();
    }
    case 4: {
      const int32_t n = any_inner_node();
      const bool room = std::ranges::count(forest.node_parent, kFreeSlot) > 0;
      if (n == kNoParent || !room || forest.node_end[n] - forest.node_begin[n] < 2) return;
      return forest.SplitNode(n, 1 + pick(forest.node_end[n] - forest.node_begin[n] - 1));
    }
    default: return;  // a step without an edit
  }
}

class PlanExecutorImages : public ::testing::TestWithParam<int32_t> {};

TEST_P(PlanExecutorImages, TheDeviceHasEveryPlanOfALongRun) {
  size_t copied = 0, whole = 0;
  for (uint32_t seed = 0; seed < 12; ++seed) {
    std::mt19937 rng(seed);
    TestForest forest;
    const int32_t root = forest.AddNode(kNoParent, 500 + 4000 * static_cast<int32_t>(seed % 3));
    for (int32_t group = 0; group < 4; ++group) {
      const int32_t prompt = forest.AddNode(root, 100 + 300 * group);
      for (int32_t i = 0; i < 12 + 20 * static_cast<int32_t>(seed % 4); ++i) {
        forest.AddBranch(prompt, 1 + static_cast<int32_t>(rng() % 900), 1, kRowPages);
      }
    }
    Session session(forest, GetParam());
    session.Step(forest);
    whole += Session::bytes_copied();
    if (GetParam() > 1) session.Step(forest);
    for (int step = 0; step < 250; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(step));
      Edit(forest, rng);
      const KernelParams params = session.Step(forest);
      copied += Session::bytes_copied();
      ASSERT_NO_FATAL_FAILURE(session.ExpectFresh(params, forest));
      ASSERT_NO_FATAL_FAILURE(Session::ExpectLengthsAndPages(params, forest));
    }
  }
  EXPECT_LT(copied / 250, whole / 2) << "a step copies what it changed";
}

INSTANTIATE_TEST_SUITE_P(, PlanExecutorImages, ::testing::Values(1, 2));

// The launch of the step before may still run.
TEST(PlanExecutor, OfTwoImagesAnUploadWritesTheOther) {
  std::mt19937 rng(3);
  TestForest forest = RandomForest(rng, 2000);
  Session session(forest, 2);
  KernelParams before = session.Step(forest);
  int32_t image = session.device_image();
  for (int step = 0; step < 20; ++step) {
    const std::vector<std::byte> read = session.BytesOf(before);
    step % 6 == 0 ? (void)forest.AddBranch(kNoParent, 100 + step, 1) : forest.Grow(5);
    KernelParams now;
    if (step % 5 == 4) {
      forest.AddBranch(kNoParent, 50 + step, 1);  // tasks and lengths at least
      session.FailedStep(forest, step % 2);
      ASSERT_EQ(session.BytesOf(before), read) << "nor does one that fails";
      EXPECT_EQ(session.device_image(), 1 - image);
      image = session.device_image();
      forest.Grow();
      now = session.Step(forest);
    } else {
      now = session.Step(forest);
      ASSERT_EQ(session.BytesOf(before), read);
    }
    EXPECT_EQ(session.device_image(), std::exchange(image, session.device_image()) ^ 1);
    ASSERT_NO_FATAL_FAILURE(session.ExpectFresh(now, forest));
    Session::ExpectLengthsAndPages(now, forest);
    before = now;
  }
}

// With one image a captured launch serves every step.
TEST(PlanExecutor, TheKernelOfShortStepsIsPartOfTheKey) {
  const auto key_of = [](const TestForest& forest, int32_t device_images) {
    Session session(forest, device_images);
    session.Step(forest);
    return session.launch_key();
  };
  const LaunchKey persistent = Key(KernelId::kPersistent, 0);
  TestForest alone;
  alone.AddBranch(kNoParent, 100, 1);
  EXPECT_EQ(key_of(alone, 2), Key(KernelId::kShortDecode, 0, 8));
  EXPECT_EQ(Runtime().cluster, 8u);
  EXPECT_EQ(key_of(alone, 1), persistent);
  TestForest long_one;
  long_one.AddBranch(kNoParent, 3000, 1);
  EXPECT_EQ(key_of(long_one, 2), Key(KernelId::kShortDecode, 0, 16));
  EXPECT_EQ(Runtime().cluster, 16u);
  EXPECT_EQ(key_of(long_one, 1), persistent);
  TestForest several;  // queries
  several.AddBranch(kNoParent, 100, 2);
  EXPECT_EQ(key_of(several, 2), persistent);
  TestForest longer;
  longer.AddBranch(kNoParent, 5000, 1);
  EXPECT_EQ(key_of(longer, 2), persistent);
  TestForest sharing;
  const int32_t root = sharing.AddNode(kNoParent, 8192);
  for (int i = 0; i < 20; ++i) sharing.AddBranch(root, 10, 1);
  EXPECT_EQ(key_of(sharing, 2), persistent);
}

TEST(PlanExecutor, SaysThatAShortStepHasAKernelOfItsOwn) {
  TestForest alone;
  alone.AddBranch(kNoParent, 100, 1);
  Session session(alone, /*device_images=*/2);
  session.Step(alone);
  EXPECT_EQ(session.executor().Explain(),
            "runs by the kernel of short decode steps: 16 clusters of 8 CTAs, each one query under one kv head at a time\n");
  EXPECT_EQ(session.executor().DumpTasks(), R"({"sms":132,"short_decode_cluster":8})");
  PlanStats stats{.state_bytes = 7, .num_contributions = 7};
  session.executor().CountCuts(&stats);
  EXPECT_EQ(stats.num_contributions, 0);
  EXPECT_EQ(stats.state_bytes, 0);
  Session persistent(alone);
  persistent.Step(alone);
  EXPECT_EQ(persistent.executor().Explain().substr(0, 11), "runs on 132");
}

// So that a captured launch has the kernel that the plan's tasks were laid out for.
TEST(PlanExecutor, TheOverlappedKernelIsPartOfTheKey) {
  static const KernelVariant variant = [] {
    KernelVariant both = kVariant;
    both.overlapped = &kOverlappedVariant;
    return both;
  }();
  TestForest hybrid;  // a chunk of a prompt beside requests
  for (int i = 0; i < 128; ++i) hybrid.AddBranch(kNoParent, 2048, 1);
  TestForest decoding = hybrid;
  hybrid.AddBranch(kNoParent, 16384, 1024);
  decoding.AddBranch(kNoParent, 16384, 1);
  for (const int32_t images : {1, 2}) {
    Session session(hybrid, images, variant);
    session.Step(decoding);
    EXPECT_EQ(session.launch_key(), Key(KernelId::kPersistent, 0));
    hybrid.version = decoding.version + 1;
    session.Step(hybrid);
    EXPECT_EQ(session.launch_key(), images == 1 ? Key(KernelId::kPersistent, 0) : Key(KernelId::kPersistentOverlapped, 1));
    session.Step(hybrid);
    EXPECT_EQ(session.launch_key(), images == 1 ? Key(KernelId::kPersistent, 0) : Key(KernelId::kPersistentOverlapped, 0));
  }
  Session without(hybrid, 2);
  without.Step(hybrid);
  EXPECT_EQ(without.launch_key(), Key(KernelId::kPersistent, 0));
}

TEST(PlanExecutor, AnUploadThatFailedIsMadeUpFor) {
  std::mt19937 rng(5);
  TestForest forest = RandomForest(rng);
  Session session(forest);
  session.Step(forest);
  for (int failing = 0; failing < 6; ++failing) {
    forest.AddBranch(kNoParent, 100 + failing, 1);
    session.FailedStep(forest, failing);
    const KernelParams params = session.Step(forest);
    ASSERT_NO_FATAL_FAILURE(session.ExpectFresh(params, forest));
    Session::ExpectLengthsAndPages(params, forest);
  }
}

// A failed upload is made up for by the first plan that needs its bytes, even if the next plan does not.
TEST(PlanExecutor, AFailedUploadIsMadeUpForAfterASmallerPlan) {
  TestForest forest;
  const int32_t root = forest.AddNode(kNoParent, 8192);
  for (int i = 0; i < 300; ++i) forest.AddBranch(root, 200, 1);
  const TestForest few = forest;
  for (int i = 0; i < 600; ++i) forest.AddBranch(root, 200, 1);
  const TestForest many = forest;
  Session session(many);
  uint64_t version = 100;
  const auto at_next_version = [&](TestForest next) {
    next.version = ++version;
    return next;
  };
  session.Step(at_next_version(few));
  session.FailedStep(at_next_version(many), 0);
  session.Step(at_next_version(few));
  const TestForest again = at_next_version(many);
  ASSERT_NO_FATAL_FAILURE(session.ExpectFresh(session.Step(again), again));
}

TEST(PlanExecutor, CopiesWhatChanged) {
  TestForest forest;
  const int32_t root = forest.AddNode(kNoParent, 8192);
  for (int i = 0; i < 500; ++i) forest.AddBranch(root, 100, 1);
  Session session(forest);
  session.Step(forest);
  const size_t all = Session::bytes_copied();
  EXPECT_GT(all, 500 * 518 * sizeof(int32_t)) << "page rows at least";
  session.Step(forest);
  constexpr size_t kLengths = 500 * sizeof(DeviceBranch) + 256;  // behind a header
  EXPECT_LE(Session::bytes_copied(), kLengths) << "nothing changed";
  forest.Grow();
  session.Step(forest);
  EXPECT_LE(Session::bytes_copied(), kLengths);
  forest.Grow(13);  // from 101 tokens of pages of 16 into the next page
  session.Step(forest);
  EXPECT_LE(Session::bytes_copied(), kLengths + 500 * sizeof(PagePatch)) << "an entry each";
  ++forest.page_indices[forest.branch_page_begin[7] + 3];
  ++forest.version;
  session.Step(forest);
  EXPECT_LE(Session::bytes_copied(), all / 4) << "a page, and the plan of longer requests";
  // The caller names the rows that changed: only those are looked at.
  PrefixForestView edited = forest.Forest();
  const int32_t changed[] = {7};
  const size_t plan_bytes = Session::bytes_copied();
  ++forest.page_indices[forest.branch_page_begin[7] + 5];
  edited = forest.Forest();
  edited.changed_since = edited.version;
  edited.version = ++forest.version;
  edited.changed_branches = changed;
  const KernelParams params = session.Step(edited);
  EXPECT_LE(Session::bytes_copied(), plan_bytes + 4096);
  Session::ExpectLengthsAndPages(params, forest);
}

// Nothing else moves: neither the requests before it, nor what the prefix has of the others.
TEST(PlanExecutor, ARequestThatComesOrGoesIsCopiedAlone) {
  TestForest forest;
  const int32_t root = forest.AddNode(kNoParent, 8192);
  for (int i = 0; i < 1000; ++i) forest.AddBranch(root, 300, 1, kRowPages);
  Session session(forest);
  session.Step(forest);
  const size_t tasks = Runtime().launches.back().header->num_stream_tasks * sizeof(Task);
  const size_t members_of_prefix = 1000 * (sizeof(DeviceMember) + 2 * sizeof(DeviceContribution)),
               kLengths = 1000 * sizeof(DeviceBranch);
  for (int change = 0; change < 4; ++change) {
    change % 2 == 0 ? forest.RemoveBranch(999) : (void)forest.AddBranch(root, 300, 1, kRowPages);
    const KernelParams params = session.Step(forest);
    ASSERT_NO_FATAL_FAILURE(session.ExpectFresh(params, forest));
    EXPECT_LT(Session::bytes_copied(), 2 * members_of_prefix + kLengths + tasks / 16);
  }
}

// The kernel for small pages gets the place of tokens: addresses, and strides in 16 bytes.
TEST(PlanExecutor, TheKernelForSmallPagesKnowsTheStrides) {
  static constexpr char kKernel = 0;
  KernelVariant variant = kVariant;
  variant.gathers = true;
  variant.function = Runtime().gather_kernel = &kKernel;
  TestForest forest(/*page_size_in=*/2);
  forest.AddBranch(kNoParent, 101, 1);
  const PlanCapacity capacity = forest.Capacity();
  const auto planner = Planner::Create(kSpec, capacity, {}, H200Traits(), ShippedMachineModel("h200", kSms).value()).value();
  const auto executor = CudaPlanExecutor::Create(0, kSms, variant, kSpec, capacity, planner->sizes(), planner->machine()).value();
  ASSERT_TRUE(planner->Update(forest.Forest()).ok());
  ASSERT_TRUE(executor->Upload(planner->View(), forest.Forest(), nullptr).ok());
  alignas(16) float memory[8];
  const BoundCudaKv kv(kSpec,
                       {.k = memory,
                        .v = memory + 4,
                        .page_stride = 1024,
                        .head_stride = 512,
                        .slot_stride = 128,
                        .num_pages = 200,
                        .page_size = 2,
                        .dtype = DType::kBF16},
                       KernelPath::kHopper, TensorMaps{});
  ASSERT_TRUE(executor->Run(kv, {.q = memory, .q_row_stride = 1024, .out = memory, .out_row_stride = 1024}, nullptr).ok());
  const GatherParams& params = Runtime().gathered;
  EXPECT_EQ(params.page_size, 2);
  EXPECT_EQ(params.page_shift, 1);
  EXPECT_EQ(params.k, reinterpret_cast<const uint8_t*>(memory));
  EXPECT_EQ(params.v, reinterpret_cast<const uint8_t*>(memory + 4));
  EXPECT_EQ(params.page_stride, 1024 * 2 / 16u);
  EXPECT_EQ(params.head_stride, 512 * 2 / 16);
  EXPECT_EQ(params.slot_stride, 128 * 2 / 16u);
  Runtime().gather_kernel = nullptr;
}

TEST(PlanExecutor, RunNeedsAnUpload) {
  TestForest forest;
  forest.AddBranch(kNoParent, 10, 1);
  const PlanCapacity capacity = forest.Capacity();
  const PlanSizes sizes = ComputePlanSizes(kSpec, capacity, H200Traits());
  const MachineModel machine = ShippedMachineModel("h200").value();
  const auto executor = CudaPlanExecutor::Create(0, kSms, kVariant, kSpec, capacity, sizes, machine).value();
  const BoundCudaKv kv(kSpec, {}, KernelPath::kHopper, TensorMaps{});
  EXPECT_EQ(executor->Run(kv, {}, nullptr).code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace coppice::attention::cuda
