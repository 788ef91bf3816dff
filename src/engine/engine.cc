// The step. Requests come in through an inbox that any thread may fill; everything else belongs to the thread that calls Step.
// Layer: engine. docs/engine.md walks through this file.
#include "coppice/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/exhaustion.h"
#include "engine/emitter.h"
#include "engine/engine_parts.h"
#include "engine/fair_mutex.h"
#include "engine/prefix_file.h"
#include "engine/request_state.h"
#include "engine/scheduler.h"
#include "engine/step_builder.h"
#include "engine/validate_request.h"

namespace coppice {
namespace {

using Clock = RequestState::Clock;

constexpr size_t kNumPrefixes = 16;  // of EngineMetrics::prefixes
constexpr std::chrono::milliseconds kPrefixesEvery(100);

// Adds the time since the last lap to a counter.
class LapTimer {
 public:
  void Lap(double* seconds) {
    const Clock::time_point now = Clock::now();
    *seconds += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }
  void Skip() { last_ = Clock::now(); }

 private:
  Clock::time_point last_ = Clock::now();
};

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(EngineParts parts)
      : parts_(std::move(parts)),
        cache_(*parts_.cache),
        runner_(*parts_.runner),
        scheduler_(
            {.max_batch_tokens = parts_.options.max_batch_tokens, .chunk = parts_.options.chunk, .policy = parts_.options.schedule},
            parts_.cache.get()),
        num_pages_(cache_.usage().pages_total),
        emitter_(parts_.options.event_thread) {
    metrics_.pages_total = num_pages_;
    metrics_.chunk = parts_.options.chunk;
    metrics_.chunk_probe = parts_.chunk_probe;
    published_ = metrics_;
  }

  Result<RequestId> Submit(Request request) override;
  Status Cancel(RequestId id) override;
  Status Unpin(const std::string& name) override;
  Status SavePrefix(const std::string& name, const std::string& path) override;
  Status LoadPrefix(const std::string& name, const std::string& path) override;
  Result<bool> Step() override;
  Status Run(std::stop_token stop) override;
  EngineLoad Load() const override {
    const std::lock_guard lock(mutex_);
    return {.waiting = waiting_, .running = published_.running};
  }
  EngineMetrics Metrics() const override {
    const std::lock_guard lock(mutex_);
    return published_;
  }
  const Tokenizer* tokenizer() const override { return parts_.tokenizer.get(); }
  Status tokenizer_status() const override { return parts_.tokenizer_status; }
  const ModelConfig& model_config() const override { return runner_.info().model; }

 private:
  // Submit, Step, SavePrefix and LoadPrefix, which may run out of memory.
  Result<RequestId> TakeRequest(Request request);
  Result<bool> StepOnce();
  Status WritePinned(const std::string& name, const std::string& path);
  Status ReadAndPin(const std::string& name, const std::string& path);
  KvOrigin kv_origin() const;
  // Records under mutex_ that `name` is pinned now; an Unpin that waits meant the prompt before this one.
  void NotePin(const std::string& name);
  // Guesses for the sequences that decode in the next step.
  Status ProposeDrafts();
  // The step's parts; false: nothing to do.
  Result<bool> RunStep();
  // Launches the next step, if there is one that needs nothing of those under way.
  Result<bool> LaunchNext();
  // Waits for the oldest step under way and takes over what it gave. On an error its requests have ended, and those of steps after
  // it.
  Status CommitOldest();
  // Commits all that is under way.
  Status Drain();
  Result<bool> TakeInbox();
  void Begin(RequestPtr request);
  Result<bool> ExpireDeadlines();
  void Commit(const ScheduledBatch& batch, const StepResult& result);
  // What is before kv index `computed` of the sequence is there.
  void MarkComputed(Sequence* sequence, int32_t computed);
  // Takes over the log-probabilities of prompt tokens.
  void CommitScores(const ScheduledBatch::Entry& entry, std::span<const float> scores);
  // What a sample generated becomes shareable page by page, while it runs.
  void PublishPages(const Sequence& sequence);
  // Takes over the drafts with which the model agrees, and the token that it says next. False if the sequence ends there.
  bool CommitDrafts(const ScheduledBatch::Entry& entry);
  void BeginSamples(const ScheduledBatch::Entry& entry);
  // Adds what draw number `index` of the step gave to a sequence and says so; true if the sequence goes on.
  bool Accept(Sequence* sequence, int32_t index);
  void AddTopLogprobs(int32_t index, Emissions::Item* item);
  // Whether the sequence ends with the item's token, its last one, and what text it adds where stop strings are looked for.
  std::optional<FinishReason> EndOf(const Sequence& sequence, Emissions::Item* item);
  static TextStream& TextOf(const Sequence& sequence) { return sequence.request->listener->texts[sequence.index]; }
  std::string& NewText(Emissions::Item* item);
  // An item of the step's emissions, to be filled; FinishItem completes the last one, and drops it where nobody listens.
  Emissions::Item& NewItem(const Sequence& sequence);
  void FinishItem(const Sequence& sequence);
  void EmitPrompt(RequestState* request);
  // Ends every unfinished sequence of a request.
  void EndRequest(RequestState* request, FinishReason reason, const Status& status);
  // A step failed: ends the requests that took part in it, in those launched after it, in one that was being scheduled, and in
  // `also` if not null. Their KV cannot be trusted; the others go on.
  void FailSteps(const Status& status, const ScheduledBatch* also);
  void EndBatch(const ScheduledBatch& batch, const Status& status);
  void ForgetDone();
  void CountMemory();
  void CountRows(const ScheduledBatch& batch, const StepStats& stats);
  void CountTime();
  // Publishes the counters. `idle`: there was nothing to do.
  void Publish(bool idle);

