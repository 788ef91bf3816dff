#include "cli/generation.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace coppice::cli {

std::optional<double> Sample::mean_logprob() const {
  if (logprobs.empty()) return std::nullopt;
  return std::accumulate(logprobs.begin(), logprobs.end(), 0.0) / static_cast<double>(logprobs.size());
}

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
      generation.prompt_logprobs = event.prompt_logprobs;
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

std::vector<const Sample*> Ranked(const Generation& generation) {
  std::vector<const Sample*> ranked;
  for (const Sample& sample : generation.samples) {
    if (sample.finished()) ranked.push_back(&sample);
  }
  const auto key = [](const Sample* sample) { return sample->mean_logprob().value_or(-std::numeric_limits<double>::infinity()); };
  std::stable_sort(ranked.begin(), ranked.end(), [&](const Sample* a, const Sample* b) { return key(a) > key(b); });
  return ranked;
}

}  // namespace coppice::cli
