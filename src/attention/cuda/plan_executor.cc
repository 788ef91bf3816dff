#include "attention/cuda/plan_executor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "attention/argument_checks.h"
#include "attention/cuda/kernel_config.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/page_patches.h"
#include "attention/cuda/short_decode.h"
#include "attention/cuda/sm80_config.h"
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

CudaPlanExecutor::CudaPlanExecutor(int device, int num_sms, const KernelVariant& variant, const AttentionSpec& spec,
                                   const PlanCapacity& capacity, const PlanSizes& sizes, const MachineModel& machine)
    : device_(device),
      num_sms_(num_sms),
      variant_(variant),
      side_variant_(variant.side != nullptr ? *variant.side : variant),
      spec_(spec),
      capacity_(capacity),
      sizes_(sizes),
      cost_(spec, TraitsOf(variant.choice(), spec, num_sms), machine),
      translator_(spec, capacity, sizes, machine.sm, TraitsOf(variant.choice(), spec, num_sms)),
      images_(capacity.device_images),
      image_(capacity.device_images - 1),
      page_rows_(capacity) {}

Result<std::unique_ptr<PlanExecutor>> CudaPlanExecutor::Create(int device, int num_sms, const KernelVariant& variant,
                                                               const AttentionSpec& spec, const PlanCapacity& capacity,
                                                               const PlanSizes& sizes, const MachineModel& machine) {
  std::unique_ptr<CudaPlanExecutor> executor(new CudaPlanExecutor(device, num_sms, variant, spec, capacity, sizes, machine));
  DeviceGuard guard(device);
  const size_t bytes = executor->translator_.layout().bytes;
  const WorkspaceLayout workspace(variant, spec, capacity, sizes, executor->translator_.layout(), num_sms);
  for (DeviceBuffer& image : executor->images_) {
    COPPICE_ASSIGN_OR_RETURN(image, DeviceBuffer::Allocate(bytes));
  }
  COPPICE_ASSIGN_OR_RETURN(executor->states_, DeviceBuffer::Allocate(workspace.states));
  COPPICE_ASSIGN_OR_RETURN(executor->tickets_, DeviceBuffer::Allocate(workspace.tickets));
  COPPICE_ASSIGN_OR_RETURN(executor->counters_, DeviceBuffer::Allocate(workspace.counters));
  COPPICE_ASSIGN_OR_RETURN(executor->folds_, DeviceBuffer::Allocate(workspace.folds));
  for (Staging& staging : executor->staging_) {
    COPPICE_ASSIGN_OR_RETURN(staging.memory,
                             PinnedBuffer::Allocate(bytes + executor->page_rows_.max_patches() * sizeof(PagePatch)));
    COPPICE_ASSIGN_OR_RETURN(staging.copied, CudaEvent::Create());
  }
  for (const KernelVariant* kernel : {&variant, &executor->side_variant_}) {
    COPPICE_RETURN_IF_ERROR(
        CudaStatus(cudaFuncSetAttribute(kernel->function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel->shared_bytes),
                   "raising the attention kernel's shared memory"));
  }
  // With one image a captured launch serves every step, which this kernel does not.
  if (capacity.device_images == 2 && variant.path == KernelPath::kHopper && num_sms >= kShortCtas) {
    executor->short_kernel_ = ShortDecodeKernel(spec, capacity.page_size, kShortCluster);
    executor->wide_short_kernel_ = ShortDecodeKernel(spec, capacity.page_size, kShortWideCluster);
  }
  int ctas_per_sm = 0;
  COPPICE_RETURN_IF_ERROR(CudaStatus(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas_per_sm, variant.function, variant.threads, variant.shared_bytes),
      "asking how many attention CTAs fit an SM"));
  executor->num_ctas_ = num_sms * std::clamp(ctas_per_sm, 1, variant.ctas_per_sm);
  executor->spread_step_ = SpreadStep(executor->num_ctas_ / 2);
  return std::unique_ptr<PlanExecutor>(std::move(executor));
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
  short_cluster_ = short_kernel_ == nullptr ? 0 : ShortDecodeCluster(spec_, plan, forest, wide_short_kernel_ != nullptr);
  uploaded_ = true;
  return OkStatus();
}

LaunchKey CudaPlanExecutor::launch_key() const {
  if (images_.size() == 1) return LaunchKeyOf(0, 0);
  const int of_tasks = &Kernel() == &variant_ ? 0 : 1, launch = short_cluster_ > 0 ? short_cluster_ : of_tasks;
  return LaunchKeyOf(static_cast<uint8_t>(image_), static_cast<uint16_t>(launch));
}

// The kernel of short steps reads lengths and page rows alone; what its clusters fold stays on chip.
void CudaPlanExecutor::CountCuts(PlanStats* stats) const {
  cuda::CountCuts(Lowered(), stats);
  if (short_cluster_ > 0) stats->num_contributions = 0, stats->state_bytes = 0;
}

