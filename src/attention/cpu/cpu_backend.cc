#include "attention/cpu/cpu_backend.h"

#include <utility>

#include "attention/argument_checks.h"
#include "attention/cpu/cpu_features.h"
#include "attention/cpu/kernel_table.h"
#include "attention/cpu/kv_ops.h"
#include "attention/cpu/merge.h"
#include "attention/cpu/plan_executor.h"
#include "attention/forest.h"
#include "core/check.h"
#include "core/math.h"

namespace coppice::attention {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(Executor* executor, const cpu::TileForms& forms, MachineModel machine)
      : executor_(executor), forms_(forms), machine_(std::move(machine)) {}

  DeviceKind device() const override { return DeviceKind::kCpu; }
  const MachineModel& machine() const override { return machine_; }

  Result<BackendTraits> Traits(const AttentionSpec& spec, const PlanCapacity&) const override {
    const cpu::TileKernels kernels = cpu::SelectKernels(forms_, spec);
    return BackendTraits{
        .workers = executor_->num_workers(),
        .dense_tile_rows = kernels.dense.row_multiple,
        .dense_min_rows = kernels.dense_min_rows,
        .dense_row_unit = kernels.dense_row_unit,
        .max_item_rows = 0,  // the executor cuts rows into blocks
        .kv_tile = cpu::kKvTile,
        .native_head_dim = RoundUp(spec.head_dim, kernels.dense.dim_multiple),
    };
  }

  Result<PlanSizes> Sizes(const AttentionSpec& spec, const PlanCapacity& capacity) const override {
    COPPICE_ASSIGN_OR_RETURN(const PlanCapacity resolved, ResolveCapacity(spec, capacity));
    COPPICE_ASSIGN_OR_RETURN(const BackendTraits traits, Traits(spec, resolved));
    return ComputePlanSizes(spec, resolved, traits);
  }

  Result<std::unique_ptr<PlanExecutor>> MakeExecutor(const AttentionSpec& spec, const PlanCapacity& capacity,
                                                     const PlanSizes& sizes, const MachineModel&) override {
    return cpu::CpuPlanExecutor::Create(executor_, cpu::SelectKernels(forms_, spec), spec, capacity, sizes);
  }

  Result<std::unique_ptr<BoundKv>> BindKv(const AttentionSpec& spec, const KvLayerView& view) override {
    COPPICE_RETURN_IF_ERROR(CheckKvLayer(spec, view));
    return std::unique_ptr<BoundKv>(new cpu::BoundCpuKv(spec, view));
  }
  Status AppendKv(const AttentionSpec& spec, const KvLayerView& kv, const AppendArgs& args, Stream) override {
    return cpu::AppendKv(*executor_, spec, kv, args);
  }
  Status CopyPages(const AttentionSpec& spec, const KvLayerView& kv, std::span<const PageCopy> copies, Stream) override {
    return cpu::CopyPages(*executor_, spec, kv, copies);
  }
  Status MoveSlots(const AttentionSpec& spec, const KvLayerView& kv, std::span<const SlotMove> moves, Stream) override {
    return cpu::MoveSlots(spec, kv, moves);
  }
  Status MergeStates(const StateView& into, std::span<const StateView> from, int64_t num_rows, int32_t num_heads, int32_t head_dim,
                     DType dtype, std::span<const uint8_t> mask, Stream) override {
    return cpu::MergeStates(*executor_, into, from, num_rows, num_heads, head_dim, dtype, mask);
  }

 private:
  Executor* executor_;
  cpu::TileForms forms_;
  MachineModel machine_;
};

}  // namespace

Result<std::unique_ptr<Context>> Context::CreateCpu(Executor* executor) {
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, MakeCpuBackend(executor));
  return std::unique_ptr<Context>(std::move(backend));
}

Result<std::unique_ptr<Backend>> MakeCpuBackend(Executor* executor, const cpu::TileForms& forms) {
  if (executor == nullptr) return InvalidArgument("CreateCpu: executor is null; pass the threads that kernels may use");
  MachineModel machine;
  if (auto model = ShippedMachineModel(cpu::HostCpuModelName(), executor->num_workers()); model.ok()) machine = *std::move(model);
  return std::unique_ptr<Backend>(new CpuBackend(executor, forms, std::move(machine)));
}

Result<std::unique_ptr<Backend>> MakeCpuBackend(Executor* executor) {
  if (executor == nullptr) return MakeCpuBackend(executor, cpu::TileForms());
  return std::unique_ptr<Backend>(new CpuBackend(executor, cpu::HostTileForms(), cpu::HostMachineModel(executor->num_workers())));
}

}  // namespace coppice::attention
