// A trainer's operations on the engine: pauses, sleeps, and updates of weights in parts. Its own thread does it, one thing after
// the other, beside the thread that steps the engine. Knows no HTTP.
// Layer: server.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"
#include "core/device.h"
#include "server/active_calls.h"
#include "server/trainer/arrived_weights.h"
#include "server/trainer/trainer_group.h"
#include "server/trainer/weight_message.h"
#include "server/weight_labels.h"

namespace coppice::server {

// An update of weights, as /server_info reports it.
enum class UpdateState : uint8_t {
  kNone,     // all weights are there
  kOpen,     // between its start and its end: requests wait
  kGivenUp,  // it ended half-way: requests are refused until a whole one has come
};
constexpr std::string_view Name(UpdateState state) {
  switch (state) {
    case UpdateState::kNone: return "none";
    case UpdateState::kOpen: return "open";
    case UpdateState::kGivenUp: return "given_up";
  }
  return "";
}

class TrainerControl {
 public:
  struct Options {
    std::string model_path;  // that the engine was loaded from
    // An open update whose next part has not come for so long is given up.
    std::chrono::milliseconds patience{60'000};
    // Opens the engine's device once more, for weights that a trainer broadcasts. Empty: they are refused.
    std::function<Result<std::unique_ptr<Device>>()> open_device = {};
  };
  // The first three outlive it; another thread steps the engine.
  TrainerControl(Engine* engine, const ActiveCalls* calls, WeightLabels* labels, Options options);
  ~TrainerControl() { Join(); }
  TrainerControl(const TrainerControl&) = delete;
  TrainerControl& operator=(const TrainerControl&) = delete;

  // Does the work after what was posted before, on the control's thread. After Join it is dropped. Thread-safe, as those below.
  void Post(std::function<void()> work);
  UpdateState update_state() const { return update_state_; }
  // The server ends: generations that a paused engine keeps, or one that pauses from now on, are failed with `why`, and no trainer
  // is waited for.
  void Drain(const Status& why);
  // Ends the thread, after the work that runs. The engine must be stepped meanwhile.
  void Join();

  // On the control's thread, from posted work. Errors as those of the engine's calls.

  Status Pause(PauseMode mode);
  // FAILED_PRECONDITION while an update is open or given up.
  Status Resume();
  Status Sleep(SleepLevel level, PauseMode mode);
  // `weights_follow`: the engine stays paused, without the weights that a sleep dropped. Otherwise those are read from the model's
  // file, but not where updates had replaced them: FAILED_PRECONDITION, the engine is paused then.
  Status Wake(bool weights_follow);
  // Reads the model's file again, whatever came since, and ends what an update left.
  Status Reload(PauseMode mode);

  // Pauses the engine where it runs, and begins an update. One that is open is given up.
  Status Start(PauseMode mode, std::string label);
  // Brings weights: a part of the open update, or without one an update of its own. INVALID_ARGUMENT, UNIMPLEMENTED and
  // FAILED_PRECONDITION change nothing.
  Status Bring(const ArrivedWeights& weights, PauseMode mode, const std::string& label, bool with_checksums);
  // Makes a group with a trainer for what it broadcasts, in place of an earlier one. Errors as TrainerGroup::Join and of the
  // device.
  Status JoinGroup(const GroupInfo& info);
  // Ends the group, if there is one.
  void LeaveGroup() { group_.reset(); }
  // Receives tensors of the group, and brings them as Bring does, a part of them at a time: none before all of them have the names,
  // shapes and dtypes of weights. After an error there is no group. FAILED_PRECONDITION: there was none. An error on the way gives
  // the update up.
  Status Receive(const WeightMessage& message, const BroadcastSource& form, PauseMode mode, const std::string& label);
  // Brings a whole model, and ends what an update left.
  Status BringWhole(const ArrivedWeights& weights, PauseMode mode, const std::string& label);
  // Ends the open update; the engine goes on if Start paused it. FAILED_PRECONDITION: there is none, or weights are missing.
  Status Finish(const std::string& label);
  // Memory for the next ArrivedWeights::Read.
  Buffer TakeMemory() { return std::exchange(memory_, {}); }
  void KeepMemory(Buffer memory) { memory_ = std::move(memory); }
  // By name of a weight: the checksum of what brought it last; empty: it came without.
  Result<std::map<std::string, std::string>> Checksums();

 private:
  using Clock = std::chrono::steady_clock;
  struct Update {
    bool resumes = false;  // Start has paused the engine
    std::string label;
    int64_t parts = 0;
    Clock::time_point last;  // call
  };

  void Run(const std::stop_token& stop);
  // After Drain.
  void FailKept();
  // An engine that is paused keeps what runs, where that was to be waited for; what is to end, ends.
  PauseMode ModeNow(PauseMode mode) const;
  Status CheckNoneOpen() const;
  void EndCall();  // of an open update
  void GiveUp(std::string_view why);
  // Of weights that are a mixture. `resumes`: the engine goes on when all of them have come.
  void RefuseRequests(bool resumes);
  Status CheckTensors(std::span<const SegmentTensor> tensors, DeviceKind kind) const;
  // Of an open update.
  Status ReceiveParts(const WeightMessage& message, const BroadcastSource& form);
  // After weights have come: whether any are missing still.
  Status NoteWhole(bool resumes);
  bool AnyMissing();
  void NoteBrought(const ArrivedWeights& weights, bool with_checksums);
  void NoteFile();  // weights are those of the model's file
  static bool ChangedNothing(const Status& status);
  void set_state(UpdateState state) { update_state_ = state; }

  Engine& engine_;
  const ActiveCalls& calls_;
  WeightLabels& labels_;
  const Options options_;
  std::atomic<UpdateState> update_state_{UpdateState::kNone};
  std::stop_source waits_;  // for trainers

  // The control's thread alone.
  std::optional<Update> update_;
  bool resumes_ = false;    // of an update that was given up
  bool is_of_file_ = true;  // no update has come since the model's file was read
  bool is_half_ = false;    // weights are missing
  Buffer memory_;
  std::unique_ptr<TrainerGroup> group_;           // null: none was made, or it has ended
  std::map<std::string, std::string> checksums_;  // of weights that updates brought

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable_any posted_;
  std::deque<std::function<void()>> work_;
  bool ended_ = false;
  Status drained_;  // by Drain: why

  std::jthread thread_;  // last
};

}  // namespace coppice::server
