#include "cli/run_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <utility>

#include "cli/command_tree.h"
#include "cli/forest_recorder.h"
#include "cli/parsed_option.h"
#include "cli/plan_note.h"
#include "cli/sampling_source.h"
#include "coppice/engine/ranking.h"
#include "core/check.h"
#include "engine/validate_options.h"
#include "engine/validate_request.h"
#include "ops/peer_group.h"

namespace coppice::cli {
namespace {

// The engine's message, which begins with the name of a field, with the name of the option that sets it.
Status WithOptionName(const Status& status) {
  if (status.ok()) return status;
  constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
      {"n", "-n"}, {"num_threads", "--threads"}, {"kv_cache_bytes", "--kv-cache"}};
  const std::string& message = status.message();
  const std::string field = message.substr(0, message.find(' '));
  std::string option = "--" + field;
  std::ranges::replace(option, '_', '-');
  for (const auto& [name, other] : kOtherNames) {
    if (field == name) option = other;
  }
  return Status(status.code(), option + message.substr(field.size()));
}

}  // namespace

Result<SharingMode> ParseSharingMode(std::string_view text) {
  for (const SharingMode mode : {SharingMode::kTree, SharingMode::kOneLevel, SharingMode::kStore, SharingMode::kNone}) {
    if (Name(mode) == text) return mode;
  }
  return InvalidArgument(fmt::format("'{}' is no sharing mode; expected tree, one-level, store or none", text));
}

Result<KvSplit> ParseKvSplit(std::string_view text) {
  for (const KvSplit split : {KvSplit::kAuto, KvSplit::kHeads, KvSplit::kTokens}) {
    if (Name(split) == text) return split;
  }
  return InvalidArgument(fmt::format("'{}' is no split of KV; expected auto, heads or tokens", text));
}

Result<std::vector<SharingMode>> ParseSharingModes(std::string_view text) {
  std::vector<SharingMode> modes;
  while (true) {
    const size_t comma = text.find(',');
    COPPICE_ASSIGN_OR_RETURN(const SharingMode mode, ParseSharingMode(text.substr(0, comma)));
    modes.push_back(mode);
    if (comma == text.npos) return modes;
    text.remove_prefix(comma + 1);
  }
}

Result<DType> ParseDType(std::string_view text) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    if (Name(dtype) == text) return dtype;
  }
  return InvalidArgument(fmt::format("'{}' is no dtype of the engine; expected bf16, f16 or f32", text));
}

Result<WeightForm> ParseWeightForm(std::string_view text) {
  for (const WeightForm form : {WeightForm::kFastest, WeightForm::kStored, WeightForm::kBF16, WeightForm::kF32}) {
    if (Name(form) == text) return form;
  }
  return InvalidArgument(fmt::format("'{}' is no form of weights; expected fastest, stored, bf16 or f32", text));
}

Result<DraftMode> ParseDraftMode(std::string_view text) {
  for (const DraftMode mode : {DraftMode::kNone, DraftMode::kNgram, DraftMode::kModel}) {
    if (Name(mode) == text) return mode;
  }
  return InvalidArgument(fmt::format("'{}' is no way to draft; expected none, ngram or model", text));
}

Result<DraftPolicy> ParseDraftPolicy(std::string_view text) {
  for (const DraftPolicy policy : {DraftPolicy::kMeasured, DraftPolicy::kAlways}) {
    if (Name(policy) == text) return policy;
  }
  return InvalidArgument(fmt::format("'{}' is no policy of drafting; expected measured or always", text));
}

Result<SchedulePolicy> ParseSchedule(std::string_view text) {
  for (const SchedulePolicy policy : {SchedulePolicy::kMixed, SchedulePolicy::kPrefillFirst}) {
    if (Name(policy) == text) return policy;
  }
  return InvalidArgument(fmt::format("'{}' is no schedule; expected mixed or prefill-first", text));
}

Result<EarlyStopping> ParseEarlyStopping(std::string_view text) {
  for (const EarlyStopping each : {EarlyStopping::kFalse, EarlyStopping::kTrue, EarlyStopping::kNever}) {
    if (Name(each) == text) return each;
  }
  return InvalidArgument(fmt::format("'{}' is no early stopping; expected false, true or never", text));
}

Result<int32_t> ParseChunk(std::string_view text) {
  if (text == "auto") return kAutoChunk;
  int32_t tokens = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tokens);
  if (error != std::errc() || end != text.data() + text.size() || tokens < 0) {
    return InvalidArgument(fmt::format("'{}' is no chunk; expected auto, or a number of tokens, 0 for no limit", text));
  }
  return tokens;
}

