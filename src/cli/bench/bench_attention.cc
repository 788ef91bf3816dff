#include "cli/bench/bench_attention.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "attention_tools/attention_bench.h"
#include "attention_tools/calibrate.h"
#include "attention_tools/calibrate_gpu.h"
#include "cli/bench/bench_support.h"
#include "cli/bench/replay.h"
#include "cli/bench/tree_problem.h"
#include "cli/parsed_option.h"
#include "cli/run_stats.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
#include "core/check.h"
#include "core/format_bytes.h"
#include "core/interleaved_timing.h"
#include "core/thread_pool.h"

namespace coppice::cli {
namespace {

using AttentionMode = attention::BenchMode;
using attention::AttentionSpec;
using attention::BenchRow;
using attention::BenchTree;
using attention::TracedLayers;
using nlohmann::ordered_json;

struct BenchAttentionOptions {
  std::vector<std::string> trees;  // empty: the shapes below
  std::string trace;               // empty: trees
  int32_t steps = 64, layers = 0;  // of the trace that are replayed; 0: all, and as many layers as it says
  AttentionSpec spec;              // num_qo_heads 0: the specs below, or the trace's
  int32_t queries = 1, page_size = 16;
  RoundsOptions rounds = {.repeats = 15, .precision = 0.03, .seconds = 0.3};
  int threads = 0;
  bool grid = false;
  std::string device = "cpu", machine, out, append;
};

// Heads of SmolLM2-135M, of Llama-3 8B, and without grouping; trees of the papers' experiments, scaled to what a CPU holds: samples
// of one prompt (Hydragen, Bifurcated Attention), a system prompt with documents and questions (Hydragen 4.3, Cascade Inference),
// requests that share nothing, and new prompts over a cached prefix (RelayAttention).
std::vector<AttentionSpec> DefaultSpecs() {
  return {{.num_qo_heads = 9, .num_kv_heads = 3, .head_dim = 64},
          {.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128},
          {.num_qo_heads = 8, .num_kv_heads = 8, .head_dim = 128}};
}
struct TreeShape {
  const char* tree;
  int32_t queries;
};
constexpr TreeShape kDefaultTrees[] = {{"2048,64x64", 1},      {"2048,64x8", 1}, {"512,256x16", 1},
                                       {"1024,512x4,32x8", 1}, {"512x16", 1},    {"2048,64x8", 64}};

// Layers take turns over this much KV, so that none is found in the caches, as in a model.
constexpr int64_t kWorkingSetBytes = int64_t{160} << 20;

// --grid: two and three levels around the point where sharing begins to save time, one query a request.
std::vector<std::string> GridTrees() {
  std::vector<std::string> trees;
  for (const int prefix : {16, 64, 256, 1024, 4096}) {
    for (const int own : {16, 128, 512}) {
      for (const int requests : {1, 2, 4, 16}) trees.push_back(fmt::format("{},{}x{}", prefix, own, requests));
    }
  }
  for (const int middle : {32, 256}) {
    for (const int requests : {2, 8}) trees.push_back(fmt::format("512,{}x4,32x{}", middle, requests));
  }
  return trees;
}
constexpr AttentionMode kGridModes[] = {AttentionMode::kPlanned, AttentionMode::kAllShared, AttentionMode::kStore};

Result<BenchTree> MakeBenchTree(const std::string& text, int32_t queries) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<TreeLevel> levels, ParseTree(text));
  if (levels.back().tokens < queries) {
    return InvalidArgument(fmt::format("tree {}: a request has {} own tokens and {} queries; expected at least as many tokens",
                                       text, levels.back().tokens, queries));
  }
  return BenchTree{.name = text, .levels = levels, .queries = queries};
}

// The fields that name a case: heads and tree.
ordered_json CaseJson(const AttentionSpec& spec, const BenchTree& tree) {
  return {{"num_qo_heads", spec.num_qo_heads},
          {"num_kv_heads", spec.num_kv_heads},
          {"head_dim", spec.head_dim},
          {"tree", tree.name},
          {"queries", tree.queries}};
}

