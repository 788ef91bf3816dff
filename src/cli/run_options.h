// The command line of `coppice run` as a struct, and its checks. Parsing only: nothing here opens a file.
// Layer: cli.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/sampling_source.h"
#include "coppice/core/status.h"
#include "coppice/engine/engine.h"

namespace CLI {
class App;
}

namespace coppice::cli {

struct RunOptions {
  EngineOptions engine;  // model_path empty: the default model
  // At most one of these; none: stdin.
  std::optional<std::string> prompt, prompt_file;
  bool keep_newline = false;  // the line break at the end of prompt_file or stdin is part of the prompt
  std::optional<std::vector<int32_t>> prompt_ids;
  bool chat = false;                  // the prompt is a user's message, rendered through the model's chat template
  std::optional<std::string> system;  // only with chat
  // What is asked of each sample. prompt_ids are filled in later (prompt.h).
  Request request{.max_tokens = 128};
  // Parameters of its sampling that were named; others come from `sampling_defaults`.
  struct {
    bool temperature = false, top_p = false, top_k = false, min_p = false;
  } given;
  SamplingSource sampling_defaults = SamplingSource::kModel;
  std::optional<SharingMode> baseline;  // run the job again in this mode and set its speed beside
  std::optional<std::string> beside;    // a file with the speed of another engine at this job (peer_speed.h)
  // What is printed of the samples. With best_of, that many are generated and the `request.n` best are shown.
  bool rank = false, deduplicate = false;
  std::optional<int32_t> best_of;
  std::optional<std::string> vote;  // a regex: the answer of a sample
  bool vote_stop = false;           // no more samples than the vote needs
  // What each sample must look like; at most one of these.
  std::optional<std::string> json_schema_file, grammar_file, regex;
  std::string save_prefix, load_prefix;  // files for the prompt's KV; empty: none
  bool json = false, quiet = false, verbose = false, explain = false;
};

Result<SharingMode> ParseSharingMode(std::string_view text);
Result<KvSplit> ParseKvSplit(std::string_view text);
// Names separated by commas.
Result<std::vector<SharingMode>> ParseSharingModes(std::string_view text);
Result<DType> ParseDType(std::string_view text);
Result<WeightForm> ParseWeightForm(std::string_view text);
Result<DraftMode> ParseDraftMode(std::string_view text);
Result<DraftPolicy> ParseDraftPolicy(std::string_view text);
Result<SchedulePolicy> ParseSchedule(std::string_view text);
Result<EarlyStopping> ParseEarlyStopping(std::string_view text);
Result<int32_t> ParseChunk(std::string_view text);  // EngineOptions::chunk
Result<uint64_t> ParseSeed(std::string_view text);
// "1,2,3", spaces allowed.
Result<std::vector<int32_t>> ParseTokenIds(std::string_view text);

// The first `count` GPUs, as EngineOptions::device names them.
std::string FirstGpus(int count);

// The options that every command with an engine has: --model, --dtype, --sharing, --page-size, --threads, ... All have a thread for
// events. --trace is for the program that runs the command (main.cc).
void AddEngineOptions(CLI::App& command, EngineOptions& options);
// --weights of a command that also takes random ones, for measuring a shape, in place of AddEngineOptions': `of_which` says whose
// they are.
void AddRandomWeights(CLI::App& command, EngineOptions& options, const std::string& of_which);
// How many samples of how many tokens, and how each is drawn.
void AddSamplingOptions(CLI::App& command, RunOptions& options);
// Adds the subcommand `run`; `options` is filled while the command line is parsed and must outlive it.
CLI::App* AddRunCommand(CLI::App& app, RunOptions& options);

// Takes the sampling parameters that were not given from the model.
void TakeSamplingDefaults(const ModelInfo& model, RunOptions* options);

// INVALID_ARGUMENT with the option, its value and what is expected.
Status Validate(const EngineOptions& options);
Status Validate(const RunOptions& options);

}  // namespace coppice::cli
