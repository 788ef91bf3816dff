// Shared by tasks of several samples a problem: their files and their requests. Layer: cli.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/eval/json_lines.h"
#include "cli/eval/task.h"
#include "core/check.h"

namespace coppice::cli {

// Lines of {"prompt", `key`: text, "stop": [...]}, the last one optional. Errors as ForEachJsonLine.
template <class Problem>
Result<std::vector<Problem>> ParseSampledProblems(const std::string& text, const char* key, std::string Problem::*value) {
  std::vector<Problem> problems;
  COPPICE_RETURN_IF_ERROR(ForEachJsonLine(text, [&](const nlohmann::json& line) -> Status {
    Problem problem;
    COPPICE_RETURN_IF_ERROR(TakeText(line, "prompt", &problem.prompt));
    COPPICE_RETURN_IF_ERROR(TakeText(line, key, &(problem.*value)));
    if (line.contains("stop")) COPPICE_RETURN_IF_ERROR(TakeTexts(line, "stop", &problem.stop));
    problems.push_back(std::move(problem));
    return OkStatus();
  }));
  return problems;
}

// A problem's samples. REQUIRES: the engine has a tokenizer.
inline Result<Request> RequestOf(const SampledProblem& problem, const SampleSettings& settings, const Engine& engine) {
  Request request{.n = settings.samples, .max_tokens = settings.max_tokens, .stop = problem.stop};
  request.sampling.temperature = settings.temperature;
  request.sampling.top_p = settings.top_p;
  request.sampling.seed = settings.seed;
  COPPICE_ASSIGN_OR_RETURN(request.prompt_ids, engine.tokenizer()->Encode(problem.prompt));
  return request;
}

}  // namespace coppice::cli
