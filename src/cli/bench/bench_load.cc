#include "cli/bench/bench_load.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/bench/bench_support.h"
#include "cli/bench/load_report.h"
#include "cli/bench/load_run.h"
#include "cli/bench/workload.h"
#include "cli/parsed_option.h"
#include "cli/progress_line.h"
#include "cli/run_options.h"
#include "cli/run_stats.h"
#include "cli/standard_output.h"
#include "coppice/engine/engine.h"
#include "core/check.h"
#include "model/checkpoint.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;

struct BenchLoadOptions {
  EngineOptions engine;
  WorkloadOptions workload;
  std::vector<double> rates;  // requests a second; empty: all at once
  std::vector<SharingMode> modes{kSharingModes.begin(), kSharingModes.end()};
  int32_t repeats = 1;
  std::string config, out, html;

  std::string_view command() const { return rates.empty() ? "throughput" : "serve"; }
};

struct Case {
  const WorkloadPoint* point = nullptr;
  double rate = 0;  // 0: all at once
  SharingMode sharing = SharingMode::kTree;
};

Result<ordered_json> Measure(EngineOptions options, const Case& job, uint64_t seed) {
  options.sharing = job.sharing;
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options));
  const size_t count = job.point->requests.size();
  const std::vector<double> arrivals = job.rate > 0 ? PoissonArrivals(count, job.rate, seed) : std::vector<double>(count, 0.0);
  COPPICE_ASSIGN_OR_RETURN(const LoadResult result, RunLoad(*engine, job.point->requests, arrivals));
  return ToJson(result);
}

std::string FormatHead() {
  return fmt::format("{:<24} {:>6} {:>6}  {:<9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>9} {:>7} {:>7} {:>6} {:>10} {:>10}\n",
                     "workload", "x", "rate", "sharing", "req/min", "out tok/s", "TTFT p50", "p99 s", "TBT p50", "p99 ms",
                     "latency50", ">200ms", ">500ms", "hits", "KV read", "not read");
}

std::string FormatRow(const ordered_json& row) {
  const ordered_json& result = row["result"];
  const auto number = [](const ordered_json& value) { return value.is_number() ? value.get<double>() : 0; };
  return fmt::format(
      "{:<24} {:>6g} {:>6}  {:<9} {:>9.1f} {:>9.1f} {:>8.2f} {:>8.2f} {:>8.1f} {:>8.1f} {:>9.2f} {:>6.1f}% {:>6.1f}% {:>5.1f}% "
      "{:>10} {:>10}\n",
      row["label"].get<std::string>(), row["x"].get<double>(),
      row["rate"].is_null() ? "all" : fmt::format("{:g}", row["rate"].get<double>()), row["sharing"].get<std::string>(),
      60 * number(result["requests_per_second"]), number(result["output_tokens_per_second"]), number(result["ttft"]["p50"]),
      number(result["ttft"]["p99"]), 1e3 * number(result["tbt"]["p50"]), 1e3 * number(result["tbt"]["p99"]),
      number(result["latency"]["p50"]), 100 * number(result["stalled_200ms_share"]), 100 * number(result["stalled_500ms_share"]),
      100 * number(result["hit_rate"]), FormatBytes(number(result["kv_bytes_read"])),
      FormatBytes(number(result["kv_bytes_saved"])));
}

