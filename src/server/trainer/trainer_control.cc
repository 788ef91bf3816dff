#include "server/trainer/trainer_control.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/check.h"

namespace coppice::server {
namespace {

// Empty where a tensor cannot be read once more.
std::string KnownChecksum(const ArrivedWeights& weights, const WeightTensor& tensor) {
  Result<std::string> checksum = weights.ChecksumOf(tensor);
  return checksum.ok() ? *std::move(checksum) : std::string();
}

}  // namespace

TrainerControl::TrainerControl(Engine* engine, const ActiveCalls* calls, WeightLabels* labels, Options options)
    : engine_(*engine),
      calls_(*calls),
      labels_(*labels),
      options_(std::move(options)),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

// ---------------------------------------------------------------------------------------------------------------- any thread

void TrainerControl::Post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    work_.push_back(std::move(work));
  }
  posted_.notify_one();
}

void TrainerControl::Drain(const Status& why) {
  waits_.request_stop();
  {
    const std::lock_guard lock(mutex_);
    drained_ = why;
  }
  FailKept();
}

void TrainerControl::FailKept() {
  Status why;
  {
    const std::lock_guard lock(mutex_);
    why = drained_;
  }
  if (!why.ok() && engine_.Load().state != EngineState::kRunning) calls_.FailAll(why);
}

void TrainerControl::Join() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    work_.clear();
  }
  waits_.request_stop();
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

// ------------------------------------------------------------------------------------------------------ the control's thread

void TrainerControl::Run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      const auto has_work = [this] { return !work_.empty(); };
      if (update_) {
        posted_.wait_until(lock, stop, update_->last + options_.patience, has_work);
      } else {
        posted_.wait(lock, stop, has_work);
      }
      if (!work_.empty()) {
        work = std::move(work_.front());
        work_.pop_front();
      }
    }
    if (work) {
      work();
      FailKept();
    } else if (update_ && Clock::now() >= update_->last + options_.patience) {
      GiveUp(fmt::format("the next call did not come within {} s", options_.patience.count() / 1000.0));
    }
  }
}

PauseMode TrainerControl::ModeNow(PauseMode mode) const {
  return engine_.Load().state == EngineState::kPaused && mode == PauseMode::kWait ? PauseMode::kKeep : mode;
}

Status TrainerControl::CheckNoneOpen() const {
  if (!update_) return OkStatus();
  return FailedPrecondition("an update of weights is open: end it with /finish_weight_update");
}

Status TrainerControl::Pause(PauseMode mode) {
  EndCall();
  if (update_) {  // it is paused already, and stays so
    update_->resumes = false;
    return OkStatus();
  }
  if (update_state_ == UpdateState::kGivenUp) {
    resumes_ = false;
    return OkStatus();
  }
  return engine_.Pause({.mode = ModeNow(mode)});
}

Status TrainerControl::Resume() {
  EndCall();
  COPPICE_RETURN_IF_ERROR(CheckNoneOpen());
  if (update_state_ == UpdateState::kGivenUp)
    return FailedPrecondition("an update of weights ended half-way: bring all of them, or the model's file (/wake_up)");
  return engine_.Resume();
}

Status TrainerControl::Sleep(SleepLevel level, PauseMode mode) {
  EndCall();
  COPPICE_RETURN_IF_ERROR(CheckNoneOpen());
  const bool refuses = update_state_ == UpdateState::kGivenUp;
  return engine_.Sleep({.level = level, .pause = {.mode = ModeNow(mode), .refuse_new = refuses}});
}

Status TrainerControl::Wake(bool weights_follow) {
  EndCall();
  COPPICE_RETURN_IF_ERROR(CheckNoneOpen());
  const bool was_given_up = update_state_ == UpdateState::kGivenUp;
  const bool reload = !weights_follow && (was_given_up || is_of_file_);
  COPPICE_RETURN_IF_ERROR(engine_.Wake({.reload = reload, .resume = false}));
  if (weights_follow) return OkStatus();
  if (was_given_up) {
    NoteFile();
    return NoteWhole(/*resumes=*/true);
  }
  if (AnyMissing())
    return FailedPrecondition(
        "the weights that updates had brought were dropped: bring all of them again, or read the model's file with "
        "/collective_rpc reload_weights");
  return engine_.Resume();
}

Status TrainerControl::Reload(PauseMode mode) {
  EndCall();
  const bool resumes = engine_.Load().state == EngineState::kRunning || (update_ && update_->resumes) ||
                       (update_state_ == UpdateState::kGivenUp && resumes_);
  if (engine_.Load().state != EngineState::kAsleep) {
    COPPICE_RETURN_IF_ERROR(engine_.Sleep({.level = SleepLevel::kDropWeights, .pause = {.mode = ModeNow(mode)}}));
  }
  COPPICE_RETURN_IF_ERROR(engine_.Wake({.reload = true, .resume = false}));
  NoteFile();
  return NoteWhole(resumes);
}

