// The step. Other threads fill an inbox; everything else belongs to the thread that calls Step. scheduler.h and commit.h define how
// a step changes requests; this file defines when, and the fate of steps that are under way or have failed. Layer: engine.
// docs/engine.md walks through this file.
#include "coppice/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/exhaustion.h"
#include "core/quoted.h"
#include "core/trace.h"
#include "engine/commit.h"
#include "engine/constraint_masks.h"
#include "engine/drafts.h"
#include "engine/emitter.h"
#include "engine/engine_parts.h"
#include "engine/fair_mutex.h"
#include "engine/inbox.h"
#include "engine/lifecycle.h"
#include "engine/metrics.h"
#include "engine/prefixes.h"
#include "engine/request_memory.h"
#include "engine/request_state.h"
#include "engine/request_table.h"
#include "engine/samples.h"
#include "engine/scheduler.h"
#include "engine/step_builder.h"
#include "engine/step_events.h"
#include "engine/validate_request.h"
#include "engine/weight_tensors.h"
#include "model/window_layers.h"
#include "runner/phase_timer.h"

namespace coppice {
namespace {

using Clock = RequestState::Clock;

RequestLimits LimitsOf(const EngineParts& parts) {
  return {.vocab_size = parts.runner->info().model.vocab_size,
          .max_context = parts.options.max_context,
          .longest_context = parts.runner->info().model.longest_context(),
          .page_size = parts.cache->options().page_size,
          .num_pages = parts.cache->usage().pages_total,
          .max_running = parts.options.max_running,
          .num_eos = static_cast<int32_t>(parts.runner->info().model.eos_token_ids.size()),
          .has_tokenizer = parts.tokenizer != nullptr,
          .can_pin = parts.options.sharing != SharingMode::kNone};
}

std::vector<AttentionLayers> AttentionOf(const ModelConfig& config) {
  std::vector<AttentionLayers> layers;
  for (const WindowLayers& alike : WindowLayersOf(config)) layers.push_back({.num_layers = alike.layers, .window = alike.window});
  return layers;
}

ModelInfo ModelInfoOf(const EngineParts& parts) {
  const RunnerInfo& info = parts.runner->info();
  const ModelConfig& config = info.model;
  return {.architecture = config.architecture,
          .fingerprint = info.fingerprint,
          .num_layers = config.num_layers,
          .hidden_size = config.hidden_size,
          .num_qo_heads = config.num_qo_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .attention = AttentionOf(config),
          .vocab_size = config.vocab_size,
          .context_length = config.max_position,
          .bos_token_id = config.bos_token_id,
          .eos_token_ids = config.eos_token_ids,
          .kv_dtype = info.kv_dtype,
          .kv_bytes_per_token = info.kv_bytes_per_token,
          .page_size = parts.cache->options().page_size,
          .kv_split = parts.options.kv_split == KvSplit::kTokens ? KvSplit::kTokens : KvSplit::kHeads,
          .kv_split_reason = parts.kv_split_reason,
          .tokenizer_status = parts.tokenizer_status,
          .sampling = parts.sampling,
          .notes = parts.notes};
}

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(EngineParts parts);

  Result<RequestId> Submit(Request request) override;
  Status Cancel(RequestId id) override;
  Result<std::vector<SampleId>> Fork(SampleId sample, const ForkOptions& options) override;
  Result<Extension> Extend(SampleId sample, std::span<const int32_t> tokens) override;
  Status Prune(SampleId sample) override;
  Status Release(RequestId id) override;
  Result<SampleInfo> Describe(SampleId sample) override;
  Status Unpin(const std::string& name) override;
  Status SavePrefix(const std::string& name, const std::string& path) override;
  Status LoadPrefix(const std::string& name, const std::string& path, const CacheTenant& tenant) override;
  Result<WeightVersion> UpdateWeights(std::span<const WeightTensor> tensors, const UpdateOptions& options) override;
  Result<std::vector<WeightInfo>> Weights() override;
  Result<int32_t> DropCache() override;
  Status Pause(const PauseOptions& options) override;
  Status Resume() override;
  Status Sleep(const SleepOptions& options) override;
  Status Wake(const WakeOptions& options) override;
  WeightVersion weight_version() const override { return lifecycle_.version(); }
  Result<bool> Step() override;
  Status Run(std::stop_token stop) override;
  EngineLoad Load() const override {
    return {.waiting = inbox_.waiting(),
            .running = metrics_.running(),
            .draining = lifecycle_.is_draining(),
            .state = lifecycle_.state()};
  }
  EngineMetrics Metrics() const override { return metrics_.Snapshot(); }
  const Tokenizer* tokenizer() const override { return parts_.tokenizer.get(); }
  const ModelInfo& model_info() const override { return model_info_; }

