#include "cli/bench/bench_decode.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/bench_support.h"
#include "cli/bench/decode_report.h"
#include "cli/parsed_option.h"
#include "cli/run_options.h"
#include "cli/run_stats.h"
#include "cli/standard_output.h"
#include "coppice/engine/engine.h"
#include "core/check.h"
#include "openai/generation.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;

// A sharing mode, or the step without its attention: the ceiling of what sharing can reach (Hydragen, section 4.1).
struct Mode {
  static constexpr std::string_view kNoAttention = "no-attention";

  SharingMode sharing = SharingMode::kTree;
  bool attends = true;

  std::string_view name() const { return attends ? Name(sharing) : kNoAttention; }
};

std::vector<Mode> AllSharingModes() {
  std::vector<Mode> modes;
  for (const SharingMode sharing : kSharingModes) modes.push_back({.sharing = sharing});
  return modes;
}

// Names with commas between them.
Result<std::vector<Mode>> ParseModes(std::string_view text) {
  std::vector<Mode> modes;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view name = text.substr(0, comma);
    const Result<SharingMode> sharing = ParseSharingMode(name);
    if (!sharing.ok() && name != Mode::kNoAttention)
      return InvalidArgument(fmt::format("'{}' is no mode; expected tree, one-level, store, none or {}", name, Mode::kNoAttention));
    modes.push_back(sharing.ok() ? Mode{.sharing = *sharing} : Mode{.attends = false});
    if (comma == text.npos) return modes;
    text.remove_prefix(comma + 1);
  }
}

struct BenchDecodeOptions {
  EngineOptions engine;
  std::vector<int32_t> prompt_tokens = {512, 2048}, samples = {1, 8, 64};
  std::vector<Mode> modes = AllSharingModes();
  int32_t max_tokens = 32, repeats = 3;
  std::string config, out, csv, html;
  std::vector<double> roofline;  // TB/s, TFLOP/s, or empty
};

struct Case {
  int32_t prompt_tokens = 0, samples = 0;
  Mode mode;
};

// One job on a fresh engine. Token ids are arbitrary but fixed: speed does not depend on them, and end-of-text is ignored.
Result<ordered_json> Measure(EngineOptions options, const Case& job, int32_t max_tokens) {
  options.sharing = job.mode.sharing;
  options.without_attention = !job.mode.attends;
  options.max_running = std::max(options.max_running, job.samples);
  const auto begin = std::chrono::steady_clock::now();
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options));
  const std::chrono::duration<double> started = std::chrono::steady_clock::now() - begin;
  Request request{.n = job.samples, .max_tokens = max_tokens, .ignore_eos = true};
  for (int32_t i = 0; i < job.prompt_tokens; ++i) request.prompt_ids.push_back(1 + i * 31 % 200);
  COPPICE_ASSIGN_OR_RETURN(const openai::Generation generation, openai::Generate(*engine, request, {}));
  if (const int64_t preempted = engine->Metrics().preemptions; preempted > 0)
    return ResourceExhausted(
        fmt::format("{} of {} samples gave their pages up: their KV does not fit beside each other", preempted, job.samples));
  ordered_json stats = ToJson(MakeRunStats(options, generation));
  stats["first_token_seconds"] = started.count() + generation.metrics.prefill_seconds;
  return stats;
}

// A case that memory has no room for.
ordered_json WithoutRoom(const Case& job, const Status& status) {
  return {{"prompt_tokens", job.prompt_tokens},
          {"samples", job.samples},
          {"sharing", job.mode.name()},
          {"out_of_memory", status.message()}};
}

// Medians of what varies, with the spread of the decode speed; the counted bytes are the same in every repeat.
ordered_json Summarize(const Case& job, const std::vector<ordered_json>& runs) {
  const auto median = [&](const char* key) {
    std::vector<double> values;
    for (const ordered_json& run : runs) values.push_back(run[key]);
    return Median(std::move(values));
  };
  std::vector<double> decode;
  for (const ordered_json& run : runs) decode.push_back(run["decode_tokens_per_second"]);
  const auto [slowest, fastest] = std::ranges::minmax(decode);
  const double decode_steps = std::max(1.0, runs.front()["decode_steps"].get<double>());
  const double graph_steps = runs.front()["decode_graph_steps"].get<double>(), seconds = median("decode_seconds");
  // What a step takes over what its graph does on the device: all steps but a few are graphs.
  const ordered_json over_graph =
      graph_steps > 0 ? ordered_json(seconds / (seconds - median("device_idle_seconds"))) : ordered_json();
  return {{"prompt_tokens", job.prompt_tokens},
          {"samples", job.samples},
          {"sharing", job.mode.name()},
          {"decode_tokens_per_second", median("decode_tokens_per_second")},
          {"decode_tokens_per_second_range", {slowest, fastest}},
          {"prefill_tokens_per_second", median("prefill_tokens_per_second")},
          {"peak_rss_bytes", median("peak_rss_bytes")},
          {"kv_bytes_read_per_step", runs.front()["kv_bytes_read_per_step"]},
          {"kv_bytes_stored", runs.front()["kv_bytes_stored"]},
          {"steps", runs.front()["steps"]},
          {"decode_steps", runs.front()["decode_steps"]},
          {"graph_steps", runs.front()["graph_steps"]},
          {"bubbles", median("bubbles")},
          {"decode_seconds", median("decode_seconds")},
          {"device_idle_seconds", median("device_idle_seconds")},
          {"step_ms", 1e3 * seconds / decode_steps},
          {"graph_step_share", graph_steps / decode_steps},
          {"step_over_graph", over_graph},
          {"first_token_seconds", median("first_token_seconds")}};
}

