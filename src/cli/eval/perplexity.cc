// Perplexity of a text, in windows that overlap: each token but the first of all is predicted once, from at least `context` others.
#include <algorithm>
#include <utility>

#include "cli/eval/run_requests.h"
#include "cli/eval/task.h"
#include "core/check.h"
#include "fmt/format.h"

namespace coppice::cli {
namespace {

struct Window {
  int64_t begin, first;  // the first token, and the first one that is counted
};

Result<EvalResult> Run(const PerplexityTask& task, Engine& engine, const EvalProgress& progress) {
  if (engine.tokenizer() == nullptr) return engine.model_info().tokenizer_status;
  if (task.window < 2 || task.context < 1 || task.context >= task.window)
    return InvalidArgument(
        fmt::format("--window is {} and --context {}: expected a window of at least 2 tokens and a context below it", task.window,
                    task.context));
  COPPICE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, engine.tokenizer()->Encode(task.text));
  if (tokens.size() < 2) return InvalidArgument(fmt::format("the text has {} tokens; expected at least 2", tokens.size()));
  std::vector<Window> windows;
  std::vector<Request> requests;
  const auto size = std::ssize(tokens);
  for (int64_t begin = 0; windows.empty() || begin + task.context < size; begin += task.window - task.context) {
    const int64_t end = std::min<int64_t>(begin + task.window, size);
    windows.push_back({begin, begin == 0 ? 1 : begin + task.context});
    requests.push_back({.prompt_ids = {tokens.begin() + begin, tokens.begin() + end}, .max_tokens = 0, .prompt_logprobs = true});
    if (end == size) break;
  }
  COPPICE_ASSIGN_OR_RETURN(const std::vector<openai::RequestOutput> outputs,
                           RunRequests(engine, std::move(requests), [&](int64_t done) { progress(done, std::ssize(windows)); }));
  EvalResult result;
  std::vector<double> sums;
  std::vector<int64_t> counts;
  for (size_t w = 0; w < windows.size(); ++w) {
    const auto& logprobs = outputs[w].prompt.logprobs;
    double sum = 0;
    int64_t count = 0;
    for (auto i = static_cast<size_t>(windows[w].first - windows[w].begin); i < logprobs.size(); ++i, ++count) sum += *logprobs[i];
    sums.push_back(sum);
    counts.push_back(count);
    result.items.push_back(fmt::format("{:.3f}", sum));
  }
  result.scores.push_back({"perplexity", Perplexity(sums, counts)});
  return result;
}

}  // namespace

EvalTask MakeTask(PerplexityTask task) {
  return [task = std::move(task)](Engine& engine, const EvalProgress& progress) { return Run(task, engine, progress); };
}

}  // namespace coppice::cli
