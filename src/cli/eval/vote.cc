// Problems whose answer is a word or number: n samples of each, and the answer that most of them end with (self-consistency, Wang
// et al. 2023; GSM8K in Hydragen, table 1).
#include <fmt/format.h>

#include <utility>

#include "cli/eval/run_requests.h"
#include "cli/eval/sampled.h"
#include "cli/eval/task.h"
#include "coppice/engine/ranking.h"
#include "core/check.h"

namespace coppice::cli {
namespace {

// Numbers are written with commas between thousands, or without.
std::string WithoutCommas(std::string text) {
  std::erase(text, ',');
  return text;
}

Status Check(const VoteTask& task, const Engine& engine) {
  if (engine.tokenizer() == nullptr) return engine.model_info().tokenizer_status;
  if (const auto compiled = ExtractAnswer("", task.pattern); !compiled.ok())
    return InvalidArgument(fmt::format("--answer: {}", compiled.status().message()));
  return OkStatus();
}

Result<EvalResult> Run(const VoteTask& task, Engine& engine, const EvalProgress& progress) {
  COPPICE_RETURN_IF_ERROR(Check(task, engine));
  std::vector<Request> requests;
  for (const VoteProblem& problem : task.problems) {
    COPPICE_ASSIGN_OR_RETURN(Request request, RequestOf(problem, task, engine));
    requests.push_back(std::move(request));
  }
  const auto problems = std::ssize(task.problems);
  COPPICE_ASSIGN_OR_RETURN(const std::vector<openai::RequestOutput> outputs,
                           RunRequests(engine, std::move(requests), [&](int64_t done) { progress(done, problems); }));
  EvalResult result;
  double right_shares = 0;  // of a problem's samples, summed over problems, since samples of a problem are not independent
  int64_t right = 0, answered = 0;
  for (size_t p = 0; p < task.problems.size(); ++p) {
    COPPICE_ASSIGN_OR_RETURN(const std::vector<VotedAnswer> votes, openai::Vote(outputs[p].samples, task.pattern));
    const std::string expected = WithoutCommas(task.problems[p].answer);
    int64_t agree = 0;
    for (const VotedAnswer& vote : votes) {
      answered += std::ssize(vote.voters);
      if (WithoutCommas(vote.answer) == expected) agree += std::ssize(vote.voters);
    }
    right += !votes.empty() && WithoutCommas(votes.front().answer) == expected;
    right_shares += static_cast<double>(agree) / task.samples;
    result.items.push_back(votes.empty() ? "" : fmt::format("{} ({})", votes.front().answer, votes.front().voters.size()));
  }
  result.scores = {{"accuracy of the vote", Proportion(right, problems)},
                   {"accuracy of a sample", Proportion(right_shares, problems)},
                   {"samples with an answer", Proportion(answered, problems * task.samples)}};
  return result;
}

}  // namespace

EvalTask MakeTask(VoteTask task) {
  return [task = std::move(task)](Engine& engine, const EvalProgress& progress) { return Run(task, engine, progress); };
}

Result<std::vector<VoteProblem>> ParseVoteProblems(const std::string& text) {
  return ParseSampledProblems(text, "answer", &VoteProblem::answer);
}

}  // namespace coppice::cli
