#include "cli/bench_attention.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "attention/cpu/attention_bench.h"
#include "attention/cpu/calibrate.h"
#include "cli/bench_support.h"
#include "cli/run_stats.h"
#include "cli/tree_problem.h"
#include "core/check.h"
#include "core/thread_pool.h"

namespace coppice::cli {
namespace {

using attention::AttentionSpec;
using attention::BenchMode;
using attention::BenchRow;
using attention::BenchTree;
using nlohmann::ordered_json;

struct BenchAttentionOptions {
  std::vector<std::string> trees;  // empty: the shapes below
  AttentionSpec spec;              // num_qo_heads 0: the specs below
  int32_t queries = 1, page_size = 16, repeats = 9;
  int threads = 0;
  bool grid = false;
  std::string device = "cpu", machine, out;
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

// --grid: two and three levels around the point where sharing begins to pay, one query a request.
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
constexpr BenchMode kGridModes[] = {BenchMode::kPlanned, BenchMode::kAllShared, BenchMode::kStore};
constexpr int64_t kGridWorkingSetBytes = int64_t{32} << 20;

Result<BenchTree> MakeBenchTree(const std::string& text, int32_t queries) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<TreeLevel> levels, ParseTree(text));
  if (levels.back().tokens < queries) {
    return InvalidArgument(fmt::format("tree {}: a request has {} own tokens and {} queries; expected at least as many tokens",
                                       text, levels.back().tokens, queries));
  }
  return BenchTree{.name = text, .levels = levels, .queries = queries};
}

ordered_json ToJson(const AttentionSpec& spec, const BenchTree& tree, const std::vector<BenchRow>& rows) {
  ordered_json json = ordered_json::array();
  for (const BenchRow& row : rows) {
    json.push_back({{"num_qo_heads", spec.num_qo_heads},
                    {"num_kv_heads", spec.num_kv_heads},
                    {"head_dim", spec.head_dim},
                    {"tree", tree.name},
                    {"queries", tree.queries},
                    {"mode", Name(row.mode)},
                    {"median_us", row.median_s * 1e6},
                    {"fastest_us", row.fastest_s * 1e6},
                    {"slowest_us", row.slowest_s * 1e6},
                    {"over_planned", row.over_planned},
                    {"same_work", row.same_work},
                    {"predicted_us", row.predicted_s * 1e6},
                    {"kv_bytes", row.kv_bytes},
                    {"flops", row.flops},
                    {"percent_of_roofline", row.percent_of_roofline()}});
  }
  return json;
}

// One line a tree: the planned time, and how many times slower each of the others is; after '=' where the work is the same.
std::string FormatLine(const AttentionSpec& spec, const BenchTree& tree, const std::vector<BenchRow>& rows) {
  const double planned = rows.front().median_s;
  std::string line = fmt::format("{:>2}/{:<2} d{:<3} {:<18} {:>3} q {:>10.1f} us {:>10} {:>8.3f} Gflop {:>5.1f} %",
                                 spec.num_qo_heads, spec.num_kv_heads, spec.head_dim, tree.name, tree.queries, planned * 1e6,
                                 FormatBytes(rows.front().kv_bytes), rows.front().flops * 1e-9, rows.front().percent_of_roofline());
  for (const BenchRow& row : rows) {
    if (row.mode != BenchMode::kPlanned)
      line += fmt::format("  {} {}{:.2f}", Name(row.mode), row.same_work ? '=' : 'x', row.over_planned);
  }
  return line + "\n";
}

// Planned time over the better of sharing everything and sharing nothing. Where one of them is the plan itself, the plan is at
// least as good as that one whatever was measured: the ratio is 1 or, if the other is faster, more.
double OverBetter(std::span<const BenchRow> rows) {
  double best = std::numeric_limits<double>::infinity();
  for (const BenchRow& row : rows) {
    if (row.mode == BenchMode::kAllShared || row.mode == BenchMode::kStore) {
      best = std::min(best, row.same_work ? 1.0 : row.over_planned);
    }
  }
  return 1 / best;
}

// OverBetter over many trees: what planning by cost is worth. Beside it the noise: the same ratio between equal work lists.
class NeverSlower {
 public:
  void Add(const AttentionSpec& spec, const BenchTree& tree, std::span<const BenchRow> rows) {
    const double ratio = OverBetter(rows);
    log_sum_ += std::log(ratio);
    ++count_;
    bool differs = false;
    for (const BenchRow& row : rows) {
      if (row.mode != BenchMode::kAllShared && row.mode != BenchMode::kStore) continue;
      differs |= !row.same_work;
      if (row.same_work) noise_ = std::max({noise_, row.over_planned, 1 / row.over_planned});
    }
    num_same_ += !differs;
    if (ratio <= worst_) return;
    worst_ = ratio;
    worst_name_ = fmt::format("{}/{} d{} {}", spec.num_qo_heads, spec.num_kv_heads, spec.head_dim, tree.name);
  }
  ordered_json Json() const {
    return {{"cells", count_}, {"cells_of_equal_plans", num_same_}, {"geomean", geomean()},
            {"worst", worst_}, {"worst_cell", worst_name_},         {"noise_of_equal_plans", noise_}};
  }
  std::string Line() const {
    return fmt::format(
        "planned / better of all-shared and store: geomean {:.3f}, worst {:.3f} ({}), {} cells, in {} of them all plans are equal; "
        "equal work differed by up to {:.3f}\n",
        geomean(), worst_, worst_name_, count_, num_same_, noise_);
  }

