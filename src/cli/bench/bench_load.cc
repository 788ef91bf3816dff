#include "cli/bench/bench_load.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <climits>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench/bench_support.h"
#include "cli/bench/capacity.h"
#include "cli/bench/http_load.h"
#include "cli/bench/load_report.h"
#include "cli/bench/load_run.h"
#include "cli/bench/workload.h"
#include "cli/parsed_option.h"
#include "cli/progress_line.h"
#include "cli/run_options.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
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
  std::vector<BenchMode> modes = AllSharingModes();
  std::vector<KindOrder> kinds = {KindOrder::kAuto};
  std::vector<int32_t> chunks;  // none: the engine's own
  int32_t repeats = 1, concurrency = 0;
  std::string config, out, html, append;
  // A capacity search, where there is a limit.
  std::optional<double> max_ttft, max_tbt;  // seconds
  double precision = 0.05;
  // Servers that are measured instead of an engine.
  std::vector<std::string> urls;
  std::string api_key, model_name;
  int32_t vocab_size = 32000;  // of the models in use the smallest, but for those of bytes
  // Options that mean nothing to the other kind.
  std::vector<const CLI::Option*> engine_only, server_only;

  std::string_view command() const { return rates.empty() ? "throughput" : "serve"; }
  bool searches() const { return max_ttft || max_tbt; }
};

// A system that runs a workload: an engine of its own in one mode, or a server.
struct System {
  ordered_json name;  // members of its rows: "sharing", "kinds" and, of several, "chunk", or "server"
  std::function<Result<LoadResult>(std::span<const WorkloadRequest>, const LoadSchedule&)> run;
};

struct LoadCase {
  const WorkloadPoint* point = nullptr;
  double rate = 0;  // 0: all at once
  const System* system = nullptr;
};

std::vector<System> Engines(const BenchLoadOptions& options) {
  std::vector<System> systems;
  for (const BenchMode& mode : WithChunks(WithKinds(options.modes, options.kinds), options.chunks)) {
    ordered_json name = ordered_json::object({{"sharing", mode.sharing_name()}, {"kinds", Name(mode.kinds)}});
    if (mode.chunk) name["chunk"] = *mode.chunk;
    systems.push_back({std::move(name),
                       [engine_options = mode.OptionsFor(options.engine)](std::span<const WorkloadRequest> requests,
                                                                          const LoadSchedule& schedule) -> Result<LoadResult> {
                         COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(engine_options));
                         return RunLoad(*engine, requests, schedule);
                       }});
  }
  return systems;
}

Result<std::vector<System>> Servers(const BenchLoadOptions& options) {
  std::vector<System> systems;
  for (const std::string& url : options.urls) {
    HttpTarget target{.api_key = options.api_key, .model = options.model_name, .vocab_size = options.vocab_size};
    COPPICE_ASSIGN_OR_RETURN(target.url, ParseServerUrl(url));
    if (target.model.empty()) {
      COPPICE_ASSIGN_OR_RETURN(target.model, FirstModel(target.url, target.api_key));
    }
    systems.push_back({ordered_json::object({{"server", url}}),
                       [target](std::span<const WorkloadRequest> requests, const LoadSchedule& schedule) {
                         return RunHttpLoad(target, requests, schedule);
                       }});
  }
  return systems;
}

// `run`: of all that are measured.
Result<ordered_json> MeasureOnce(const BenchLoadOptions& options, const LoadCase& job, int32_t repeat, int32_t run) {
  const uint64_t seed = options.workload.seed + static_cast<uint64_t>(repeat);
  const std::vector<WorkloadRequest>& requests = job.point->requests;
  const LoadSchedule schedule = {
      .arrivals = job.rate > 0 ? PoissonArrivals(requests.size(), job.rate, seed) : std::vector<double>(requests.size(), 0.0),
      .concurrency = options.concurrency,
      .run = run};
  return MeasureInChild([&]() -> Result<ordered_json> {
    COPPICE_ASSIGN_OR_RETURN(const LoadResult result, job.system->run(requests, schedule));
    return ToJson(result);
  });
}