ordered_json ToJson(const AttentionSpec& spec, const BenchTree& tree, const std::vector<BenchRow>& rows) {
  ordered_json json = ordered_json::array();
  for (const BenchRow& row : rows) {
    ordered_json& line = json.emplace_back(CaseJson(spec, tree));
    line.update({{"mode", Name(row.mode)},
                 {"median_us", row.median_s * 1e6},
                 {"fastest_us", row.fastest_s * 1e6},
                 {"slowest_us", row.slowest_s * 1e6},
                 {"rounds", row.rounds},
                 {"over_planned", row.over_planned.median},
                 {"over_planned_from", row.over_planned.low},
                 {"over_planned_to", row.over_planned.high},
                 {"same_work", row.same_work},
                 {"predicted_us", row.predicted_s * 1e6},
                 {"kv_bytes", row.kv_bytes},
                 {"flops", row.flops},
                 {"percent_of_roofline", row.percent_of_roofline()}});
  }
  return json;
}

// Settings by which lines of --append are the same measurement of a case: the case, and the device, grid and machine it ran on.
ordered_json Settings(const BenchAttentionOptions& options, const ordered_json& report, const AttentionSpec& spec,
                      const BenchTree& tree) {
  ordered_json settings = {{"command", "attention"},
                           {"device", report["device"]},
                           {"page_size", options.page_size},
                           {"grid", options.grid},
                           {"machine", options.machine}};
  if (report.contains("workers")) settings["workers"] = report["workers"];
  settings.update(CaseJson(spec, tree));
  return settings;
}

// One line a tree: the planned time, and how many times slower each of the others is; after '=' where the work is the same.
std::string FormatLine(const AttentionSpec& spec, const BenchTree& tree, const std::vector<BenchRow>& rows) {
  const double planned = rows.front().median_s;
  std::string line = fmt::format("{:>2}/{:<2} d{:<3} {:<18} {:>3} q {:>10.1f} us {:>10} {:>8.3f} Gflop {:>5.1f} %",
                                 spec.num_qo_heads, spec.num_kv_heads, spec.head_dim, tree.name, tree.queries, planned * 1e6,
                                 FormatBytes(rows.front().kv_bytes), rows.front().flops * 1e-9, rows.front().percent_of_roofline());
  for (const BenchRow& row : rows) {
    if (row.mode != AttentionMode::kPlanned)
      line += fmt::format("  {} {}{:.2f}", Name(row.mode), row.same_work ? '=' : 'x', row.over_planned.median);
  }
  return line + "\n";
}

// Planned time over the better of sharing everything and sharing nothing. Where one of them is the plan itself, the plan is at
// least as good as that one whatever was measured: the ratio is 1 or, if the other is faster, more.
Estimate OverBetter(std::span<const BenchRow> rows) {
  Estimate worst{.median = 0, .low = 0, .high = 0};
  for (const BenchRow& row : rows) {
    if (row.mode != AttentionMode::kAllShared && row.mode != AttentionMode::kStore) continue;
    const Estimate over = row.same_work ? Estimate{} : row.over_planned;
    if (1 / over.median > worst.median) worst = {.median = 1 / over.median, .low = 1 / over.high, .high = 1 / over.low};
  }
  return worst;
}