 private:
  // Calls of other threads and Step, which may run out of memory.
  Status WritePinned(const std::string& name, const std::string& path);
  Status ReadAndPin(const std::string& name, const std::string& path, const CacheTenant& tenant);
  // Null where no such request is there, or it is forgotten at the end of this turn.
  RequestState* FindAlive(RequestId id);
  // Runs `change` on a request between steps, with all tokens known that steps chose.
  template <class Change>
  auto ChangeSamples(RequestId id, Change change) -> decltype(change(std::declval<RequestState*>()));
  // Runs `body` between steps, once what runs has become what `mode` says. An error of `check`, which runs between steps too, is
  // returned before any sample waits or ends.
  template <class Check, class Body>
  auto RunBetweenSteps(PauseMode mode, Check check, Body body) -> decltype(body());
  // Between steps:
  // `source` may be null where the part is an update's last one.
  Result<WeightVersion> ReplaceWeights(const WeightSource* source, const std::string& label, UpdatePart part);
  Status CheckNoneMissing() const;
  void LetCachedGo();  // KV that is of other weights, or gone
  Status FallAsleep(bool keeps_weights, bool refuses_new);
  Status WakeUp(const WakeOptions& options);
  void HoldNew(bool hold) {
    scheduler_.HoldNew(hold);
    lifecycle_.NoteDraining(hold);
  }
  bool HasBegun();  // any request
  Result<bool> StepOnce();
  // Runs `body`, which changes requests, schedule or cache. An exception, for want of memory, leaves them in doubt.
  template <class Body>
  auto KeepBooks(Body body) {
    books_in_doubt_ = true;
    auto result = body();
    books_in_doubt_ = false;
    return result;
  }
  // Ends all requests that were taken in and begins with an empty cache, where something threw in the middle of a change. If there
  // is no memory for that either, it throws, and goes on when it is called again.
  void StartOver();

  // The step's parts; false: nothing to do.
  Result<bool> RunStep();
  // Takes in the arrivals since the last step. Whether there were any.
  Result<bool> TakeInbox();
  void EndUnwanted();  // of what came in
  Result<bool> EndLateRequests();
  // Of requests whose events could not be sent.
  Result<bool> EndUnheardRequests();
  // Those of groups that are over.
  Result<bool> EndOverGroups();
  // Launches the next step, if there is one that needs nothing of those under way.
  Result<bool> LaunchNext();
  // Waits for the oldest step under way and takes over what it gave. On an error its requests have ended, and those of steps after
  // it.
  Status CommitOldest();
  // Commits all that is under way.
  Status Drain();
  // Drain, and the edits that wait for a step: a prefix's pages have their KV, and free ones have no writer.
  Status Quiesce();
  // A step failed: ends the requests that took part in it, in those launched after it, and in one that was being scheduled. Their
  // KV cannot be trusted; the others go on, unless the device is lost.
  void FailSteps(const Status& status);
  void ForgetDone();
  // Publishes the counters. `idle`: there was nothing to do.
  void Publish(bool idle);

  RequestMemory request_memory_;
  EngineParts parts_;
  const RequestLimits limits_;
  const ModelInfo model_info_;
  KvCache& cache_;
  Runner& runner_;
  StepBuilder steps_;
  Scheduler scheduler_;
  ConstraintMasks constraint_masks_;
  Prefixes prefixes_;
  Drafts drafts_;
  StepEvents events_;
  MetricsRecorder metrics_;
  Committer committer_;
  Samples samples_;

  Inbox inbox_;
  Inbox::Arrivals arrivals_;
  RequestTable requests_;
  std::vector<RequestPtr> retired_;  // done, but a step under way refers to them
  struct UnderWay {
    ScheduledBatch* batch = nullptr;
    StepTicket ticket;
    CacheStep in_cache;
    bool drafting = false;  // it was launched with drafts, or would have been
    bool waited = false;    // the runner was waited for
  };
  std::vector<UnderWay> under_way_;  // steps that were launched and not committed, oldest first; at most 1 + steps_ahead
  bool books_in_doubt_ = false;      // KeepBooks did not come to its end
  FairMutex stepping_;               // held by a step, and by another thread that needs what belongs to the stepping thread
  std::mutex interrupting_;          // held by UpdateWeights, Pause, Resume, Sleep and Wake, before stepping_
  Lifecycle lifecycle_;