  std::pmr::synchronized_pool_resource request_memory_;  // any thread submits, the stepping thread forgets

  EngineParts parts_;
  KvCache& cache_;
  Runner& runner_;
  Scheduler scheduler_;
  const int32_t num_pages_;
  std::unordered_map<uint64_t, RequestPtr> requests_;
  std::vector<RequestId> done_;      // to be forgotten at the end of the step
  std::vector<RequestPtr> retired_;  // done, but the step under way refers to them
  int32_t deadlines_ = 0;            // requests with one
  struct UnderWay {
    ScheduledBatch* batch = nullptr;
    StepTicket ticket;
    bool told = false;  // the runner was waited for
  };
  std::vector<UnderWay> under_way_;  // steps that were launched and not committed, oldest first; at most 1 + steps_ahead
  struct {
    const ScheduledBatch* batch = nullptr;
    StepResult result;
  } committed_;  // the step whose Commit runs
  std::vector<Sequence*> survivors_;
  Emissions emissions_;  // of the step at hand
  std::vector<DraftRequest> draft_requests_;
  std::vector<int32_t> accepted_;  // drafts of a sequence
  EngineMetrics metrics_;
  StepMetrics step_;                  // of the step at hand
  Clock::time_point prefixes_due_{};  // when metrics_.prefixes is gathered again

  FairMutex stepping_;  // held by a step, and by another thread that needs what belongs to the stepping thread

  mutable std::mutex mutex_;          // guards what follows
  std::condition_variable_any wake_;  // something came in
  std::vector<RequestPtr> inbox_;
  std::vector<RequestId> cancelled_;
  std::unordered_set<uint64_t> live_;  // submitted and not done
  std::set<std::string> pinned_;       // names
  std::vector<std::string> unpinned_;  // to be let go by the next step
  uint64_t next_id_ = 1;
  int32_t waiting_ = 0;  // requests that have not begun to run, the inbox included
  EngineMetrics published_;

  Emitter emitter_;  // last, so that it is done before what it refers to goes
};

// ---------------------------------------------------------------------------------------------------------------- any thread

Result<RequestId> EngineImpl::Submit(Request request) {
  return CatchExhaustion("taking a request", [&] { return TakeRequest(std::move(request)); });
}

Result<RequestId> EngineImpl::TakeRequest(Request request) {
  const RequestLimits limits{.vocab_size = model_config().vocab_size,
                             .max_context = parts_.options.max_context,
                             .page_size = cache_.page_size(),
                             .num_pages = num_pages_,
                             .max_running = parts_.options.max_running,
                             .has_tokenizer = parts_.tokenizer != nullptr,
                             .can_pin = parts_.options.sharing != SharingMode::kNone};
  COPPICE_RETURN_IF_ERROR(ValidateRequest(request, limits));
  if (request.sampling.temperature < kSmallestTemperature) request.sampling.temperature = 0;
  RequestPtr state = MakeRequest(&request_memory_);
  if (request.timeout_seconds > 0) {
    state->deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(request.timeout_seconds));
  }
  state->params = std::move(request);
  const std::vector<int32_t>& eos = model_config().eos_token_ids;
  if (state->params.stop_token_ids.empty()) {
    static const std::vector<int32_t> kNone;
    state->end_ids = state->params.ignore_eos ? &kNone : &eos;
  } else {
    state->own_end_ids = state->params.stop_token_ids;
    if (!state->params.ignore_eos) state->own_end_ids.insert(state->own_end_ids.end(), eos.begin(), eos.end());
  }
  state->has_penalties = HasPenalties(state->params.sampling);
  if (state->params.prompt_logprobs) state->prompt_logprobs.resize(state->params.prompt_ids.size());
  state->unfinished = state->params.n;
  state->sequences.resize(state->params.n);
  state->listener = std::make_unique<Listener>();
  Listener& listener = *state->listener;
  listener.on_event = std::move(state->params.on_event);
  state->has_listener = listener.on_event != nullptr;
  state->has_stops = listener.has_stops = !state->params.stop.empty();
  listener.texts.resize(state->params.n);
  for (int32_t i = 0; i < state->params.n; ++i) {
    Sequence& sequence = state->sequences[i];
    sequence.request = state.get();
    sequence.index = i;
    listener.texts[i] = TextStream(parts_.tokenizer.get(), state->params.stop);
  }

