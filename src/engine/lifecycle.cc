#include "engine/lifecycle.h"

#include <fmt/format.h>

#include <utility>

#include "core/check.h"

namespace coppice {

WeightVersion Lifecycle::version() const {
  const std::lock_guard lock(version_mutex_);
  return version_;
}

Status Lifecycle::CheckTakesNew() const {
  if (is_running()) return CheckWeightsAreWhole();
  if (!refuses_new_) return OkStatus();
  COPPICE_RETURN_IF_ERROR(CheckWeightsAreWhole());
  return Unavailable(fmt::format("the engine is {} and takes no requests: try again later", Name(state_)));
}

Status Lifecycle::CheckWeightsAreWhole() const {
  if (weights_are_whole_) return OkStatus();
  return Unavailable(
      "an update of weights ended half-way, so that old and new ones are mixed: update all of them, or load the model again");
}

Status Lifecycle::CheckAwake(std::string_view what_to_do) const {
  if (state_ != EngineState::kAsleep) return OkStatus();
  return FailedPrecondition(fmt::format("the engine is asleep: {}", what_to_do));
}

Status Lifecycle::CheckPart(UpdatePart part) const {
  if (update_is_open_ || Begins(part)) return OkStatus();
  return FailedPrecondition("no update of weights is open: begin one with its first part");
}

Status Lifecycle::CheckFinishes() const {
  if (is_running()) return OkStatus();
  return FailedPrecondition(fmt::format(
      "the engine is {} with samples that are kept, which will not finish: resume it, or do not wait for them", Name(state_)));
}

void Lifecycle::Pause(bool refuse_new) {
  state_ = EngineState::kPaused;
  refuses_new_ = refuse_new;
}

void Lifecycle::FallAsleep(bool refuse_new) {
  state_ = EngineState::kAsleep;
  refuses_new_ = refuse_new;
}

Status Lifecycle::Resume() {
  if (state_ == EngineState::kPaused && !weights_are_whole_)
    return FailedPrecondition("weights are missing: update all of them, or wake the engine so that it reads the model's file");
  state_ = EngineState::kRunning;
  return OkStatus();
}

bool Lifecycle::BeginPart(UpdatePart part) { return std::exchange(update_is_open_, !Ends(part)); }

WeightVersion Lifecycle::EndPart(UpdatePart part, bool came, const std::string& label) {
  if (!came) update_is_open_ = false;
  const std::lock_guard lock(version_mutex_);
  if (Begins(part)) ++version_.number;
  if (Begins(part) || !label.empty()) version_.label = label;
  return version_;
}

}  // namespace coppice