  Emitter emitter_;  // last, so that it is done before what it refers to goes
};

EngineImpl::EngineImpl(EngineParts parts)
    : parts_(std::move(parts)),
      limits_(LimitsOf(parts_)),
      model_info_(ModelInfoOf(parts_)),
      cache_(*parts_.cache),
      runner_(*parts_.runner),
      steps_(&cache_),
      scheduler_({.max_batch_tokens = parts_.options.max_batch_tokens,
                  .chunk = parts_.options.chunk,
                  .policy = parts_.options.experiment.schedule,
                  .target_tbt = parts_.options.target_tbt},
                 &cache_, &steps_, parts_.predictor ? &*parts_.predictor : nullptr),
      constraint_masks_(parts_.threads.get(), limits_.vocab_size),
      prefixes_({.cache = &cache_, .runner = &runner_, .deterministic = parts_.options.deterministic}),
      drafts_(std::move(parts_.drafter), {.max_depth = parts_.options.draft_tokens,
                                          .max_context = parts_.options.max_context,
                                          .policy = parts_.options.experiment.draft_policy}),
      events_(parts_.tokenizer.get()),
      metrics_({.pages_total = limits_.num_pages,
                .page_size = limits_.page_size,
                .kv_bytes_per_token = runner_.info().kv_bytes_per_token,
                .chunk = parts_.options.chunk,
                .chunk_probe = parts_.chunk_probe}),
      committer_({.cache = &cache_,
                  .scheduler = &scheduler_,
                  .steps = &steps_,
                  .prefixes = &prefixes_,
                  .drafts = &drafts_,
                  .events = &events_,
                  .totals = &metrics_.totals(),
                  .max_context = parts_.options.max_context}),
      samples_({.scheduler = &scheduler_,
                .committer = &committer_,
                .events = &events_,
                .tokenizer = parts_.tokenizer.get(),
                .limits = &limits_}),
      inbox_(parts_.options.max_waiting),
      emitter_(parts_.options.event_thread, parts_.options.on_events_sent) {
  under_way_.reserve(1 + static_cast<size_t>(parts_.options.steps_ahead));
}

// ---------------------------------------------------------------------------------------------------------------- any thread

Result<RequestId> EngineImpl::Submit(Request request) {
  return CatchExhaustion("taking a request", [&]() -> Result<RequestId> {
    COPPICE_RETURN_IF_ERROR(ValidateRequest(request, limits_));
    COPPICE_RETURN_IF_ERROR(lifecycle_.CheckTakesNew());
    if (request.beams.width > 0) {  // which tokens are an output's last ones decides how it scores
      const int32_t room = limits_.max_context - static_cast<int32_t>(request.prompt_ids.size());
      request.max_tokens = std::min(request.max_tokens, room);
      request.min_tokens = std::min(request.min_tokens, room);
    }
    return inbox_.Add(MakeRequest(std::move(request), model_info_.eos_token_ids, parts_.tokenizer.get(), &request_memory_));
  });
}

Status EngineImpl::Cancel(RequestId id) {
  return CatchExhaustion("cancelling a request", [&] { return inbox_.Cancel(id); });
}

Status EngineImpl::Prune(SampleId sample) {
  return CatchExhaustion("pruning a sample", [&] { return inbox_.Prune(sample); });
}

Status EngineImpl::Release(RequestId id) {
  return CatchExhaustion("releasing a request", [&] { return inbox_.Release(id); });
}

Result<std::vector<SampleId>> EngineImpl::Fork(SampleId sample, const ForkOptions& options) {
  return CatchExhaustion("forking a sample", [&] {
    return ChangeSamples(sample.request, [&](RequestState* request) { return samples_.Fork(request, sample.index, options); });
  });
}

Result<Extension> EngineImpl::Extend(SampleId sample, std::span<const int32_t> tokens) {
  return CatchExhaustion("extending a sample", [&] {
    return ChangeSamples(sample.request, [&](RequestState* request) { return samples_.Extend(request, sample.index, tokens); });
  });
}

Result<SampleInfo> EngineImpl::Describe(SampleId sample) {
  return CatchExhaustion("describing a sample", [&] {
    const std::lock_guard between_steps(stepping_);
    if (books_in_doubt_) StartOver();
    return KeepBooks([&]() -> Result<SampleInfo> {
      COPPICE_RETURN_IF_ERROR(TakeInbox().status());  // the request may have just come
      RequestState* const request = FindAlive(sample.request);
      return request == nullptr ? UnknownRequest(sample.request) : samples_.Describe(request, sample.index);
    });
  });
}

RequestState* EngineImpl::FindAlive(RequestId id) {
  return std::ranges::find(events_.done(), id) != events_.done().end() ? nullptr : requests_.Find(id);
}

template <class Change>
auto EngineImpl::ChangeSamples(RequestId id, Change change) -> decltype(change(std::declval<RequestState*>())) {
  COPPICE_RETURN_IF_ERROR(lifecycle_.CheckTakesNew());
  const std::lock_guard between_steps(stepping_);
  if (books_in_doubt_) StartOver();
  auto changed = KeepBooks([&]() -> decltype(change(nullptr)) {
    COPPICE_RETURN_IF_ERROR(TakeInbox().status());  // the request may have just come
    COPPICE_RETURN_IF_ERROR(Drain());
    scheduler_.RemoveStopped();
    RequestState* const request = FindAlive(id);
    if (request == nullptr) return UnknownRequest(id);
    auto result = change(request);
    if (!result.ok() || !cache_.has_copies()) return result;
    // Now, while what they copy is there: a page that is freed before the next step may be written by another copy of that step.
    if (const Status copied = steps_.Flush(&runner_); !copied.ok()) {
      FailSteps(copied);
      committer_.EndRequest(request, FinishReason::kError, copied);
      return copied;
    }
    return result;
  });
  inbox_.Wake();
  return changed;
}

Status EngineImpl::Unpin(const std::string& name) {
  COPPICE_RETURN_IF_ERROR(CatchExhaustion("unpinning a prefix", [&] { return prefixes_.Unpin(name); }));
  inbox_.Wake();
  return OkStatus();
}

Status EngineImpl::SavePrefix(const std::string& name, const std::string& path) {
  return CatchExhaustion("saving a prefix", [&] { return WritePinned(name, path); });
}

Status EngineImpl::WritePinned(const std::string& name, const std::string& path) {
  StoredPrefix prefix;
  {
    const std::lock_guard between_steps(stepping_);
    if (books_in_doubt_) StartOver();
    COPPICE_RETURN_IF_ERROR(prefixes_.CheckPinned(name));
    COPPICE_RETURN_IF_ERROR(KeepBooks([this] { return Quiesce(); }));
    COPPICE_ASSIGN_OR_RETURN(prefix, prefixes_.Copy(name));
  }
  return WritePrefixFile(path, prefix);
}

Status EngineImpl::LoadPrefix(const std::string& name, const std::string& path, const CacheTenant& tenant) {
  return CatchExhaustion("loading a prefix", [&] { return ReadAndPin(name, path, tenant); });
}

Status EngineImpl::ReadAndPin(const std::string& name, const std::string& path, const CacheTenant& tenant) {
  COPPICE_RETURN_IF_ERROR(ValidateTenant(tenant));
  if (name.empty()) return InvalidArgument("the name of a prefix is empty: give it one");
  if (!limits_.can_pin) return InvalidArgument("sharing mode none keeps no prefixes: use another mode to load " + path);
  const auto origin = [this] {
    const std::lock_guard between_steps(stepping_);
    return prefixes_.origin();
  };
  COPPICE_ASSIGN_OR_RETURN(const StoredPrefix prefix, ReadPrefixFile(path, origin()));
  if (prefix.tokens.empty() || std::ssize(prefix.tokens) > limits_.max_context) {
    return InvalidArgument(path + ": the prefix has " + std::to_string(prefix.tokens.size()) + " tokens, expected 1.." +
                           std::to_string(limits_.max_context) +
                           (prefix.tokens.empty() ? "" : ": load a shorter one" + HowToFit(std::ssize(prefix.tokens), limits_)));
  }
  const std::lock_guard between_steps(stepping_);
  if (books_in_doubt_) StartOver();
  return KeepBooks([&]() -> Status {
    COPPICE_RETURN_IF_ERROR(lifecycle_.CheckAwake("wake it to load " + path));
    if (prefix.origin != prefixes_.origin())
      return Unavailable(path + ": the engine's weights were updated while the file was read");
    COPPICE_RETURN_IF_ERROR(Quiesce());
    return prefixes_.Restore(name, prefix, tenant);
  });
}

bool EngineImpl::HasBegun() { return std::ranges::any_of(requests_.FindUnfinished(), &RequestState::has_begun); }

template <class Check, class Body>
auto EngineImpl::RunBetweenSteps(PauseMode mode, Check check, Body body) -> decltype(body()) {
  constexpr auto kPoll = std::chrono::milliseconds(1);
  struct LetNewIn {  // whatever happens
    EngineImpl* engine;
    ~LetNewIn() {
      const std::lock_guard between_steps(engine->stepping_);
      engine->HoldNew(false);
      engine->inbox_.Wake();
    }
  };
  const std::lock_guard one_at_a_time(interrupting_);
  const LetNewIn let_new_in{this};
  const auto run = [&]() -> decltype(body()) {
    COPPICE_RETURN_IF_ERROR(Quiesce());
    for (RequestState* const request : requests_.FindUnfinished()) {
      if (mode == PauseMode::kAbort && request->has_begun()) committer_.EndRequest(request, FinishReason::kCancelled, OkStatus());
    }
    scheduler_.RemoveStopped();
    return body();
  };
  while (true) {
    {
      const std::lock_guard between_steps(stepping_);
      if (books_in_doubt_) StartOver();
      COPPICE_RETURN_IF_ERROR(check());
      if (mode != PauseMode::kWait || !HasBegun()) {
        auto result = KeepBooks(run);
        ForgetDone();
        return result;
      }
      COPPICE_RETURN_IF_ERROR(lifecycle_.CheckFinishes());
      HoldNew(true);
    }
    std::this_thread::sleep_for(kPoll);  // of the steps that others run
  }
}

Result<WeightVersion> EngineImpl::UpdateWeights(std::span<const WeightTensor> tensors, const UpdateOptions& options) {
  return CatchExhaustion("updating weights", [&]() -> Result<WeightVersion> {
    std::unique_ptr<WeightSource> source;
    if (options.part != UpdatePart::kLast || !tensors.empty()) {
      COPPICE_ASSIGN_OR_RETURN(TensorMap map, TensorMapOf(tensors));
      COPPICE_ASSIGN_OR_RETURN(source, runner_.PrepareUpdate(std::move(map)));
    }
    if (options.check_only) return weight_version();
    return RunBetweenSteps(
        options.when,
        [&]() -> Status {
          COPPICE_RETURN_IF_ERROR(lifecycle_.CheckAwake("wake it to update its weights"));
          return lifecycle_.CheckPart(options.part);
        },
        [&] { return ReplaceWeights(source.get(), options.label, options.part); });
  });
}

Result<WeightVersion> EngineImpl::ReplaceWeights(const WeightSource* source, const std::string& label, UpdatePart part) {
  LetCachedGo();
  const bool was_open = lifecycle_.BeginPart(part);
  if (Begins(part) && (was_open || !Ends(part))) runner_.BeginUpdate();
  const Status updated = source != nullptr ? runner_.UpdateWeights(*source) : OkStatus();
  if (Ends(part) && updated.ok()) runner_.EndUpdate();
  const WeightVersion version = lifecycle_.EndPart(part, updated.ok(), label);
  lifecycle_.NoteWhole(runner_.weights_are_whole());
  events_.set_weight_version(version.number);
  prefixes_.set_weight_version(version.number);
  COPPICE_RETURN_IF_ERROR(updated);
  if (part == UpdatePart::kLast) COPPICE_RETURN_IF_ERROR(CheckNoneMissing());
  return version;
}

Status EngineImpl::CheckNoneMissing() const {
  if (lifecycle_.weights_are_whole()) return OkStatus();
  const HeldWeights weights = runner_.Weights();
  const auto is_missing = [](const auto& weight) { return weight.second.missing; };
  const auto first = std::ranges::find_if(weights, is_missing);
  return FailedPrecondition(
      fmt::format("{} weights are missing, {} first: an earlier update ended half-way, so that this one must "
                  "bring all of them",
                  std::ranges::count_if(weights, is_missing), Quoted(first->first)));
}

Result<std::vector<WeightInfo>> EngineImpl::Weights() {
  return CatchExhaustion("listing weights", [&]() -> Result<std::vector<WeightInfo>> {
    const std::lock_guard between_steps(stepping_);
    std::vector<WeightInfo> infos;
    for (auto& [name, weight] : runner_.Weights())
      infos.push_back({.name = name, .shape = weight.shape, .dtype = weight.dtype, .missing = weight.missing});
    return infos;
  });
}

Result<int32_t> EngineImpl::DropCache() {
  return CatchExhaustion("dropping the cache", [&] {
    return RunBetweenSteps(
        PauseMode::kKeep, [] { return OkStatus(); },
        [&]() -> Result<int32_t> {
          LetCachedGo();
          return prefixes_.num_let_go();
        });
  });
}

void EngineImpl::LetCachedGo() {
  for (RequestState* const request : requests_.FindUnfinished()) {
    if (request->repins) committer_.EndRequest(request, FinishReason::kCancelled, OkStatus());
  }
  scheduler_.RemoveStopped();
  prefixes_.LetGo();
  cache_.Retire();
}

Status EngineImpl::Pause(const PauseOptions& options) {
  return CatchExhaustion("pausing", [&] {
    return RunBetweenSteps(
        options.mode, [this] { return lifecycle_.CheckAwake("it computes nothing until Wake"); },
        [&] {
          lifecycle_.Pause(options.refuse_new);
          return OkStatus();
        });
  });
}

Status EngineImpl::Resume() {
  return CatchExhaustion("resuming", [this] {
    return RunBetweenSteps(
        PauseMode::kKeep, [this] { return lifecycle_.CheckAwake("wake it"); }, [this] { return lifecycle_.Resume(); });
  });
}

Status EngineImpl::Sleep(const SleepOptions& options) {
  const bool keeps_weights = options.level == SleepLevel::kKeepWeights;
  return CatchExhaustion("falling asleep", [&] {
    return RunBetweenSteps(
        options.pause.mode,
        [&]() -> Status {
          COPPICE_RETURN_IF_ERROR(lifecycle_.CheckAwake("wake it first"));
          return runner_.CheckSleep(keeps_weights);
        },
        [&] { return FallAsleep(keeps_weights, options.pause.refuse_new); });
  });
}

Status EngineImpl::FallAsleep(bool keeps_weights, bool refuses_new) {
  const Status slept = runner_.Sleep(keeps_weights);
  lifecycle_.FallAsleep(refuses_new);
  lifecycle_.NoteWhole(runner_.weights_are_whole());
  scheduler_.PreemptAll();
  LetCachedGo();
  const Status drafter_slept = drafts_.Sleep();
  return slept.ok() ? drafter_slept : slept;
}

Status EngineImpl::Wake(const WakeOptions& options) {
  return CatchExhaustion("waking", [&] {
    return RunBetweenSteps(
        PauseMode::kKeep, [] { return OkStatus(); }, [&] { return WakeUp(options); });
  });
}

Status EngineImpl::WakeUp(const WakeOptions& options) {
  const bool was_asleep = lifecycle_.state() == EngineState::kAsleep;
  if (was_asleep) {
    COPPICE_RETURN_IF_ERROR(runner_.Wake());
    COPPICE_RETURN_IF_ERROR(drafts_.Wake());
    lifecycle_.WakeUp();
  }
  const bool reads_file = options.reload && !lifecycle_.weights_are_whole() && parts_.open_weights;
  if (reads_file) {
    COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> loaded, parts_.open_weights());
    COPPICE_RETURN_IF_ERROR(ReplaceWeights(loaded.get(), /*label=*/"", UpdatePart::kWhole).status());
    prefixes_.set_weight_version(0);  // KV of these is that of the model as it was loaded
  }
  return (was_asleep || reads_file) && options.resume ? lifecycle_.Resume() : OkStatus();
}

