// The program's commands and options as data, read from CLI11's tree: what help, the man page, docs/cli.md and the completions of
// shells are made of. Layer: cli.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace coppice::cli {

// Groups of options, by what they are for. Those behind kModelGroup are for experts: help shows them only when all is asked for.
inline constexpr char kPromptGroup[] = "Prompt", kSamplingGroup[] = "Sampling", kFormGroup[] = "Form of the output",
                      kOutputGroup[] = "Output", kNetworkGroup[] = "Network", kModelGroup[] = "Model and engine",
                      kBatchingGroup[] = "Sharing, memory and batching", kDraftGroup[] = "Speculative decoding",
                      kLimitsGroup[] = "Limits", kKeptGroup[] = "Prefixes, files and batches", kMeasuringGroup[] = "For measuring";
bool IsForExperts(std::string_view group);

struct OptionInfo {
  std::vector<std::string> names;    // with dashes, the short one first; of an argument, its name
  std::string value;                 // what stands for its value, "N"; empty: a flag
  std::vector<std::string> choices;  // the words that it may be; empty: any
  std::string help;                  // with the default
  std::string group;
  bool required = false;
};

struct CommandInfo {
  std::string path;  // "bench decode"; empty: the program
  std::string help, footer;
  std::vector<OptionInfo> arguments, options;
  std::vector<CommandInfo> commands;

  std::string invocation() const { return path.empty() ? "coppice" : "coppice " + path; }
  std::string_view name() const { return std::string_view(path).substr(path.rfind(' ') + 1); }
};

// Of an App and all below it.
CommandInfo Describe(const CLI::App& app);

// The command and all below it, each before what is below it.
std::vector<const CommandInfo*> AllCommands(const CommandInfo& command);

// Groups in the order of their first options.
std::vector<std::string> GroupsOf(const CommandInfo& command);

}  // namespace coppice::cli
