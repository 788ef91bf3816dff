#include "cli/run_command.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "cli/different_files.h"
#include "cli/interrupt.h"
#include "cli/live_output.h"
#include "cli/load_engine.h"
#include "cli/peer_speed.h"
#include "cli/plan_note.h"
#include "cli/prompt.h"
#include "cli/read_file.h"
#include "cli/run_output.h"
#include "cli/run_stats.h"
#include "cli/standard_output.h"
#include "core/check.h"
#include "engine/prefix_file.h"
#include "grammar/grammar_compiler.h"
#include "hub/model_store.h"
#include "openai/generation.h"
#include "tokenizer/one_line.h"

namespace coppice::cli {
namespace {

using openai::Generation;
using openai::Sample;
using openai::Selection;

// Cold files, clocks and device code of a new process would count for the mode that runs first.
Status WarmUp(EngineOptions options, Request request) {
  options.forest_listener = nullptr;
  request.max_tokens = std::min(request.max_tokens, 4);
  request.min_tokens = std::min(request.min_tokens, request.max_tokens);
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options));
  return openai::Generate(*engine, request, {.should_stop = Interrupted}).status();
}

// The same request on a fresh engine in the baseline's mode.
Result<BaselineSpeed> MeasureBaseline(EngineOptions options, SharingMode sharing, const Request& request) {
  options.sharing = sharing;
  options.experiment.force_sharing = false;
  options.forest_listener = nullptr;
  spdlog::info("running the job again with --sharing {}", Name(sharing));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options));
  COPPICE_ASSIGN_OR_RETURN(const Generation generation, openai::Generate(*engine, request, {.should_stop = Interrupted}));
  const RunStats stats = MakeRunStats(options, engine->model_info(), generation);
  return BaselineSpeed{sharing, stats.prefill_tokens_per_second(), stats.decode_tokens_per_second()};
}

// The constraint that the options set on the samples; null: none.
Result<std::shared_ptr<const TokenConstraint>> MakeConstraint(const RunOptions& options, const Engine& engine) {
  GrammarSource source;
  if (options.json_schema_file) {
    source.kind = GrammarKind::kJsonSchema;
    COPPICE_ASSIGN_OR_RETURN(source.text, ReadFile(*options.json_schema_file, "--json-schema"));
  } else if (options.grammar_file) {
    source.kind = GrammarKind::kEbnf;
    COPPICE_ASSIGN_OR_RETURN(source.text, ReadFile(*options.grammar_file, "--grammar"));
  } else if (options.regex) {
    source = {.kind = GrammarKind::kRegex, .text = *options.regex};
  } else {
    return std::shared_ptr<const TokenConstraint>();
  }
  if (!engine.tokenizer())
    return FailedPrecondition(engine.model_info().tokenizer_status.message() + "; samples have no text to constrain");
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<GrammarCompiler> compiler,
                           GrammarCompiler::Create(*engine.tokenizer(), engine.model_info().vocab_size));
  return compiler->Compile(source);
}

}  // namespace

