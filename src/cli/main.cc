// The program `coppice`: reads the command line, hands over to a command, turns its Status into one line and an exit code.
// Layer: cli.
#include <cxxabi.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <iterator>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "cli/batch_command.h"
#include "cli/bench/bench_allreduce.h"
#include "cli/bench/bench_attention.h"
#include "cli/bench/bench_decode.h"
#include "cli/bench/bench_draft.h"
#include "cli/bench/bench_load.h"
#include "cli/bench/bench_pod.h"
#include "cli/bench/bench_steps.h"
#include "cli/bench/bench_update.h"
#include "cli/chat_command.h"
#include "cli/command.h"
#include "cli/command_line.h"
#include "cli/compare_command.h"
#include "cli/eval/eval_command.h"
#include "cli/explain_command.h"
#include "cli/help_command.h"
#include "cli/inspect_kernels.h"
#include "cli/inspect_model.h"
#include "cli/inspect_plan.h"
#include "cli/key_command.h"
#include "cli/pull_command.h"
#include "cli/run_command.h"
#include "cli/score_command.h"
#include "cli/serve_command.h"
#include "cli/simulate_command.h"
#include "cli/standard_output.h"
#include "cli/tree_command.h"
#include "cli/version.h"
#include "core/check.h"
#include "core/exhaustion.h"
#include "core/trace.h"
#include "tokenizer/one_line.h"

namespace {

using coppice::Result;
using coppice::cli::Command;
using coppice::cli::ExitCode;

// One line on stderr, whatever the message quotes.
int Fail(const std::string& message, ExitCode code) {
  std::cerr << "coppice: " << coppice::OneLine(message) << "\n";
  return static_cast<int>(code);
}

// With what --trace asks for, where the command has it.
Result<ExitCode> RunTraced(const Command& command) {
  const CLI::Option* const trace = command.app->get_option_no_throw("--trace");
  if (command.reads_trace || trace == nullptr || trace->empty()) return command.run();
  COPPICE_RETURN_IF_ERROR(coppice::StartTrace(trace->as<std::string>()));
  const Result<ExitCode> result = command.run();
  const coppice::Status written = coppice::FinishTrace();
  return result.ok() && !written.ok() ? written : result;
}

Result<ExitCode> RunCommandLine(int argc, char** argv) {
  CLI::App app{"Coppice: LLM inference that reads shared KV once per step", "coppice"};
  app.set_version_flag("--version", [] { return coppice::cli::VersionText(); });
  app.require_subcommand(1);
  coppice::cli::UseHelp(app);
  const auto add_group = [&app](const char* name, const char* help) {
    CLI::App* const group = app.add_subcommand(name, help);
    group->require_subcommand(1);
    return group;
  };
  // In the order of help: what is used every day comes first.
  std::vector<Command> commands = {
      coppice::cli::AddRunCommand(app),   coppice::cli::AddChatCommand(app),   coppice::cli::AddServeCommand(app),
      coppice::cli::AddBatchCommand(app), coppice::cli::AddScoreCommand(app),  coppice::cli::AddTreeCommand(app),
      coppice::cli::AddPullCommand(app),  coppice::cli::AddModelsCommand(app),
  };
  CLI::App* const inspect =
      add_group("inspect", "Show what a model file holds, what the attention planner decides, or which kernels run");
  CLI::App* const eval = add_group("eval", "Measure accuracy: perplexity, needles, multiple choice, code, votes");
  CLI::App* const bench = add_group("bench", "Measure this machine");
  const Command others[] = {
      coppice::cli::AddInspectKernelsCommand(*inspect),
      coppice::cli::AddInspectModelCommand(*inspect),
      coppice::cli::AddInspectPlanCommand(*inspect),
      coppice::cli::AddBenchAttentionCommand(*bench),
      coppice::cli::AddBenchCalibrateCommand(*bench),
      coppice::cli::AddBenchDecodeCommand(*bench),
      coppice::cli::AddBenchThroughputCommand(*bench),
      coppice::cli::AddBenchServeCommand(*bench),
      coppice::cli::AddBenchDraftCommand(*bench),
      coppice::cli::AddBenchPodCommand(*bench),
      coppice::cli::AddBenchStepsCommand(*bench),
      coppice::cli::AddBenchUpdateCommand(*bench),
      coppice::cli::AddBenchAllReduceCommand(*bench),
      coppice::cli::AddCompareCommand(app),
      coppice::cli::AddExplainCommand(app),
      coppice::cli::AddSimulateCommand(app),
      coppice::cli::AddKeyCommand(app),
      coppice::cli::AddHelpCommand(app),
      coppice::cli::AddCompletionCommand(app),
  };
  std::ranges::copy(others, std::back_inserter(commands));
  std::ranges::move(coppice::cli::AddEvalCommands(*eval), std::back_inserter(commands));
  coppice::cli::RefuseNan(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    std::ostringstream text;
    app.exit(help_or_version, text, text);
    const coppice::Status printed = coppice::cli::Print(text.str());
    return printed.ok() ? Result<ExitCode>(ExitCode::kOk) : printed;
  } catch (const CLI::ParseError& error) {
    return coppice::cli::CommandLineError(app, error);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return RunTraced(command);
  }
  return coppice::InvalidArgument("no command given; see coppice --help");
}

// Where there is no memory even for a message or an exception: one line and the status of a failure. Other ends are bugs, and
// abort.
[[noreturn]] void EndUnexpectedly() {
  const std::type_info* const thrown = abi::__cxa_current_exception_type();
  const bool exhausted = thrown ? *thrown == typeid(std::bad_alloc) : std::malloc(1 << 20) == nullptr;
  if (!exhausted) std::abort();
  constexpr std::string_view kLine = "coppice: out of memory\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine.data(), kLine.size());
  _exit(static_cast<int>(ExitCode::kFailure));
}

// Before what libraries initialise at the start, which takes memory too.
void WatchTheEnd() { std::set_terminate(EndUnexpectedly); }
[[gnu::section(".preinit_array"), gnu::used]] void (*const kBeforeAll)() = WatchTheEnd;

}  // namespace

int main(int argc, char** argv) {
  coppice::cli::ReserveStandardDescriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow any more is an error of the write
  try {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("coppice", std::make_shared<spdlog::sinks::stderr_sink_mt>()));
    spdlog::set_level(spdlog::level::warn);
    const Result<ExitCode> result = coppice::CatchExhaustion("running the command", [&] { return RunCommandLine(argc, argv); });
    return result.ok() ? static_cast<int>(*result) : Fail(result.status().message(), coppice::cli::ExitCodeOf(result.status()));
  } catch (const std::bad_alloc&) {  // not even the memory for a message
    EndUnexpectedly();
  } catch (const std::exception& error) {  // a bug
    return Fail(error.what(), ExitCode::kFailure);
  }
}