  const std::lock_guard lock(mutex_);
  const int32_t limit = parts_.options.max_waiting;
  if (limit > 0 && waiting_ >= limit) {
    return ResourceExhausted("the queue is full: " + std::to_string(waiting_) + " requests wait, max_waiting is " +
                             std::to_string(limit) + "; try again later");
  }
  wake_.notify_all();
  const RequestId id{next_id_++};
  state->id = listener.request = id;
  ++waiting_;
  live_.insert(static_cast<uint64_t>(id));
  inbox_.push_back(std::move(state));
  return id;
}

Status EngineImpl::Cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (!live_.contains(static_cast<uint64_t>(id))) {
    return NotFound("request " + std::to_string(static_cast<uint64_t>(id)) + " is not known or is done already");
  }
  cancelled_.push_back(id);
  wake_.notify_all();
  return OkStatus();
}

Status EngineImpl::Unpin(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (pinned_.erase(name) == 0) return NotFound("no prompt is pinned as \"" + name + "\": it may not be computed yet");
  unpinned_.push_back(name);
  wake_.notify_all();
  return OkStatus();
}

KvOrigin EngineImpl::kv_origin() const {
  const RunnerInfo& info = runner_.info();
  const ModelConfig& config = info.model;
  return {.model = info.fingerprint,
          .dtype = info.kv_dtype,
          .num_layers = config.num_layers,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .deterministic = parts_.options.deterministic};
}

void EngineImpl::NotePin(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::erase(unpinned_, name);
  pinned_.insert(name);
}

Status EngineImpl::SavePrefix(const std::string& name, const std::string& path) {
  return CatchExhaustion("saving a prefix", [&] { return WritePinned(name, path); });
}

Status EngineImpl::WritePinned(const std::string& name, const std::string& path) {
  StoredPrefix prefix{.origin = kv_origin()};
  {
    const std::lock_guard between_steps(stepping_);
    {
      const std::lock_guard lock(mutex_);
      if (!pinned_.contains(name)) return NotFound("no prompt is pinned as \"" + name + "\": it may not be computed yet");
    }
    COPPICE_RETURN_IF_ERROR(Drain());
    KvCache::PinnedPrompt pinned = cache_.FindPinned(name).value();
    prefix.kv.resize(pinned.tokens.size() * prefix.origin.bytes_per_token());
    COPPICE_RETURN_IF_ERROR(FlushEdits(&runner_, &cache_, &scheduler_.next().step));
    COPPICE_RETURN_IF_ERROR(runner_.ReadKv(pinned.pages, static_cast<int32_t>(pinned.tokens.size()), prefix.kv));
    prefix.tokens = std::move(pinned.tokens);
    prefix.salt = std::move(pinned.salt);
    prefix.private_begin = pinned.private_begin;
  }
  return WritePrefixFile(path, prefix);
}

Status EngineImpl::LoadPrefix(const std::string& name, const std::string& path) {
  return CatchExhaustion("loading a prefix", [&] { return ReadAndPin(name, path); });
}

Status EngineImpl::ReadAndPin(const std::string& name, const std::string& path) {
  if (name.empty()) return InvalidArgument("the name of a prefix is empty: give it one");
  if (parts_.options.sharing == SharingMode::kNone) {
    return InvalidArgument("sharing mode none keeps no prefixes: use another mode to load " + path);
  }
  COPPICE_ASSIGN_OR_RETURN(const StoredPrefix prefix, ReadPrefixFile(path, kv_origin()));
  const int32_t num_tokens = static_cast<int32_t>(prefix.tokens.size());
  if (num_tokens < 1 || num_tokens > parts_.options.max_context) {
    return InvalidArgument(path + ": the prefix has " + std::to_string(num_tokens) + " tokens, expected 1.." +
                           std::to_string(parts_.options.max_context) + " (max_context)");
  }
  const std::lock_guard between_steps(stepping_);
  COPPICE_RETURN_IF_ERROR(Drain());
  COPPICE_RETURN_IF_ERROR(FlushEdits(&runner_, &cache_, &scheduler_.next().step));  // they may be of pages that are free now
  COPPICE_RETURN_IF_ERROR(cache_.Restore(
      name, prefix.tokens, {.salt = prefix.salt, .private_begin = prefix.private_begin},
      [&](std::span<const PageId> pages, int32_t begin) { return runner_.WriteKv(pages, begin, num_tokens, prefix.kv); }));
  NotePin(name);
  return OkStatus();
}