Result<ExitCode> Run(RunOptions options) {
  COPPICE_RETURN_IF_ERROR(Validate(options));
  COPPICE_ASSIGN_OR_RETURN(options.engine.model_path, hub::FindModel(options.engine.model_path));
  COPPICE_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadPromptText(options));
  std::optional<PeerSpeed> peer;
  if (options.beside) {
    COPPICE_ASSIGN_OR_RETURN(peer, ReadPeerSpeed(*options.beside));
  }
  if (!options.save_prefix.empty()) COPPICE_RETURN_IF_ERROR(ResolvePrefixOutput(options.save_prefix).status());
  const LoadingIs loading = options.quiet ? LoadingIs::kSilent : LoadingIs::kShown;
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, LoadEngine(options.engine, loading));
  ReportNotes(*engine);
  TakeSamplingDefaults(engine->model_info(), &options);
  Request& request = options.request;
  if (const Status status = engine->model_info().tokenizer_status; !status.ok() && status.code() != StatusCode::kNotFound) {
    if (text) return Status(status.code(), status.message() + "; give the prompt as --prompt-ids 1,2,3");
    spdlog::warn("samples are token ids, without text: {}", OneLine(status.message()));
  }
  COPPICE_ASSIGN_OR_RETURN(request.prompt_ids, EncodePrompt(options, text, engine->tokenizer()));
  COPPICE_ASSIGN_OR_RETURN(request.constraint, MakeConstraint(options, *engine));
  const Selection selection = {.rank = options.rank || options.best_of.has_value(),
                               .deduplicate = options.deduplicate,
                               .best = options.best_of ? request.n : 0};
  if (options.best_of) request.n = *options.best_of;
  if (request.echo && options.json) request.prompt_logprobs = true;
  const bool streams = !options.json && request.n == 1;
  const bool prints_at_end = options.json || (!streams && (selection.rank || selection.deduplicate));

  CatchFirstInterrupt();
  if (options.baseline) {
    engine.reset();
    COPPICE_RETURN_IF_ERROR(WarmUp(options.engine, request));
    COPPICE_ASSIGN_OR_RETURN(engine, LoadEngine(options.engine, loading));
  }
  spdlog::info("generating {} samples of a prompt of {} tokens with {}", request.n, request.prompt_ids.size(),
               options.engine.model_path);
  LiveOutput live({.streams = streams,
                   .prints_samples = !streams && !prints_at_end,
                   .has_text = engine->tokenizer() != nullptr,
                   .shows_progress = !options.quiet});
  constexpr const char *kSaved = "saved", *kLoaded = "loaded";  // names of pins
  if (!options.load_prefix.empty()) COPPICE_RETURN_IF_ERROR(engine->LoadPrefix(kLoaded, options.load_prefix, CacheTenant()));
  if (!options.save_prefix.empty()) request.pin_prompt_as = kSaved;
  std::optional<openai::StoppingVote> stopping;
  if (options.vote_stop) stopping = {.pattern = *options.vote, .max_running = options.engine.max_running};
  Result<Generation> generated = openai::Generate(*engine, request, live.Hooks(), stopping ? &*stopping : nullptr);
  COPPICE_RETURN_IF_ERROR(live.End());
  COPPICE_ASSIGN_OR_RETURN(const Generation generation, std::move(generated));
  if (!options.save_prefix.empty() && !generation.interrupted) {
    COPPICE_RETURN_IF_ERROR(engine->SavePrefix(kSaved, options.save_prefix));
  }

  RunStats stats = MakeRunStats(options.engine, engine->model_info(), generation);
  stats.peer = peer;
  engine.reset();  // its memory, before the baseline's engine takes its own
  if (options.baseline && !generation.interrupted) {
    COPPICE_ASSIGN_OR_RETURN(const BaselineSpeed baseline, MeasureBaseline(options.engine, *options.baseline, request));
    if (!Interrupted()) stats.baseline = baseline;
  }

  std::optional<std::vector<VotedAnswer>> votes;
  if (options.vote) {
    COPPICE_ASSIGN_OR_RETURN(votes, Vote(generation.samples, *options.vote));
  }
  if (options.json) {
    const JsonOptions json = {.selection = selection, .echo = request.echo, .votes = votes ? &*votes : nullptr};
    COPPICE_RETURN_IF_ERROR(Print(FormatJson(generation, stats, json)));
  } else {
    std::string text;
    if (prints_at_end) {
      int32_t rank = 0;
      for (const Sample* sample : Select(generation.samples, selection))
        text += FormatSample(*sample, selection.rank ? ++rank : 0, live.echo());
    }
    if (votes) text += FormatVotes(*votes, stats.samples_finished);
    COPPICE_RETURN_IF_ERROR(Print(text));
    if (!options.quiet) fmt::print(stderr, "\n{}", FormatTable(stats));
  }
  if (options.explain) ReportPlan(generation.metrics);
  return Interrupted() ? ExitCode::kInterrupted : ExitCode::kOk;
}

Command AddRunCommand(CLI::App& app) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* const command = AddRunCommand(app, *options);
  return {command, [options, command]() -> Result<ExitCode> {
            if (options->verbose) spdlog::set_level(spdlog::level::info);
            COPPICE_RETURN_IF_ERROR(CheckDifferentFiles(*command, {{"--save-prefix", options->save_prefix}}));
            return Run(*options);
          }};
}

}  // namespace coppice::cli
