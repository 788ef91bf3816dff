#include "openai/generation.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>

#include "core/check.h"

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

// The request's output, and what of it is to be reported.
struct Gathered {
  void Add(const StreamEvent& event) {
    const std::lock_guard lock(mutex);
    output.Add(event);
    if (event.index < 0 || output.samples[event.index].finished()) news.push_back(event.index);
  }

  // Calls the hooks for `news`; how many samples finished. Needs no lock: nothing comes any more for those samples, nor for the
  // prompt.
  int32_t Report(const std::vector<int32_t>& news, const GenerationHooks& hooks) const {
    int32_t finished = 0;
    for (const int32_t index : news) {
      if (index < 0) {
        if (hooks.on_prompt) hooks.on_prompt(output.prompt.text);
        continue;
      }
      ++finished;
      if (hooks.on_sample) hooks.on_sample(output.samples[index]);
    }
    return finished;
  }

  std::mutex mutex;
  RequestOutput output;
  std::vector<int32_t> news;  // samples that finished, -1 for the prompt, in order
};

}  // namespace

std::optional<double> Sample::mean_logprob() const { return MeanLogprob(logprobs); }

void Sample::Append(const StreamEvent& event) {
  text += event.text;
  token_ids.insert(token_ids.end(), event.token_ids.begin(), event.token_ids.end());
  logprobs.insert(logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  top_logprobs.insert(top_logprobs.end(), event.top_logprobs.begin(), event.top_logprobs.end());
  if (event.finish_reason) finish_reason = event.finish_reason;
}

void RequestOutput::Add(const StreamEvent& event) {
  if (event.index < 0) {
    prompt = {event.text, event.token_ids, event.prompt_logprobs, event.prompt_top_logprobs};
  } else {
    while (std::ssize(samples) <= event.index) samples.push_back({.index = static_cast<int32_t>(samples.size())});
    samples[event.index].Append(event);
  }
  cached_tokens = std::max(cached_tokens, event.cached_tokens);
  if (event.finish_reason == FinishReason::kError && failure.ok()) failure = event.status;
  cancelled |= event.finish_reason == FinishReason::kCancelled;
  if (event.request_done) shared_reads = event.shared_reads;
  done |= event.request_done;
}

Result<Generation> Generate(Engine& engine, Request request, const GenerationHooks& hooks) {
  Generation generation;
  generation.prompt_ids = request.prompt_ids;
  GenerationProgress progress{.metrics = &generation.metrics,
                              .prompt_tokens = static_cast<int64_t>(request.prompt_ids.size()),
                              .tokens_wanted = int64_t{request.n} * request.max_tokens,
                              .samples = request.n};
  const auto gathered = std::make_shared<Gathered>();  // events may outlive this call if it fails
  request.on_event = [gathered](const StreamEvent& event) { gathered->Add(event); };
  const Result<RequestId> id = engine.Submit(std::move(request));
  if (!id.ok()) return id.status();
  bool done = false;
  for (bool more = true; more && !done;) {
    if (!generation.interrupted && hooks.should_stop && hooks.should_stop()) {
      generation.interrupted = true;
      if (Status status = engine.Cancel(*id); !status.ok()) return status;
    }
    const int64_t decode_steps_before = generation.metrics.decode_steps, tokens_before = generation.metrics.generated_tokens;
    COPPICE_ASSIGN_OR_RETURN(more, engine.Step());
    generation.metrics = engine.Metrics();
    if (generation.metrics.decode_steps > decode_steps_before)
      generation.decode_tokens += generation.metrics.generated_tokens - tokens_before;
    progress.decode_tokens = generation.decode_tokens;
    std::vector<int32_t> news;
    {
      const std::lock_guard lock(gathered->mutex);
      news = std::exchange(gathered->news, {});
      done = gathered->output.done;
    }
    progress.samples_finished += gathered->Report(news, hooks);
    if (hooks.on_step) hooks.on_step(progress);
  }
  const std::lock_guard lock(gathered->mutex);
  RequestOutput& output = gathered->output;
  COPPICE_RETURN_IF_ERROR(output.failure);
  if (!done && !generation.interrupted) return Internal("the engine has nothing to do although the request is not done");
  generation.prompt_text = std::move(output.prompt.text);
  generation.prompt_logprobs = std::move(output.prompt.logprobs);
  generation.samples = std::move(output.samples);
  generation.shared_reads = output.shared_reads;
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
