#include "cli/generation.h"

#include <algorithm>

#include "core/check.h"

namespace coppice::cli {
namespace {

std::vector<const Sample*> Finished(const Generation& generation) {
  std::vector<const Sample*> finished;
  for (const Sample& sample : generation.samples) {
    if (sample.finished()) finished.push_back(&sample);
  }
  return finished;
}

std::vector<RankedSample> Views(const std::vector<const Sample*>& samples) {
  std::vector<RankedSample> views;
  for (const Sample* sample : samples) views.push_back({sample->text, sample->token_ids, sample->logprobs});
  return views;
}

}  // namespace

std::optional<double> Sample::mean_logprob() const { return MeanLogprob(logprobs); }

Result<Generation> Generate(Engine& engine, Request request, const GenerationHooks& hooks) {
  Generation generation;
  generation.prompt_ids = request.prompt_ids;
  generation.samples.resize(request.n);
  for (int32_t i = 0; i < request.n; ++i) generation.samples[i].index = i;

  GenerationProgress progress{.metrics = &generation.metrics,
                              .prompt_tokens = static_cast<int64_t>(request.prompt_ids.size()),
                              .tokens_wanted = int64_t{request.n} * request.max_tokens,
                              .samples = request.n};
  Status failure;
  bool done = false;
  int64_t tokens_of_step = 0;
  request.on_event = [&](const StreamEvent& event) {
    done |= event.request_done;
    if (event.finish_reason == FinishReason::kError && failure.ok()) failure = event.status;
    if (event.index < 0) {
      generation.prompt_text = event.text;
      generation.prompt_logprobs = event.prompt_logprobs;
      if (hooks.on_prompt) hooks.on_prompt(event.text);
      return;
    }
    Sample& sample = generation.samples[event.index];
    sample.text += event.text;
    sample.token_ids.insert(sample.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
    sample.logprobs.insert(sample.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    tokens_of_step += static_cast<int64_t>(event.token_ids.size());
    if (!event.finish_reason) return;
    sample.finish_reason = event.finish_reason;
    if (!sample.finished()) return;
    ++progress.samples_finished;
    if (hooks.on_sample) hooks.on_sample(sample);
  };

  const Result<RequestId> id = engine.Submit(std::move(request));
  if (!id.ok()) return id.status();
  while (!done) {
    if (!generation.interrupted && hooks.should_stop && hooks.should_stop()) {
      generation.interrupted = true;
      if (Status status = engine.Cancel(*id); !status.ok()) return status;
    }
    const int64_t decode_steps_before = generation.metrics.decode_steps;
    tokens_of_step = 0;
    const Result<bool> stepped = engine.Step();
    if (!stepped.ok()) return stepped.status();
    generation.metrics = engine.Metrics();
    if (generation.metrics.decode_steps > decode_steps_before) generation.decode_tokens += tokens_of_step;
    progress.decode_tokens = generation.decode_tokens;
    if (hooks.on_step) hooks.on_step(progress);
    if (!*stepped) break;
  }
  if (!failure.ok()) return failure;
  if (!done && !generation.interrupted) return Internal("the engine has nothing to do although the request is not done");
  return generation;
}

std::vector<const Sample*> Select(const Generation& generation, const Selection& selection) {
  const std::vector<const Sample*> finished = Finished(generation);
  const int32_t best = selection.best > 0 ? selection.best : static_cast<int32_t>(finished.size());
  std::vector<const Sample*> selected;
  for (const int32_t i : BestOf(Views(finished), best, selection.deduplicate)) selected.push_back(finished[i]);
  if (!selection.rank) std::ranges::sort(selected, {}, &Sample::index);
  return selected;
}

Result<std::vector<VotedAnswer>> Vote(const Generation& generation, const std::string& pattern) {
  const std::vector<const Sample*> finished = Finished(generation);
  COPPICE_ASSIGN_OR_RETURN(std::vector<VotedAnswer> votes, MajorityVote(Views(finished), pattern));
  for (VotedAnswer& vote : votes) {
    for (int32_t& voter : vote.voters) voter = finished[voter]->index;
  }
  return votes;
}

}  // namespace coppice::cli
