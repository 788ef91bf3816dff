#include "attention/cuda/plan_executor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "attention/argument_checks.h"
#include "attention/cuda/kernel_config.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernels/hopper.h"
#include "attention/cuda/kernels/mma_sync.h"
#include "attention/cuda/kernels/short_decode.h"
#include "attention/cuda/page_patches.h"
#include "attention/launch_key.h"
#include "attention/plan_units.h"
#include "core/check.h"

namespace coppice::attention::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

}  // namespace

WorkspaceLayout::WorkspaceLayout(const KernelVariant& variant, const AttentionSpec& spec, const PlanCapacity& capacity,
                                 const PlanSizes& sizes, const PlanLayout& plan, int num_sms)
    : states(static_cast<size_t>(plan.max_states) * (variant.head_dim + 2) * sizeof(float)),
      tickets(std::max(static_cast<size_t>(sizes.max_merge_sets) * spec.num_kv_heads,
                       static_cast<size_t>(capacity.max_queries) * spec.num_qo_heads) *
              sizeof(int32_t)),
      counters(sizeof(QueueCounters)),
      folds(spec.deterministic ? static_cast<size_t>(num_sms) * variant.ctas_per_sm * variant.fold_bytes_per_cta : 0) {}

CudaPlanExecutor::CudaPlanExecutor(int device, const KernelVariant& variant, const BackendTraits& traits, const AttentionSpec& spec,
                                   const PlanCapacity& capacity, const PlanSizes& sizes, const MachineModel& machine)
    : device_(device),
      variant_(variant),
      traits_(traits),
      spec_(spec),
      capacity_(capacity),
      cost_(spec, traits, machine),
      translator_(spec, capacity, sizes, machine.sm, traits),
      images_(capacity.device_images),
      image_(capacity.device_images - 1),
      page_rows_(capacity) {}

Result<std::unique_ptr<PlanExecutor>> CudaPlanExecutor::Create(int device, int num_sms, const KernelVariant& variant,
                                                               const AttentionSpec& spec, const PlanCapacity& capacity,
                                                               const PlanSizes& sizes, const MachineModel& machine) {
  DeviceGuard guard(device);
  const ShortDecodeFunctions short_decode = ShortDecodeFunctionsOf(variant.path, spec, capacity, num_sms);
  const BackendTraits traits = WithShortSteps(TraitsOf(variant.choice(), spec, num_sms), short_decode);
  std::unique_ptr<CudaPlanExecutor> executor(new CudaPlanExecutor(device, variant, traits, spec, capacity, sizes, machine));
  const size_t bytes = executor->translator_.layout().bytes;
  const WorkspaceLayout layout(variant, spec, capacity, sizes, executor->translator_.layout(), num_sms);
  for (DeviceBuffer& image : executor->images_) {
    COPPICE_ASSIGN_OR_RETURN(image, DeviceBuffer::Allocate(bytes));
  }
  Workspace& workspace = executor->workspace_;
  COPPICE_ASSIGN_OR_RETURN(workspace.states, DeviceBuffer::Allocate(layout.states));
  COPPICE_ASSIGN_OR_RETURN(workspace.tickets, DeviceBuffer::Allocate(layout.tickets));
  COPPICE_ASSIGN_OR_RETURN(workspace.counters, DeviceBuffer::Allocate(layout.counters));
  COPPICE_ASSIGN_OR_RETURN(workspace.folds, DeviceBuffer::Allocate(layout.folds));
  for (Staging& staging : executor->staging_) {
    COPPICE_ASSIGN_OR_RETURN(staging.memory,
                             PinnedBuffer::Allocate(bytes + executor->page_rows_.max_patches() * sizeof(PagePatch)));
    COPPICE_ASSIGN_OR_RETURN(staging.copied, CudaEvent::Create());
  }
  COPPICE_RETURN_IF_ERROR(executor->MakeKernels(num_sms, short_decode, machine.short_decode));
  return std::unique_ptr<PlanExecutor>(std::move(executor));
}

// A grid is constant, so that a captured launch serves every plan.
Status CudaPlanExecutor::MakeKernels(int num_sms, const ShortDecodeFunctions& short_decode, const ShortDecodeRates& rates) {
  COPPICE_RETURN_IF_ERROR(AllowSharedMemory(variant_));
  if (variant_.overlapped != nullptr) COPPICE_RETURN_IF_ERROR(AllowSharedMemory(*variant_.overlapped));
  int ctas_per_sm = 0;
  COPPICE_RETURN_IF_ERROR(CudaStatus(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas_per_sm, variant_.function, variant_.threads, variant_.shared_bytes),
      "asking how many attention CTAs fit an SM"));
  const int num_ctas = num_sms * std::clamp(ctas_per_sm, 1, variant_.ctas_per_sm);
  spread_step_ = SpreadStep(num_ctas / 2);
  float* const folds = reinterpret_cast<float*>(workspace_.folds.data());
  const auto kernel = [&](KernelId id) -> std::unique_ptr<Kernel>& { return kernels_[static_cast<size_t>(id)]; };
  if (variant_.path == KernelPath::kMmaSync) {
    kernel(KernelId::kMmaSync) = std::make_unique<MmaSyncKernel>(variant_, num_ctas, folds);
    return OkStatus();
  }
  kernel(KernelId::kPersistent) = std::make_unique<HopperKernel>(variant_, num_ctas, folds);
  if (variant_.overlapped != nullptr) {
    kernel(KernelId::kPersistentOverlapped) = std::make_unique<HopperKernel>(*variant_.overlapped, num_ctas, folds);
  }
  kernel(KernelId::kShortDecode) = std::make_unique<ShortDecodeKernel>(short_decode, rates);
  return OkStatus();
}

