#include "runner/plan_uploads.h"

#include "core/check.h"

namespace coppice {

Result<std::unique_ptr<PlanUploads>> PlanUploads::Create(Device* device) {
  std::unique_ptr<PlanUploads> uploads(new PlanUploads(device));
  COPPICE_ASSIGN_OR_RETURN(uploads->stream_, device->CreateStream());
  COPPICE_ASSIGN_OR_RETURN(uploads->copied_, device->CreateEvent());
  return uploads;
}

// Copies still under way on the stream write into the memory of plans, which may be freed now.
PlanUploads::~PlanUploads() {
  if (stream_) (void)device_->Synchronize(stream_->get());
}

Status PlanUploads::Prepare(LayerPlans* plans, const attention::PrefixForestView& forest, Stream stream, StepStats* stats) {
  const Stream copies = stream_->get();
  // The images that are there now are not written; launches that read any other may have to end.
  for (const auto& [keys, read] : read_) {
    if (keys != plans->launch_keys()) COPPICE_RETURN_IF_ERROR(device_->Wait(copies, *read));
  }
  COPPICE_RETURN_IF_ERROR(plans->Prepare(forest, copies, stats));
  COPPICE_RETURN_IF_ERROR(device_->Record(*copied_, copies));
  return device_->Wait(stream, *copied_);
}

Status PlanUploads::Launched(const LayerPlans& plans, Stream stream) {
  std::unique_ptr<Event>& read = read_[plans.launch_keys()];
  if (!read) {
    COPPICE_ASSIGN_OR_RETURN(read, device_->CreateEvent());
  }
  return device_->Record(*read, stream);
}

}  // namespace coppice
