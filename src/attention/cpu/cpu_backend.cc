#include "attention/cpu/cpu_backend.h"

#include <algorithm>
#include <string>

#include "attention/cpu/cpu_features.h"
#include "attention/cpu/kernel_table.h"
#include "attention/cpu/kv_ops.h"
#include "attention/cpu/merge.h"
#include "attention/cpu/plan_executor.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

class BoundCpuKv final : public BoundKv {
 public:
  explicit BoundCpuKv(const KvLayerView& view) : BoundKv(view) {}
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(Executor* executor) : executor_(executor) {
    machine_.name = "cpu";
    const double workers = executor->num_workers();
    machine_.read_bytes_per_s = 15e9 * workers;
    machine_.cache_bytes_per_s = 40e9 * workers;
    machine_.dense_flops_per_s = 20e9 * workers;
    machine_.stream_flops_per_s = 20e9 * workers;
    machine_.item_fixed_ns = 300;
    machine_.state_bytes_per_s = 20e9 * workers;
    machine_.merge_fixed_ns = 200;
  }

  DeviceKind device() const override { return DeviceKind::kCpu; }
  const MachineModel& machine() const override { return machine_; }

  Result<BackendTraits> Traits(const AttentionSpec& spec, const PlanCapacity&) const override {
    return BackendTraits{
        .workers = executor_->num_workers(),
        .dense_tile_rows = 32,
        .dense_min_rows = 8,
        .max_item_rows = 0,  // the executor cuts rows into blocks
        .kv_tile = cpu::kKvTile,
        .native_head_dim = spec.head_dim,
    };
  }

  Result<PlanSizes> Sizes(const AttentionSpec& spec, const PlanCapacity& capacity) const override {
    PlanSizes sizes;
    const int32_t set_queries = std::max(1, 64 / spec.group_size());
    sizes.max_merge_sets = capacity.max_branches + capacity.max_queries / set_queries;
    sizes.max_items = 4 * sizes.max_merge_sets;
    sizes.max_members = sizes.max_contributions = 8 * sizes.max_merge_sets;
    sizes.max_states = 8 * capacity.max_queries * spec.num_qo_heads;
    sizes.workspace_bytes = size_t(sizes.max_states) * (spec.head_dim + 2) * sizeof(float);
    return sizes;
  }

  Result<std::unique_ptr<PlanExecutor>> MakeExecutor(const AttentionSpec& spec, const PlanCapacity& capacity,
                                                     const PlanSizes& sizes) override {
    return cpu::CpuPlanExecutor::Create(executor_, cpu::SelectKernels(isa_, spec), spec, capacity, sizes);
  }

  Result<std::unique_ptr<BoundKv>> BindKv(const AttentionSpec& spec, const KvLayerView& view) override {
    COPPICE_RETURN_IF_ERROR(cpu::CheckKvLayer(spec, view));
    return std::unique_ptr<BoundKv>(new BoundCpuKv(view));
  }
  Status AppendKv(const AttentionSpec& spec, const KvLayerView& kv, const AppendArgs& args, Stream) override {
    return cpu::AppendKv(*executor_, spec, kv, args);
  }
  Status CopyPages(const AttentionSpec& spec, const KvLayerView& kv, std::span<const PageCopy> copies, Stream) override {
    return cpu::CopyPages(*executor_, spec, kv, copies);
  }
  Status MergeStates(const StateView& into, std::span<const StateView> from, int64_t num_rows, int32_t num_heads, int32_t head_dim,
                     DType dtype, std::span<const uint8_t> mask, Stream) override {
    return cpu::MergeStates(*executor_, into, from, num_rows, num_heads, head_dim, dtype, mask);
  }

 private:
  Executor* executor_;
  cpu::Isa isa_ = cpu::DetectIsa();
  MachineModel machine_;
};

}  // namespace

Result<std::unique_ptr<Backend>> MakeCpuBackend(Executor* executor) {
  if (executor == nullptr) return InvalidArgument("CreateCpu: executor is null; pass the threads that kernels may use");
  return std::unique_ptr<Backend>(new CpuBackend(executor));
}

}  // namespace coppice::attention