// Whether `result`, of requests that came at `rate`, keeps the limits.
RateVerdict Evaluate(const BenchLoadOptions& options, const ordered_json& result, double rate) {
  const auto beyond = [&](const char* group, const std::optional<double>& limit) {
    return limit && result[group]["p99"].is_number() && result[group]["p99"].get<double>() > *limit;
  };
  if (result.value("refused", 0) > 0 || beyond("ttft", options.max_ttft) || beyond("tbt", options.max_tbt))
    return RateVerdict::kBeyond;
  return result["requests_per_second"].get<double>() < rate / 2 ? RateVerdict::kSaturated : RateVerdict::kWithin;
}

// The row of the highest rate that keeps the limits, beginning at the case's own rate. `run` counts the runs.
Result<ordered_json> SearchCapacity(const BenchLoadOptions& options, LoadCase job, ProgressLine* progress, int32_t* run) {
  ordered_json best, last, probes = ordered_json::array();
  const auto evaluate = [&](double rate) -> Result<RateVerdict> {
    job.rate = rate;
    if (progress->due())
      progress->Show({fmt::format("{}, {}", job.point->label, job.system->name.begin()->get<std::string>()),
                      fmt::format("{:g} requests a second", rate)});
    std::vector<ordered_json> runs;
    for (int32_t repeat = 0; repeat < options.repeats; ++repeat) {
      COPPICE_ASSIGN_OR_RETURN(ordered_json result, MeasureOnce(options, job, repeat, (*run)++));
      runs.push_back(std::move(result));
    }
    last = Medians(runs);
    const RateVerdict verdict = Evaluate(options, last, rate);
    probes.push_back({{"rate", rate},
                      {"within", verdict != RateVerdict::kBeyond},
                      {"ttft_p99", last["ttft"]["p99"]},
                      {"tbt_p99", last["tbt"]["p99"]}});
    if (verdict != RateVerdict::kBeyond) best = last;
    return verdict;
  };
  COPPICE_ASSIGN_OR_RETURN(const Capacity capacity, FindCapacity(job.rate, options.precision, evaluate));
  const auto number = [](const std::optional<double>& value) { return value ? ordered_json(*value) : ordered_json(); };
  return ordered_json{{"rate", capacity.rate > 0 ? capacity.rate : job.rate},  // where none was within, the lowest
                      {"result", capacity.rate > 0 ? best : last},
                      {"capacity",
                       {{"rate", capacity.rate},
                        {"beyond", capacity.beyond > 0 ? ordered_json(capacity.beyond) : ordered_json()},
                        {"max_ttft_p99", number(options.max_ttft)},
                        {"max_tbt_p99", number(options.max_tbt)},
                        {"probes", std::move(probes)}}}};
}

// Is given each case's row, an object with "rate" and "result", as soon as it is complete.
using TakeRow = std::function<Status(const LoadCase&, const ordered_json& row)>;

// The results of all cases, each as an object with "rate" and "result". Repeats go round all cases; searches come one by one.
Result<std::vector<ordered_json>> MeasureAll(const BenchLoadOptions& options, const std::vector<LoadCase>& cases,
                                             const TakeRow& take) {
  ProgressLine progress(ProgressLine::WithoutTerminal::kPlainLines);
  std::vector<ordered_json> found(cases.size());
  std::vector<std::vector<ordered_json>> runs(cases.size());
  int32_t run = 0;
  for (size_t c = 0; options.searches() && c < cases.size(); ++c) {
    COPPICE_ASSIGN_OR_RETURN(found[c], SearchCapacity(options, cases[c], &progress, &run));
    COPPICE_RETURN_IF_ERROR(take(cases[c], found[c]));
  }
  for (int32_t repeat = 0; !options.searches() && repeat < options.repeats; ++repeat) {
    for (size_t c = 0; c < cases.size(); ++c) {
      if (progress.due())
        progress.Show({fmt::format("repeat {}/{}", repeat + 1, options.repeats), fmt::format("case {}/{}", c + 1, cases.size())});
      COPPICE_ASSIGN_OR_RETURN(ordered_json result, MeasureOnce(options, cases[c], repeat, run++));
      runs[c].push_back(std::move(result));
      if (std::ssize(runs[c]) < options.repeats) continue;
      found[c] = {{"rate", cases[c].rate > 0 ? ordered_json(cases[c].rate) : ordered_json()}, {"result", Medians(runs[c])}};
      COPPICE_RETURN_IF_ERROR(take(cases[c], found[c]));
    }
  }
  progress.Clear();
  return found;
}