 private:
  double geomean() const { return std::exp(log_sum_ / count_); }

  double log_sum_ = 0, worst_ = 0, noise_ = 1;
  int count_ = 0, num_same_ = 0;
  std::string worst_name_;
};

// A cell that misses is measured again with this many times the repeats, which then count: of 192 medians of a few runs some are
// far off by chance.
constexpr double kMiss = 1.08;
constexpr int kMoreRepeats = 6;

Result<ExitCode> BenchAttention(const BenchAttentionOptions& options) {
  std::vector<BenchTree> trees;
  const std::vector<std::string> texts = options.grid ? GridTrees() : options.trees;
  for (const std::string& text : texts) {
    COPPICE_ASSIGN_OR_RETURN(trees.emplace_back(), MakeBenchTree(text, options.queries));
  }
  if (texts.empty()) {
    for (const TreeShape& shape : kDefaultTrees) {
      COPPICE_ASSIGN_OR_RETURN(trees.emplace_back(), MakeBenchTree(shape.tree, shape.queries));
    }
  }
  const std::vector<AttentionSpec> specs = options.spec.num_qo_heads > 0 ? std::vector{options.spec} : DefaultSpecs();

  ThreadPool threads(options.threads);
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<attention::BenchDevice> device,
                           options.device == "cuda" ? attention::MakeCudaBenchDevice(0)
                                                    : attention::MakeCpuBenchDevice(threads, attention::cpu::DetectIsa()));
  ordered_json report = {{"device", device->name()},
                         {"page_size", options.page_size},
                         {"repeats", options.repeats},
                         {"product_flops_per_s", device->product_flops_per_s()},
                         {"read_bytes_per_s", device->read_bytes_per_s()},
                         {"rows", ordered_json::array()}};
  if (options.device == "cpu") report["workers"] = threads.num_workers();
  std::cout << fmt::format("{}; roofline: {:.0f} Gflop/s of bf16 products, {:.1f} GB/s read\n", device->name(),
                           device->product_flops_per_s() * 1e-9, device->read_bytes_per_s() * 1e-9);
  const int64_t working_set_bytes = options.grid ? kGridWorkingSetBytes : kWorkingSetBytes;
  const auto modes = options.grid ? std::span<const BenchMode>(kGridModes) : std::span<const BenchMode>(attention::kAllBenchModes);
  NeverSlower never_slower;
  for (const AttentionSpec& spec : specs) {
    for (const BenchTree& tree : trees) {
      attention::BenchOptions bench = {.page_size = options.page_size,
                                       .repeats = options.repeats,
                                       .working_set_bytes = working_set_bytes,
                                       .modes = modes,
                                       .machine_model_path = options.machine};
      COPPICE_ASSIGN_OR_RETURN(std::vector<BenchRow> rows, attention::RunAttentionBench(*device, spec, tree, bench));
      if (options.grid && OverBetter(rows) > kMiss) {
        bench.repeats *= kMoreRepeats;
        COPPICE_ASSIGN_OR_RETURN(rows, attention::RunAttentionBench(*device, spec, tree, bench));
      }
      for (ordered_json& row : ToJson(spec, tree, rows)) report["rows"].push_back(std::move(row));
      never_slower.Add(spec, tree, rows);
      std::cout << FormatLine(spec, tree, rows) << std::flush;
    }
  }
  report["never_slower"] = never_slower.Json();
  std::cout << never_slower.Line();
  if (options.out.empty()) return ExitCode::kOk;
  COPPICE_RETURN_IF_ERROR(WriteFile(options.out, report.dump(1) + "\n", "--out"));
  return ExitCode::kOk;
}

