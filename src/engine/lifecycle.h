// Whether an engine computes and takes requests, and with which weights: what Pause, Sleep and UpdateWeights leave behind. Knows
// neither runner nor cache. Layer: engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "coppice/core/status.h"
#include "coppice/engine/pause.h"
#include "coppice/engine/weights.h"

namespace coppice {

class Lifecycle {
 public:
  // Thread-safe.

  EngineState state() const { return state_; }
  bool is_running() const { return state_ == EngineState::kRunning; }
  bool is_draining() const { return is_draining_; }  // no other request begins, until what runs has finished
  bool weights_are_whole() const { return weights_are_whole_; }
  WeightVersion version() const;
  // UNAVAILABLE: Submit refuses requests.
  Status CheckTakesNew() const;
  Status CheckWeightsAreWhole() const;

  // Between steps, by one thread at a time.

  // FAILED_PRECONDITION, with what to do instead, while it is asleep.
  Status CheckAwake(std::string_view what_to_do) const;
  // FAILED_PRECONDITION: no update is open that the part could go on with.
  Status CheckPart(UpdatePart part) const;
  // FAILED_PRECONDITION where it is not running, and samples that are kept would be waited for.
  Status CheckFinishes() const;

  void Pause(bool refuse_new);
  void FallAsleep(bool refuse_new);
  void WakeUp() { state_ = EngineState::kPaused; }
  // FAILED_PRECONDITION: weights are missing.
  Status Resume();

  // A part of an update comes, and an open one is over. Whether one was open.
  bool BeginPart(UpdatePart part);
  // It has come, or failed: then no update is open. The version that it makes.
  WeightVersion EndPart(UpdatePart part, bool came, const std::string& label);
  void NoteDraining(bool is_draining) { is_draining_ = is_draining; }
  // Of all weights, that of an update which is open aside.
  void NoteWhole(bool whole) { weights_are_whole_ = whole && !update_is_open_; }

 private:
  std::atomic<EngineState> state_{EngineState::kRunning};
  std::atomic<bool> refuses_new_{false};  // while it does not run
  std::atomic<bool> weights_are_whole_{true}, is_draining_{false};
  bool update_is_open_ = false;       // between its first part and its last
  mutable std::mutex version_mutex_;  // guards what follows
  WeightVersion version_;
};

// Whether a part is an update's first one, and its last one.
constexpr bool Begins(UpdatePart part) { return part == UpdatePart::kWhole || part == UpdatePart::kFirst; }
constexpr bool Ends(UpdatePart part) { return part == UpdatePart::kWhole || part == UpdatePart::kLast; }

}  // namespace coppice