// The workload's limits, and what its model and machine are called in the report.
Status PrepareEngine(BenchLoadOptions* options, ordered_json* report) {
  COPPICE_RETURN_IF_ERROR(Validate(options->engine));
  COPPICE_RETURN_IF_ERROR(FindBenchModel(options->engine, options->config));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenBenchModel(options->engine));
  const ModelConfig& config = checkpoint->config();
  options->workload.vocab_size = config.vocab_size;
  options->workload.max_context = options->engine.max_context > 0 ? options->engine.max_context : config.max_position;
  options->workload.longest_context = config.longest_context();
  const EngineOptions& engine = options->engine;
  report->update({{"model", BenchModelName(engine)},
                  {"device", engine.device},
                  {"page_size", engine.page_size},
                  {"max_running", engine.max_running},
                  {"max_batch_tokens", engine.max_batch_tokens},
                  {"schedule", Name(engine.experiment.schedule)},
                  {"chunk", engine.chunk},
                  {"target_tbt", engine.target_tbt},
                  {"threads", engine.num_threads > 0 ? engine.num_threads : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))}});
  return OkStatus();
}

Status CheckKind(const BenchLoadOptions& options) {
  const bool server = !options.urls.empty();
  for (const CLI::Option* const option : server ? options.engine_only : options.server_only) {
    if (option->count() == 0) continue;
    return InvalidArgument(option->get_name() +
                           (server ? " is about an engine in this process; --url measures a server, which has its own"
                                   : " is about a server; give its --url, or leave it out"));
  }
  return OkStatus();
}

// Settings by which the lines of --append are the same measurement of a case: the report's fields of all rows, and the case's own.
// The processor's name is left out.
ordered_json Settings(const ordered_json& report, const LoadCase& job) {
  ordered_json settings = report;
  settings.erase("cpu");
  int64_t prompt_tokens = 0, output_tokens = 0;
  for (const WorkloadRequest& request : job.point->requests) {
    prompt_tokens += std::ssize(request.prompt_ids);
    output_tokens += int64_t{request.samples} * request.output_tokens;
  }
  settings.update({{"requests", job.point->requests.size()},
                   {"prompt_tokens", prompt_tokens},
                   {"output_tokens", output_tokens},
                   {"label", job.point->label},
                   {"x", job.point->x},
                   {"asked_rate", job.rate}});
  settings.update(job.system->name);
  return settings;
}