// ----------------------------------------------------------------------------------------------------------- the stepping thread

Result<bool> EngineImpl::Step() {
  return CatchExhaustion("running a step", [this] { return StepOnce(); });
}

Status EngineImpl::Run(std::stop_token stop) {
  while (!stop.stop_requested()) {
    COPPICE_ASSIGN_OR_RETURN(const bool worked, Step());
    // Of requests that wait while nothing is computed, deadlines come.
    if (!worked) inbox_.WaitForArrivals(stop, std::chrono::milliseconds(lifecycle_.is_running() ? 0 : 20));
  }
  emitter_.Drain();
  return OkStatus();
}

Result<bool> EngineImpl::StepOnce() {
  const std::lock_guard turn(stepping_);
  if (books_in_doubt_) StartOver();
  const Result<bool> ran = CatchExhaustion("running a step", [this] {
    return KeepBooks([this] {
      Result<bool> worked = RunStep();
      if (!worked.ok()) FailSteps(worked.status());
      return worked;
    });
  });
  if (books_in_doubt_) StartOver();
  scheduler_.RemoveStopped();
  ForgetDone();
  const bool idle = !ran.ok() || !*ran;
  if (idle) emitter_.Drain();  // the counters hold the time that earlier events took
  Publish(idle);               // first: a client that has an event finds it counted
  emitter_.Send(events_.emissions());
  if (idle) emitter_.Drain();
  if (!ran.ok()) return ran.status();
  return *ran || inbox_.has_requests();  // what an event has led to
}

