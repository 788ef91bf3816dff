// An evaluation's task: it makes requests, runs them on an engine, and gives estimates. It does not know the sharing mode, which
// must change nothing. Layer: cli.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/eval/statistics.h"
#include "coppice/core/status.h"
#include "coppice/engine/engine.h"

namespace coppice::cli {

struct Score {
  std::string name;  // "depth 0.25"
  Estimate estimate;
};

struct EvalResult {
  std::vector<Score> scores;
  // The result of each item, so that modes can be compared item by item: an answer, a log-probability, passed or not.
  std::vector<std::string> items;
  DType dtype = DType::kBF16;  // the engine's
};

using EvalProgress = std::function<void(int64_t done, int64_t of)>;
using EvalTask = std::function<Result<EvalResult>(Engine& engine, const EvalProgress& progress)>;

struct PerplexityTask {
  std::string text;
  int32_t window = 512;  // tokens of a window; the windows follow each other
  int32_t context = 64;  // of these, from the second window on, the last ones of the window before, which are not counted again
};
struct NeedleTask {
  std::vector<int32_t> lengths = {1024};  // tokens of the haystack, about
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};
  int32_t repeats = 4;  // haystacks of a length; all their depths' questions are asked of each
  uint64_t seed = 1;
};
struct ChoiceQuestion {
  std::string question;
  std::vector<std::string> choices;
  int32_t answer = 0;
};
struct ChoiceTask {
  std::vector<ChoiceQuestion> questions;
};
// A beginning that several samples go on from.
struct SampledProblem {
  std::string prompt;
  std::vector<std::string> stop;
};
struct SampleSettings {
  int32_t samples = 1, max_tokens = 256;  // of each problem, of each sample
  float temperature = 1, top_p = 1;
  uint64_t seed = 1;
};
struct CodeProblem : SampledProblem {
  std::string tests;
};
struct CodeTask : SampleSettings {
  CodeTask() : SampleSettings{.samples = 10, .temperature = 0.8f, .top_p = 0.95f} {}
  std::vector<CodeProblem> problems;
  std::vector<int32_t> k = {1};  // pass@k
  std::string interpreter = "/usr/bin/python3";
  double seconds = 5;         // of a program
  bool subprocesses = false;  // whether a program may start processes
};
struct VoteProblem : SampledProblem {
  std::string answer;
};
struct VoteTask : SampleSettings {
  VoteTask() : SampleSettings{.samples = 40, .temperature = 0.7f} {}
  std::vector<VoteProblem> problems;
  std::string pattern = R"(answer is \$?(-?[0-9][0-9,]*))";  // of ExtractAnswer
};

EvalTask MakeTask(PerplexityTask task);
EvalTask MakeTask(NeedleTask task);
EvalTask MakeTask(ChoiceTask task);
EvalTask MakeTask(CodeTask task);
EvalTask MakeTask(VoteTask task);

// A line each, a JSON object: {"question", "choices", "answer": index}, {"prompt", "tests", "stop": [...]} and {"prompt",
// "answer": text, "stop": [...]}. Errors name the line.
Result<std::vector<ChoiceQuestion>> ParseQuestions(const std::string& text);
Result<std::vector<CodeProblem>> ParseProblems(const std::string& text);
Result<std::vector<VoteProblem>> ParseVoteProblems(const std::string& text);

}  // namespace coppice::cli
