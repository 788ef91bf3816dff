// Multiple choice: the choice that the model finds most probable behind the question, which all its choices share.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/eval/json_lines.h"
#include "cli/eval/run_requests.h"
#include "cli/eval/task.h"
#include "core/check.h"

namespace coppice::cli {
namespace {

// The log-probability of a choice's tokens.
double SumFrom(const std::vector<std::optional<float>>& logprobs, size_t first) {
  double sum = 0;
  for (size_t i = std::max<size_t>(first, 1); i < logprobs.size(); ++i) sum += *logprobs[i];
  return sum;
}

Result<EvalResult> Run(const ChoiceTask& task, Engine& engine, const EvalProgress& progress) {
  if (engine.tokenizer() == nullptr) return engine.model_info().tokenizer_status;
  const Tokenizer& tokenizer = *engine.tokenizer();
  std::vector<Request> requests;
  std::vector<size_t> firsts;  // of each request, the first token that the choice has a part in
  for (const ChoiceQuestion& question : task.questions) {
    COPPICE_ASSIGN_OR_RETURN(const std::vector<int32_t> alone, tokenizer.Encode(question.question));
    for (const std::string& choice : question.choices) {
      COPPICE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer.Encode(question.question + choice));
      const auto differ = std::ranges::mismatch(alone, ids);
      firsts.push_back(static_cast<size_t>(differ.in2 - ids.begin()));
      requests.push_back({.prompt_ids = std::move(ids), .max_tokens = 0, .prompt_logprobs = true});
    }
  }
  const auto total = std::ssize(requests);
  COPPICE_ASSIGN_OR_RETURN(const std::vector<openai::RequestOutput> outputs,
                           RunRequests(engine, std::move(requests), [&](int64_t done) { progress(done, total); }));
  EvalResult result;
  int64_t right = 0, right_per_byte = 0;
  size_t at = 0;
  for (const ChoiceQuestion& question : task.questions) {
    std::vector<double> sums, per_byte;
    for (const std::string& choice : question.choices) {
      sums.push_back(SumFrom(outputs[at].prompt.logprobs, firsts[at]));
      per_byte.push_back(sums.back() / static_cast<double>(choice.size()));
      ++at;
    }
    const auto best = [](const std::vector<double>& values) { return std::ranges::max_element(values) - values.begin(); };
    right += best(sums) == question.answer;
    right_per_byte += best(per_byte) == question.answer;
    result.items.push_back(std::to_string(best(sums)));
  }
  result.scores = {{"accuracy", Proportion(right, std::ssize(task.questions))},
                   {"accuracy, log-probability per byte", Proportion(right_per_byte, std::ssize(task.questions))}};
  return result;
}

}  // namespace

EvalTask MakeTask(ChoiceTask task) {
  return [task = std::move(task)](Engine& engine, const EvalProgress& progress) { return Run(task, engine, progress); };
}

Result<std::vector<ChoiceQuestion>> ParseQuestions(const std::string& text) {
  std::vector<ChoiceQuestion> questions;
  COPPICE_RETURN_IF_ERROR(ForEachJsonLine(text, [&](const nlohmann::json& line) -> Status {
    ChoiceQuestion question;
    COPPICE_RETURN_IF_ERROR(TakeText(line, "question", &question.question));
    COPPICE_RETURN_IF_ERROR(TakeTexts(line, "choices", &question.choices));
    const auto empty = [](const std::string& choice) { return choice.empty(); };
    if (question.choices.size() < 2 || std::ranges::any_of(question.choices, empty))
      return InvalidArgument("\"choices\" needs at least two texts, none of them empty");
    const auto answer = line.find("answer");
    if (answer == line.end() || !answer->is_number_integer() || answer->get<int64_t>() < 0 ||
        answer->get<int64_t>() >= std::ssize(question.choices))
      return InvalidArgument(fmt::format("\"answer\" is no index of the {} choices, which begin with 0", question.choices.size()));
    question.answer = answer->get<int32_t>();
    questions.push_back(std::move(question));
    return OkStatus();
  }));
  return questions;
}

}  // namespace coppice::cli