// OverBetter over many trees: what planning by cost is worth. Beside it how well it is known: the same ratio between equal work
// lists, and how often its interval has the 1 that it ought to be.
class NeverSlower {
 public:
  void Add(const AttentionSpec& spec, const BenchTree& tree, std::span<const BenchRow> rows) {
    const Estimate ratio = OverBetter(rows);
    log_sum_ += std::log(ratio.median);
    ++cells_;
    bool differs = false;
    for (const BenchRow& row : rows) {
      if (row.mode != AttentionMode::kAllShared && row.mode != AttentionMode::kStore) continue;
      widest_ = std::max(widest_, row.over_planned.width());
      differs |= !row.same_work;
      if (!row.same_work) continue;
      ++equal_;
      equal_within_ += row.over_planned.low <= 1 && 1 <= row.over_planned.high;
      noise_ = std::max({noise_, row.over_planned.median, 1 / row.over_planned.median});
    }
    cells_of_equal_plans_ += !differs;
    above_limit_ += ratio.median > kLimit;
    above_limit_beyond_error_ += ratio.low > kLimit;
    if (ratio.median <= worst_.median) return;
    worst_ = ratio;
    worst_name_ = fmt::format("{}/{} d{} {}", spec.num_qo_heads, spec.num_kv_heads, spec.head_dim, tree.name);
  }
  bool empty() const { return cells_ == 0; }
  ordered_json Json() const {
    return {{"cells", cells_},
            {"cells_of_equal_plans", cells_of_equal_plans_},
            {"geomean", geomean()},
            {"worst", worst_.median},
            {"worst_from", worst_.low},
            {"worst_to", worst_.high},
            {"worst_cell", worst_name_},
            {"above_1.10", above_limit_},
            {"above_1.10_beyond_error", above_limit_beyond_error_},
            {"widest_interval", widest_},
            {"noise_of_equal_plans", noise_},
            {"pairs_of_equal_plans", equal_},
            {"pairs_of_equal_plans_whose_interval_has_1", equal_within_}};
  }
  std::string Line() const {
    return fmt::format(
        "planned / better of all-shared and store: geomean {:.3f}, worst {:.3f} ({:.3f} to {:.3f}, {}), {} of {} cells above {}; "
        "widest interval {:.1f} %\n"
        "equal work: all three plans in {} cells; {} pairs differed by up to {:.3f}, the interval had 1 in {} of them\n",
        geomean(), worst_.median, worst_.low, worst_.high, worst_name_, above_limit_, cells_, kLimit, 100 * widest_,
        cells_of_equal_plans_, equal_, noise_, equal_within_);
  }

 private:
  static constexpr double kLimit = 1.10;

  double geomean() const { return std::exp(log_sum_ / cells_); }

  Estimate worst_{.median = 0, .low = 0, .high = 0};
  double log_sum_ = 0, noise_ = 1, widest_ = 0;
  int cells_ = 0, cells_of_equal_plans_ = 0, above_limit_ = 0, above_limit_beyond_error_ = 0, equal_ = 0, equal_within_ = 0;
  std::string worst_name_;
};

// The threads and device of measurements, and a report's fields about them.
struct BenchPlace {
  std::unique_ptr<ThreadPool> threads;
  std::unique_ptr<attention::BenchDevice> device;
  ordered_json report;
};

Result<BenchPlace> OpenPlace(const BenchAttentionOptions& options, int32_t page_size) {
  BenchPlace place;
  COPPICE_ASSIGN_OR_RETURN(place.threads, ThreadPool::Create(options.threads));
  COPPICE_ASSIGN_OR_RETURN(place.device, options.device == "cuda"
                                             ? attention::MakeCudaBenchDevice(0)
                                             : attention::MakeCpuBenchDevice(*place.threads, attention::cpu::DetectIsa()));
  const attention::BenchDevice& device = *place.device;
  place.report = {{"device", device.name()},
                  {"page_size", page_size},
                  {"least_rounds", options.rounds.repeats},
                  {"precision", options.rounds.precision},
                  {"seconds", options.rounds.seconds},
                  {"product_flops_per_s", device.product_flops_per_s()},
                  {"read_bytes_per_s", device.read_bytes_per_s()},
                  {"rows", ordered_json::array()}};
  if (options.device == "cpu") place.report["workers"] = place.threads->num_workers();
  COPPICE_RETURN_IF_ERROR(Print(fmt::format("{}; roofline: {:.0f} Gflop/s of bf16 products, {:.1f} GB/s read\n", device.name(),
                                            device.product_flops_per_s() * 1e-9, device.read_bytes_per_s() * 1e-9)));
  return place;
}