void EngineImpl::StartOver() {
  for (UnderWay& step : under_way_) {
    if (!std::exchange(step.waited, true)) (void)runner_.Wait(step.ticket);
  }
  events_.DropOpen();
  for (RequestPtr& arrived : arrivals_.requests) {
    if (arrived) requests_.Add(std::move(arrived));
  }
  const Status status =
      ResourceExhausted("out of memory amid a step, so that all requests end: use less of it, or a machine with more");
  for (RequestState* const request : requests_.FindUnfinished()) events_.EndAll(request, status);
  for (const RequestId id : arrivals_.released) {
    if (RequestState* const request = requests_.Find(id)) samples_.Release(request);
  }
  // From here on nothing takes memory.
  arrivals_.requests.clear();
  under_way_.clear();
  scheduler_.Clear();
  steps_.Clear();
  cache_.Clear();
  drafts_.Clear();
  prefixes_.Clear();
  books_in_doubt_ = false;
}

Result<bool> EngineImpl::RunStep() {
  TraceSpan span("step");
  const Clock::time_point begin = Clock::now();
  metrics_.BeginStep();
  metrics_.step().weight_version = events_.weight_version();
  COPPICE_ASSIGN_OR_RETURN(const bool took, TakeInbox());
  COPPICE_ASSIGN_OR_RETURN(const bool late, EndLateRequests());
  COPPICE_ASSIGN_OR_RETURN(const bool unheard, EndUnheardRequests());
  COPPICE_ASSIGN_OR_RETURN(const bool over, EndOverGroups());
  const bool changed = took || late || unheard || over;
  if (!lifecycle_.is_running()) return changed;
  const int32_t samples = scheduler_.num_running();  // about as many as decode
  const size_t most_under_way = drafts_.DecideFor(samples) ? 1 : 1 + parts_.options.steps_ahead;
  while (under_way_.size() < most_under_way) {
    COPPICE_ASSIGN_OR_RETURN(const bool launched, LaunchNext());
    if (!launched) break;
  }
  if (under_way_.empty()) {
    if (scheduler_.idle() || scheduler_.all_held()) return changed;
    // No sequence runs, so none will ever make room for the first in the queue.
    committer_.EndRequest(scheduler_.waiting().front()->request, FinishReason::kError,
                          ResourceExhausted("the KV cache has no room for the prompt: raise kv_cache_bytes"));
    return true;
  }
  const bool drafting = under_way_.front().drafting;
  const StepSums shape = under_way_.front().batch->shape;
  const double predicted_seconds = under_way_.front().batch->predicted_seconds;
  const int64_t tokens = metrics_.totals().generated_tokens;
  COPPICE_RETURN_IF_ERROR(CommitOldest());
  span.Set("step", metrics_.step().step);
  span.Set("kv_bytes_read_unshared", metrics_.step().kv_bytes_read_unshared);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  metrics_.CountTime(seconds);
  if (parts_.predictor) {
    const double took = parts_.step_seconds ? parts_.step_seconds(shape) : seconds;
    if (shape.prompt_rows > 0 && shape.decode_rows > 0) {
      metrics_.totals().hybrid_predicted_seconds += predicted_seconds;
      metrics_.totals().hybrid_steps_over_target += took > parts_.options.target_tbt;
    }
    if (!metrics_.step().new_shape) parts_.predictor->Add(shape, took);  // capturing a graph takes once what no other step does
  }
  if (drafts_.enabled() && metrics_.step().prefill_rows == 0) {
    metrics_.totals().undrafted_steps += !drafting;
    drafts_.NoteStep({.samples = samples,
                      .asked = drafting,
                      .tokens = static_cast<double>(metrics_.totals().generated_tokens - tokens),
                      .seconds = seconds,
                      .is_first = metrics_.step().new_shape});
  }
  return true;
}

