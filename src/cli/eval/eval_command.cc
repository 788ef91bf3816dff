#include "cli/eval/eval_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "cli/bench/bench_support.h"
#include "cli/eval/task.h"
#include "cli/interrupt.h"
#include "cli/load_engine.h"
#include "cli/parsed_option.h"
#include "cli/progress_line.h"
#include "cli/read_file.h"
#include "cli/run_options.h"
#include "cli/standard_output.h"
#include "core/check.h"
#include "hub/model_store.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;

// Options that all tasks have.
struct EvalOptions {
  EngineOptions engine;
  std::vector<SharingMode> modes{SharingMode::kTree};
  std::string out;
};

ordered_json ToJson(const EvalResult& result) {
  ordered_json scores = ordered_json::array();
  for (const Score& score : result.scores) {
    const Estimate& estimate = score.estimate;
    scores.push_back(
        {{"name", score.name}, {"value", estimate.value}, {"interval_95", {estimate.low, estimate.high}}, {"n", estimate.n}});
  }
  return {{"scores", std::move(scores)}, {"items", result.items}};
}

// Items whose outcome differs from the first mode's.
int64_t Differences(const EvalResult& a, const EvalResult& b) {
  int64_t count = 0;
  for (size_t i = 0; i < std::min(a.items.size(), b.items.size()); ++i) count += a.items[i] != b.items[i];
  return count;
}

Result<EvalResult> RunMode(const EvalOptions& options, SharingMode mode, const EvalTask& task, ProgressLine& progress) {
  EngineOptions engine_options = options.engine;
  engine_options.sharing = mode;
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(engine_options));
  COPPICE_ASSIGN_OR_RETURN(EvalResult result, task(*engine, [&](int64_t done, int64_t of) {
                             if (progress.due()) progress.Show({fmt::format("sharing {}: {} of {}", Name(mode), done, of)});
                           }));
  result.dtype = engine->model_info().kv_dtype;
  return result;
}

Result<ExitCode> Evaluate(EvalOptions options, const std::string& name, const EvalTask& task) {
  COPPICE_RETURN_IF_ERROR(Validate(options.engine));
  COPPICE_RETURN_IF_ERROR(CheckReport(options.out, "--out"));
  COPPICE_ASSIGN_OR_RETURN(options.engine.model_path, hub::FindModel(options.engine.model_path));
  CatchFirstInterrupt();
  ProgressLine progress(ProgressLine::WithoutTerminal::kPlainLines);
  ordered_json report = {{"eval", name},
                         {"model", options.engine.model_path.substr(options.engine.model_path.find_last_of('/') + 1)},
                         {"dtype", nullptr},
                         {"weights", Name(options.engine.weights)},
                         {"modes", ordered_json::object()}};
  const bool several = options.modes.size() > 1;
  std::vector<EvalResult> results;
  for (const SharingMode mode : options.modes) {
    Result<EvalResult> result = RunMode(options, mode, task, progress);
    progress.Clear();
    if (result.status().code() == StatusCode::kCancelled) return ExitCode::kInterrupted;
    COPPICE_RETURN_IF_ERROR(result.status());
    results.push_back(*std::move(result));
    report["dtype"] = Name(results.back().dtype);
    ordered_json& entry = report["modes"][std::string(Name(mode))] = ToJson(results.back());
    entry["items_unlike_first_mode"] = Differences(results.front(), results.back());
    if (results.size() == 1) {
      std::string head = fmt::format("{:<9} {:<25} {:>9} {:>19} {:>6}", "sharing", "", "", "95 % interval", "n");
      if (several) head = "unlike: items that came out otherwise than in the first mode\n" + head + " unlike";
      COPPICE_RETURN_IF_ERROR(Print(head + "\n"));
    }
    for (const Score& score : results.back().scores) {
      const Estimate& estimate = score.estimate;
      std::string line = fmt::format("{:<9} {:<25} {:>9.4f} {:>9.4f} {:>9.4f} {:>6}", Name(mode), score.name, estimate.value,
                                     estimate.low, estimate.high, estimate.n);
      if (several) line += fmt::format(" {:>6}", Differences(results.front(), results.back()));
      COPPICE_RETURN_IF_ERROR(Print(line + "\n"));
    }
  }
  COPPICE_RETURN_IF_ERROR(
      WriteReport(options.out, report.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n", "--out"));
  return ExitCode::kOk;
}

void AddCommonOptions(CLI::App& command, EvalOptions& options) {
  AddParsed<std::vector<SharingMode>>(command, "--modes", options.modes, ParseSharingModes,
                                      "Sharing modes to evaluate, one after the other; all must agree (default: tree)");
  command.add_option("--out", options.out, "Write the result, with each item's, to this file as JSON")->check(NotEmpty());
  AddEngineOptions(command, options.engine);
  command.remove_option(command.get_option("--sharing"));
}

// A subcommand; make(task, file) turns the file's text into the rest of the task.
template <class Task>
struct Subcommand {
  EvalOptions eval;
  Task task;
  std::string file;
};
template <class Task>
Command Finish(CLI::App& command, const std::shared_ptr<Subcommand<Task>>& options,
               const std::function<Status(const std::string& text, Task* task)>& take_file) {
  AddCommonOptions(command, options->eval);
  return {&command, [&command, options, take_file]() -> Result<ExitCode> {
            if (take_file) {
              COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(options->file, "FILE"));
              const Status taken = take_file(text, &options->task);
              if (!taken.ok()) return Status(taken.code(), options->file + ", " + taken.message());
            }
            return Evaluate(options->eval, command.get_name(), MakeTask(options->task));
          }};
}

Command AddPerplexity(CLI::App& eval) {
  const auto options = std::make_shared<Subcommand<PerplexityTask>>();
  CLI::App* command = eval.add_subcommand("perplexity", "Perplexity of a text");
  command->add_option("file", options->file, "The text")->required();
  command->add_option("--window", options->task.window, "Tokens that are computed together")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--context", options->task.context, "Tokens of a window that are only context, from the second window on")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  return Finish<PerplexityTask>(*command, options, [](const std::string& text, PerplexityTask* task) {
    task->text = text;
    return OkStatus();
  });
}