Result<ExitCode> BenchLoad(BenchLoadOptions options) {
  COPPICE_RETURN_IF_ERROR(CheckKind(options));
  COPPICE_RETURN_IF_ERROR(CheckReport(options.out, "--out"));
  COPPICE_RETURN_IF_ERROR(CheckReport(options.html, "--html"));
  ordered_json report = {{"command", options.command()},
                         {"workload", Name(options.workload.kind)},
                         {"scale", options.workload.scale},
                         {"seed", options.workload.seed},
                         {"cpu", CpuName()},
                         {"repeats", options.repeats}};
  if (options.concurrency > 0) report["concurrency"] = options.concurrency;
  const bool servers = !options.urls.empty();
  if (options.chunks.size() == 1) options.engine.chunk = options.chunks.front();
  if (servers) {
    options.workload.vocab_size = options.vocab_size;
    options.workload.max_context = INT32_MAX;  // the server says where its own ends
    report["vocab_size"] = options.vocab_size;
  } else {
    COPPICE_RETURN_IF_ERROR(PrepareEngine(&options, &report));
  }
  COPPICE_ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(options.workload));
  COPPICE_ASSIGN_OR_RETURN(const std::vector<System> systems, servers ? Servers(options) : Engines(options));
  report["x_label"] = workload.x_label;
  if (servers) report["model"] = options.model_name.empty() ? "the first model of each server" : options.model_name;

  COPPICE_ASSIGN_OR_RETURN(const AppendedRows appended, AppendedRows::Read(options.append));
  std::vector<LoadCase> cases;
  for (const WorkloadPoint& point : workload.points) {
    for (const double rate : options.rates.empty() ? std::vector<double>{0} : options.rates) {
      for (const System& system : systems) {
        const LoadCase job = {&point, rate, &system};
        if (!appended.Has(Settings(report, job))) cases.push_back(job);
      }
    }
  }
  const auto append = [&](const LoadCase& job, const ordered_json& row) {
    ordered_json line = Settings(report, job);
    line.update(row);
    return appended.Append(line);
  };
  COPPICE_ASSIGN_OR_RETURN(const std::vector<ordered_json> found, MeasureAll(options, cases, append));
  if (!servers && !found.empty()) report["dtype"] = found.front()["result"]["dtype"];  // of the device at hand, so the same in all
  report["rows"] = ordered_json::array();
  COPPICE_RETURN_IF_ERROR(Print(RowForTerminal(LoadHeadCells(servers))));
  for (size_t c = 0; c < cases.size(); ++c) {
    ordered_json row = {{"label", cases[c].point->label}, {"x", cases[c].point->x}};
    row.update(cases[c].system->name);
    row.update(found[c]);
    COPPICE_RETURN_IF_ERROR(Print(RowForTerminal(LoadRowCells(row))));
    report["rows"].push_back(std::move(row));
  }
  COPPICE_RETURN_IF_ERROR(WriteReport(options.out, report.dump(1) + "\n", "--out"));
  COPPICE_RETURN_IF_ERROR(WriteReport(options.html, LoadReportHtml(report), "--html"));
  return ExitCode::kOk;
}

void AddServerOptions(CLI::App& command, BenchLoadOptions* options) {
  command
      .add_option("--url", options->urls,
                  "Measure the server at http://HOST:PORT, with OpenAI's API, instead of an engine; a list is measured in turns")
      ->delimiter(',');
  command.add_option("--api-key", options->api_key, "With --url: the key that the server asks for")->envname("COPPICE_API_KEY");
  options->server_only = {
      command.add_option("--model-name", options->model_name, "With --url: the name in requests (default: the server's first)"),
      command.add_option("--vocab-size", options->vocab_size, "With --url: token ids of prompts are below it")
          ->check(CLI::Range(256, 1 << 24))
          ->capture_default_str()};
}