Result<bool> EngineImpl::TakeInbox() {
  prefixes_.ApplyUnpins();
  const bool computes = lifecycle_.is_running();
  if (lifecycle_.weights_are_whole() && computes) {
    for (Request& request : prefixes_.TakeRepins()) {
      RequestPtr own = MakeRequest(std::move(request), model_info_.eos_token_ids, parts_.tokenizer.get(), &request_memory_);
      own->repins = true;
      inbox_.AddOwn(std::move(own));
    }
  }
  inbox_.Take(&arrivals_);
  for (RequestPtr& arrived : arrivals_.requests) {
    RequestState* const request = requests_.Add(std::move(arrived));
    metrics_.totals().prompt_tokens += request->prompt_length();
    scheduler_.Add(request);
  }
  if (!lifecycle_.weights_are_whole() && computes) {
    for (RequestState* const request : requests_.FindUnfinished())
      committer_.EndRequest(request, FinishReason::kError, lifecycle_.CheckWeightsAreWhole());
  }
  const Status drained = arrivals_.ends_any() ? Drain() : OkStatus();  // a step may compute what others wait for
  EndUnwanted();
  if (!drained.ok()) return drained;
  return !arrivals_.requests.empty() || arrivals_.ends_any();
}

void EngineImpl::EndUnwanted() {
  for (const RequestId id : arrivals_.cancelled) {
    if (RequestState* const request = requests_.Find(id)) committer_.EndRequest(request, FinishReason::kCancelled, OkStatus());
  }
  for (const SampleId& sample : arrivals_.pruned) {
    if (RequestState* const request = requests_.Find(sample.request)) samples_.Prune(request, sample.index);
  }
  for (const RequestId id : arrivals_.released) {
    if (RequestState* const request = requests_.Find(id)) samples_.Release(request);
  }
}