Status CudaPlanExecutor::Upload(const PlanView& plan, const PrefixForestView& forest, Stream stream) {
  if (std::ssize(forest.branch_kv_len) > capacity_.max_branches || std::ssize(forest.page_indices) > capacity_.max_page_slots ||
      std::ssize(forest.query_tree_mask) > capacity_.max_queries) {
    return ResourceExhausted("CUDA plan: the forest has " + std::to_string(forest.branch_kv_len.size()) + " branches and " +
                             std::to_string(forest.page_indices.size()) + " page slots; the capacity is " +
                             std::to_string(capacity_.max_branches) + " and " + std::to_string(capacity_.max_page_slots));
  }
  uploaded_ = false;  // until all of it is under way
  const auto to = static_cast<cudaStream_t>(stream);
  DeviceGuard guard(device_);
  Staging& staging = staging_[next_staging_];
  next_staging_ = (next_staging_ + 1) % kStagingBuffers;
  COPPICE_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(staging.copied.get()), "waiting for an earlier upload"));
  if (plan.revision == 0 || plan.revision != revision_) translator_.TranslatePlan(plan, forest);
  revision_ = plan.revision;
  page_rows_.FindChanges(forest);
  image_ = (image_ + 1) % static_cast<int32_t>(images_.size());
  if (const Status copied = CopyImage(forest, staging, to); !copied.ok()) {
    translator_.Forget(image_);
    page_rows_.Forget(image_);
    return copied;
  }
  plan_view_ = plan;
  choice_ =
      ChooseLaunch({.path = variant_.path, .has_overlap = variant_.overlapped != nullptr, .traits = traits_}, Lowered(), forest);
  uploaded_ = true;
  return OkStatus();
}

// Each persistent kernel computes any plan, so that with one image a captured graph may hold either.
LaunchKey CudaPlanExecutor::launch_key() const {
  if (images_.size() == 1) return LaunchKeyOf(0, 0);
  return LaunchKeyOf(static_cast<uint8_t>(image_), choice_.number());
}

void CudaPlanExecutor::CountCuts(PlanStats* stats) const { kernel().Count(choice_, Lowered(), stats); }
std::string CudaPlanExecutor::Explain() const { return kernel().Explain(choice_, Lowered()); }
std::string CudaPlanExecutor::DumpTasks() const { return kernel().Dump(choice_, Lowered()); }

Status CudaPlanExecutor::CopyImage(const PrefixForestView& forest, Staging& staging, cudaStream_t stream) {
  std::byte* image = staging.memory.data();
  COPPICE_RETURN_IF_ERROR(CopyPlan(image, stream));
  COPPICE_RETURN_IF_ERROR(CopyLengths(forest, image, stream));
  COPPICE_RETURN_IF_ERROR(CopyPages(forest, image, stream));
  return CudaStatus(cudaEventRecord(staging.copied.get(), stream), "recording an upload");
}

Status CudaPlanExecutor::CopyPlan(std::byte* image, cudaStream_t stream) {
  translator_.WriteImage(image, image_);
  for (const ByteRange& range : translator_.changes()) {
    COPPICE_RETURN_IF_ERROR(Copy(image, range.begin, range.size(), stream));
  }
  return OkStatus();
}

// Header and branches lie together.
Status CudaPlanExecutor::CopyLengths(const PrefixForestView& forest, std::byte* image, cudaStream_t stream) {
  const PlanLayout& layout = translator_.layout();
  translator_.TranslateLengths(forest, image);
  const size_t end = layout.branches + forest.branch_kv_len.size() * sizeof(DeviceBranch);
  COPPICE_RETURN_IF_ERROR(Copy(image, layout.header, end - layout.header, stream));
  return Copy(image, layout.tree_mask, forest.query_tree_mask.size_bytes(), stream);
}