Status TrainerControl::Start(PauseMode mode, std::string label) {
  bool resumes = false;
  if (update_) GiveUp("another one began");
  if (update_state_ == UpdateState::kGivenUp) {
    resumes = resumes_;
    COPPICE_RETURN_IF_ERROR(engine_.Pause({.mode = PauseMode::kKeep}));  // requests that come wait again
  } else {
    const EngineState state = engine_.Load().state;
    if (state == EngineState::kAsleep)
      return FailedPrecondition("the engine is asleep: wake it to update its weights (/wake_up?tags=weights)");
    resumes = state == EngineState::kRunning;
    if (resumes) COPPICE_RETURN_IF_ERROR(engine_.Pause({.mode = mode}));
  }
  update_ = {.resumes = resumes, .label = std::move(label), .last = Clock::now()};
  set_state(UpdateState::kOpen);
  return OkStatus();
}

bool TrainerControl::ChangedNothing(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kUnimplemented ||
         status.code() == StatusCode::kFailedPrecondition;
}

Status TrainerControl::Bring(const ArrivedWeights& weights, PauseMode mode, const std::string& label, bool with_checksums) {
  if (!update_) {
    if (update_state_ == UpdateState::kGivenUp)
      return FailedPrecondition("the update was given up: begin anew with /start_weight_update, and bring all weights");
    if (engine_.Load().state == EngineState::kPaused) mode = PauseMode::kKeep;
    const Status updated = engine_.UpdateWeights(weights.tensors(), {.when = mode, .label = label}).status();
    if (!updated.ok() && ChangedNothing(updated)) return updated;
    if (updated.ok()) labels_.Set(label);
    NoteBrought(weights, with_checksums);
    is_half_ = AnyMissing();
    return updated;
  }
  const Status brought =
      engine_
          .UpdateWeights(weights.tensors(), {.when = PauseMode::kKeep,
                                             .label = update_->label,
                                             .part = update_->parts == 0 ? UpdatePart::kFirst : UpdatePart::kNext})
          .status();
  EndCall();
  if (brought.ok()) {
    ++update_->parts;
    is_half_ = true;
    NoteBrought(weights, with_checksums);
  } else if (!ChangedNothing(brought)) {
    is_half_ = true;
    GiveUp(brought.message());
  }
  return brought;
}

Status TrainerControl::JoinGroup(const GroupInfo& info) {
  group_.reset();
  EndCall();
  if (!options_.open_device) return Unimplemented("this server receives no weights by NCCL: send them by shared memory");
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, options_.open_device());
  COPPICE_ASSIGN_OR_RETURN(
      group_, TrainerGroup::Join(info, std::move(device), {.patience = options_.patience, .stop = waits_.get_token()}));
  EndCall();
  spdlog::info("rank {} of {} in the group of {}:{} for weights", info.rank, info.size, info.address, info.port);
  return OkStatus();
}

Status TrainerControl::CheckTensors(std::span<const SegmentTensor> tensors, DeviceKind kind) const {
  static constexpr std::byte kNothing{};  // stands for bytes that are not read
  std::vector<WeightTensor> announced;
  for (const SegmentTensor& tensor : tensors)
    announced.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .data = &kNothing, .device = kind});
  return engine_.UpdateWeights(announced, {.check_only = true}).status();
}

Status TrainerControl::Receive(const WeightMessage& message, const BroadcastSource& form, PauseMode mode,
                               const std::string& label) {
  EndCall();
  if (group_ == nullptr)
    return FailedPrecondition(
        "there is no group to receive weights from: make one with /init_weight_transfer_engine or /init_weights_update_group");
  const Status received = [&]() -> Status {
    if (!update_ && update_state_ == UpdateState::kGivenUp)
      return FailedPrecondition("the update was given up: begin anew with /start_weight_update, and bring all weights");
    COPPICE_RETURN_IF_ERROR(CheckTensors(message.tensors, group_->device_kind()));
    if (update_) return ReceiveParts(message, form);
    COPPICE_RETURN_IF_ERROR(Start(mode, label));
    COPPICE_RETURN_IF_ERROR(ReceiveParts(message, form));
    return Finish(label);
  }();
  // Tensors that the trainer sends now, or has sent, are no longer those that are expected next.
  if (!received.ok()) group_.reset();
  return received;
}

Status TrainerControl::ReceiveParts(const WeightMessage& message, const BroadcastSource& form) {
  const Status received = group_->Receive(message.tensors, form, [&](std::span<const WeightTensor> tensors, Device* device) {
    return Bring(ArrivedWeights::Lend(tensors, device), PauseMode::kKeep, /*label=*/{}, message.checksum);
  });
  EndCall();
  if (!received.ok() && update_) GiveUp(received.message());
  return received;
}

