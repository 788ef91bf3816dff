// plan_digest [--machine NAME|FILE] [--forests n] [--cells]: one line for each plan of the measured shapes and batches and of
// random forests, with a digest of what runs: two builds that print the same plan the same. Times are those predicted for the share
// decision, as cut for the GPU (in brackets) and on a CPU. For changes of the planner and of lowerings that are to change no plan.
// Host code.
//   --cells   for each measured shape whether it shares, and what is predicted, in place of digests
// Layer: attention_tools.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/cuda/lower/kernel_choice.h"
#include "attention/cuda/lower/plan_translator.h"
#include "attention/cuda/lower/predicted_step.h"
#include "attention/plan.h"
#include "attention/testing/plan_test_forest.h"
#include "attention_tools/attention_cases.h"
#include "attention_tools/case_forest.h"
#include "attention_tools/pod_batches.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

constexpr int32_t kPageSize = 16;

// FNV-1a over numbers.
class Digest {
 public:
  void Add(int64_t value) {
    for (int i = 0; i < 8; ++i) hash_ = (hash_ ^ (static_cast<uint64_t>(value) >> (8 * i) & 0xff)) * 0x100000001b3u;
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

// The work of a plan in the order of its queues, wherever its parts lie: `work`; and as it lies: `all`.
struct PlanDigests {
  uint64_t work, all;
};
PlanDigests Of(const PlanView& plan) {
  Digest work, all;
  for (const auto queue : {plan.compute_queue, plan.bandwidth_queue}) {
    work.Add(std::ssize(queue));
    for (const int32_t id : queue) {
      const WorkItem& item = plan.items[id];
      for (const int64_t value :
           {int64_t{static_cast<uint8_t>(item.kind)}, int64_t{item.flags}, int64_t{item.heads_per_task}, int64_t{item.page_row},
            int64_t{item.kv_begin}, int64_t{item.kv_end}, int64_t{item.member_count}, int64_t{item.state_begin < 0}}) {
        work.Add(value);
      }
      for (const int64_t value : {id, item.member_begin, item.state_begin, static_cast<int32_t>(item.predicted_ns)}) all.Add(value);
      for (const int32_t set : plan.members.subspan(item.member_begin, item.member_count)) {
        const MergeSet& s = plan.merge_sets[set];
        for (const int64_t value : {s.branch, s.query_begin, s.query_count, s.contribution_count}) work.Add(value);
        all.Add(set), all.Add(s.contribution_begin);
        for (const Contribution& c : plan.contributions.subspan(s.contribution_begin, s.contribution_count)) {
          all.Add(c.item), all.Add(c.state_begin), all.Add(c.head_stride);
          work.Add(plan.items[c.item].kv_begin);
        }
      }
    }
  }
  all.Add(static_cast<int64_t>(work.hash()));
  return {work.hash(), all.hash()};
}

// The same of an image.
PlanDigests Of(const cuda::PlanTranslator& translator, std::byte* image) {
  const cuda::PlanLayout& layout = translator.layout();
  Digest work, all;
  const cuda::PlanHeader& header = translator.header();
  for (const int64_t value : {int64_t{header.dense_ctas}, int64_t{header.cooperative}, int64_t{header.overlapped}}) work.Add(value);
  const auto* members = cuda::At<cuda::DeviceMember>(image, layout.members);
  const auto* contributions = cuda::At<cuda::DeviceContribution>(image, layout.contributions);
  const auto add = [&](const cuda::Task* tasks, int64_t count) {
    work.Add(count);
    for (const cuda::Task& task : std::span(tasks, static_cast<size_t>(count))) {
      const cuda::DeviceItem& item = task.item;
      for (const int64_t value :
           {int64_t{item.kv_begin}, int64_t{item.kv_end}, int64_t{item.page_begin}, int64_t{item.branch},
            int64_t{item.member_count}, int64_t{item.rows}, int64_t{item.dense}, int64_t{item.read_once}, int64_t{item.masked},
            int64_t{item.rows_per_member}, int64_t{item.head_begin}, int64_t{item.head_count}}) {
        work.Add(value);
      }
      all.Add(item.member_begin);
      COPPICE_CHECK(std::memcmp(&task.first, members + item.member_begin, sizeof(task.first)) == 0);
      for (const cuda::DeviceMember& member : std::span(members + item.member_begin, item.member_count)) {
        for (const int64_t value :
             {int64_t{member.branch}, int64_t{member.query_begin}, int64_t{member.contribution_count}, int64_t{member.query_count},
              int64_t{member.row_begin}, int64_t{member.arrivals}, int64_t{member.state_begin == cuda::kDirect}}) {
          work.Add(value);
        }
        for (const int64_t value : {member.set, member.state_begin, member.head_stride, member.contribution_begin}) all.Add(value);
        if (member.contribution_count == 1) continue;
        for (const cuda::DeviceContribution& c : std::span(contributions + member.contribution_begin, member.contribution_count)) {
          work.Add(c.begins_superblock);
          all.Add(c.state_begin), all.Add(c.head_stride);
        }
      }
    }
  };
  add(cuda::At<cuda::Task>(image, layout.dense_tasks), translator.num_dense_tasks());
  add(cuda::At<cuda::Task>(image, layout.stream_tasks), translator.num_stream_tasks());
  all.Add(static_cast<int64_t>(work.hash()));
  return {work.hash(), all.hash()};
}

template <class T>
T Take(Result<T> result) {
  COPPICE_CHECK(result.ok());
  return std::move(result).value();
}

// A planner and its plan on a GPU of so many SMs.
class OnGpu {
 public:
  OnGpu(const AttentionSpec& spec, const PlanCapacity& capacity, const PlannerOptions& options, const MachineModel& machine,
        int sms)
      : kernel_(Take(cuda::ChooseKernel(CudaKernels::kAuto, 9, 0, spec, capacity.page_size))),
        planner_(Take(Planner::Create(spec, capacity, options, cuda::TraitsOf(kernel_, spec, sms), machine))),
        translator_(spec, planner_->capacity(), planner_->sizes(), machine.sm, planner_->traits()),
        cost_(spec, planner_->traits(), machine),
        image_(translator_.layout().bytes / 64 + 2) {}

  void Update(const PrefixForestView& forest) {
    COPPICE_CHECK(planner_->Update(forest).ok());
    plan_ = planner_->View();
    translator_.TranslatePlan(plan_, forest);
    translator_.WriteImage(image());
    translator_.TranslateLengths(forest, image());
  }
  // At other lengths.
  void Relower(std::span<const int32_t> lengths) {
    PrefixForestView forest = planner_->forest();
    forest.branch_kv_len = lengths;
    translator_.TranslatePlan(plan_, forest);
  }
  const Planner& planner() const { return *planner_; }
  const cuda::PlanTranslator& translator() const { return translator_; }
  PlanDigests Digests() { return Of(translator_, image()); }
  double PredictNs() const { return cuda::PredictStepNs({.translator = translator_, .plan = plan_, .cost = cost_}); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::byte* image() { return image_.front().bytes; }

  cuda::KernelChoice kernel_;
  std::unique_ptr<Planner> planner_;
  cuda::PlanTranslator translator_;
  CostModel cost_;
  PlanView plan_;
  std::vector<Line> image_;
};

void PrintCases(const MachineModel& machine, bool cells) {
  std::vector<AttentionCase> cases = HopperCases();
  for (AttentionCase& c : SweepCases()) cases.push_back(std::move(c));
  for (const AttentionCase& c : cases) {
    if (!c.chunks.empty()) continue;  // PrintHybridBatches
    OwnedForest forest;
    AddUniformTree({.levels = c.Levels(), .queries = c.queries, .page_size = kPageSize}, forest);
    OnGpu tree(c.Spec(), forest.Capacity(), {}, machine, machine.sm.num_sms);
    tree.Update(forest.Forest());
    if (!cells) {
      const PlanDigests d = tree.Digests(), p = Of(tree.planner().View());
      std::printf("%s: image %016lx %016lx plan %016lx %016lx\n", c.name.c_str(), d.work, d.all, p.work, p.all);
      continue;
    }
    OnGpu store(c.Spec(), forest.Capacity(), {.policy = SharePolicy::kStore}, machine, machine.sm.num_sms);
    OnGpu all(c.Spec(), forest.Capacity(), {.force_sharing = true}, machine, machine.sm.num_sms);
    store.Update(forest.Forest());
    all.Update(forest.Forest());
    const PlanStats stats = tree.planner().Stats();
    const PlanDigests a = Of(tree.planner().View()), b = Of(store.planner().View());
    const auto typical = [](OnGpu& plan) {
      std::vector<int32_t> lengths(plan.planner().forest().branch_kv_len.size());
      for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = plan.planner().TypicalLength(static_cast<int32_t>(i));
      plan.Relower(lengths);
      return plan.PredictNs();
    };
    const int32_t ctas = tree.translator().header().dense_ctas;
    const bool cooperative = tree.translator().cooperative(), overlapped = tree.translator().overlapped();
    const double now[] = {tree.PredictNs(), store.PredictNs(), all.PredictNs()};
    std::printf("%s: same %d%d shares %d, plan %.2f (as cut %.2f) store %.2f (%.2f) all %.2f (%.2f)%s typical %.2f %.2f ctas %d\n",
                c.name.c_str(), a.work == b.work, a.all == b.all, stats.shared_nodes > 0, stats.predicted_ns / 1e3, now[0] / 1e3,
                store.planner().Stats().predicted_ns / 1e3, now[1] / 1e3, all.planner().Stats().predicted_ns / 1e3, now[2] / 1e3,
                cooperative  ? " cooperative"
                : overlapped ? " overlapped"
                             : "",
                typical(store) / 1e3, typical(all) / 1e3, ctas);
  }
}

// H1 to H5 and the batches of POD-Attention's figure 11 on a GPU of an H200's memory.
void PrintHybridBatches(const MachineModel& machine) {
  const auto print = [&](const std::string& name, const AttentionSpec& spec, const PlanCapacity& capacity,
                         const PrefixForestView& forest) {
    OnGpu plan(spec, capacity, {}, machine, machine.sm.num_sms);
    plan.Update(forest);
    const PlanDigests d = plan.Digests();
    std::printf("%s: image %016lx %016lx\n", name.c_str(), d.work, d.all);
  };
  for (const AttentionCase& c : HopperCases()) {
    if (c.chunks.empty()) continue;
    const CaseForest forest(c, kPageSize);
    print(c.name, c.Spec(),
          {.max_branches = static_cast<int32_t>(forest.branch_node.size()),
           .max_queries = forest.num_queries(),
           .max_page_slots = static_cast<int32_t>(forest.pages.size()),
           .page_size = kPageSize},
          forest.view);
  }
  for (const PodBatch& batch : PodBatches("sweep", 141e9)) {
    const OwnedForest forest = PodForest(batch, PodPart::kBoth, kPageSize);
    print("pod " + std::string(batch.model->name) + "/" + std::to_string(batch.gpus) + " chunk " + std::to_string(batch.chunk) +
              " of " + std::to_string(batch.prompt) + " + " + std::to_string(batch.requests) + "x" + std::to_string(batch.context),
          batch.Spec(), forest.Capacity(), forest.Forest());
  }
}

void PrintForests(const MachineModel& gpu, uint32_t count) {
  constexpr std::pair<int32_t, int32_t> kHeads[] = {{8, 2}, {32, 8}, {4, 4}, {8, 1}, {64, 1}, {128, 1}, {9, 3}};
  for (uint32_t seed = 0; seed < count; ++seed) {
    std::mt19937 rng(seed);
    testing::TestForest forest = testing::RandomForest(rng, seed % 5 == 0 ? 9000 : 700);
    const auto [qo, kv] = kHeads[rng() % std::size(kHeads)];
    AttentionSpec spec{
        .num_qo_heads = qo, .num_kv_heads = kv, .head_dim = rng() % 2 == 0 ? 128 : 64, .deterministic = rng() % 4 == 0};
    if (rng() % 6 == 0) spec.window = 100;
    const PlannerOptions options{.policy = static_cast<SharePolicy>(rng() % 3), .force_sharing = rng() % 3 == 0};
    OnGpu on_gpu(spec, forest.Capacity(), options, gpu, seed % 3 == 0 ? 5 : 132);
    const bool few = seed % 2 == 0;
    const BackendTraits cpu{.workers = few ? 2 : 32, .dense_tile_rows = 64, .dense_min_rows = 8, .kv_tile = 64};
    const auto on_cpu =
        Take(Planner::Create(spec, forest.Capacity(), options, cpu, Take(ShippedMachineModel(few ? "zen5" : "zen3", cpu.workers))));
    std::printf("forest %u:", seed);
    for (int step = 0; step < 3; ++step) {
      on_gpu.Update(forest.Forest());
      COPPICE_CHECK(on_cpu->Update(forest.Forest()).ok());
      const PlanDigests g = on_gpu.Digests(), c = Of(on_cpu->View());
      std::printf(" image %016lx %016lx cpu %016lx %016lx ns %.3f (%.3f) %.3f", g.work, g.all, c.work, c.all,
                  on_gpu.planner().Stats().predicted_ns, on_gpu.PredictNs(), on_cpu->Stats().predicted_ns);
      if (step == 0) {
        forest.Grow(7);
      } else {
        const auto b = static_cast<int32_t>(rng() % forest.branch_node.size());
        forest.branch_query_count[b] = 0;
        ++forest.version;
        forest.LayOutQueries();
      }
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace coppice::attention

int main(int argc, char** argv) {
  using namespace coppice::attention;
  std::string machine = "h200";
  uint32_t forests = 2000;
  bool cells = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--cells") cells = true;
    if (arg == "--machine" && i + 1 < argc) machine = argv[++i];
    if (arg == "--forests" && i + 1 < argc) forests = static_cast<uint32_t>(std::stoul(argv[++i]));
  }
  const auto model = machine.find('/') == std::string::npos ? ShippedMachineModel(machine) : LoadMachineModel(machine);
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
    return 1;
  }
  PrintCases(*model, cells);
  if (cells) return 0;
  PrintHybridBatches(*model);
  PrintForests(*model, forests);
  return 0;
}