Result<std::vector<int32_t>> ParseTokenIds(std::string_view text) {
  std::vector<int32_t> ids;
  if (text.empty()) return ids;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    std::string_view piece = text.substr(begin, comma - begin);
    begin = comma + 1;
    while (!piece.empty() && piece.front() == ' ') piece.remove_prefix(1);
    while (!piece.empty() && piece.back() == ' ') piece.remove_suffix(1);
    int32_t id = 0;
    const auto [end, error] = std::from_chars(piece.data(), piece.data() + piece.size(), id);
    if (error != std::errc() || end != piece.data() + piece.size() || id < 0) {
      return InvalidArgument(fmt::format("'{}' is no token id; expected non-negative integers separated by commas", piece));
    }
    ids.push_back(id);
  }
  return ids;
}

Result<uint64_t> ParseSeed(std::string_view text) {
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size())
    return InvalidArgument(fmt::format("'{}' is no seed; expected an integer in 0..{}", text, UINT64_MAX));
  return seed;
}

std::string FirstGpus(int count) {
  std::string names = "cuda:0";
  for (int gpu = 1; gpu < count; ++gpu) names += ",cuda:" + std::to_string(gpu);
  return names;
}

void AddEngineOptions(CLI::App& command, EngineOptions& options) {
  options.event_thread = true;
  const std::string group_before = command.option_defaults()->get_group();
  command.option_defaults()->group(kModelGroup);
  command
      .add_option("-m,--model", options.model_path,
                  "GGUF file, Hugging Face folder, or the name of a pulled model (default: smollm2-135m)")
      ->check(NotEmpty());
  CLI::Option* const device =
      command
          .add_option("--device", options.device,
                      "cpu, cuda, cuda:1, or auto: the first CUDA device if there is one, else the CPU. Several divide the model: "
                      "cuda:0,cuda:1 among GPUs, cpu,cpu among threads")
          ->capture_default_str();
  command
      .add_option_function<int>(
          "--tp", [&options](int gpus) { options.device = FirstGpus(gpus); },
          "Tensor parallelism: the model divided among the first N GPUs, as --device names them")
      ->type_name("N")
      ->check(CLI::Range(1, ops::kMostPeers))
      ->excludes(device);
  AddParsed<KvSplit>(
      command, "--kv-split", options.kv_split, ParseKvSplit,
      "What of KV heads that several ranks have, as of StarCoder's one, each rank holds: heads: all tokens; tokens: its "
      "part of them, so that KV has room for more; auto (default): tokens unless that is predicted to be slower")
      ->group(kBatchingGroup);
  command
      .add_flag("--nccl", options.experiment.ranks_by_nccl,
                "Ranks on GPUs exchange values through NCCL, also where they read each other's memory")
      ->group(kBatchingGroup);
  command
      .add_option("--gpu-memory-utilization", options.gpu_memory_utilization,
                  "Share of a GPU's memory that may be used, what others use included")
      ->group(kBatchingGroup)
      ->capture_default_str();
  AddParsed<DType>(
      command, "--dtype", options.dtype, ParseDType,
      "bf16; f16, on GPUs: rounds an eighth as coarsely, but what exceeds 65,504 is lost; f32, on CPUs, for exactness. Default: "
      "bf16, but on GPUs f16 for files of quantised or f16 weights, unless their family exceeds its range");
  AddParsed<DType>(command, "--head-dtype", options.head_dtype, ParseDType,
                   "f32: the output projection multiplies in f32, so that log-probabilities are closer to a trainer's that does so "
                   "too; needs memory for it. Default: as the other products")
      ->group(kBatchingGroup);
  AddParsed<WeightForm>(command, "--weights", options.weights, ParseWeightForm,
                        "fastest (default): as this machine's products are fastest; stored, on CPUs: a quantised file's blocks "
                        "stay as they are, for the least memory; bf16: rounded to bf16; f32, on CPUs: products in f32");
  AddParsed<SharingMode>(command, "--sharing", options.sharing, ParseSharingMode,
                         "tree (default): each shared token is read once per step; one-level: only what all requests share; "
                         "store: stored once, read by each; none: a copy per request");
  command
      .add_flag("--force-sharing", options.experiment.force_sharing, "Share wherever the tree allows, whatever the cost model says")
      ->group(kBatchingGroup);
  command.add_option("--threads", options.num_threads, "Worker threads; 0: one per core")->capture_default_str();
  command.add_option("--max-context", options.max_context, "Longest prompt plus output in tokens; 0: the model's")
      ->capture_default_str();
  command.add_option("--kv-cache", options.kv_cache_bytes, "Size of the KV cache, e.g. 2GiB; 0: chosen by the engine")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("0");
  command.add_flag("--deterministic", options.deterministic, "A sample's bits do not depend on what runs beside it");

  command.option_defaults()->group(kBatchingGroup);
  command.add_option("--page-size", options.page_size, "Tokens per KV page, 1 to 256")->capture_default_str();
  command.add_option("--trace", "Write what each step did when to this file, for ui.perfetto.dev or chrome://tracing")
      ->type_name("FILE");
  command.add_option("--max-running", options.max_running, "Samples that decode at the same moment")->capture_default_str();
  command.add_option("--max-batch-tokens", options.max_batch_tokens, "Token budget of a step")->capture_default_str();
  command
      .add_option("--max-graphs", options.experiment.max_graphs,
                  "Captured steps that a GPU's engine keeps; 0: every step is launched kernel by kernel")
      ->capture_default_str();
  command.add_flag(
      "--tune", options.tune,
      "On a GPU: measure first with which of the library's algorithms the model's products are fastest, tens of seconds "
      "the first time; this machine remembers");
  command
      .add_option("--machine", options.machine_model_path,
                  "Whose constants attention is planned by: a name such as h200 or zen5, of the same kind of device, or a file of "
                  "`coppice bench calibrate` (default: those of the device)")
      ->check(NotEmpty());
  AddParsed<SchedulePolicy>(command, "--schedule", options.experiment.schedule, ParseSchedule,
                            "mixed (default): prompts fill up steps in which all running samples decode; prefill-first: prompts "
                            "alone, while samples wait");
  AddParsed<int32_t>(command, "--chunk", options.chunk, ParseChunk,
                     "Prompt tokens of a step at most; 0 (default): what the budget leaves; auto: the smallest that keeps prefill "
                     "within 5% of its best speed, measured at start");
  command
      .add_option(
          "--target-tbt", options.target_tbt,
          "Seconds between tokens: a step in which samples decode has as many prompt tokens as are predicted to end in time, "
          "16 at least and --chunk at most; 0 (default): no target")
      ->check(AtLeastZero());

  command.option_defaults()->group(kDraftGroup);
  AddParsed<DraftMode>(
      command, "--draft", options.draft, ParseDraftMode,
      "Speculative decoding: none (default); ngram: guesses what followed the last tokens before; model: a smaller "
      "model guesses (--draft-model)");
  command.add_option("--draft-model", options.draft_model_path, "The model of --draft model, of the same vocabulary")
      ->check(NotEmpty());
  command.add_option("--draft-tokens", options.draft_tokens, "Tokens guessed ahead at most, 1 to 63")->capture_default_str();
  command
      .add_option("--draft-branches", options.experiment.draft_branches,
                  "With --draft ngram: continuations guessed at a time, a tree")
      ->capture_default_str();
  AddParsed<DraftPolicy>(command, "--draft-policy", options.experiment.draft_policy, ParseDraftPolicy,
                         "measured (default): guess while steps with drafts give tokens in less time than steps without; always");
  command.option_defaults()->group(group_before);
}