// ----------------------------------------------------------------------------------------------------------- the stepping thread

Result<bool> EngineImpl::Step() {
  return CatchExhaustion("running a step", [this] { return StepOnce(); });
}

Result<bool> EngineImpl::StepOnce() {
  const std::lock_guard turn(stepping_);
  committed_.batch = nullptr;
  Result<bool> ran = CatchExhaustion("running a step", [this] { return RunStep(); });
  if (ran.ok() && !emitter_.status().ok()) ran = emitter_.status();
  if (!ran.ok()) FailSteps(ran.status(), emitter_.status().ok() ? nullptr : committed_.batch);
  scheduler_.RemoveStopped();
  ForgetDone();
  const bool idle = !ran.ok() || !*ran;
  bool worked = false;
  emitter_.Send(&emissions_);
  if (idle) {
    emitter_.Drain();
    const std::lock_guard lock(mutex_);
    worked = !inbox_.empty();  // what an event has led to
  }
  Publish(idle);
  if (!ran.ok()) return ran.status();
  return *ran || worked;
}

Status EngineImpl::Run(std::stop_token stop) {
  while (!stop.stop_requested()) {
    COPPICE_ASSIGN_OR_RETURN(const bool worked, Step());
    if (worked) continue;
    std::unique_lock lock(mutex_);
    wake_.wait(lock, stop, [this] { return !inbox_.empty() || !cancelled_.empty() || !unpinned_.empty(); });
  }
  return OkStatus();
}

Result<bool> EngineImpl::RunStep() {
  const Clock::time_point begin = Clock::now();
  step_ = {};
  COPPICE_ASSIGN_OR_RETURN(const bool took, TakeInbox());
  COPPICE_ASSIGN_OR_RETURN(const bool expired, ExpireDeadlines());
  // Drafts follow what is known of a text, so a step with drafts is not launched ahead.
  const size_t most_under_way = parts_.drafter ? 1 : 1 + parts_.options.steps_ahead;
  while (under_way_.size() < most_under_way) {
    COPPICE_ASSIGN_OR_RETURN(const bool launched, LaunchNext());
    if (!launched) break;
  }
  if (under_way_.empty()) {
    if (scheduler_.idle()) return took || expired;
    // Nobody runs, so nobody will ever make room for the first in line.
    EndRequest(scheduler_.waiting().front()->request, FinishReason::kError,
               ResourceExhausted("the KV cache has no room for the prompt: raise kv_cache_bytes"));
    return true;
  }
  COPPICE_RETURN_IF_ERROR(CommitOldest());
  step_.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  CountTime();
  return true;
}

Result<bool> EngineImpl::LaunchNext() {
  LapTimer timer;
  if (const Status drafted = ProposeDrafts(); !drafted.ok()) {
    for (const DraftRequest& request : draft_requests_) EndRequest(request.sequence->request, FinishReason::kError, drafted);
    return drafted;
  }
  timer.Lap(&metrics_.draft_seconds);
  ScheduledBatch* const batch = scheduler_.Schedule(!under_way_.empty());
  metrics_.bubbles += batch == nullptr;
  timer.Lap(&step_.host_seconds);
  if (batch == nullptr || batch->empty()) return false;
  const Result<StepTicket> ticket = LaunchStep(&runner_, &cache_, batch->tree_masks, &batch->step);
  if (!ticket.ok()) {
    COPPICE_RETURN_IF_ERROR(Drain());  // those before it can be trusted
    return ticket.status();
  }
  scheduler_.Launched(ticket->step);
  under_way_.push_back({.batch = batch, .ticket = *ticket});
  return true;
}

Status EngineImpl::CommitOldest() {
  const UnderWay step = under_way_.front();
  const Result<StepResult> result = runner_.Wait(step.ticket);
  LapTimer timer;
  under_way_.front().told = true;
  if (!result.ok()) {
    FailSteps(result.status(), nullptr);
    return result.status();
  }
  CountMemory();  // while everybody who ran still holds its pages
  CountRows(*step.batch, result->stats);
  Commit(*step.batch, *result);
  under_way_.erase(under_way_.begin());
  timer.Lap(&step_.host_seconds);
  return OkStatus();
}

