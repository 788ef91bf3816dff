// The program `coppice`: reads the command line, hands over to a command, turns its Status into one line and an exit code.
// Layer: cli.
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "cli/batch_command.h"
#include "cli/bench/bench_attention.h"
#include "cli/bench/bench_decode.h"
#include "cli/bench/bench_draft.h"
#include "cli/bench/bench_load.h"
#include "cli/command.h"
#include "cli/inspect_model.h"
#include "cli/inspect_plan.h"
#include "cli/run_command.h"

namespace {

using coppice::Result;
using coppice::cli::Command;
using coppice::cli::ExitCode;

int Fail(const std::string& message, ExitCode code) {
  std::cerr << "coppice: " << message << "\n";
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("coppice", std::make_shared<spdlog::sinks::stderr_sink_st>()));
  spdlog::set_level(spdlog::level::warn);

  CLI::App app{"Coppice: LLM inference that reads shared KV once per step", "coppice"};
  app.set_version_flag("--version", "coppice " COPPICE_VERSION);
  app.require_subcommand(1);
  CLI::App* inspect = app.add_subcommand("inspect", "Show what a model file holds or what the attention planner decides");
  inspect->require_subcommand(1);
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine");
  bench->require_subcommand(1);
  const Command commands[] = {
      coppice::cli::AddRunCommand(app),
      coppice::cli::AddBatchCommand(app),
      coppice::cli::AddInspectModelCommand(*inspect),
      coppice::cli::AddInspectPlanCommand(*inspect),
      coppice::cli::AddBenchAttentionCommand(*bench),
      coppice::cli::AddBenchCalibrateCommand(*bench),
      coppice::cli::AddBenchDecodeCommand(*bench),
      coppice::cli::AddBenchThroughputCommand(*bench),
      coppice::cli::AddBenchServeCommand(*bench),
      coppice::cli::AddBenchDraftCommand(*bench),
  };

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& error) {
    return Fail(std::string(error.what()) + "; see coppice --help", ExitCode::kUsage);
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const Result<ExitCode> result = command.run();
    if (!result.ok()) return Fail(result.status().message(), coppice::cli::ExitCodeOf(result.status()));
    return static_cast<int>(*result);
  }
  return Fail("no command given; see coppice --help", ExitCode::kUsage);
}
