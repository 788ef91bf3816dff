#include "cli/compare_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/logprob_comparison.h"
#include "cli/parsed_option.h"
#include "cli/read_file.h"
#include "cli/standard_output.h"
#include "core/check.h"
#include "core/quoted.h"

namespace coppice::cli {
namespace {

struct CompareOptions {
  std::string rollout, trainer;
  size_t worst = 10;
  bool json = false;
  std::optional<double> largest, kl;
};

Result<std::vector<LogprobSequence>> ReadSide(const std::string& path, const char* option) {
  COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, option));
  Result<std::vector<LogprobSequence>> sequences = ReadLogprobs(text);
  if (!sequences.ok()) return Status(sequences.status().code(), fmt::format("{}: {}", Quoted(path), sequences.status().message()));
  return sequences;
}

Result<ExitCode> Compare(const CompareOptions& options) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<LogprobSequence> rollout, ReadSide(options.rollout, "rollout"));
  COPPICE_ASSIGN_OR_RETURN(const std::vector<LogprobSequence> trainer, ReadSide(options.trainer, "trainer"));
  COPPICE_ASSIGN_OR_RETURN(const LogprobComparison comparison, CompareLogprobs(rollout, trainer, options.worst));
  COPPICE_RETURN_IF_ERROR(Print(options.json ? JsonOf(comparison) : TextOf(comparison)));
  const bool is_close =
      (!options.largest || comparison.largest <= *options.largest) && (!options.kl || comparison.k3 <= *options.kl);
  return is_close ? ExitCode::kOk : ExitCode::kFailure;
}

}  // namespace

Command AddCompareCommand(CLI::App& app) {
  const auto options = std::make_shared<CompareOptions>();
  CLI::App* command = app.add_subcommand("compare-logprobs", "A rollout's log-probabilities beside a trainer's, token by token");
  command
      ->add_option("rollout", options->rollout,
                   "JSON lines of the engine: its answers, or token_ids and logprobs; -: standard input")
      ->required();
  command->add_option("trainer", options->trainer, "JSON lines of the trainer, of the same sequences in the same order")
      ->required();
  command->add_option("--worst", options->worst, "Tokens to list, those that differ most")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object instead of a text");
  command->add_option("--max-difference", options->largest, "Exit with 1 where a log-probability differs by more")
      ->check(AtLeastZero());
  command->add_option("--max-kl", options->kl, "Exit with 1 where the estimate k3 is larger")->check(AtLeastZero());
  return {command, [options] { return Compare(*options); }};
}

}  // namespace coppice::cli