void AddRandomWeights(CLI::App& command, EngineOptions& options, const std::string& of_which) {
  const std::string group = command.get_option("--weights")->get_group();
  command.remove_option(command.get_option("--weights"));
  const auto assign = [&options](const std::string& text) {
    options.experiment.random_weights = text == "random";
    if (options.experiment.random_weights) return;
    const Result<WeightForm> form = ParseWeightForm(text);
    if (!form.ok()) throw CLI::ValidationError("--weights", form.status().message() + "; or random");
    options.weights = *form;
  };
  command.add_option_function<std::string>("--weights", assign, "fastest (default), stored, bf16 or f32: those of " + of_which)
      ->group(group);
}

void AddSamplingOptions(CLI::App& command, RunOptions& options) {
  Request& request = options.request;
  SamplingParams& sampling = request.sampling;
  command.option_defaults()->group(kSamplingGroup);
  command.add_option("-n,--samples", request.n, "Samples of the prompt")->capture_default_str();
  command.add_option("--max-tokens", request.max_tokens, "Tokens per sample at most")->capture_default_str();
  command.add_option("-t,--temperature", sampling.temperature, "0: greedy")
      ->each([&options](const std::string&) { options.given.temperature = true; })
      ->capture_default_str();
  command.add_option("--top-p", sampling.top_p, "Nucleus mass in (0, 1]")
      ->each([&options](const std::string&) { options.given.top_p = true; })
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Most probable tokens to choose from; 0: all")
      ->each([&options](const std::string&) { options.given.top_k = true; })
      ->capture_default_str();
  command.add_option("--min-p", sampling.min_p, "Least probability relative to the best, 0 to 1")
      ->each([&options](const std::string&) { options.given.min_p = true; })
      ->capture_default_str();
  AddSamplingDefaults(command, options.sampling_defaults);
  AddParsed<uint64_t>(command, "--seed", sampling.seed, ParseSeed, "Same seed, same samples; 0 (default) to 2^64 - 1");
  command.add_option("--stop", request.stop, "Text that ends a sample and is not part of it (repeatable)")->allow_extra_args(false);
  command.add_flag("--ignore-eos", request.ignore_eos, "Go on to --max-tokens");
}