Status CudaPlanExecutor::CopyPages(const PrefixForestView& forest, std::byte* image, cudaStream_t stream) {
  const size_t base = translator_.layout().page_indices;
  page_rows_.Take(forest, image_);
  for (const PageRun& run : page_rows_.runs()) {
    const std::span<const int32_t> entries = page_rows_.PagesOf(run);
    const size_t offset = base + run.begin * sizeof(int32_t);
    std::memcpy(image + offset, entries.data(), entries.size_bytes());
    COPPICE_RETURN_IF_ERROR(Copy(image, offset, entries.size_bytes(), stream));
  }
  if (page_rows_.patches().empty()) return OkStatus();
  const auto patches = page_rows_.patches();
  auto* staged = reinterpret_cast<PagePatch*>(image + translator_.layout().bytes);
  std::ranges::copy(patches, staged);
  auto* entries = reinterpret_cast<int32_t*>(images_[image_].data() + base);
  auto count = static_cast<int32_t>(patches.size());
  void* arguments[] = {&entries, &staged, &count};
  const dim3 blocks(static_cast<uint32_t>(CeilDiv(count, kPatchThreads)));
  return CudaStatus(cudaLaunchKernel(PatchPagesKernel(), blocks, dim3(kPatchThreads), arguments, 0, stream),
                    "writing page entries of a plan");
}

Status CudaPlanExecutor::Copy(const std::byte* image, size_t offset, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return OkStatus();
  return CudaStatus(cudaMemcpyAsync(images_[image_].data() + offset, image + offset, bytes, cudaMemcpyHostToDevice, stream),
                    "copying a plan");
}

Status CudaPlanExecutor::Run(const BoundKv& kv, const RunArgs& args, Stream stream) {
  if (!uploaded_) return FailedPrecondition("AttentionPlan::Run before Upload: call Update and Upload first");
  const auto* bound = dynamic_cast<const BoundCudaKv*>(&kv);
  if (bound == nullptr) return InvalidArgument("Run: the KV was bound by another backend; bind it with this plan's context");
  COPPICE_RETURN_IF_ERROR(CheckRun(spec_, capacity_.page_size, capacity_.max_queries, kv, args));
  if (reinterpret_cast<uintptr_t>(args.q) % 16 != 0 || reinterpret_cast<uintptr_t>(args.out) % 16 != 0 ||
      args.q_row_stride % 8 != 0 || args.out_row_stride % 8 != 0) {
    return InvalidArgument("Run: q, out and their row strides must be multiples of 16 bytes; row strides are " +
                           std::to_string(args.q_row_stride) + " and " + std::to_string(args.out_row_stride) + " elements");
  }
  if (bound->path() != variant_.path) {  // a spec that other kernels serve
    return InvalidArgument("Run: the KV was bound for other kernels than the plan's; bind it with the plan's spec");
  }
  const KernelParams params = MakeParams(kv.view(), args);
  DeviceGuard guard(device_);
  return kernel().Launch(choice_, params, *bound, static_cast<cudaStream_t>(stream));
}

KernelParams CudaPlanExecutor::MakeParams(const KvLayerView& view, const RunArgs& args) const {
  const PlanLayout& layout = translator_.layout();
  const std::byte* plan = images_[image_].data();
  const float scale =
      (spec_.sm_scale != 0.0f ? spec_.sm_scale : 1.0f / std::sqrt(static_cast<float>(spec_.head_dim))) * view.k_scale;
  float* states = reinterpret_cast<float*>(workspace_.states.data());
  return {
      .header = reinterpret_cast<const PlanHeader*>(plan + layout.header),
      .dense_tasks = reinterpret_cast<const Task*>(plan + layout.dense_tasks),
      .stream_tasks = reinterpret_cast<const Task*>(plan + layout.stream_tasks),
      .members = reinterpret_cast<const DeviceMember*>(plan + layout.members),
      .contributions = reinterpret_cast<const DeviceContribution*>(plan + layout.contributions),
      .branches = reinterpret_cast<const DeviceBranch*>(plan + layout.branches),
      .page_indices = reinterpret_cast<const int32_t*>(plan + layout.page_indices),
      .tree_mask = reinterpret_cast<const uint64_t*>(plan + layout.tree_mask),
      .num_page_slots = capacity_.max_page_slots,
      .state_acc = states,
      .state_ml = reinterpret_cast<float2*>(states + layout.max_states * variant_.head_dim),
      .tickets = reinterpret_cast<int32_t*>(workspace_.tickets.data()),
      .counters = reinterpret_cast<QueueCounters*>(workspace_.counters.data()),
      .q = args.q,
      .out = args.out,
      .lse = args.lse,
      .q_row_stride = args.q_row_stride,
      .out_row_stride = args.out_row_stride,
      .spread_step = spread_step_,
      .num_kv_heads = spec_.num_kv_heads,
      .group_size = spec_.group_size(),
      .head_dim = spec_.head_dim,
      .page_shift = std::countr_zero(static_cast<uint32_t>(view.page_size)),
      .page_size = view.page_size,
      .window = spec_.window,
      .score_scale_log2 = spec_.soft_cap > 0.0f ? spec_.soft_cap * kLog2E : scale * kLog2E,
      .cap_in = spec_.soft_cap > 0.0f ? scale / spec_.soft_cap : 0.0f,
      .value_scale = view.v_scale,
  };
}

}  // namespace coppice::attention::cuda