// The trace's, or those that were asked for in their place.
std::vector<TracedLayers> LayersOf(const BenchAttentionOptions& options, const ReplayedTrace& trace) {
  if (options.spec.num_qo_heads == 0) return trace.head.layers;
  int32_t layers = options.layers;
  for (const TracedLayers& group : trace.head.layers) layers += options.layers == 0 ? group.num_layers : 0;
  return {{.num_layers = layers, .spec = options.spec}};
}

std::string TotalsTable(const ReplayResult& result) {
  std::string table = fmt::format("{:<10} {:>14} {:>14} {:>12} {:>12} {:>13}\n", "mode", "attention, ms", "median step, us",
                                  "KV read", "unshared", "over planned");
  for (const ReplayTotals& total : result.totals) {
    table += fmt::format("{:<10} {:>14.2f} {:>15.1f} {:>12} {:>12} {:>13.2f}\n", Name(total.mode), total.attention_s * 1e3,
                         total.median_step_s * 1e6, FormatBytes(total.kv_bytes), FormatBytes(total.kv_bytes_unshared),
                         total.attention_s / result.totals.front().attention_s);
  }
  return table;
}

Result<ExitCode> BenchTrace(const BenchAttentionOptions& options) {
  COPPICE_RETURN_IF_ERROR(CheckReport(options.out, "--out"));
  COPPICE_ASSIGN_OR_RETURN(const ReplayedTrace trace, ReadForestTrace(options.trace, options.steps));
  const std::vector<TracedLayers> layers = LayersOf(options, trace);
  COPPICE_ASSIGN_OR_RETURN(BenchPlace place, OpenPlace(options, trace.head.page_size));
  ordered_json& report = place.report;
  report["trace"] = trace.path;
  report["steps"] = trace.num_steps;
  report["replayed_steps"] = trace.steps.size();
  for (const TracedLayers& group : layers) {
    const AttentionSpec& spec = group.spec;
    report["layers"].push_back({{"layers", group.num_layers},
                                {"num_qo_heads", spec.num_qo_heads},
                                {"num_kv_heads", spec.num_kv_heads},
                                {"head_dim", spec.head_dim},
                                {"window", spec.window}});
    COPPICE_RETURN_IF_ERROR(
        Print(ForTerminal(fmt::format("{}: {} of {} steps, {} layers of {}/{} d{}{}\n", trace.path, trace.steps.size(),
                                      trace.num_steps, group.num_layers, spec.num_qo_heads, spec.num_kv_heads, spec.head_dim,
                                      spec.window > 0 ? fmt::format(" with a window of {}", spec.window) : ""))));
  }
  attention::AttentionBench bench(*place.device, {.rounds = options.rounds,
                                                  .working_set_bytes = kWorkingSetBytes,
                                                  .modes = kReplayModes,
                                                  .machine_model_path = options.machine});
  COPPICE_ASSIGN_OR_RETURN(const ReplayResult result, Replay(bench, trace, layers));
  report["rows"] = result.rows;
  for (const ReplayTotals& total : result.totals) {
    report["totals"].push_back({{"mode", Name(total.mode)},
                                {"attention_ms", total.attention_s * 1e3},
                                {"median_step_us", total.median_step_s * 1e6},
                                {"kv_bytes", total.kv_bytes},
                                {"kv_bytes_unshared", total.kv_bytes_unshared}});
  }
  report["largest_error"] = result.largest_error;
  COPPICE_RETURN_IF_ERROR(Print(fmt::format("{}largest error of the steps that were checked: {:.2f} of its tolerance\n",
                                            TotalsTable(result), result.largest_error)));
  COPPICE_RETURN_IF_ERROR(WriteReport(options.out, report.dump(1) + "\n", "--out"));
  return ExitCode::kOk;
}