Result<ExitCode> BenchDecode(BenchDecodeOptions options) {
  COPPICE_RETURN_IF_ERROR(Validate(options.engine));
  COPPICE_RETURN_IF_ERROR(CheckReport(options.out, "--out"));
  COPPICE_RETURN_IF_ERROR(CheckReport(options.csv, "--csv"));
  COPPICE_RETURN_IF_ERROR(CheckReport(options.html, "--html"));
  COPPICE_RETURN_IF_ERROR(FindBenchModel(options.engine, options.config));
  std::vector<Case> cases;
  for (const int32_t prompt : options.prompt_tokens) {
    for (const int32_t samples : options.samples) {
      for (const Mode mode : options.modes) cases.push_back({prompt, samples, mode});
    }
  }
  std::vector<std::vector<ordered_json>> runs(cases.size());
  std::vector<Status> without_room(cases.size());
  for (int32_t repeat = 0; repeat < options.repeats; ++repeat) {
    for (size_t c = 0; c < cases.size(); ++c) {
      if (isatty(STDERR_FILENO))
        std::cerr << fmt::format("\r\x1b[Krepeat {}/{}, case {}/{}", repeat + 1, options.repeats, c + 1, cases.size());
      if (!without_room[c].ok()) continue;
      Result<ordered_json> stats = MeasureInChild([&] { return Measure(options.engine, cases[c], options.max_tokens); });
      if (!stats.ok() && stats.status().code() == StatusCode::kResourceExhausted) {
        without_room[c] = stats.status();
        continue;
      }
      COPPICE_RETURN_IF_ERROR(stats.status());
      runs[c].push_back(*std::move(stats));
    }
  }
  if (isatty(STDERR_FILENO)) std::cerr << "\r\x1b[K";

  ordered_json report = {{"model", options.engine.model_path.substr(options.engine.model_path.find_last_of('/') + 1)},
                         {"device", options.engine.device},
                         {"dtype", Name(options.engine.dtype)},
                         {"page_size", options.engine.page_size},
                         {"cpu", CpuName()},
                         {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
                         {"threads", options.engine.num_threads},
                         {"max_tokens", options.max_tokens},
                         {"repeats", options.repeats},
                         {"rows", ordered_json::array()}};
  COPPICE_RETURN_IF_ERROR(Print(FormatDecodeHead()));
  for (size_t c = 0; c < cases.size(); ++c) {
    report["rows"].push_back(without_room[c].ok() ? Summarize(cases[c], runs[c]) : WithoutRoom(cases[c], without_room[c]));
    COPPICE_RETURN_IF_ERROR(Print(FormatDecodeRow(report["rows"].back())));
  }
  for (const Status& status : without_room) {
    if (!status.ok()) std::cerr << fmt::format("x: {}\n", status.message());
  }
  if (std::ranges::any_of(options.modes, [](const Mode& mode) { return !mode.attends; })) {
    COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenBenchModel(options.engine));
    std::optional<Roofline> roofline;
    if (!options.roofline.empty())
      roofline = {.bytes_per_second = 1e12 * options.roofline[0], .flops_per_second = 1e12 * options.roofline[1]};
    AddAttention(checkpoint->config(), options.max_tokens, roofline, &report["rows"]);
    COPPICE_RETURN_IF_ERROR(Print(FormatAttention(checkpoint->config(), report["rows"])));
  }
  COPPICE_RETURN_IF_ERROR(WriteReport(options.out, report.dump(1) + "\n", "--out"));
  COPPICE_RETURN_IF_ERROR(WriteReport(options.csv, DecodeReportCsv(report["rows"]), "--csv"));
  COPPICE_RETURN_IF_ERROR(WriteReport(options.html, DecodeReportHtml(report), "--html"));
  return ExitCode::kOk;
}

}  // namespace

Command AddBenchDecodeCommand(CLI::App& bench) {
  const auto options = std::make_shared<BenchDecodeOptions>();
  CLI::App* command =
      bench.add_subcommand("decode", "Decode tokens/s and peak memory in the four sharing modes, interleaved, medians");
  command->add_option("--prompt-tokens", options->prompt_tokens, "Prompt lengths")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("-n,--samples", options->samples, "Samples of a prompt")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--max-tokens", options->max_tokens, "Tokens of each sample")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "Runs of each case")->check(CLI::Range(1, 1000))->capture_default_str();
  command->add_option("--out", options->out, "Write the result to this file as JSON")->check(NotEmpty());
  command->add_option("--csv", options->csv, "Write it to this file as CSV, a line a case")->check(NotEmpty());
  command->add_option("--html", options->html, "Write a page with plots to this file")->check(NotEmpty());
  command
      ->add_option("--roofline", options->roofline,
                   "TB/s and TFLOP/s of the device: beside no-attention, the bound of a step's attention, too")
      ->expected(2)
      ->check(CLI::PositiveNumber);
  AddParsed<std::vector<Mode>>(*command, "--modes", options->modes, ParseModes,
                               "Modes to measure: tree, one-level, store, none (default: these), and no-attention, the step "
                               "without its attention");
  AddEngineOptions(*command, options->engine);
  AddWeightsOptions(*command, options->engine, options->config);
  command->remove_option(command->get_option("--sharing"));  // every mode is measured
  return {command, [options] { return BenchDecode(*options); }};
}

}  // namespace coppice::cli