Status EngineImpl::Drain() {
  metrics_.bubbles += !under_way_.empty() && parts_.options.steps_ahead > 0;
  while (!under_way_.empty()) COPPICE_RETURN_IF_ERROR(CommitOldest());
  return OkStatus();
}

Result<bool> EngineImpl::TakeInbox() {
  std::vector<RequestPtr> arrived;
  std::vector<RequestId> cancelled;
  std::vector<std::string> unpinned;
  {
    const std::lock_guard lock(mutex_);
    arrived.swap(inbox_);
    cancelled.swap(cancelled_);
    unpinned.swap(unpinned_);
  }
  for (const std::string& name : unpinned) cache_.Unpin(name);
  for (auto& request : arrived) Begin(std::move(request));
  const Status drained = cancelled.empty() ? OkStatus() : Drain();  // the step under way may compute what others wait for
  for (const RequestId id : cancelled) {
    const auto found = requests_.find(static_cast<uint64_t>(id));
    if (found != requests_.end()) EndRequest(found->second.get(), FinishReason::kCancelled, OkStatus());
  }
  if (!drained.ok()) return drained;
  return !arrived.empty() || !cancelled.empty();
}

void EngineImpl::Begin(RequestPtr request) {
  metrics_.prompt_tokens += request->prompt_length();
  deadlines_ += request->deadline.has_value();
  scheduler_.Add(request.get());
  const uint64_t id = static_cast<uint64_t>(request->id);
  requests_.emplace(id, std::move(request));
}

Result<bool> EngineImpl::ExpireDeadlines() {
  if (deadlines_ == 0) return false;
  const Clock::time_point now = Clock::now();
  const auto is_late = [now](const RequestState& r) { return r.deadline && now >= *r.deadline && r.unfinished > 0; };
  if (std::ranges::none_of(requests_, [&](const auto& entry) { return is_late(*entry.second); })) return false;
  COPPICE_RETURN_IF_ERROR(Drain());
  bool expired = false;
  for (const auto& [id, request] : requests_) {
    if (!is_late(*request)) continue;
    expired = true;
    EndRequest(request.get(), FinishReason::kError,
               DeadlineExceeded("the request did not finish within " + std::to_string(request->params.timeout_seconds) +
                                " seconds: allow more time or fewer tokens"));
  }
  return expired;
}

Status EngineImpl::ProposeDrafts() {
  if (!parts_.drafter) return OkStatus();
  const EngineOptions& options = parts_.options;
  draft_requests_.clear();
  for (Sequence* const sequence : scheduler_.PlanDrafts()) {
    sequence->draft.Clear();
    const int32_t wanted = sequence->draft_depth > 0 ? sequence->draft_depth : options.draft_tokens;
    const int32_t generated = static_cast<int32_t>(sequence->generated.size());
    // One token more than the accepted drafts comes of a step.
    const int32_t depth = std::min({wanted, scheduler_.draft_share(), sequence->request->params.max_tokens - generated - 1,
                                    options.max_context - sequence->length() - 1});
    if (depth > 0) draft_requests_.push_back({.sequence = sequence, .max_depth = depth});
  }
  return parts_.drafter->Propose(draft_requests_);
}

void EngineImpl::Commit(const ScheduledBatch& batch, const StepResult& result) {
  committed_ = {.batch = &batch, .result = result};
  for (size_t e = 0; e < batch.entries.size(); ++e) {
    PrefetchAhead(e, batch.entries.size(), cache_, [&](size_t i) { return batch.entries[i].sequence; });
    const ScheduledBatch::Entry& entry = batch.entries[e];
    Sequence* const sequence = entry.sequence;
    if (sequence->state == Sequence::State::kFinished && !entry.begins_samples) continue;  // it ended while this step was under way
    if (entry.num_scores > 0) CommitScores(entry, result.scores);
    metrics_.sample_steps += entry.num_draws > 0 && !entry.begins_samples;
    if (entry.drafts > 0) {
      if (!CommitDrafts(entry)) scheduler_.Finish(sequence);
      continue;
    }
    MarkComputed(sequence, entry.begin + entry.count);
    if (cache_.HasWholePages(sequence->branch)) PublishPages(*sequence);
    if (entry.begins_samples) {
      BeginSamples(entry);
    } else if (entry.num_draws > 0 && !Accept(sequence, entry.first_draw)) {
      scheduler_.Finish(sequence);
    }
  }
}

void EngineImpl::MarkComputed(Sequence* sequence, int32_t computed) {
  sequence->computed = computed;
  cache_.MarkComputed(sequence->branch, computed);
}

