#include "cli/batch_command.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/different_files.h"
#include "cli/forest_recorder.h"
#include "cli/interrupt.h"
#include "cli/load_engine.h"
#include "cli/parsed_option.h"
#include "cli/plan_note.h"
#include "cli/progress_line.h"
#include "cli/read_file.h"
#include "cli/run_options.h"
#include "cli/run_stats.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
#include "coppice/engine/engine.h"
#include "core/check.h"
#include "core/format_bytes.h"
#include "grammar/grammar_compiler.h"
#include "hub/model_store.h"
#include "model/checkpoint.h"
#include "openai/batch_cut.h"
#include "openai/batch_input.h"
#include "openai/batch_output.h"
#include "openai/batch_run.h"
#include "openai/job_prefixes.h"
#include "openai/prefixes_by_name.h"
#include "openai/request.h"
#include "openai/resume_folder.h"
#include "tokenizer/one_line.h"

namespace coppice::cli {
namespace {

using openai::BatchCounts;
using openai::BatchErrors;
using openai::BatchInput;
using openai::BatchOutput;
using openai::BatchRun;
using openai::JobPrefixes;
using openai::OpenAiRequestParser;
using openai::ResumeFolder;

struct BatchOptions {
  const CLI::App* command = nullptr;  // whose command line they are of
  EngineOptions engine;
  std::string input, output, errors, prefixes;
  int32_t queue = 64;
  std::optional<int32_t> parts;  // nothing is answered: how the batch is divided among so many machines
  openai::UnknownFields unknown_fields = openai::UnknownFields::kIgnore;
  bool verbose = false, explain = false;
};

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Steps an engine until a batch is answered, and shows how far it is.
class BatchLoop {
 public:
  BatchLoop(Engine& engine, BatchRun* run, JobPrefixes* prefixes, BatchOutput* output)
      : engine_(engine), run_(*run), prefixes_(*prefixes), output_(*output) {}

  // Until all is answered or Ctrl-C is pressed. An error of the engine or of the output ends it; what was answered is written.
  Status Run();

 private:
  Status StepOnce();
  std::vector<std::string> Progress() const;

