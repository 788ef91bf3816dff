#include "cli/bench/bench_draft.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/bench_support.h"
#include "cli/parsed_option.h"
#include "cli/run_options.h"
#include "cli/run_stats.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
#include "coppice/engine/engine.h"
#include "core/check.h"
#include "core/format_bytes.h"
#include "hub/model_store.h"
#include "openai/generation.h"
#include "tokenizer/tokenizer.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kPassage =
    "The keeper of the northern light kept three books. In the first he wrote the weather: wind, swell, and how far he could see. "
    "In the second he wrote the ships, their rigs and flags, and the hour at which each passed the skerry. The third he showed to "
    "nobody. When the relief boat came in April, the crew found the lamp trimmed, the stove cold, and the third book open on the "
    "table, its last page dated the day before. It held no weather and no ships, only a list of names, each with a small "
    "cross.\n\n";

// A prompt whose continuation repeats it, and one whose continuation is new.
struct Text {
  std::string_view name;
  std::string prompt;
};
std::vector<Text> Texts() {
  const std::string passage(kPassage);
  return {{"repeats", passage + passage + passage + passage.substr(0, 51)},
          {"new", passage + "Write what happened next.\n\nThe crew"}};
}

struct BenchDraftOptions {
  EngineOptions engine;
  std::vector<int32_t> samples = {1, 8, 64};
  int32_t max_tokens = 64, repeats = 3, branches = 3;
  float temperature = 0.8f;
  std::string out;
};

struct DraftCase {
  const Text* text = nullptr;
  int32_t samples = 0;
  DraftMode draft = DraftMode::kNone;
  int32_t branches = 1;
  DraftPolicy policy = DraftPolicy::kAlways;

  std::string Drafts() const {
    std::string text(Name(draft));
    if (branches > 1) text += fmt::format(" x {}", branches);
    if (policy == DraftPolicy::kMeasured) text += " if it saves time";
    return text;
  }
};

Result<RunStats> Measure(const BenchDraftOptions& options, const DraftCase& job) {
  EngineOptions engine_options = options.engine;
  engine_options.draft = job.draft;
  engine_options.experiment.draft_branches = job.branches;
  engine_options.experiment.draft_policy = job.policy;
  if (job.draft != DraftMode::kModel) engine_options.draft_model_path.clear();
  engine_options.max_running = std::max(engine_options.max_running, job.samples);
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(engine_options));
  if (engine->tokenizer() == nullptr) return InvalidArgument("the model has no tokenizer; give another --model");
  Request request{.n = job.samples, .max_tokens = options.max_tokens, .ignore_eos = true};
  request.sampling.temperature = options.temperature;
  request.sampling.seed = 1;
  COPPICE_ASSIGN_OR_RETURN(request.prompt_ids, engine->tokenizer()->Encode(job.text->prompt));
  // As an engine does that has worked for a while: what the first run captures, measures and caches is there.
  COPPICE_RETURN_IF_ERROR(openai::Generate(*engine, request, {}).status());
  COPPICE_ASSIGN_OR_RETURN(const openai::Generation generation, openai::Generate(*engine, request, {}));
  return MakeRunStats(engine_options, engine->model_info(), generation);
}

// The run of median decode speed; the counters are the same in every run, but for a draft model and where drafting goes by the
// clock.
ordered_json Summarize(const DraftCase& job, std::vector<RunStats> runs) {
  std::ranges::sort(runs, {}, &RunStats::decode_tokens_per_second);
  const RunStats& stats = runs[runs.size() / 2];
  const double tokens = static_cast<double>(std::max<int64_t>(stats.decode_tokens, 1));
  return {{"text", job.text->name},
          {"prompt_tokens", stats.prompt_tokens},
          {"samples", job.samples},
          {"draft", job.Drafts()},
          {"tokens_per_step", stats.tokens_per_step()},
          {"drafted_tokens", stats.drafted_tokens},
          {"accepted_draft_tokens", stats.accepted_draft_tokens},
          {"undrafted_steps", stats.undrafted_steps},
          {"decode_steps", stats.decode_steps},
          {"decode_graph_steps", stats.decode_graph_steps},
          {"kv_bytes_read_per_token", static_cast<double>(stats.decode_kv_bytes_read) / tokens},
          {"kv_bytes_read_per_token_unshared", static_cast<double>(stats.decode_kv_bytes_read_unshared) / tokens},
          {"draft_kv_bytes_read_per_token", static_cast<double>(stats.draft_kv_bytes_read) / tokens},
          {"draft_seconds", stats.draft_seconds},
          {"decode_tokens_per_second", stats.decode_tokens_per_second()},
          {"decode_tokens_per_second_range", {runs.front().decode_tokens_per_second(), runs.back().decode_tokens_per_second()}}};
}