Result<ExitCode> Calibrate(int num_threads, const std::string& out) {
  ThreadPool threads(num_threads);
  COPPICE_ASSIGN_OR_RETURN(const attention::MachineModel machine, attention::CalibrateCpu(threads));
  if (out.empty()) {
    std::cout << attention::ToJson(machine) << "\n";
  } else {
    COPPICE_RETURN_IF_ERROR(attention::SaveMachineModel(machine, out));
  }
  return ExitCode::kOk;
}

}  // namespace

Command AddBenchAttentionCommand(CLI::App& bench) {
  const auto options = std::make_shared<BenchAttentionOptions>();
  CLI::App* command = bench.add_subcommand(
      "attention", "One attention layer over prefix trees: planned, all shared, store, none and deterministic, interleaved");
  CLI::Option* trees =
      command->add_option("--tree", options->trees, "As in `inspect plan` (repeatable; default: shapes of the papers)")
          ->allow_extra_args(false);
  command->add_flag("--grid", options->grid, "Trees around the point where sharing begins to pay; no `none`")->excludes(trees);
  command->add_option("--queries", options->queries, "Queries of each request of --tree")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  CLI::Option* qo_heads = command->add_option("--qo-heads", options->spec.num_qo_heads, "Query heads (default: three specs)");
  CLI::Option* kv_heads = command->add_option("--kv-heads", options->spec.num_kv_heads, "KV heads");
  CLI::Option* head_dim = command->add_option("--head-dim", options->spec.head_dim, "Elements of a head");
  qo_heads->needs(kv_heads, head_dim);
  kv_heads->needs(qo_heads);
  head_dim->needs(qo_heads);
  command->add_option("--device", options->device, "cpu, or cuda (device 0 of a build with -DCOPPICE_CUDA=ON)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--page-size", options->page_size, "Tokens per KV page")->check(CLI::Range(1, 256))->capture_default_str();
  command->add_option("--repeats", options->repeats, "Timed runs of each mode")->check(CLI::Range(1, 10000))->capture_default_str();
  command->add_option("--threads", options->threads, "Worker threads; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--machine", options->machine, "Constants from `coppice bench calibrate`; default: shipped ones");
  command->add_option("--out", options->out, "Write the result to this file as JSON");
  return {command, [options] { return BenchAttention(*options); }};
}

Command AddBenchCalibrateCommand(CLI::App& bench) {
  struct Options {
    int threads = 0;
    std::string out;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand("calibrate", "Measure the constants of the planner's cost model on this idle machine");
  command->add_option("--threads", options->threads, "Worker threads; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--out", options->out, "Write them to this file (default: print them)");
  return {command, [options] { return Calibrate(options->threads, options->out); }};
}

}  // namespace coppice::cli
