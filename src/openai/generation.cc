#include "openai/generation.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "core/check.h"
#include "engine/policies/vote_stop.h"
#include "openai/request_driver.h"

namespace coppice::openai {
namespace {

std::vector<const Sample*> Finished(std::span<const Sample> samples) {
  std::vector<const Sample*> finished;
  for (const Sample& sample : samples) {
    if (sample.finished()) finished.push_back(&sample);
  }
  return finished;
}

std::vector<RankedSample> Views(const std::vector<const Sample*>& samples) {
  std::vector<RankedSample> views;
  for (const Sample* sample : samples) views.push_back({sample->text, sample->token_ids, sample->logprobs});
  return views;
}

// One request, whose output is reported by the thread that steps the engine.
class Gathering final : public RequestDriver {
 public:
  explicit Gathering(Engine* engine) : RequestDriver(engine), engine_(*engine) {}

  // `streams`: every event is reported.
  void Start(Request request, bool streams) {
    streams_ = streams;
    const int32_t samples = request.n;
    Begin([&] {
      if (Submit(std::move(request))) output_.samples.reserve(samples);  // those that are reported stay where they are
    });
  }
  // Likewise of samples that a vote may leave out.
  void StartVoted(Request request, bool streams, StoppingVote vote) {
    streams_ = streams;
    const int32_t samples = request.n;
    vote_ = {.rule = std::move(vote), .stop = VoteStop(samples), .samples = samples, .max_tokens = request.max_tokens};
    request.n = vote_->wanted();
    vote_->begun = request.n;
    vote_->firsts = {0};
    std::shared_ptr<KeptRequest> kept;
    Begin([&] {
      if (!Submit(std::move(request), &kept)) return;
      output_.samples.reserve(samples);
      SetOpen(true);
    });
    vote_->kept = kept;
  }
  // Between steps, once what ended is reported: begins samples that the vote needs, or ends the rest where it needs none. True:
  // some have begun.
  Result<bool> Vote() {
    if (vote_->stop.settled()) Cancel();
    const std::shared_ptr<KeptRequest> kept = vote_->kept.lock();
    {
      const auto lock = Lock();
      if (cancelled() || vote_->begun == vote_->samples || kept == nullptr) {
        SetOpen(false);
        return false;
      }
    }
    const int32_t count = vote_->wanted() - (vote_->begun - vote_->ended);
    if (count <= 0) return false;
    // From the prompt, with the streams of random numbers that follow: the next samples of the request.
    const ForkOptions options = {.n = count, .keep_tokens = 0, .max_tokens = vote_->max_tokens};
    COPPICE_ASSIGN_OR_RETURN(const std::shared_ptr<KeptRequest::Group> group, kept->Fork(engine_, 0, options));
    {
      const auto lock = Lock();
      vote_->firsts.push_back(vote_->begun);
    }
    vote_->begun += count;
    TakeOver(*kept, group.get(), [] {});
    return true;
  }
  // Releases the samples that a vote kept.
  void Release() {
    const std::shared_ptr<KeptRequest> kept = vote_ ? vote_->kept.lock() : nullptr;
    if (kept) (void)engine_.Release(kept->id());  // where all was pruned, nothing is left to be released
  }
  bool has_ended() const {
    const auto lock = Lock();
    return ended();
  }
  // Calls the hooks for what came since the last time, and counts the samples that finished. True: all has come. Errors of the
  // vote's pattern.
  Result<bool> Report(const GenerationHooks& hooks, int32_t max_tokens, GenerationProgress* progress) {
    std::vector<StreamEvent> news;
    bool done = false;
    {
      const auto lock = Lock();
      news = std::exchange(news_, {});
      done = ended();
    }
    for (const StreamEvent& event : news) {
      if (event.index < 0) {
        if (hooks.on_prompt) hooks.on_prompt(output_.prompt.text);
        continue;
      }
      if (hooks.on_event) hooks.on_event(event);
      if (!Finishes(event)) continue;
      const Sample& sample = output_.samples[event.index];  // nothing comes any more for it
      ++progress->samples_finished;
      progress->tokens_wanted -= max_tokens - std::ssize(sample.token_ids);
      if (hooks.on_sample) hooks.on_sample(sample);
      if (!vote_) continue;
      COPPICE_ASSIGN_OR_RETURN(const std::optional<std::string> answer, ExtractAnswer(sample.text, vote_->rule.pattern));
      vote_->stop.Add(answer);
      ++vote_->ended;
    }
    return done;
  }
  // Moves what came to `generation`.
  Status Take(Generation* generation) {
    const auto lock = Lock();
    COPPICE_RETURN_IF_ERROR(failure());
    if (!ended() && !cancelled()) return Internal("the engine has nothing to do although the request is not done");
    generation->prompt_text = std::move(output_.prompt.text);
    generation->prompt_logprobs = std::move(output_.prompt.logprobs);
    generation->samples = std::move(output_.samples);
    generation->shared_reads = counts().front().shared_reads;
    return OkStatus();
  }