void EngineImpl::CommitScores(const ScheduledBatch::Entry& entry, std::span<const float> scores) {
  const Sequence& sequence = *entry.sequence;
  for (int32_t i = 0; i < entry.num_scores; ++i) {
    sequence.request->prompt_logprobs[entry.begin + i + 1] = scores[entry.first_score + i];
  }
}

void EngineImpl::PublishPages(const Sequence& sequence) {
  const int32_t begin = cache_.own_begin(sequence.branch) - sequence.request->prompt_length();
  const int32_t count = sequence.computed - cache_.own_begin(sequence.branch);
  cache_.Publish(sequence.branch, std::span(sequence.generated).subspan(begin, count));
}

bool EngineImpl::CommitDrafts(const ScheduledBatch::Entry& entry) {
  Sequence* const sequence = entry.sequence;
  const Draft& draft = sequence->draft;
  const int32_t drafts_begin = entry.begin + entry.count - entry.drafts;  // kv index of the first
  accepted_.clear();
  bool goes_on = true;
  for (int32_t node = Draft::kRoot;;) {
    const int32_t draw = entry.first_draw + node + 1;
    sequence->draws_under_way = 1;
    goes_on = Accept(sequence, draw);
    node = goes_on ? draft.ChildOf(node, committed_.result.draws[draw].token, entry.drafts) : Draft::kRoot;
    if (node == Draft::kRoot) break;
    accepted_.push_back(node);
  }
  const int32_t num_accepted = static_cast<int32_t>(accepted_.size());
  for (int32_t i = 0; i < num_accepted; ++i) {  // what was refused in between goes
    if (accepted_[i] == i) continue;
    scheduler_.next().step.moves.push_back({.from = cache_.SlotOf(sequence->branch, drafts_begin + accepted_[i]),
                                            .to = cache_.SlotOf(sequence->branch, drafts_begin + i)});
  }
  sequence->launched = drafts_begin + num_accepted;
  MarkComputed(sequence, sequence->launched);
  if (cache_.HasWholePages(sequence->branch)) PublishPages(*sequence);
  metrics_.drafted_tokens += entry.drafts;
  metrics_.accepted_draft_tokens += num_accepted;
  // Deeper while everything is accepted, else as deep as it just went and one more.
  int32_t depth = 0;
  for (int32_t i = 0; i < entry.drafts; ++i) depth = std::max(depth, draft.DepthOf(i));
  sequence->draft_depth = num_accepted == depth ? std::min(2 * depth, parts_.options.draft_tokens) : num_accepted + 1;
  return goes_on;
}

// The prompt of a request is computed: its n samples begin as n leaves of it, or have begun while its last step was under way.
void EngineImpl::BeginSamples(const ScheduledBatch::Entry& entry) {
  Sequence* const first = entry.sequence;
  RequestState* const request = first->request;
  EmitPrompt(request);
  if (const std::string& name = request->params.pin_prompt_as; !name.empty()) {
    cache_.Pin(name, first->branch);
    NotePin(name);
  }
  const bool forked = request->forked;
  survivors_.clear();
  for (int32_t i = 0; i < entry.num_draws; ++i) {
    Sequence* const sequence = &request->sequences[i];
    if (forked && sequence->branch != kNoBranch) MarkComputed(sequence, entry.begin + entry.count);
    sequence->draws_under_way += !forked && sequence != first;
    if (Accept(sequence, entry.first_draw + i)) {
      survivors_.push_back(sequence);
    } else if (forked || sequence != first) {
      scheduler_.Finish(sequence);
    }
  }
  if (forked) return;
  if (survivors_.empty()) {
    scheduler_.Finish(first);
  } else {
    scheduler_.Fork(first, survivors_);
  }
}

bool EngineImpl::Accept(Sequence* sequence, int32_t index) {
  const TokenDraw& draw = committed_.result.draws[index];
  --sequence->draws_under_way;
  Emissions::Item& item = NewItem(*sequence);
  item.token = draw.token;
  item.logprob = draw.logprob;
  if (draw.token < 0) {
    item.reason = FinishReason::kError;
    item.status = static_cast<int32_t>(emissions_.statuses.size());
    emissions_.statuses.push_back(Internal("the model's logits are not finite numbers at token " +
                                           std::to_string(sequence->length()) + ": check the model file, or use f32"));
  } else {
    sequence->generated.push_back(draw.token);
    if (sequence->request->params.top_logprobs > 0) AddTopLogprobs(index, &item);
    ++metrics_.generated_tokens;
    item.reason = EndOf(*sequence, &item);
  }
  const bool goes_on = !item.reason;
  FinishItem(*sequence);
  return goes_on;
}