  Engine& engine_;
  BatchRun& run_;
  JobPrefixes& prefixes_;
  BatchOutput& output_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

Status BatchLoop::Run() {
  ProgressLine progress(ProgressLine::WithoutTerminal::kPlainLines);
  Status status;
  while (status.ok() && !Interrupted() && !run_.done()) {
    status = StepOnce();
    if (progress.due()) progress.Show(Progress());
  }
  progress.Clear();
  Status synced = output_.Sync();
  return status.ok() ? synced : status;
}

Status BatchLoop::StepOnce() {
  COPPICE_RETURN_IF_ERROR(run_.Submit());
  COPPICE_RETURN_IF_ERROR(engine_.Step().status());  // ends every request: none of them was at fault
  prefixes_.AfterStep();
  return run_.WriteFinished();
}

// "[########............] 102/256 requests, 1312 tokens, 412.1/s, 0:41 left, 97% of prompts cached".
std::vector<std::string> BatchLoop::Progress() const {
  const EngineMetrics metrics = engine_.Metrics();
  const BatchCounts& counts = run_.counts();
  const double seconds = SecondsSince(begin_);
  const auto generated = static_cast<double>(metrics.generated_tokens);
  const double rate = generated / std::max(seconds, 1e-9), expected = std::max(counts.ExpectedTokens(), generated);
  const double part = std::max(generated / std::max(expected, 1.0),  // of requests that ask for no tokens, the other one
                               static_cast<double>(counts.done()) / static_cast<double>(std::max<int64_t>(counts.total, 1)));
  std::vector<std::string> parts = {fmt::format("{} {}/{} requests", FormatBar(part), counts.done(), counts.total),
                                    fmt::format("{} tokens", metrics.generated_tokens), fmt::format("{:.1f}/s", rate)};
  if (generated > 0) parts.push_back(FormatTimeLeft((expected - generated) / rate));
  if (metrics.cached_tokens + metrics.prefilled_tokens > 0) {
    parts.push_back(
        fmt::format("{:.0f}% of prompts cached", 100.0 * static_cast<double>(metrics.cached_tokens) /
                                                     static_cast<double>(metrics.cached_tokens + metrics.prefilled_tokens)));
  }
  return parts;
}

std::string Summary(const BatchOptions& options, const BatchCounts& counts, const BatchErrors& errors, int64_t finished_before,
                    const EngineMetrics& metrics, double seconds) {
  const RunStats drafts = {.sample_steps = metrics.sample_steps,
                           .drafted_tokens = metrics.drafted_tokens,
                           .accepted_draft_tokens = metrics.accepted_draft_tokens,
                           .undrafted_steps = metrics.undrafted_steps,
                           .draft_trees_cut = metrics.draft_trees_cut};
  std::string text = fmt::format("{} answered in {:.1f} s", counts.answered, seconds);
  if (finished_before > 0) text += fmt::format(", {} by an earlier run", finished_before);
  if (errors.count() > 0) text += fmt::format(",\n{} errors in {}", errors.count(), errors.path());
  const auto percent = [](int64_t part, int64_t whole) {
    return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0;
  };
  text += fmt::format("\nsharing {}: {} prompt tokens computed, {} found in the cache ({:.1f}%)\n{} generated, {:.1f}/s\n",
                      Name(options.engine.sharing), metrics.prefilled_tokens, metrics.cached_tokens,
                      percent(metrics.cached_tokens, metrics.cached_tokens + metrics.prefilled_tokens), metrics.generated_tokens,
                      static_cast<double>(metrics.generated_tokens) / std::max(seconds, 1e-9));
  text += FormatDrafts(drafts);
  text += fmt::format(
      "KV read {}, {} without sharing reads; peak memory {}\n", FormatBytes(static_cast<double>(metrics.kv_bytes_read)),
      FormatBytes(static_cast<double>(metrics.kv_bytes_read_unshared)), FormatBytes(static_cast<double>(PeakRssBytes())));
  return text;
}

Status CheckFiles(const BatchOptions& options) {
  for (const std::string* const path : {&options.input, &options.output}) {
    if (*path == "-")
      return InvalidArgument(
          fmt::format("the {} is -, expected a file: the same command goes on with a job that was killed, so it reads both again",
                      path == &options.input ? "input" : "output"));
  }
  return CheckDifferentFiles(*options.command, {{"the input", options.input},
                                                {"the output", options.output},
                                                {"--errors", options.errors},
                                                {"--prefixes", options.prefixes}});
}

// Here, as the grammars are the user's own. `*compiler` is made when it is needed, and keeps them.
Result<std::shared_ptr<const TokenConstraint>> Compile(const Engine& engine, const GrammarSource& source,
                                                       std::unique_ptr<GrammarCompiler>* compiler) {
  if (!*compiler) {
    COPPICE_ASSIGN_OR_RETURN(*compiler, GrammarCompiler::Create(*engine.tokenizer(), engine.model_info().vocab_size));
  }
  return (*compiler)->Compile(source);
}

// Files that are opened before a model is read.
struct BatchFiles {
  BatchOutput output;
  BatchErrors errors;
};

Result<BatchFiles> OpenFiles(BatchOptions* options) {
  if (options->errors.empty()) options->errors = options->output + ".errors";
  COPPICE_RETURN_IF_ERROR(Validate(options->engine));
  COPPICE_RETURN_IF_ERROR(CheckFiles(*options));
  COPPICE_ASSIGN_OR_RETURN(options->engine.model_path, hub::FindModel(options->engine.model_path));
  if (std::error_code ignored; !std::filesystem::exists(options->input, ignored))
    return NotFound(fmt::format("there is no input {}", options->input));
  COPPICE_ASSIGN_OR_RETURN(BatchOutput output, BatchOutput::Open(options->output));
  COPPICE_RETURN_IF_ERROR(output.CheckModel(ModelName(options->engine.model_path)));
  COPPICE_ASSIGN_OR_RETURN(BatchErrors errors, BatchErrors::Open(options->errors));
  return BatchFiles{.output = std::move(output), .errors = std::move(errors)};
}

// A model's tokenizer and limits, for a parser.
struct ModelText {
  const Tokenizer* tokenizer = nullptr;  // null: `status` says why
  Status status;
  int32_t context_length = 0, vocab_size = 0;
};

Result<std::unique_ptr<OpenAiRequestParser>> MakeParser(const BatchOptions& options, const ModelText& model) {
  if (!model.status.ok() && model.status.code() != StatusCode::kNotFound)
    spdlog::warn("answers have token_ids and no text: {}", OneLine(model.status.message()));
  const int32_t context = options.engine.max_context > 0 ? options.engine.max_context : model.context_length;
  auto parser = std::make_unique<OpenAiRequestParser>(model.tokenizer, context, model.status, model.vocab_size,
                                                      openai::RequestRules{.unknown_fields = options.unknown_fields});
  if (!options.prefixes.empty()) {
    COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.prefixes, "--prefixes"));
    COPPICE_ASSIGN_OR_RETURN(openai::FindNamedPrefix prefixes, openai::ParsePrefixesByName(text, options.prefixes, *parser));
    parser->SetPrefixes(std::move(prefixes));
  }
  return parser;
}

// One line of JSON for a program that has the parts run elsewhere. Reads the model's tokenizer and no weights.
Result<ExitCode> PrintParts(BatchOptions options) {
  COPPICE_ASSIGN_OR_RETURN(BatchFiles files, OpenFiles(&options));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(options.engine.model_path));
  const Result<std::unique_ptr<Tokenizer>> tokenizer = checkpoint->MakeTokenizer();
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<OpenAiRequestParser> parser,
                           MakeParser(options, {.tokenizer = tokenizer.ok() ? tokenizer->get() : nullptr,
                                                .status = tokenizer.status(),
                                                .context_length = checkpoint->config().max_position,
                                                .vocab_size = checkpoint->config().vocab_size}));
  COPPICE_ASSIGN_OR_RETURN(const BatchInput input, BatchInput::Read(options.input, *parser, files.output, &files.errors));
  const std::vector<openai::BatchJob>& jobs = input.jobs();
  nlohmann::ordered_json report = {{"answered_before", input.num_finished_before()},
                                   {"errors", files.errors.count()},
                                   {"output_bytes", files.output.size()},
                                   {"parts", nlohmann::ordered_json::array()}};
  for (const openai::BatchPart& part : openai::CutBatch({.count = jobs.size(),
                                       .prompt = [&](size_t i) { return input.Tokens(jobs[i]); },
                                       .output_tokens = [&](size_t i) { return jobs[i].output_tokens; }},
                                                        static_cast<size_t>(*options.parts))) {
    std::vector<int64_t> lines;
    for (size_t i = part.begin; i < part.end; ++i) lines.push_back(jobs[i].line);
    report["parts"].push_back(
        {{"prompt_tokens", part.prompt_tokens}, {"output_tokens", part.output_tokens}, {"lines", std::move(lines)}});
  }
  COPPICE_RETURN_IF_ERROR(Print(report.dump() + "\n"));
  return files.errors.count() > 0 ? ExitCode::kFailure : ExitCode::kOk;
}