namespace {

void AddBeamOptions(CLI::App& command, BeamOptions& beams) {
  command.option_defaults()->group(kSamplingGroup);
  command.add_option("--beam-width", beams.width,
                     "Beam search: so many of the most probable outputs go on at a time, and the -n best are printed; 0: samples");
  command
      .add_option("--length-penalty", beams.length_penalty,
                  "Of beams that end: their score is the sum of their log-probabilities / tokens^this")
      ->capture_default_str();
  AddParsed<EarlyStopping>(command, "--early-stopping", beams.early_stopping, ParseEarlyStopping,
                           "With as many ended outputs as beams the search is over: false (default): once no beam, as long as it "
                           "is, scores better than the worst of them; true: at once; never: once no beam can, however long");
  command.add_flag("--stochastic-beams", beams.stochastic,
                   "Beams are different outputs drawn without replacement, at --temperature and with --seed");
}

}  // namespace

CLI::App* AddRunCommand(CLI::App& app, RunOptions& options) {
  CLI::App* command = app.add_subcommand("run", "Sample n continuations of one prompt, whose KV is stored and read once for all");
  Request& request = options.request;

  command->option_defaults()->group(kPromptGroup);
  command->add_option("-p,--prompt", options.prompt, "Prompt text");
  command
      ->add_option("-f,--prompt-file", options.prompt_file,
                   "File with the prompt (default: stdin); a line break at its end is dropped")
      ->type_name("FILE");
  command->add_flag("--keep-newline", options.keep_newline,
                    "Keep the line break at the end of --prompt-file or stdin in the prompt");
  AddParsed<std::vector<int32_t>>(*command, "--prompt-ids", options.prompt_ids, ParseTokenIds, "Prompt as token ids: 1,2,3");
  command->add_option("--save-prefix", options.save_prefix, "Write the prompt's KV to this file, for --load-prefix")
      ->type_name("FILE")
      ->check(NotEmpty());
  command
      ->add_option("--load-prefix", options.load_prefix,
                   "Take the KV of what the prompt begins with from a file of --save-prefix instead of computing it")
      ->type_name("FILE")
      ->check(NotEmpty());
  command->add_option("--cache-salt", request.cache_salt, "The prompt's KV is shared, and loaded, with this salt alone");
  command->add_option("--cache-private-begin", request.cache_private_begin,
                      "With --cache-salt: prompt tokens before this index stay shared with all requests");
  command->add_flag("--chat", options.chat, "The prompt is a user's message: apply the model's chat template");
  command->add_option("--system", options.system, "System message (with --chat)");

  AddSamplingOptions(*command, options);

  AddBeamOptions(*command, request.beams);

  command->option_defaults()->group(kFormGroup);
  command->add_option("--json-schema", options.json_schema_file, "File with a JSON schema: each sample is an instance of it")
      ->type_name("FILE");
  command->add_option("--regex", options.regex, "Regular expression that each whole sample matches");
  command->add_option("--grammar", options.grammar_file, "File with a grammar in EBNF: each sample is its rule root")
      ->type_name("FILE");

  command->option_defaults()->group(kOutputGroup);
  command->add_flag("--rank", options.rank, "Print the samples at the end, highest mean log-probability first");
  command->add_option("--best-of", options.best_of, "Generate this many and print the -n best by mean log-probability");
  command->add_flag("--dedup", options.deduplicate, "Of samples with equal text, print the most probable one");
  command->add_option("--vote", options.vote,
                      "Majority vote over answers: the first group (or all) of the last match of this regex in each sample");
  command->add_flag("--vote-stop", options.vote_stop,
                    "With --vote: end the samples once no answer can overtake, and begin no more of them than may be needed");
  command->add_flag("--echo", request.echo, "The prompt comes first in each sample's output");
  command->add_flag("--json", options.json, "Print one JSON object instead of text");
  command->add_flag("--prompt-logprobs", request.prompt_logprobs, "Put the prompt's log-probabilities into the JSON");
  AddParsed<SharingMode>(*command, "--baseline", options.baseline, ParseSharingMode,
                         "Run the job again in this sharing mode and set its speed beside in the closing table");
  command->add_option(
      "--beside", options.beside,
      "Set another engine's speed at this job beside in the closing table: a JSON file that a script of bench/peers "
      "wrote");
  command->add_flag("--explain", options.explain, kExplainHelp);
  command->add_flag("-q,--quiet", options.quiet, "No table at the end, no progress");
  command->add_flag("-v,--verbose", options.verbose, "Log to stderr what the program does");
  command->option_defaults()->group("Options");
  AddEngineOptions(*command, options.engine);
  AddRecordOption(*command, options.engine);
  return command;
}