Result<ExitCode> BenchLoad(BenchLoadOptions options) {
  COPPICE_RETURN_IF_ERROR(Validate(options.engine));
  COPPICE_RETURN_IF_ERROR(CheckReport(options.out, "--out"));
  COPPICE_RETURN_IF_ERROR(CheckReport(options.html, "--html"));
  COPPICE_RETURN_IF_ERROR(FindBenchModel(options.engine, options.config));
  {
    COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenBenchModel(options.engine));
    const ModelConfig& config = checkpoint->config();
    options.workload.vocab_size = config.vocab_size;
    options.workload.max_context = options.engine.max_context > 0 ? options.engine.max_context : config.max_position;
  }
  COPPICE_ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(options.workload));

  std::vector<Case> cases;
  for (const WorkloadPoint& point : workload.points) {
    for (const double rate : options.rates.empty() ? std::vector<double>{0} : options.rates) {
      for (const SharingMode mode : options.modes) cases.push_back({&point, rate, mode});
    }
  }
  std::vector<std::vector<ordered_json>> runs(cases.size());
  ProgressLine progress(ProgressLine::WithoutTerminal::kPlainLines);
  for (int32_t repeat = 0; repeat < options.repeats; ++repeat) {
    for (size_t c = 0; c < cases.size(); ++c) {
      if (progress.due()) progress.Show(fmt::format("repeat {}/{}, case {}/{}", repeat + 1, options.repeats, c + 1, cases.size()));
      const uint64_t seed = options.workload.seed + static_cast<uint64_t>(repeat);
      COPPICE_ASSIGN_OR_RETURN(ordered_json result, MeasureInChild([&] { return Measure(options.engine, cases[c], seed); }));
      runs[c].push_back(std::move(result));
    }
  }
  progress.Clear();

  ordered_json report = {
      {"command", options.command()},
      {"workload", Name(options.workload.kind)},
      {"x_label", workload.x_label},
      {"scale", options.workload.scale},
      {"seed", options.workload.seed},
      {"model", options.engine.model_path.substr(options.engine.model_path.find_last_of('/') + 1)},
      {"dtype", Name(options.engine.dtype)},
      {"page_size", options.engine.page_size},
      {"max_running", options.engine.max_running},
      {"max_batch_tokens", options.engine.max_batch_tokens},
      {"cpu", CpuName()},
      {"threads", options.engine.num_threads > 0 ? options.engine.num_threads : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))},
      {"repeats", options.repeats},
      {"rows", ordered_json::array()}};
  COPPICE_RETURN_IF_ERROR(Print(FormatHead()));
  for (size_t c = 0; c < cases.size(); ++c) {
    report["rows"].push_back({{"label", cases[c].point->label},
                              {"x", cases[c].point->x},
                              {"rate", cases[c].rate > 0 ? ordered_json(cases[c].rate) : ordered_json()},
                              {"sharing", Name(cases[c].sharing)},
                              {"result", Medians(runs[c])}});
    COPPICE_RETURN_IF_ERROR(Print(FormatRow(report["rows"].back())));
  }
  COPPICE_RETURN_IF_ERROR(WriteReport(options.out, report.dump(1) + "\n", "--out"));
  COPPICE_RETURN_IF_ERROR(WriteReport(options.html, LoadReportHtml(report), "--html"));
  return ExitCode::kOk;
}

std::shared_ptr<BenchLoadOptions> AddLoadOptions(CLI::App& command) {
  const auto options = std::make_shared<BenchLoadOptions>();
  WorkloadOptions& workload = options->workload;
  AddParsed<WorkloadKind>(command, "-w,--workload", workload.kind, ParseWorkloadKind,
                          "shared-prefix (default), few-shot, document, tree, relay, mixture, sampling, ratio or lengths");
  command.add_option("--groups", workload.groups, "Groups of requests with a prefix each");
  command.add_option("--requests", workload.requests, "Requests: of a group, or in all");
  command.add_option("--shared-tokens", workload.shared_tokens, "Length of each prefix");
  command.add_option("--unique-tokens", workload.unique_tokens, "Length of each request's own prompt");
  command.add_option("--output-tokens", workload.output_tokens, "Length of each sample");
  command.add_option("-n,--samples", workload.samples, "Samples of each request");
  command.add_option("--total-tokens", workload.total_tokens, "ratio: prompt and output of a request");
  command.add_option("--ratios", workload.ratios, "ratio: prompt tokens per output token (default: 8 to 24)")->delimiter(',');
  command.add_option("--prefixes", workload.prefixes, "relay: lengths of the system prompt (default: 64 to 2048)")->delimiter(',');
  command.add_option("--tree", workload.tree,
                     "tree: 1024,256x4,64x8 is a prefix of 1,024 tokens, 4 nodes of 256 below it, 8 requests below each");
  command.add_option("--lengths", workload.lengths_file, "lengths: a file of lines \"prompt output [group shared]\" in tokens")
      ->check(NotEmpty());
  command.add_option("--scale", workload.scale, "Take this part of the workload's groups, or of its requests")
      ->capture_default_str();
  command.add_option("--seed", workload.seed, "Of token ids, order and arrivals")->capture_default_str();
  AddParsed<std::vector<SharingMode>>(command, "--modes", options->modes, ParseSharingModes,
                                      "Sharing modes to measure (default: all four)");
  command.add_option("--repeats", options->repeats, "Runs of each case")->check(CLI::Range(1, 1000))->capture_default_str();
  command.add_option("--out", options->out, "Write the result to this file as JSON")->check(NotEmpty());
  command.add_option("--html", options->html, "Write a page with plots to this file")->check(NotEmpty());
  AddEngineOptions(command, options->engine);
  AddWeightsOptions(command, options->engine, options->config);
  command.remove_option(command.get_option("--sharing"));  // --modes says which
  return options;
}

}  // namespace

Command AddBenchThroughputCommand(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("throughput", "A workload whose requests all come at once, in the four sharing modes");
  const std::shared_ptr<BenchLoadOptions> options = AddLoadOptions(*command);
  return {command, [options] { return BenchLoad(*options); }};
}

Command AddBenchServeCommand(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("serve", "A workload whose requests come at random moments (Poisson), in the four sharing modes");
  const std::shared_ptr<BenchLoadOptions> options = AddLoadOptions(*command);
  command->add_option("--rate", options->rates, "Requests per second; a list is measured one after the other")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->required();
  return {command, [options] { return BenchLoad(*options); }};
}

}  // namespace coppice::cli