Result<ExitCode> BenchTrees(const BenchAttentionOptions& options) {
  COPPICE_RETURN_IF_ERROR(CheckReport(options.out, "--out"));
  std::vector<BenchTree> trees;
  const std::vector<std::string> texts = options.grid && options.trees.empty() ? GridTrees() : options.trees;
  for (const std::string& text : texts) {
    COPPICE_ASSIGN_OR_RETURN(trees.emplace_back(), MakeBenchTree(text, options.queries));
  }
  if (texts.empty()) {
    for (const TreeShape& shape : kDefaultTrees) {
      COPPICE_ASSIGN_OR_RETURN(trees.emplace_back(), MakeBenchTree(shape.tree, shape.queries));
    }
  }
  const std::vector<AttentionSpec> specs = options.spec.num_qo_heads > 0 ? std::vector{options.spec} : DefaultSpecs();

  COPPICE_ASSIGN_OR_RETURN(BenchPlace place, OpenPlace(options, options.page_size));
  ordered_json& report = place.report;
  const auto modes =
      options.grid ? std::span<const AttentionMode>(kGridModes) : std::span<const AttentionMode>(attention::kAllBenchModes);
  attention::AttentionBench bench(*place.device, {.page_size = options.page_size,
                                                  .rounds = options.rounds,
                                                  .working_set_bytes = kWorkingSetBytes,
                                                  .modes = modes,
                                                  .machine_model_path = options.machine});
  NeverSlower never_slower;
  COPPICE_ASSIGN_OR_RETURN(const AppendedRows appended, AppendedRows::Read(options.append));
  for (const AttentionSpec& spec : specs) {
    for (const BenchTree& tree : trees) {
      const ordered_json settings = Settings(options, report, spec, tree);
      if (appended.Has(settings)) continue;
      ordered_json line = settings;
      const Result<std::vector<BenchRow>> measured = bench.Run(spec, tree);
      if (!options.append.empty() && measured.status().code() == StatusCode::kResourceExhausted) {
        line["out_of_memory"] = measured.status().message();
        COPPICE_RETURN_IF_ERROR(appended.Append(line));
        COPPICE_RETURN_IF_ERROR(Print(ForTerminal(fmt::format("{}: x: {}\n", tree.name, measured.status().message()))));
        continue;
      }
      COPPICE_RETURN_IF_ERROR(measured.status());
      const std::vector<BenchRow>& rows = *measured;
      ordered_json modes = ToJson(spec, tree, rows);
      for (const ordered_json& row : modes) {
        line["modes"][row["mode"].get<std::string>()] = {{"median_us", row["median_us"]},
                                                         {"over_planned", row["over_planned"]},
                                                         {"over_planned_from", row["over_planned_from"]},
                                                         {"over_planned_to", row["over_planned_to"]},
                                                         {"same_work", row["same_work"]},
                                                         {"kv_bytes", row["kv_bytes"]},
                                                         {"flops", row["flops"]},
                                                         {"rounds", row["rounds"]}};
      }
      COPPICE_RETURN_IF_ERROR(appended.Append(line));
      for (ordered_json& row : modes) report["rows"].push_back(std::move(row));
      never_slower.Add(spec, tree, rows);
      COPPICE_RETURN_IF_ERROR(Print(ForTerminal(FormatLine(spec, tree, rows))));
    }
  }
  if (!never_slower.empty()) {
    report["never_slower"] = never_slower.Json();
    COPPICE_RETURN_IF_ERROR(Print(ForTerminal(never_slower.Line())));
  }
  COPPICE_RETURN_IF_ERROR(WriteReport(options.out, report.dump(1) + "\n", "--out"));
  return ExitCode::kOk;
}

Result<attention::MachineModel> CalibrateDevice(const std::string& device, int num_threads) {
  if (device == "cuda") {
    COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<attention::BenchDevice> gpu, attention::MakeCudaBenchDevice(0));
    return attention::CalibrateGpu(*gpu);
  }
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> threads, ThreadPool::Create(num_threads));
  return attention::CalibrateCpu(*threads);
}

Result<ExitCode> Calibrate(const std::string& device, int num_threads, const std::string& out) {
  COPPICE_RETURN_IF_ERROR(CheckReport(out, "--out"));
  COPPICE_ASSIGN_OR_RETURN(const attention::MachineModel machine, CalibrateDevice(device, num_threads));
  const std::string text = attention::ToJson(machine) + "\n";
  COPPICE_RETURN_IF_ERROR(out.empty() ? Print(text) : WriteReport(out, text, "--out"));
  return ExitCode::kOk;
}

}  // namespace