Status TrainerControl::BringWhole(const ArrivedWeights& weights, PauseMode mode, const std::string& label) {
  EndCall();
  const bool is_open = update_.has_value(), was_given_up = update_state_ == UpdateState::kGivenUp;
  const EngineState state = engine_.Load().state;
  const bool resumes = (is_open && update_->resumes) || (was_given_up && resumes_);
  if (state == EngineState::kPaused) mode = PauseMode::kKeep;
  const Status updated = engine_.UpdateWeights(weights.tensors(), {.when = mode, .label = label}).status();
  if (!updated.ok()) {
    if (!ChangedNothing(updated)) {
      is_half_ = true;
      if (update_) GiveUp(updated.message());
    }
    return updated;
  }
  labels_.Set(label);
  NoteBrought(weights, /*with_checksums=*/false);
  return NoteWhole(resumes);
}

Status TrainerControl::Finish(const std::string& label) {
  if (!update_) return FailedPrecondition("no update of weights is open: begin one with /start_weight_update");
  const std::string name = label.empty() ? update_->label : label;
  if (update_->parts > 0) {
    const Status ended = engine_.UpdateWeights({}, {.when = PauseMode::kKeep, .label = name, .part = UpdatePart::kLast}).status();
    if (!ended.ok()) {
      GiveUp(ended.message());
      return ended;
    }
    labels_.Set(name);
  } else if (is_half_) {
    GiveUp("it brought no weights");
    return FailedPrecondition("the update brought no weights, and some are missing from one that ended half-way");
  }
  return NoteWhole(update_->resumes);
}

Status TrainerControl::NoteWhole(bool resumes) {
  update_.reset();
  is_half_ = AnyMissing();
  if (is_half_) {
    RefuseRequests(resumes);
    return FailedPrecondition("weights are missing: bring all of them");
  }
  set_state(UpdateState::kNone);
  // Where it stays paused, requests wait, although an update that was given up refused them.
  if (resumes) return engine_.Resume();
  return engine_.Load().state == EngineState::kPaused ? engine_.Pause({.mode = PauseMode::kKeep}) : OkStatus();
}

void TrainerControl::EndCall() {
  if (update_) update_->last = Clock::now();
}

void TrainerControl::GiveUp(std::string_view why) {
  const bool resumes = update_->resumes;
  if (update_->parts > 0 && !AnyMissing()) {
    const std::string label = update_->label;
    const Status ended = engine_.UpdateWeights({}, {.when = PauseMode::kKeep, .label = label, .part = UpdatePart::kLast}).status();
    if (ended.ok()) {
      spdlog::warn("an update of weights was not ended, though all of them have come ({}): it ends now", why);
      labels_.Set(label);
      if (const Status whole = NoteWhole(resumes); !whole.ok()) spdlog::error("{}", whole.message());
      return;
    }
  }
  update_.reset();
  if (!is_half_) {  // nothing came of it
    set_state(UpdateState::kNone);
    spdlog::warn("an update of weights ended before any came: {}", why);
    if (resumes) {
      if (const Status resumed = engine_.Resume(); !resumed.ok()) spdlog::error("{}", resumed.message());
    }
    return;
  }
  spdlog::error("an update of weights ended half-way ({}): requests are refused until all weights have come", why);
  RefuseRequests(resumes);
}

void TrainerControl::RefuseRequests(bool resumes) {
  resumes_ = resumes;
  set_state(UpdateState::kGivenUp);
  if (const Status paused = engine_.Pause({.mode = PauseMode::kKeep, .refuse_new = true}); !paused.ok())
    spdlog::error("{}", paused.message());
  calls_.FailAll(Unavailable("an update of weights ended half-way: send the request again when all weights have come"));
}

bool TrainerControl::AnyMissing() {
  const Result<std::vector<WeightInfo>> weights = engine_.Weights();
  return !weights.ok() || std::ranges::any_of(*weights, &WeightInfo::missing);
}

void TrainerControl::NoteFile() {
  labels_.Set({});
  checksums_.clear();
  is_of_file_ = true;
}

void TrainerControl::NoteBrought(const ArrivedWeights& weights, bool with_checksums) {
  is_of_file_ = false;
  for (const WeightTensor& tensor : weights.tensors())
    checksums_[tensor.name] = with_checksums ? KnownChecksum(weights, tensor) : std::string();
}

Result<std::map<std::string, std::string>> TrainerControl::Checksums() {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<WeightInfo> weights, engine_.Weights());
  std::map<std::string, std::string> checksums;
  bool asks_file = false;
  for (const WeightInfo& weight : weights) {
    const auto known = checksums_.find(weight.name);
    asks_file |= known == checksums_.end();
    checksums[weight.name] = known == checksums_.end() ? std::string() : known->second;
  }
  if (!asks_file) return checksums;
  const Result<ArrivedWeights> file = ArrivedWeights::Open(options_.model_path);
  if (!file.ok()) return checksums;  // one of blocks, say
  for (const WeightTensor& tensor : file->tensors()) {
    const auto wanted = checksums.find(tensor.name);
    if (wanted != checksums.end() && !checksums_.contains(tensor.name)) wanted->second = KnownChecksum(*file, tensor);
  }
  return checksums;
}

}  // namespace coppice::server