void TakeSamplingDefaults(const ModelInfo& model, RunOptions* options) {
  const SamplingParams defaults = SamplingOf(options->sampling_defaults, model);
  SamplingParams& sampling = options->request.sampling;
  if (!options->given.temperature) sampling.temperature = defaults.temperature;
  if (!options->given.top_p) sampling.top_p = defaults.top_p;
  if (!options->given.top_k) sampling.top_k = defaults.top_k;
  if (!options->given.min_p) sampling.min_p = defaults.min_p;
  if (options->request.beams.width == 0) sampling.repetition_penalty = defaults.repetition_penalty;
}

Status Validate(const EngineOptions& options) {
  if ((options.draft == DraftMode::kModel) != !options.draft_model_path.empty()) {
    return InvalidArgument("--draft model and --draft-model PATH go together; give both or neither");
  }
  return WithOptionName(ValidateOptions(options));
}

Status Validate(const RunOptions& options) {
  const int prompts = options.prompt.has_value() + options.prompt_file.has_value() + options.prompt_ids.has_value();
  if (prompts > 1) return InvalidArgument("more than one prompt given; keep one of --prompt, --prompt-file and --prompt-ids");
  if (options.keep_newline && (options.prompt || options.prompt_ids))
    return InvalidArgument("--keep-newline is for --prompt-file and stdin, and the prompt comes from neither; leave it out");
  if (options.engine.sharing == SharingMode::kNone && (!options.save_prefix.empty() || !options.load_prefix.empty())) {
    return InvalidArgument("--save-prefix and --load-prefix need a cache; --sharing none keeps none");
  }
  if (options.system && !options.chat) return InvalidArgument("--system works through the chat template; add --chat");
  if (options.prompt_ids && options.chat)
    return InvalidArgument("--prompt-ids bypasses the chat template; leave --chat or --prompt-ids out");
  if (options.json_schema_file.has_value() + options.grammar_file.has_value() + options.regex.has_value() > 1)
    return InvalidArgument("more than one of --json-schema, --regex and --grammar given; keep the one that the samples follow");
  const Request& request = options.request;
  if (request.max_tokens < 1) return InvalidArgument(fmt::format("--max-tokens is {}, expected at least 1", request.max_tokens));
  if (request.prompt_logprobs && !options.json) return InvalidArgument("--prompt-logprobs are part of the JSON output; add --json");
  if (options.best_of && *options.best_of < request.n) {
    return InvalidArgument(fmt::format("--best-of is {}; expected at least -n, which is {}", *options.best_of, request.n));
  }
  if (options.vote) {
    if (const auto compiled = ExtractAnswer("", *options.vote); !compiled.ok()) {
      return InvalidArgument(fmt::format("--vote: {}", compiled.status().message()));
    }
  }
  if (options.vote_stop && !options.vote) return InvalidArgument("--vote-stop ends samples by their votes; add --vote");
  const BeamOptions& beams = request.beams;
  if (beams.width == 0 && (beams.length_penalty != 1 || beams.early_stopping != EarlyStopping::kFalse || beams.stochastic))
    return InvalidArgument("--length-penalty, --early-stopping and --stochastic-beams are of beam search; add --beam-width");
  if (beams.width > 0 && (options.best_of || options.vote_stop)) {
    return InvalidArgument(
        fmt::format("{} compares samples, and --beam-width searches; leave it out", options.best_of ? "--best-of" : "--vote-stop"));
  }
  if (options.vote_stop && options.best_of)
    return InvalidArgument("--best-of compares all samples, and --vote-stop leaves some out; keep one of the two");
  COPPICE_RETURN_IF_ERROR(WithOptionName(ValidateParameters(request)));
  return Validate(options.engine);
}

}  // namespace coppice::cli