// The head of the columns.
std::vector<std::string> HeadCells() {
  return {"text    ",      "   n",      fmt::format(" {:<20}", "draft"), "tokens/step", " accepted/drafted  ", "KV read/token",
          "     unshared", "decode t/s"};
}

std::vector<std::string> RowCells(const ordered_json& row) {
  return FillUp(
      {fmt::format("{:<8}", row["text"].get<std::string>()), row["samples"].dump(),
       fmt::format(" {:<20}", row["draft"].get<std::string>()), fmt::format("{:.2f}", row["tokens_per_step"].get<double>()),
       fmt::format("{:>9}/{:<9}", row["accepted_draft_tokens"].dump(), row["drafted_tokens"].dump()),
       FormatBytes(row["kv_bytes_read_per_token"].get<double>()),
       FormatBytes(row["kv_bytes_read_per_token_unshared"].get<double>()),
       fmt::format("{:.1f}", row["decode_tokens_per_second"].get<double>())},
      HeadCells());
}

Result<ExitCode> BenchDraft(BenchDraftOptions options) {
  COPPICE_RETURN_IF_ERROR(CheckReport(options.out, "--out"));
  COPPICE_ASSIGN_OR_RETURN(options.engine.model_path, hub::FindModel(options.engine.model_path));
  const std::vector<Text> texts = Texts();
  std::vector<DraftCase> cases;
  for (const Text& text : texts) {
    for (const int32_t samples : options.samples) {
      cases.push_back({&text, samples});
      for (const DraftPolicy policy : {DraftPolicy::kAlways, DraftPolicy::kMeasured}) {
        cases.push_back({&text, samples, DraftMode::kNgram, 1, policy});
        if (options.branches > 1) cases.push_back({&text, samples, DraftMode::kNgram, options.branches, policy});
        if (!options.engine.draft_model_path.empty()) cases.push_back({&text, samples, DraftMode::kModel, 1, policy});
      }
    }
  }
  std::vector<std::vector<RunStats>> runs(cases.size());
  for (int32_t repeat = 0; repeat < options.repeats; ++repeat) {
    for (size_t c = 0; c < cases.size(); ++c) {
      COPPICE_ASSIGN_OR_RETURN(RunStats stats, Measure(options, cases[c]));
      runs[c].push_back(std::move(stats));
    }
  }
  ordered_json report = {{"model", options.engine.model_path.substr(options.engine.model_path.find_last_of('/') + 1)},
                         {"dtype", Name(runs.front().front().dtype)},
                         {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
                         {"draft_tokens", options.engine.draft_tokens},
                         {"temperature", options.temperature},
                         {"max_tokens", options.max_tokens},
                         {"repeats", options.repeats},
                         {"rows", ordered_json::array()}};
  COPPICE_RETURN_IF_ERROR(Print(RowForTerminal(HeadCells())));
  for (size_t c = 0; c < cases.size(); ++c) {
    report["rows"].push_back(Summarize(cases[c], runs[c]));
    COPPICE_RETURN_IF_ERROR(Print(RowForTerminal(RowCells(report["rows"].back()))));
  }
  COPPICE_RETURN_IF_ERROR(WriteReport(options.out, report.dump(1) + "\n", "--out"));
  return ExitCode::kOk;
}

}  // namespace

Command AddBenchDraftCommand(CLI::App& bench) {
  const auto options = std::make_shared<BenchDraftOptions>();
  CLI::App* command = bench.add_subcommand("draft",
                                           "Speculative decoding: tokens per step, KV bytes and speed without drafts, with linear "
                                           "n-gram drafts and trees, always and where "
                                           "measured to save time, interleaved, each in an engine that has run it once before");
  command->add_option("-n,--samples", options->samples, "Samples of a prompt")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--max-tokens", options->max_tokens, "Tokens of each sample")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("-t,--temperature", options->temperature, "0: greedy")->check(AtLeastZero())->capture_default_str();
  command->add_option("--repeats", options->repeats, "Runs of each case")->check(CLI::Range(1, 1000))->capture_default_str();
  command->add_option("--out", options->out, "Write the result to this file as JSON")->check(NotEmpty());
  AddEngineOptions(*command, options->engine);
  command->remove_option(command->get_option("--draft"));  // every way is measured; model with --draft-model
  command->remove_option(command->get_option("--draft-branches"));
  command->remove_option(command->get_option("--draft-policy"));
  command->add_option("--draft-branches", options->branches, "Branches of the draft tree; 1: no tree")
      ->check(CLI::Range(1, 63))
      ->capture_default_str();
  return {command, [options] { return BenchDraft(*options); }};
}

}  // namespace coppice::cli