 private:
  // Of samples, some of which have begun.
  struct Voting {
    StoppingVote rule;
    VoteStop stop;
    int32_t samples = 0, max_tokens = 0;
    int32_t begun = 0, ended = 0;
    std::vector<int32_t> firsts;  // by request of the driver: the index of its first sample; guarded by the lock
    std::weak_ptr<KeptRequest> kept;

    // Samples that may be under way.
    int32_t wanted() const { return std::min(rule.max_running, stop.needed()); }
  };

  void OnEvent(size_t request, const StreamEvent& sent) override {
    StreamEvent event = sent;
    if (vote_ && event.index >= 0) event.index += vote_->firsts[request];
    output_.Add(event);
    if (event.index < 0) {
      news_.push_back({.index = event.index});
    } else if (streams_ || Finishes(event)) {
      news_.push_back(std::move(event));
    }
  }
  void OnEnd() override {}

  static bool Finishes(const StreamEvent& event) {
    return event.finish_reason == FinishReason::kStop || event.finish_reason == FinishReason::kLength;
  }

  Engine& engine_;
  RequestOutput output_;
  bool streams_ = false;
  std::optional<Voting> vote_;
  std::vector<StreamEvent> news_;  // not reported yet: the prompt's, without content; those that finish a sample, or all
};

// Counters of an engine from some moment on.
class MetricsSince {
 public:
  explicit MetricsSince(EngineMetrics begin) : begin_(std::move(begin)) {}

  // `now`, taken after each step.
  EngineMetrics Of(EngineMetrics now) {
    for (const auto count : kCounts) now.*count -= begin_.*count;
    for (const auto seconds : kSeconds) now.*seconds -= begin_.*seconds;
    if (begin_.steps == 0) return now;  // the engine's peaks are the only ones
    const StepMetrics& step = now.last_step;
    if (step.step > begin_.steps && step.kv_bytes_stored >= peak_.kv_bytes_stored) peak_ = step;
    now.kv_bytes_stored = peak_.kv_bytes_stored;
    now.kv_bytes_stored_unshared = peak_.kv_bytes_stored_unshared;
    now.kv_page_rounding_bytes = peak_.kv_page_rounding_bytes;
    return now;
  }

 private:
  static constexpr int64_t EngineMetrics::*kCounts[] = {&EngineMetrics::steps,
                                                        &EngineMetrics::prompt_tokens,
                                                        &EngineMetrics::prefilled_tokens,
                                                        &EngineMetrics::generated_tokens,
                                                        &EngineMetrics::cached_tokens,
                                                        &EngineMetrics::drafted_tokens,
                                                        &EngineMetrics::accepted_draft_tokens,
                                                        &EngineMetrics::draft_trees_cut,
                                                        &EngineMetrics::sample_steps,
                                                        &EngineMetrics::undrafted_steps,
                                                        &EngineMetrics::draft_kv_bytes_read,
                                                        &EngineMetrics::bubbles,
                                                        &EngineMetrics::graph_steps,
                                                        &EngineMetrics::preemptions,
                                                        &EngineMetrics::merged_pages,
                                                        &EngineMetrics::kv_bytes_read,
                                                        &EngineMetrics::kv_bytes_read_unshared,
                                                        &EngineMetrics::kv_bytes_distinct,
                                                        &EngineMetrics::decode_kv_bytes_distinct,
                                                        &EngineMetrics::hybrid_steps,
                                                        &EngineMetrics::hybrid_steps_over_target,
                                                        &EngineMetrics::decode_steps,
                                                        &EngineMetrics::decode_graph_steps,
                                                        &EngineMetrics::decode_kv_bytes_read,
                                                        &EngineMetrics::decode_kv_bytes_read_unshared,
                                                        &EngineMetrics::rows,
                                                        &EngineMetrics::grouped_rows};
  static constexpr double EngineMetrics::*kSeconds[] = {&EngineMetrics::draft_seconds,
                                                        &EngineMetrics::device_idle_seconds,
                                                        &EngineMetrics::prefill_seconds,
                                                        &EngineMetrics::decode_seconds,
                                                        &EngineMetrics::plan_seconds,
                                                        &EngineMetrics::forward_seconds,
                                                        &EngineMetrics::sample_seconds,
                                                        &EngineMetrics::host_seconds,
                                                        &EngineMetrics::detokenize_seconds,
                                                        &EngineMetrics::hybrid_seconds,
                                                        &EngineMetrics::hybrid_predicted_seconds};