void EngineImpl::AddTopLogprobs(int32_t index, Emissions::Item* item) {
  const Draw& draw = committed_.batch->step.draws[index];
  item->top_begin = static_cast<int32_t>(emissions_.top_logprobs.size());
  for (const TokenLogprob& top : committed_.result.top_logprobs.subspan(draw.top_begin, draw.top_logprobs)) {
    if (top.token >= 0) emissions_.top_logprobs.push_back(top);  // a small vocabulary has fewer
  }
  item->top_count = static_cast<int32_t>(emissions_.top_logprobs.size()) - item->top_begin;
}

std::optional<FinishReason> EngineImpl::EndOf(const Sequence& sequence, Emissions::Item* item) {
  const RequestState& request = *sequence.request;
  const int32_t generated = static_cast<int32_t>(sequence.generated.size());
  const bool may_end = generated >= request.params.min_tokens;
  if (may_end && std::ranges::find(*request.end_ids, item->token) != request.end_ids->end()) {
    if (request.has_stops) TextOf(sequence).Finish(&NewText(item));
    return FinishReason::kStop;  // the token that ends a sample is no part of its text
  }
  item->decodes = true;
  if (request.has_stops && TextOf(sequence).Push(item->token, may_end, &NewText(item))) return FinishReason::kStop;
  if (generated == request.params.max_tokens || sequence.length() == parts_.options.max_context) {
    if (request.has_stops) TextOf(sequence).Finish(&emissions_.texts[item->text]);
    return FinishReason::kLength;
  }
  return std::nullopt;
}

std::string& EngineImpl::NewText(Emissions::Item* item) {
  item->text = static_cast<int32_t>(emissions_.texts.size());
  return emissions_.texts.emplace_back();
}

// Items are filled in place. A copy would be read in wider pieces than it was written, and the processor then waits until all
// stores before have left for the cache: 200 cycles a sample.
Emissions::Item& EngineImpl::NewItem(const Sequence& sequence) {
  Emissions::Item& item = emissions_.items.emplace_back();
  item.listener = sequence.request->listener.get();
  item.index = sequence.index;
  return item;
}

void EngineImpl::FinishItem(const Sequence& sequence) {
  RequestState& request = *sequence.request;
  Emissions::Item& item = emissions_.items.back();
  if (item.reason && --request.unfinished == 0) {
    item.request_done = true;
    done_.push_back(request.id);
  }
  if (!request.has_listener) emissions_.items.pop_back();
}

void EngineImpl::EmitPrompt(RequestState* request) {
  if (!request->has_listener || (request->prompt_logprobs.empty() && !request->params.echo)) return;
  StreamEvent event{.request = request->id, .prompt_logprobs = request->prompt_logprobs};
  if (request->params.echo) {
    event.token_ids = request->params.prompt_ids;
    if (parts_.tokenizer) event.text = PromptText(*parts_.tokenizer, request->params.prompt_ids);
  }
  emissions_.items.push_back({.listener = request->listener.get(), .prompt = static_cast<int32_t>(emissions_.prompts.size())});
  emissions_.prompts.push_back(std::move(event));
}

void EngineImpl::EndRequest(RequestState* request, FinishReason reason, const Status& status) {
  for (Sequence& sequence : request->sequences) {
    if (sequence.state == Sequence::State::kFinished) continue;
    scheduler_.Finish(&sequence);
    Emissions::Item& item = NewItem(sequence);
    item.reason = reason;
    if (request->has_stops) TextOf(sequence).Finish(&NewText(&item));
    if (!status.ok()) {
      item.status = static_cast<int32_t>(emissions_.statuses.size());
      emissions_.statuses.push_back(status);
    }
    FinishItem(sequence);
  }
}

void EngineImpl::FailSteps(const Status& status, const ScheduledBatch* also) {
  for (const UnderWay& step : under_way_) {
    if (!step.told) (void)runner_.Wait(step.ticket);  // it stands on what failed
  }
  cache_.AbandonSteps();
  for (const UnderWay& step : under_way_) EndBatch(*step.batch, status);
  under_way_.clear();
  EndBatch(scheduler_.next(), status);
  scheduler_.next().Clear();
  if (also != nullptr) EndBatch(*also, status);
}

void EngineImpl::EndBatch(const ScheduledBatch& batch, const Status& status) {
  for (const ScheduledBatch::Entry& entry : batch.entries) EndRequest(entry.sequence->request, FinishReason::kError, status);
}