Result<bool> EngineImpl::EndLateRequests() {
  const Clock::time_point now = Clock::now();
  if (requests_.FindLate(now).empty()) return false;
  COPPICE_RETURN_IF_ERROR(Drain());
  for (RequestState* const request : requests_.FindLate(now)) {  // those that the drained steps have left
    const std::string seconds = std::to_string(request->params.timeout_seconds);
    committer_.EndRequest(
        request, FinishReason::kError,
        DeadlineExceeded("the request did not finish within " + seconds + " seconds: allow more time or fewer tokens"));
  }
  return true;
}

Result<bool> EngineImpl::EndUnheardRequests() {
  if (!emitter_.TakeLost()) return false;
  COPPICE_RETURN_IF_ERROR(Drain());
  for (RequestState* const request : requests_.FindUnfinished()) {
    if (!request->listener->lost_event) continue;
    committer_.EndRequest(request, FinishReason::kError, ResourceExhausted("out of memory while sending an event"));
  }
  return true;
}

Result<bool> EngineImpl::EndOverGroups() {
  if (requests_.FindOver().empty()) return false;
  COPPICE_RETURN_IF_ERROR(Drain());  // a step may compute what others wait for
  for (RequestState* const request : requests_.FindOver()) committer_.EndRequest(request, FinishReason::kCancelled, OkStatus());
  return true;
}