Command AddNeedle(CLI::App& eval) {
  const auto options = std::make_shared<Subcommand<NeedleTask>>();
  NeedleTask& task = options->task;
  CLI::App* command = eval.add_subcommand("needle", "Facts at given depths of a long text, found or not");
  command->add_option("--lengths", task.lengths, "Tokens of the text, about")
      ->delimiter(',')
      ->check(CLI::Range(16, 1 << 24))
      ->capture_default_str();
  command->add_option("--depths", task.depths, "Where facts stand: 0 (the beginning) to 1, 16 at most")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--repeats", task.repeats, "Texts of each length")->check(CLI::Range(1, 100'000))->capture_default_str();
  AddParsed<uint64_t>(*command, "--seed", task.seed, ParseSeed, "Of the texts (default 1)");
  return Finish<NeedleTask>(*command, options, {});
}

Command AddChoice(CLI::App& eval) {
  const auto options = std::make_shared<Subcommand<ChoiceTask>>();
  CLI::App* command = eval.add_subcommand("choice", "Multiple choice: the most probable choice behind each question");
  command->add_option("file", options->file, R"(Lines of {"question": "...", "choices": ["...", ...], "answer": 0})")->required();
  return Finish<ChoiceTask>(*command, options, [](const std::string& text, ChoiceTask* task) -> Status {
    COPPICE_ASSIGN_OR_RETURN(task->questions, ParseQuestions(text));
    return OkStatus();
  });
}

// How each of a problem's samples is drawn; `noun`: what a sample is.
void AddSampling(CLI::App& command, SampleSettings* settings, std::string_view noun) {
  command.add_option("--max-tokens", settings->max_tokens, fmt::format("Tokens of a {} at most", noun))
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("-t,--temperature", settings->temperature, "0: greedy")->check(AtLeastZero())->capture_default_str();
  command.add_option("--top-p", settings->top_p, "Nucleus mass in (0, 1]")->capture_default_str();
  AddParsed<uint64_t>(command, "--seed", settings->seed, ParseSeed, fmt::format("Of the {}s (default 1)", noun));
}

Command AddCode(CLI::App& eval) {
  const auto options = std::make_shared<Subcommand<CodeTask>>();
  CodeTask& task = options->task;
  CLI::App* command = eval.add_subcommand("code", "Programs against their tests, in a sandbox: pass@k and pass@top3");
  command->add_option("file", options->file, R"(Lines of {"prompt": "def f(", "tests": "assert f(1) == 2", "stop": ["\ndef"]})")
      ->required();
  command->add_option("-n,--samples", task.samples, "Programs of each problem")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  command->add_option("--k", task.k, "The k of pass@k")->delimiter(',')->capture_default_str();
  AddSampling(*command, &task, "program");
  command->add_option("--interpreter", task.interpreter, "Python, under /usr")->capture_default_str();
  command->add_option("--seconds", task.seconds, "Time that a program has")->check(CLI::Range(0.01, 3600.0))->capture_default_str();
  command->add_flag("--subprocesses", task.subprocesses,
                    "Programs may start processes, not only threads; needs a control group that bounds their memory together");
  return Finish<CodeTask>(*command, options, [](const std::string& text, CodeTask* task) -> Status {
    COPPICE_ASSIGN_OR_RETURN(task->problems, ParseProblems(text));
    return OkStatus();
  });
}

Command AddVote(CLI::App& eval) {
  const auto options = std::make_shared<Subcommand<VoteTask>>();
  VoteTask& task = options->task;
  CLI::App* command = eval.add_subcommand("vote", "Problems with a word or number as answer: the majority vote of n samples");
  command->add_option("file", options->file, R"(Lines of {"prompt": "Q: ...", "answer": "18", "stop": ["\nQ:"]})")->required();
  command->add_option("-n,--samples", task.samples, "Samples of each problem")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  command
      ->add_option("--answer", task.pattern,
                   "A sample's answer: the first group (or all) of the last match of this regex; commas do not count")
      ->check(NotEmpty())
      ->capture_default_str();
  AddSampling(*command, &task, "sample");
  return Finish<VoteTask>(*command, options, [](const std::string& text, VoteTask* task) -> Status {
    COPPICE_ASSIGN_OR_RETURN(task->problems, ParseVoteProblems(text));
    return OkStatus();
  });
}

}  // namespace

std::vector<Command> AddEvalCommands(CLI::App& eval) {
  return {AddPerplexity(eval), AddNeedle(eval), AddChoice(eval), AddCode(eval), AddVote(eval)};
}

}  // namespace coppice::cli