Result<ExitCode> Batch(BatchOptions options) {
  COPPICE_ASSIGN_OR_RETURN(BatchFiles files, OpenFiles(&options));
  auto& [output, errors] = files;
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(options.engine));
  ReportNotes(*engine);
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<OpenAiRequestParser> made,
                           MakeParser(options, {.tokenizer = engine->tokenizer(),
                                                .status = engine->model_info().tokenizer_status,
                                                .context_length = engine->model_info().context_length,
                                                .vocab_size = engine->model_info().vocab_size}));
  const OpenAiRequestParser& parser = *made;
  CatchFirstInterrupt();
  Result<BatchInput> read = BatchInput::Read(options.input, parser, output, &errors, {.should_stop = Interrupted});
  if (read.status().code() == StatusCode::kCancelled) return ExitCode::kInterrupted;
  COPPICE_ASSIGN_OR_RETURN(const BatchInput input, std::move(read));
  spdlog::info("{} requests to answer, {} answered before, {} lines are none", input.jobs().size(), input.num_finished_before(),
               errors.count());

  const auto begin = std::chrono::steady_clock::now();
  ResumeFolder folder(options.output);
  if (folder.was_there()) spdlog::info("an earlier run did not come to its end; requests begin one by one");
  const size_t sharing = options.engine.sharing == SharingMode::kNone || input.has_salts() ? 0 : input.jobs().size();
  JobPrefixes prefixes(*engine, engine->model_info().page_size, folder, sharing,
                       [&](size_t job) { return input.Tokens(input.jobs()[job]); });
  std::unique_ptr<GrammarCompiler> compiler;
  BatchRun run(engine.get(), &input, &parser,
               {.model = ModelName(options.engine.model_path),
                .max_waiting = options.queue,
                .careful = folder.was_there(),
                .compile = [&](const GrammarSource& source, const auto&) { return Compile(*engine, source, &compiler); }},
               &prefixes, &output, &errors);
  COPPICE_RETURN_IF_ERROR(BatchLoop(*engine, &run, &prefixes, &output).Run());
  const BatchCounts& counts = run.counts();
  std::string text = Summary(options, counts, errors, input.num_finished_before(), engine->Metrics(), SecondsSince(begin));
  const int64_t left = counts.total - counts.done();
  if (left == 0) folder.Remove();
  if (Interrupted() && left > 0) text += fmt::format("interrupted; {} are left: the same command goes on with them\n", left);
  COPPICE_RETURN_IF_ERROR(Print(ForTerminal(text)));
  if (options.explain) ReportPlan(engine->Metrics());
  if (Interrupted() && left > 0) return ExitCode::kInterrupted;
  return errors.count() > 0 ? ExitCode::kFailure : ExitCode::kOk;
}

}  // namespace