Result<bool> EngineImpl::LaunchNext() {
  PhaseTimer phase("draft", &metrics_.totals().draft_seconds);
  if (const Status drafted = drafts_.Propose(&scheduler_); !drafted.ok()) {
    for (const DraftRequest& asked : drafts_.asked()) committer_.EndRequest(asked.sequence->request, FinishReason::kError, drafted);
    return drafted;
  }
  phase.Next("schedule", &metrics_.step().host_seconds);
  ScheduledBatch* const batch = scheduler_.Schedule(!under_way_.empty());
  metrics_.totals().queue_seconds += inbox_.Begin(scheduler_.begun());
  metrics_.totals().requests_begun += std::ssize(scheduler_.begun());
  metrics_.totals().bubbles += batch == nullptr;
  if (batch == nullptr || batch->empty()) return false;
  phase.Set("rows", batch->num_tokens());
  phase.Set("prefill_rows", batch->prefill_tokens);
  constraint_masks_.Fill(batch);
  for (const ConstraintMasks::Share& share : constraint_masks_.shares()) {
    if (const Clock::duration pause = constraint_masks_.PauseAfter(share); pause > Clock::duration::zero())
      scheduler_.Pause(share.share_of, Clock::now() + pause);
  }
  phase.Next("run", nullptr);
  const Result<StepTicket> ticket = steps_.Launch(&runner_);
  if (!ticket.ok()) {
    COPPICE_RETURN_IF_ERROR(Drain());  // those before it can be trusted
    return ticket.status();
  }
  if (ForestListener* const listener = parts_.options.forest_listener.get()) listener->OnStep(model_info_, cache_.forest().View());
  under_way_.push_back({.batch = batch, .ticket = *ticket, .drafting = drafts_.drafting()});
  metrics_.NotePlan(metrics_.totals().steps + std::ssize(under_way_), *batch, runner_, cache_);
  under_way_.back().in_cache = steps_.Launched(*ticket);
  return true;
}

Status EngineImpl::CommitOldest() {
  UnderWay& step = under_way_.front();
  step.waited = true;
  const Result<StepResult> result = runner_.Wait(step.ticket);
  PhaseTimer phase("commit", &metrics_.step().host_seconds);
  if (!result.ok()) {
    FailSteps(result.status());
    return result.status();
  }
  metrics_.CountStep(*step.batch, result->stats, cache_.usage());
  committer_.Commit(*step.batch, *result);
  step.in_cache.Computed();
  under_way_.erase(under_way_.begin());
  return OkStatus();
}

Status EngineImpl::Drain() {
  metrics_.totals().bubbles += !under_way_.empty() && parts_.options.steps_ahead > 0;
  while (!under_way_.empty()) COPPICE_RETURN_IF_ERROR(CommitOldest());
  return OkStatus();
}

Status EngineImpl::Quiesce() {
  COPPICE_RETURN_IF_ERROR(Drain());
  return steps_.Flush(&runner_);
}

void EngineImpl::FailSteps(const Status& status) {
  for (UnderWay& step : under_way_) {
    if (!std::exchange(step.waited, true)) (void)runner_.Wait(step.ticket);  // it stands on what failed
  }
  for (UnderWay& step : under_way_) step.in_cache = {};
  for (const UnderWay& step : under_way_) committer_.FailBatch(*step.batch, status);
  under_way_.clear();
  committer_.FailBatch(steps_.next(), status);
  steps_.DropWork();
  if (status.code() != StatusCode::kUnavailable) return;
  // The device is lost, and with it the KV of all others.
  for (RequestState* const request : requests_.FindUnfinished()) committer_.EndRequest(request, FinishReason::kError, status);
}

void EngineImpl::ForgetDone() {
  retired_.clear();  // no step that is under way refers to them any more
  if (events_.done().empty()) return;
  events_.emissions()->retired.reserve(events_.emissions()->retired.size() + events_.done().size());
  retired_.reserve(events_.done().size());
  for (const RequestId id : events_.done()) {
    RequestPtr request = requests_.Remove(id);
    events_.emissions()->retired.push_back(std::move(request->listener));
    if (!under_way_.empty()) retired_.push_back(std::move(request));
  }
  inbox_.Forget(events_.done());
  events_.ForgetDone();
}

void EngineImpl::Publish(bool idle) {
  int32_t waiting = 0;  // a request is counted once, by the sequence that computes its prompt
  for (const Sequence* sequence : scheduler_.waiting()) waiting += !sequence->request->forked;
  metrics_.Publish({.cache = &cache_,
                    .waiting = inbox_.SetScheduled(waiting),
                    .running = scheduler_.num_running(),
                    .preemptions = scheduler_.preemptions(),
                    .draft_trees_cut = scheduler_.draft_trees_cut(),
                    .draft_kv_bytes_read = drafts_.kv_bytes_read(),
                    .detokenize_seconds = emitter_.seconds(),
                    .idle = idle});
}

}  // namespace

std::unique_ptr<Engine> MakeEngine(EngineParts parts) { return std::make_unique<EngineImpl>(std::move(parts)); }

}  // namespace coppice
