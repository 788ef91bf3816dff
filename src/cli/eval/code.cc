// Programs: n samples of each problem's beginning, run against its tests. pass@k (Chen et al. 2021) and pass@top3, the three
// distinct samples of highest mean log-probability (Bifurcated attention, section 5.4).
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "cli/eval/run_requests.h"
#include "cli/eval/sampled.h"
#include "cli/eval/sandbox.h"
#include "cli/eval/task.h"
#include "core/check.h"
#include "core/thread_pool.h"

namespace coppice::cli {
namespace {

constexpr size_t kTopDistinct = 3;

// Whether one of the distinct samples of highest mean log-probability passed.
bool TopPasses(const std::vector<openai::Sample>& samples, const std::vector<ProgramResult>& results) {
  std::vector<size_t> order(samples.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto score = [&](size_t i) { return samples[i].mean_logprob().value_or(-1e30); };
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return score(a) > score(b); });
  std::set<std::string> seen;
  for (const size_t i : order) {
    if (!seen.insert(samples[i].text).second) continue;
    if (results[i] == ProgramResult::kPassed) return true;
    if (seen.size() == kTopDistinct) return false;
  }
  return false;
}

Result<Sandbox> Check(const CodeTask& task, const Engine& engine) {
  if (engine.tokenizer() == nullptr) return engine.model_info().tokenizer_status;
  for (const int32_t k : task.k) {
    if (k < 1 || k > task.samples)
      return InvalidArgument(fmt::format("--k has {}; expected 1 to the number of samples, {}", k, task.samples));
  }
  return Sandbox::Create(task.interpreter, {.seconds = task.seconds, .subprocesses = task.subprocesses});
}

Result<std::vector<ProgramResult>> RunPrograms(const Sandbox& sandbox, const CodeProblem& problem,
                                               const std::vector<openai::Sample>& samples, ThreadPool& threads) {
  std::vector<ProgramResult> results(samples.size(), ProgramResult::kFailed);
  std::vector<Status> failures(samples.size());
  threads.ParallelFor(std::ssize(samples), [&](int64_t i, int) {
    const Result<ProgramResult> result = sandbox.Run(problem.prompt + samples[i].text + "\n" + problem.tests);
    if (result.ok()) {
      results[i] = *result;
    } else {
      failures[i] = result.status();
    }
  });
  for (const Status& failure : failures) COPPICE_RETURN_IF_ERROR(failure);
  return results;
}

Result<EvalResult> Run(const CodeTask& task, Engine& engine, const EvalProgress& progress) {
  COPPICE_ASSIGN_OR_RETURN(const Sandbox sandbox, Check(task, engine));
  std::vector<Request> requests;
  for (const CodeProblem& problem : task.problems) {
    COPPICE_ASSIGN_OR_RETURN(Request request, RequestOf(problem, task, engine));
    requests.push_back(std::move(request));
  }
  COPPICE_ASSIGN_OR_RETURN(
      const std::vector<openai::RequestOutput> outputs,
      RunRequests(engine, std::move(requests), [&](int64_t done) { progress(done, std::ssize(task.problems)); }));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> threads, ThreadPool::Create(0));
  EvalResult result;
  std::vector<std::vector<double>> passed_at(task.k.size());  // by k, problem
  int64_t top = 0, timed_out = 0;
  for (size_t p = 0; p < task.problems.size(); ++p) {
    const std::vector<openai::Sample>& samples = outputs[p].samples;
    COPPICE_ASSIGN_OR_RETURN(const std::vector<ProgramResult> results, RunPrograms(sandbox, task.problems[p], samples, *threads));
    const auto passed = std::ranges::count(results, ProgramResult::kPassed);
    for (size_t k = 0; k < task.k.size(); ++k) passed_at[k].push_back(PassAt(task.k[k], task.samples, passed));
    top += TopPasses(samples, results);
    timed_out += std::ranges::count(results, ProgramResult::kTimedOut);
    result.items.push_back(fmt::format("{}/{}", passed, results.size()));
  }
  const auto problems = std::ssize(task.problems);
  for (size_t k = 0; k < task.k.size(); ++k) {
    Estimate estimate = Mean(passed_at[k]);  // of chances, which the normal approximation does not know
    estimate.low = std::max(estimate.low, 0.0);
    estimate.high = std::min(estimate.high, 1.0);
    result.scores.push_back({fmt::format("pass@{}", task.k[k]), estimate});
  }
  result.scores.push_back({fmt::format("pass@top{}", kTopDistinct), Proportion(top, problems)});
  result.scores.push_back({"programs out of time", Proportion(timed_out, problems * task.samples)});
  return result;
}

}  // namespace

EvalTask MakeTask(CodeTask task) {
  return [task = std::move(task)](Engine& engine, const EvalProgress& progress) { return Run(task, engine, progress); };
}

Result<std::vector<CodeProblem>> ParseProblems(const std::string& text) {
  return ParseSampledProblems(text, "tests", &CodeProblem::tests);
}

}  // namespace coppice::cli