void EngineImpl::ForgetDone() {
  retired_.clear();  // no step that is under way refers to them any more
  if (done_.empty()) return;
  const std::lock_guard lock(mutex_);
  for (const RequestId id : done_) {
    const auto found = requests_.find(static_cast<uint64_t>(id));
    deadlines_ -= found->second->deadline.has_value();
    emissions_.retired.push_back(std::move(found->second->listener));
    if (!under_way_.empty()) retired_.push_back(std::move(found->second));
    requests_.erase(found);
    live_.erase(static_cast<uint64_t>(id));
  }
  done_.clear();
}

void EngineImpl::CountRows(const ScheduledBatch& batch, const StepStats& stats) {
  step_.step = ++metrics_.steps;
  step_.prefill_rows = batch.prefill_tokens;
  step_.decode_rows = batch.num_tokens() - batch.prefill_tokens;
  step_.grouped_rows = stats.grouped_rows;
  step_.kv_bytes_read = stats.kv_bytes_read;
  step_.kv_bytes_read_unshared = stats.kv_bytes_read_unshared;
  step_.plan_seconds = stats.plan_seconds;
  step_.forward_seconds = stats.forward_seconds;
  step_.sample_seconds = stats.sample_seconds;
  metrics_.prefilled_tokens += step_.prefill_rows;
  metrics_.rows += batch.num_tokens();
  metrics_.grouped_rows += step_.grouped_rows;
  metrics_.kv_bytes_read += step_.kv_bytes_read;
  metrics_.kv_bytes_read_unshared += step_.kv_bytes_read_unshared;
  if (step_.prefill_rows > 0) return;
  ++metrics_.decode_steps;
  metrics_.decode_kv_bytes_read += step_.kv_bytes_read;
  metrics_.decode_kv_bytes_read_unshared += step_.kv_bytes_read_unshared;
}

void EngineImpl::CountTime() {
  (step_.prefill_rows > 0 ? metrics_.prefill_seconds : metrics_.decode_seconds) += step_.seconds;
  metrics_.plan_seconds += step_.plan_seconds;
  metrics_.forward_seconds += step_.forward_seconds;
  metrics_.sample_seconds += step_.sample_seconds;
  metrics_.host_seconds += step_.host_seconds;
  metrics_.last_step = step_;
}

void EngineImpl::CountMemory() {
  const KvCache::Usage usage = cache_.usage();
  if (usage.pages_in_use < metrics_.peak_pages_used) return;  // the last moment at the peak: its pages are fullest
  const int64_t token_bytes = runner_.info().kv_bytes_per_token;
  const int64_t page_bytes = token_bytes * cache_.page_size();
  metrics_.peak_pages_used = usage.pages_in_use;
  metrics_.kv_bytes_stored = usage.pages_in_use * page_bytes;
  metrics_.kv_bytes_stored_unshared = usage.pages_unshared * page_bytes;
  metrics_.kv_page_rounding_bytes = metrics_.kv_bytes_stored - usage.tokens_in_use * token_bytes;
}

void EngineImpl::Publish(bool idle) {
  const double emitting = emitter_.seconds();
  metrics_.last_step.detokenize_seconds = emitting - metrics_.detokenize_seconds;
  metrics_.detokenize_seconds = emitting;
  if (const Clock::time_point now = Clock::now(); idle || now >= prefixes_due_) {
    prefixes_due_ = now + kPrefixesEvery;
    metrics_.prefixes.clear();
    for (const KvCache::PrefixUse& use : cache_.TopPrefixes(kNumPrefixes)) {
      metrics_.prefixes.push_back({.begin = use.begin, .end = use.end, .hits = use.hits, .users = use.users, .pinned = use.pinned});
    }
  }
  metrics_.running = scheduler_.num_running();
  metrics_.pages_used = cache_.pages_owned();
  metrics_.cached_tokens = cache_.hit_tokens();
  metrics_.preemptions = scheduler_.preemptions();
  metrics_.draft_trees_cut = scheduler_.draft_trees_cut();
  metrics_.merged_pages = cache_.merged_pages();
  if (parts_.drafter) metrics_.draft_kv_bytes_read = parts_.drafter->kv_bytes_read();
  int32_t waiting = 0;  // a request is counted once, by the sequence that computes its prompt
  for (const Sequence* sequence : scheduler_.waiting()) waiting += !sequence->request->forked;
  const std::lock_guard lock(mutex_);
  waiting_ = waiting + static_cast<int32_t>(inbox_.size());
  metrics_.waiting = waiting_;
  published_ = metrics_;
}

}  // namespace

std::unique_ptr<Engine> MakeEngine(EngineParts parts) { return std::make_unique<EngineImpl>(std::move(parts)); }

}  // namespace coppice