  const EngineMetrics begin_;
  StepMetrics peak_;
};

}  // namespace

std::optional<double> Sample::mean_logprob() const { return MeanLogprob(logprobs); }

void Sample::Append(const StreamEvent& event) {
  text += event.text;
  token_ids.insert(token_ids.end(), event.token_ids.begin(), event.token_ids.end());
  logprobs.insert(logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  top_logprobs.insert(top_logprobs.end(), event.top_logprobs.begin(), event.top_logprobs.end());
  ranks.insert(ranks.end(), event.ranks.begin(), event.ranks.end());
  if (!event.token_ids.empty()) {
    if (versions.empty() || versions.back().version != event.weight_version)
      versions.push_back({.version = event.weight_version, .begin = token_ids.size() - event.token_ids.size()});
    versions.back().end = token_ids.size();
  }
  version = event.weight_version;
  if (event.finish_reason) finish_reason = event.finish_reason;
  if (event.beam_score) beam_score = event.beam_score;
  if (event.stop) stop = event.stop;
}

void RequestOutput::Add(const StreamEvent& event) {
  if (event.index < 0) {
    prompt = {event.text, event.token_ids, event.prompt_logprobs, event.prompt_top_logprobs, event.prompt_ranks};
  } else {
    while (std::ssize(samples) <= event.index) samples.push_back({.index = static_cast<int32_t>(samples.size())});
    samples[event.index].Append(event);
  }
}

Result<Generation> Generate(Engine& engine, Request request, const GenerationHooks& hooks, const StoppingVote* vote) {
  Generation generation;
  generation.prompt_ids = request.prompt_ids;
  GenerationProgress progress{.metrics = &generation.metrics,
                              .prompt_tokens = static_cast<int64_t>(request.prompt_ids.size()),
                              .tokens_wanted = int64_t{request.n} * request.max_tokens,
                              .samples = request.n};
  const int32_t max_tokens = request.max_tokens;
  MetricsSince metrics(engine.Metrics());
  const auto gathering = std::make_shared<Gathering>(&engine);
  if (vote && request.n > 0) {
    gathering->StartVoted(std::move(request), static_cast<bool>(hooks.on_event), *vote);
  } else {
    gathering->Start(std::move(request), static_cast<bool>(hooks.on_event));
  }
  COPPICE_ASSIGN_OR_RETURN(bool done, gathering->Report(hooks, max_tokens, &progress));  // done already: it was refused
  for (bool more = true; more && !done;) {
    if (!generation.interrupted && hooks.should_stop && hooks.should_stop()) {
      generation.interrupted = true;
      gathering->Cancel();
    }
    const int64_t decode_steps_before = generation.metrics.decode_steps, tokens_before = generation.metrics.generated_tokens;
    COPPICE_ASSIGN_OR_RETURN(more, engine.Step());
    generation.metrics = metrics.Of(engine.Metrics());
    if (generation.metrics.decode_steps > decode_steps_before)
      generation.decode_tokens += generation.metrics.generated_tokens - tokens_before;
    progress.decode_tokens = generation.decode_tokens;
    COPPICE_ASSIGN_OR_RETURN(done, gathering->Report(hooks, max_tokens, &progress));
    if (!done && vote) {
      COPPICE_ASSIGN_OR_RETURN(const bool begun, gathering->Vote());
      more |= begun;
      done = gathering->has_ended();
    }
    if (hooks.on_step) hooks.on_step(progress);
  }
  gathering->Release();
  COPPICE_RETURN_IF_ERROR(gathering->Take(&generation));
  return generation;
}

std::vector<const Sample*> Select(std::span<const Sample> samples, const Selection& selection) {
  const std::vector<const Sample*> finished = Finished(samples);
  const int32_t best = selection.best > 0 ? selection.best : static_cast<int32_t>(finished.size());
  std::vector<const Sample*> selected;
  for (const int32_t i : BestOf(Views(finished), best, selection.deduplicate)) selected.push_back(finished[i]);
  if (!selection.rank) std::ranges::sort(selected, {}, &Sample::index);
  return selected;
}

Result<std::vector<VotedAnswer>> Vote(std::span<const Sample> samples, const std::string& pattern) {
  const std::vector<const Sample*> finished = Finished(samples);
  COPPICE_ASSIGN_OR_RETURN(std::vector<VotedAnswer> votes, MajorityVote(Views(finished), pattern));
  for (VotedAnswer& vote : votes) {
    for (int32_t& voter : vote.voters) voter = finished[voter]->index;
  }
  return votes;
}

}  // namespace coppice::openai