std::string CudaPlanExecutor::Explain() const {
  if (short_cluster_ == 0) return ExplainTasks(Lowered());
  return "runs by the kernel of short decode steps: " + std::to_string(kShortCtas / short_cluster_) + " clusters of " +
         std::to_string(short_cluster_) + " CTAs, each one query under one kv head at a time\n";
}

std::string CudaPlanExecutor::DumpTasks() const {
  if (short_cluster_ == 0) return cuda::DumpTasks(Lowered());
  return "{\"sms\":" + std::to_string(num_sms_) + ",\"short_decode_cluster\":" + std::to_string(short_cluster_) + "}";
}

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
  if (short_cluster_ > 0) return LaunchShort(params, kv.view(), static_cast<cudaStream_t>(stream));
  return variant_.path == KernelPath::kHopper ? LaunchHopper(params, *bound, static_cast<cudaStream_t>(stream))
                                              : LaunchMmaSync(params, kv.view(), static_cast<cudaStream_t>(stream));
}

KernelParams CudaPlanExecutor::MakeParams(const KvLayerView& view, const RunArgs& args) const {
  const PlanLayout& layout = translator_.layout();
  const std::byte* plan = images_[image_].data();
  const float scale =
      (spec_.sm_scale != 0.0f ? spec_.sm_scale : 1.0f / std::sqrt(static_cast<float>(spec_.head_dim))) * view.k_scale;
  float* states = reinterpret_cast<float*>(states_.data());
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
      .tickets = reinterpret_cast<int32_t*>(tickets_.data()),
      .counters = reinterpret_cast<QueueCounters*>(counters_.data()),
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

Status CudaPlanExecutor::LaunchHopper(KernelParams params, const BoundCudaKv& kv, cudaStream_t stream) const {
  const TensorMaps& maps = kv.maps();
  const KvLayerView& view = kv.view();
  params.box_tokens = maps.box_tokens;
  params.box_shift = std::countr_zero(static_cast<uint32_t>(maps.box_tokens));
  params.units_per_page = maps.units_per_page;
  params.units_per_head = maps.units_per_head;
  params.split_boxes = maps.split_boxes;
  // The fast mode's kernels take no more than its base.
  DeterministicParams all{params, reinterpret_cast<float*>(folds_.data())};
  GatherParams gathered{params,
                        static_cast<const uint8_t*>(view.k),
                        static_cast<const uint8_t*>(view.v),
                        view.head_stride / kGatherUnit,
                        static_cast<uint32_t>(view.page_stride / kGatherUnit),
                        static_cast<uint32_t>(view.slot_stride / kGatherUnit)};
  void* arguments[] = {variant_.gathers ? static_cast<void*>(&gathered) : &all, const_cast<CUtensorMap*>(&maps.k),
                       const_cast<CUtensorMap*>(&maps.v)};
  // It may start while the kernel before it ends, for whose results it waits.
  cudaLaunchAttribute overlaps{};
  overlaps.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlaps.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(num_ctas_);
  const KernelVariant& kernel = Kernel();
  config.blockDim = dim3(kernel.threads);
  config.dynamicSmemBytes = kernel.shared_bytes;
  config.stream = stream;
  config.attrs = &overlaps;
  config.numAttrs = 1;
  return CudaStatus(cudaLaunchKernelExC(&config, kernel.function, arguments), "launching the attention kernel");
}

Status CudaPlanExecutor::LaunchShort(const KernelParams& params, const KvLayerView& view, cudaStream_t stream) const {
  ShortDecodeParams all{.plan = params,
                        .k = view.k,
                        .v = view.v,
                        .page_stride = view.page_stride,
                        .head_stride = view.head_stride,
                        .slot_stride = view.slot_stride};
  void* arguments[] = {&all};
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;  // as LaunchHopper
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(short_cluster_), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kShortCtas);
  config.blockDim = dim3(kShortThreads);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return CudaStatus(
      cudaLaunchKernelExC(&config, short_cluster_ == kShortWideCluster ? wide_short_kernel_ : short_kernel_, arguments),
      "launching the attention kernel of short decode steps");
}

Status CudaPlanExecutor::LaunchMmaSync(const KernelParams& params, const KvLayerView& view, cudaStream_t stream) const {
  Sm80Params all{.plan = params,
                 .k = view.k,
                 .v = view.v,
                 .page_stride = view.page_stride,
                 .head_stride = view.head_stride,
                 .slot_stride = view.slot_stride,
                 .folds = reinterpret_cast<float*>(folds_.data())};
  void* arguments[] = {&all};
  return CudaStatus(
      cudaLaunchKernel(variant_.function, dim3(num_ctas_), dim3(variant_.threads), arguments, variant_.shared_bytes, stream),
      "launching the attention kernel");
}

}  // namespace coppice::attention::cuda