Command AddBenchAttentionCommand(CLI::App& bench) {
  const auto options = std::make_shared<BenchAttentionOptions>();
  CLI::App* command = bench.add_subcommand(
      "attention", "One attention layer over prefix trees: planned, all shared, store, none and deterministic, interleaved");
  CLI::Option* tree =
      command->add_option("--tree", options->trees, "As in `inspect plan` (repeatable; default: shapes of the papers)")
          ->allow_extra_args(false);
  CLI::Option* grid =
      command->add_flag("--grid", options->grid,
                        "Only planned, all shared and store; default trees: around the point where sharing begins to save time");
  CLI::Option* queries = command->add_option("--queries", options->queries, "Queries of each request of --tree")
                             ->check(CLI::Range(1, 1 << 16))
                             ->capture_default_str();
  CLI::Option* trace =
      command
          ->add_option("--trace", options->trace,
                       "In place of trees: the steps of a file that --record wrote, plain or gzip, planned, one-level "
                       "and store, with the heads and layers of its model or of --qo-heads")
          ->type_name("FILE")
          ->check(NotEmpty());
  command->add_option("--steps", options->steps, "Steps of --trace that are replayed, evenly apart; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str()
      ->needs(trace);
  CLI::Option* qo_heads = command->add_option("--qo-heads", options->spec.num_qo_heads, "Query heads (default: three specs)");
  CLI::Option* kv_heads = command->add_option("--kv-heads", options->spec.num_kv_heads, "KV heads");
  CLI::Option* head_dim = command->add_option("--head-dim", options->spec.head_dim, "Elements of a head");
  command->add_option("--layers", options->layers, "Layers, of --trace with --qo-heads; 0: as many as the trace's model has")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str()
      ->needs(trace, qo_heads);
  qo_heads->needs(kv_heads, head_dim);
  kv_heads->needs(qo_heads);
  head_dim->needs(qo_heads);
  command->add_option("--device", options->device, "cpu, or cuda (device 0 of a build with -DCOPPICE_CUDA=ON)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  CLI::Option* page_size = command->add_option("--page-size", options->page_size, "Tokens per KV page")
                               ->check(CLI::Range(1, 256))
                               ->capture_default_str();
  trace->excludes(tree, grid, queries, page_size);
  command->add_option("--repeats", options->rounds.repeats, "Rounds at least: each mode runs once in one")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command
      ->add_option("--precision", options->rounds.precision,
                   "More rounds until the 95 % interval of each mode's time over the planned is this wide")
      ->check(AtLeastZero())
      ->capture_default_str();
  command->add_option("--seconds", options->rounds.seconds, "No more rounds after this time a tree")
      ->check(AtLeastZero())
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Worker threads; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option(
      "--machine", options->machine,
      "Constants to plan by: a name such as h200 or zen5, or a file of `coppice bench calibrate`; default: this machine's");
  command->add_option("--out", options->out, "Write the result to this file as JSON")->check(NotEmpty());
  command
      ->add_option("--append", options->append,
                   "Append each tree to this file as a line of JSON once it is measured; trees that the file has are left out, and "
                   "one that memory has no room for does not end the command")
      ->check(NotEmpty())
      ->excludes(trace);
  return {.app = command,
          .run = [options] { return options->trace.empty() ? BenchTrees(*options) : BenchTrace(*options); },
          .reads_trace = true};
}

Command AddBenchCalibrateCommand(CLI::App& bench) {
  struct Options {
    std::string device = "cpu", out;
    int threads = 0;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand("calibrate", "Measure the constants of the planner's cost model on this idle machine");
  command->add_option("--device", options->device, "cpu, or cuda (device 0 of a build with -DCOPPICE_CUDA=ON)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Worker threads; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--out", options->out, "Write them to this file (default: print them)")->check(NotEmpty());
  return {command, [options] { return Calibrate(options->device, options->threads, options->out); }};
}

}  // namespace coppice::cli