std::shared_ptr<BenchLoadOptions> AddLoadOptions(CLI::App& command) {
  const auto options = std::make_shared<BenchLoadOptions>();
  WorkloadOptions& workload = options->workload;
  AddParsed<WorkloadKind>(
      command, "-w,--workload", workload.kind, ParseWorkloadKind,
      "shared-prefix (default), few-shot, document, tree, relay, mixture, sampling, ratio, sharegpt, sarathi, arxiv, pod-arxiv, "
      "pod-internal, gsm8k, mmlu or lengths");
  command.add_option("--groups", workload.groups, "Groups of requests with a prefix each");
  command.add_option("--requests", workload.requests, "Requests: of a group, or in all");
  command.add_option("--shared-tokens", workload.shared_tokens, "Length of each prefix");
  command.add_option("--unique-tokens", workload.unique_tokens, "Length of each request's own prompt");
  command.add_option("--output-tokens", workload.output_tokens, "Length of each sample");
  command.add_option("-n,--samples", workload.samples, "Samples of each request");
  command.add_option("--total-tokens", workload.total_tokens, "ratio: prompt and output of a request");
  command.add_option("--ratios", workload.ratios, "ratio: prompt tokens per output token (default: 8 to 24)")->delimiter(',');
  command
      .add_option("--prefixes", workload.prefixes,
                  "Lengths of the system prompt: relay (default: 64 to 2048), sharegpt, sarathi, arxiv, pod-arxiv, pod-internal")
      ->delimiter(',');
  command.add_option("--shots", workload.shots, "gsm8k (default and most: 8), mmlu (5): examples before each question");
  command.add_flag("--single-level", workload.single_level,
                   "few-shot, gsm8k: each sample is a request of its own, which has its problem for itself; only the examples are "
                   "shared");
  command.add_option("--tree", workload.tree,
                     "tree: 1024,256x4,64x8 is a prefix of 1,024 tokens, 4 nodes of 256 below it, 8 requests below each");
  command.add_option("--lengths", workload.lengths_file, "lengths: a file of lines \"prompt output [group shared]\" in tokens")
      ->check(NotEmpty());
  command.add_option("--scale", workload.scale, "Take this part of the workload's groups, or of its requests")
      ->capture_default_str();
  command.add_option("--seed", workload.seed, "Of token ids, order and arrivals")->capture_default_str();
  command.add_option("--repeats", options->repeats, "Runs of each case")->check(CLI::Range(1, 1000))->capture_default_str();
  command.add_option("--out", options->out, "Write the result to this file as JSON")->check(NotEmpty());
  command.add_option("--html", options->html, "Write a page with plots to this file")->check(NotEmpty());
  command
      .add_option("--append", options->append,
                  "Append each case to this file as a line of JSON once it is measured; cases that the file has are left out")
      ->check(NotEmpty());
  AddServerOptions(command, options.get());
  const size_t others = command.get_options().size();
  AddModesOptions(command, &options->modes, &options->kinds);
  AddEngineOptions(command, options->engine);
  AddWeightsOptions(command, options->engine, options->config);
  command.remove_option(command.get_option("--sharing"));  // --modes says which
  command.remove_option(command.get_option("--chunk"));
  AddParsed<std::vector<int32_t>>(command, "--chunk", options->chunks, ParseChunks,
                                  "Prompt tokens of a step at most, a list: 0 (default): what the budget leaves; auto: the "
                                  "smallest that keeps prefill within 5% of its best speed, measured at start");
  const std::vector<CLI::Option*> all = command.get_options();
  options->engine_only.assign(all.begin() + static_cast<ptrdiff_t>(others), all.end());
  return options;
}

}  // namespace

Command AddBenchThroughputCommand(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("throughput", "A workload whose requests all come at once: sharing modes, or servers");
  const std::shared_ptr<BenchLoadOptions> options = AddLoadOptions(*command);
  command->add_option("--concurrency", options->concurrency, "Requests under way at the same moment; 0: all of them")
      ->check(AtLeastZero())
      ->capture_default_str();
  return {command, [options] { return BenchLoad(*options); }};
}

Command AddBenchServeCommand(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("serve", "A workload whose requests come at random moments (Poisson): sharing modes, or servers");
  const std::shared_ptr<BenchLoadOptions> options = AddLoadOptions(*command);
  command->add_option("--rate", options->rates, "Requests per second; a list is measured one after the other")
      ->delimiter(',')
      ->check(AboveZero())
      ->required();
  command
      ->add_option(
          "--max-ttft-p99", options->max_ttft,
          "Search the highest rate at which 99% of the times to the first token are below so many seconds; --rate is where "
          "the search begins")
      ->check(AboveZero());
  command->add_option("--max-tbt-p99", options->max_tbt, "The same of the times between tokens; both limits may be given")
      ->check(AboveZero());
  command->add_option("--precision", options->precision, "How far apart the rates within and beyond the limits may be at the end")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
  return {command, [options] { return BenchLoad(*options); }};
}

}  // namespace coppice::cli
