// AttentionPlan: a Planner on the host and a backend's PlanExecutor behind the public interface. Layer: attention.
#include <new>
#include <utility>

#include "attention/backend.h"
#include "attention/kind_order.h"
#include "attention/plan.h"
#include "attention/plan_io.h"
#include "attention/shared_reads.h"
#include "attention/split_plan.h"
#include "attention/work_list.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

class BackendPlan final : public InspectablePlan {
 public:
  BackendPlan(DeviceKind device, std::unique_ptr<Planner> planner, std::unique_ptr<PlanExecutor> executor)
      : device_(device), planner_(std::move(planner)), executor_(std::move(executor)) {}

  Status Update(const PrefixForestView& forest) override {
    COPPICE_RETURN_IF_ERROR(planner_->Update(forest));
    updated_ = true;
    uploaded_ = false;
    // Host memory: nothing to copy but what the executor keeps of the forest as it was checked.
    return device_ == DeviceKind::kCpu ? Upload(nullptr) : OkStatus();
  }

  Status Upload(Stream stream) override {
    if (!updated_) return FailedPrecondition("Upload before the first successful Update: there is no plan yet");
    if (uploaded_ && device_ == DeviceKind::kCpu) return OkStatus();  // Update did it
    COPPICE_RETURN_IF_ERROR(executor_->Upload(planner_->View(), planner_->forest(), stream));
    uploaded_ = true;
    return OkStatus();
  }

  LaunchKey launch_key() const override { return executor_->launch_key(); }

  Status Run(const BoundKv& kv, const RunArgs& args, Stream stream) override {
    if (!uploaded_) {
      return FailedPrecondition(updated_ ? "Run after Update without Upload: the device still has the previous plan"
                                         : "Run before the first successful Update: there is no plan yet");
    }
    return executor_->Run(kv, args, stream);
  }

  PlanView View() const override { return planner_->View(); }
  PlanStats PlannedStats() const override { return planner_->Stats(); }
  PlanStats Stats() const override {
    PlanStats stats = PlannedStats();
    if (uploaded_) executor_->CountCuts(&stats);
    return stats;
  }
  std::vector<NodeRead> NodeReads() const override { return planner_->NodeReads(); }
  PlanReads Reads() override { return shared_reads_.Count(*this, planner_->forest()); }
  std::string Explain() const override { return planner_->Explain() + (uploaded_ ? executor_->Explain() : ""); }
  std::string Dump() const override { return DumpPlan(*planner_, uploaded_ ? executor_->DumpTasks() : ""); }

 private:
  DeviceKind device_;
  std::unique_ptr<Planner> planner_;
  std::unique_ptr<PlanExecutor> executor_;
  SharedReads shared_reads_;
  bool updated_ = false, uploaded_ = false;
};

Result<std::unique_ptr<InspectablePlan>> CreateBackendPlan(Backend& backend, const AttentionSpec& spec,
                                                           const PlanCapacity& capacity, const PlannerOptions& options,
                                                           const BackendTraits& traits, const MachineModel& machine) {
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Planner> planner, Planner::Create(spec, capacity, options, traits, machine));
  PlanSizes sizes = planner->sizes();
  COPPICE_ASSIGN_OR_RETURN(const PlanSizes device_sizes, backend.Sizes(spec, capacity));
  sizes.plan_bytes = device_sizes.plan_bytes;
  sizes.workspace_bytes = device_sizes.workspace_bytes;
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<PlanExecutor> executor, backend.MakeExecutor(spec, capacity, sizes, machine));
  return std::unique_ptr<InspectablePlan>(new BackendPlan(backend.device(), std::move(planner), std::move(executor)));
}

Result<std::unique_ptr<AttentionPlan>> CreatePlan(Context& context, const AttentionSpec& spec, const PlanCapacity& capacity,
                                                  const PlannerOptions& options) {
  COPPICE_ASSIGN_OR_RETURN(const PlanCapacity resolved, ResolveCapacity(spec, capacity));
  Backend& backend = static_cast<Backend&>(context);  // the only kind of Context there is
  COPPICE_ASSIGN_OR_RETURN(const BackendTraits traits, backend.Traits(spec, resolved));
  MachineModel machine = backend.machine();
  if (!options.machine_model_path.empty()) {
    COPPICE_ASSIGN_OR_RETURN(machine, LoadMachineModel(options.machine_model_path, traits.workers));
    if (const bool of_gpu = machine.sm.num_sms > 0; of_gpu != (backend.device() == DeviceKind::kCuda)) {
      return InvalidArgument("machine model " + options.machine_model_path + " is a " + (of_gpu ? "GPU" : "CPU") +
                             "'s; leave it out, or give this device's, which `coppice bench calibrate` writes");
    }
  }
  machine = MachineFor(options.kinds, spec, traits, std::move(machine));
  const auto create = [&] { return CreateBackendPlan(backend, spec, resolved, options, traits, machine); };
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<InspectablePlan> plan, create());
  const bool serial_on_cpu = options.kinds == KindOrder::kSerial && backend.device() == DeviceKind::kCpu;
  if (options.kinds != KindOrder::kTwoLaunches && !serial_on_cpu) return Result<std::unique_ptr<AttentionPlan>>(std::move(plan));
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<InspectablePlan> second, create());
  return Result<std::unique_ptr<AttentionPlan>>(
      std::make_unique<SplitPlan>(std::move(plan), std::move(second), resolved.max_branches));
}

}  // namespace

Result<std::unique_ptr<AttentionPlan>> AttentionPlan::Create(Context& context, const AttentionSpec& spec,
                                                             const PlanCapacity& capacity, const PlannerOptions& options) {
  try {
    return CreatePlan(context, spec, capacity, options);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("AttentionPlan: out of host memory; create the plan with smaller capacities");
  }
}

}  // namespace coppice::attention