Command AddBatchCommand(CLI::App& app) {
  const auto options = std::make_shared<BatchOptions>();
  CLI::App* command = app.add_subcommand("batch", "Answer a file of OpenAI batch requests; those that share a prefix run together");
  options->command = command;
  command->add_option("input", options->input, "JSON lines: custom_id, method, url, body")->required()->check(NotEmpty());
  command->add_option("output", options->output, "JSON lines of responses, as they are completed; if it exists, the rest is done")
      ->required()
      ->check(NotEmpty());
  command->add_option("--errors", options->errors, "JSON lines of what could not be answered (default: OUTPUT.errors)")
      ->check(NotEmpty());
  command
      ->add_option("--prefixes", options->prefixes,
                   "JSON object of names and beginnings of prompts, {\"a\": {\"messages\": [...]}}, for \"prefix\" in requests")
      ->check(NotEmpty());
  command->add_option("--queue", options->queue, "Requests that wait in the engine at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  AddParsed<openai::UnknownFields>(
      *command, "--unknown-fields", options->unknown_fields, openai::ParseUnknownFields,
      "Fields of requests that are not known and would change no answer: ignore (reported on stderr), or "
      "refuse")
      ->default_str("ignore");
  command
      ->add_option("--parts", options->parts,
                   "Answer nothing: print, as JSON, the input's lines that so many machines would have, divided by prefix")
      ->check(CLI::Range(1, 1 << 20));
  command->add_flag("--explain", options->explain, kExplainHelp);
  command->add_flag("-v,--verbose", options->verbose, "Log to stderr what the program does");
  AddEngineOptions(*command, options->engine);
  AddRecordOption(*command, options->engine);
  return {command, [options] {
            if (options->verbose) spdlog::set_level(spdlog::level::info);
            return options->parts ? PrintParts(*options) : Batch(*options);
          }};
}

}  // namespace coppice::cli
