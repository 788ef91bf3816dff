#include "cli/bench/bench_pod.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "attention_tools/pod_bench.h"
#include "cli/bench/bench_support.h"
#include "cli/bench/report_page.h"
#include "cli/bench/svg_plot.h"
#include "cli/parsed_option.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
#include "core/check.h"
#include "core/thread_pool.h"

namespace coppice::cli {
namespace {

using attention::PodBatch;
using attention::PodResult;
using attention::PodRow;
using attention::PodWay;
using nlohmann::ordered_json;

struct BenchPodOptions {
  std::vector<std::string> sets;
  attention::PodOptions bench = {.rounds = {.repeats = 7, .precision = 0.01, .seconds = 0.4}};
  double memory_gib = 0;
  std::vector<double> roofline;  // TB/s, TFLOP/s, or empty
  int threads = 0;
  std::string device = "cuda", out, csv, html;
};
constexpr double kDefaultGib = 131;  // of an H200: 141 GB

ordered_json ToJson(const PodResult& result) {
  const PodBatch& b = result.batch;
  ordered_json json = {{"set", b.set},
                       {"model", b.model->name},
                       {"gpus", b.gpus},
                       {"qo_heads", b.Spec().num_qo_heads},
                       {"kv_heads", b.Spec().num_kv_heads},
                       {"chunk", b.chunk},
                       {"prompt", b.prompt},
                       {"requests", b.requests},
                       {"context", b.context},
                       {"chunk_id", b.chunk_id},
                       {"sum_bound_us", result.sum_bound_s * 1e6},
                       {"max_bound_us", result.max_bound_s * 1e6},
                       {"oracle_us", result.OracleSeconds() * 1e6},
                       {"both_count", result.BothCount()},
                       {"ways", ordered_json::object()}};
  const double flops = b.ChunkFlops() + b.DecodeFlops(), bytes = b.ChunkBytes() + b.DecodeBytes();
  for (const PodRow& row : result.rows) {
    const double seconds = row.timed.Median();
    ordered_json way = {{"us", seconds * 1e6},
                        {"speedup", 1 / row.timed.over_first.median},
                        {"speedup_from", 1 / row.timed.over_first.high},
                        {"speedup_to", 1 / row.timed.over_first.low}};
    if (row.way != PodWay::kChunkAlone && row.way != PodWay::kDecodeAlone) {
      way["tflops"] = flops / seconds * 1e-12;
      way["tbytes_per_s"] = bytes / seconds * 1e-12;
    }
    json["ways"][std::string(Name(row.way))] = std::move(way);
  }
  return json;
}

std::string FormatLine(const PodResult& result) {
  const PodBatch& b = result.batch;
  std::string line = fmt::format("{:<9} {:<10} /{} {:>5} at {:>5} + {:>4} x {:>5}", b.set, b.model->name, b.gpus, b.chunk, b.prompt,
                                 b.requests, b.context);
  for (const PodRow& row : result.rows) {
    line += &row == &result.rows.front() ? fmt::format("  {} {:.1f} us", Name(row.way), row.timed.Median() * 1e6)
                                         : fmt::format("  {} {:.2f}x", Name(row.way), 1 / row.timed.over_first.median);
  }
  const double serial = result.rows.front().timed.Median();
  return line + fmt::format("  oracle {:.2f}x  bounds {:.2f}x {:.2f}x{}\n", serial / result.OracleSeconds(),
                            serial / result.sum_bound_s, serial / result.max_bound_s,
                            result.BothCount() ? "" : "  (one part is small)");
}

// One line a batch and way.
std::string FormatCsv(const ordered_json& rows) {
  std::string text =
      fmt::format("{},prompt,requests,context,chunk_id,both_count,way,us,speedup,speedup_from,speedup_to\n", kPodCsvBegin);
  for (const ordered_json& row : rows) {
    for (const auto& [name, way] : row["ways"].items()) {
      text += fmt::format("{},{},{},{},{},{},{},{},{},{}", row["set"].get<std::string>(), row["model"].get<std::string>(),
                          row["gpus"].dump(), row["chunk"].dump(), row["prompt"].dump(), row["requests"].dump(),
                          row["context"].dump(), row["chunk_id"].dump(), row["both_count"].dump(), name);
      for (const char* key : {"us", "speedup", "speedup_from", "speedup_to"}) text += "," + way[key].dump();
      text += "\n";
    }
  }
  return text;
}

// Speed-ups of a way over the serial one.
struct Speedups {
  std::vector<double> all, where_both_count;
  double least_upper = INFINITY;  // the least upper end of an interval: below 1, that batch is slower beyond the error
};

std::map<std::string, Speedups> CollectSpeedups(const ordered_json& rows) {
  std::map<std::string, Speedups> ways;
  for (const ordered_json& row : rows) {
    for (const auto& [name, way] : row["ways"].items()) {
      if (name == Name(PodWay::kChunkAlone) || name == Name(PodWay::kDecodeAlone)) continue;
      Speedups& speedups = ways[name];
      const double speedup = way["speedup"].get<double>();
      speedups.all.push_back(speedup);
      speedups.least_upper = std::min(speedups.least_upper, way["speedup_to"].get<double>());
      if (row["both_count"].get<bool>()) speedups.where_both_count.push_back(speedup);
    }
  }
  return ways;
}

std::string FormatSummary(const std::map<std::string, Speedups>& ways) {
  std::string text = "speed-up over serial: mean and most where each part takes a fifth of the serial time; least of all batches\n";
  for (const auto& [name, s] : ways) {
    double sum = 0, most = 0;
    for (const double x : s.where_both_count) sum += x, most = std::max(most, x);
    const size_t count = s.where_both_count.size();
    text += fmt::format("  {:<14} {} of {} batches: mean {:.3f}, most {:.3f}; least {:.3f} (interval up to {:.3f} at least)\n",
                        name, count, s.all.size(), count > 0 ? sum / static_cast<double>(count) : 0.0, most,
                        *std::ranges::min_element(s.all), s.least_upper);
  }
  return text;
}

// Figure 11: each way's speed-ups in ascending order.
std::string DistributionPlot(const std::map<std::string, Speedups>& ways) {
  Plot plot{.title = "Speed-up over serial", .x_label = "share of batches, %", .y_label = "times"};
  int color = 0;
  for (const auto& [name, s] : ways) {
    std::vector<double> sorted = s.where_both_count;
    std::ranges::sort(sorted);
    PlotSeries series{.name = name, .color = color, .dashed = color >= 4};
    ++color;
    for (size_t i = 0; i < sorted.size(); ++i) {
      series.points.emplace_back(100.0 * static_cast<double>(i) / static_cast<double>(std::max<size_t>(sorted.size() - 1, 1)),
                                 sorted[i]);
    }
    if (!series.points.empty()) plot.series.push_back(std::move(series));
  }
  return plot.series.empty() ? "" : LinePlot(plot);
}

// The field that varies in a set.
const char* Abscissa(const std::string& set) {
  if (set == "figure6" || set == "table7") return "chunk_id";
  return set == "figure7" ? "prompt" : "requests";
}

// Times over a set's abscissa, a plot for each value of its other fields.
std::string TimePlots(const ordered_json& rows, const std::string& set) {
  const char* const x_key = Abscissa(set);
  std::map<std::string, Plot> plots;
  for (const ordered_json& row : rows) {
    if (row["set"] != set) continue;
    const std::string model = row["model"].get<std::string>();
    const std::string title = x_key == std::string("requests")
                                  ? fmt::format("{}, {} tokens", model, row["context"].dump())
                                  : fmt::format("{}, {} decode requests", model, row["requests"].dump());
    Plot& plot = plots.try_emplace(title, Plot{.title = title, .x_label = x_key, .y_label = "microseconds"}).first->second;
    const auto add = [&](const std::string& name, double us) {
      auto series = std::ranges::find(plot.series, name, &PlotSeries::name);
      if (series == plot.series.end()) {
        const auto color = static_cast<int>(plot.series.size());
        plot.series.push_back({.name = name, .color = color, .dashed = color >= 4});
        series = plot.series.end() - 1;
      }
      series->points.emplace_back(row[x_key].get<double>(), us);
    };
    for (const auto& [name, way] : row["ways"].items()) add(name, way["us"].get<double>());
    add("oracle", row["oracle_us"].get<double>());
  }
  std::string html;
  for (const auto& [title, plot] : plots) html += LinePlot(plot);
  return html;
}

std::string PodHtml(const ordered_json& report) {
  const ordered_json& rows = report["rows"];
  std::string html = BeginReportPage("coppice bench pod: hybrid batches of one attention layer");
  html += fmt::format("<p>{}; {:.0f} TFLOP/s, {:.2f} TB/s.</p>\n", EscapeHtml(report["device"].get<std::string>()),
                      report["product_flops_per_s"].get<double>() * 1e-12, report["read_bytes_per_s"].get<double>() * 1e-12);
  html += "<h2>All sets</h2>\n<div class=\"plots\">\n" + DistributionPlot(CollectSpeedups(rows)) + "</div>\n";
  std::set<std::string> sets;
  for (const ordered_json& row : rows) sets.insert(row["set"].get<std::string>());
  for (const std::string& set : sets) {
    if (set == "sweep" || set == "quick" || set == "small") continue;  // nothing that they go along
    html += fmt::format("<h2>{}</h2>\n<div class=\"plots\">\n{}</div>\n", set, TimePlots(rows, set));
  }
  return html + "</body></html>\n";
}

Result<ExitCode> BenchPod(const BenchPodOptions& options) {
  for (const auto& [path, option] : {std::pair(&options.out, "--out"), {&options.csv, "--csv"}, {&options.html, "--html"}}) {
    COPPICE_RETURN_IF_ERROR(CheckReport(*path, option));
  }
  const bool cpu = options.device == "cpu";
  std::vector<std::string> sets = options.sets;
  if (sets.empty()) sets = {cpu ? "small" : "quick"};
  const double memory_bytes = (options.memory_gib > 0 ? options.memory_gib : kDefaultGib) * double{1 << 30};
  std::vector<PodBatch> batches;
  for (const std::string& set : sets) std::ranges::move(attention::PodBatches(set, memory_bytes), std::back_inserter(batches));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> threads, ThreadPool::Create(options.threads));
  COPPICE_ASSIGN_OR_RETURN(
      const std::unique_ptr<attention::BenchDevice> device,
      cpu ? attention::MakeCpuBenchDevice(*threads, attention::cpu::DetectIsa()) : attention::MakeCudaBenchDevice(0));
  attention::PodOptions bench_options = options.bench;
  bench_options.read_bytes_per_s = options.roofline.empty() ? device->read_bytes_per_s() : 1e12 * options.roofline[0];
  bench_options.product_flops_per_s = options.roofline.empty() ? device->product_flops_per_s() : 1e12 * options.roofline[1];
  ordered_json report = {{"device", device->name()},
                         {"page_size", options.bench.page_size},
                         {"memory_bytes", memory_bytes},
                         {"least_rounds", options.bench.rounds.repeats},
                         {"precision", options.bench.rounds.precision},
                         {"seconds", options.bench.rounds.seconds},
                         {"product_flops_per_s", bench_options.product_flops_per_s},
                         {"read_bytes_per_s", bench_options.read_bytes_per_s},
                         {"rows", ordered_json::array()}};
  COPPICE_RETURN_IF_ERROR(Print(fmt::format("{}; {:.1f} TFLOP/s of products, {:.3f} TB/s read\n", device->name(),
                                            bench_options.product_flops_per_s * 1e-12, bench_options.read_bytes_per_s * 1e-12)));
  attention::PodBench bench(*device, bench_options);
  COPPICE_RETURN_IF_ERROR(bench.Reserve(batches));
  for (const PodBatch& batch : batches) {
    COPPICE_ASSIGN_OR_RETURN(const PodResult result, bench.Run(batch));
    report["rows"].push_back(ToJson(result));
    COPPICE_RETURN_IF_ERROR(Print(ForTerminal(FormatLine(result))));
  }
  COPPICE_RETURN_IF_ERROR(Print(ForTerminal(FormatSummary(CollectSpeedups(report["rows"])))));
  COPPICE_RETURN_IF_ERROR(WriteReport(options.out, report.dump(1) + "\n", "--out"));
  COPPICE_RETURN_IF_ERROR(WriteReport(options.csv, FormatCsv(report["rows"]), "--csv"));
  COPPICE_RETURN_IF_ERROR(WriteReport(options.html, PodHtml(report), "--html"));
  return ExitCode::kOk;
}

}  // namespace

Command AddBenchPodCommand(CLI::App& bench) {
  const auto options = std::make_shared<BenchPodOptions>();
  CLI::App* command = bench.add_subcommand(
      "pod",
      "Hybrid batches of one attention layer, as POD-Attention's experiments have them: one kind after the other, side by side, "
      "overlapped");
  const auto sets = attention::PodSets();
  command
      ->add_option("--set", options->sets, fmt::format("Of {} (repeatable; default: quick, on a CPU small)", fmt::join(sets, ", ")))
      ->allow_extra_args(false)
      ->check(CLI::IsMember(std::vector<std::string>(sets.begin(), sets.end())));
  command->add_option("--device", options->device, "cuda (device 0 of a build with -DCOPPICE_CUDA=ON), or cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--memory-gib", options->memory_gib, "Of each GPU, which decode batches fill (default: an H200's 131)")
      ->check(CLI::Range(1.0, 4096.0));
  command->add_option("--page-size", options->bench.page_size, "Tokens per KV page")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_option("--repeats", options->bench.rounds.repeats, "Rounds at least: each way runs once in one")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command
      ->add_option("--precision", options->bench.rounds.precision,
                   "More rounds until the 95 % interval of each way's time over the serial is this wide")
      ->check(AtLeastZero())
      ->capture_default_str();
  command->add_option("--seconds", options->bench.rounds.seconds, "No more rounds after this time a batch")
      ->check(AtLeastZero())
      ->capture_default_str();
  command
      ->add_option(
          "--roofline", options->roofline,
          "TB/s and TFLOP/s of the bounds (default: measured on a CPU; of a GPU what its memory bus and tensor cores do at "
          "their highest clocks)")
      ->expected(2)
      ->check(AboveZero());
  command->add_option("--threads", options->threads, "Worker threads of a CPU; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--out", options->out, "Write the result to this file as JSON")->check(NotEmpty());
  command->add_option("--csv", options->csv, "Write it to this file as CSV, a line a batch and way")->check(NotEmpty());
  command->add_option("--html", options->html, "Write a page with plots to this file")->check(NotEmpty());
  return {command, [options] { return BenchPod(*options); }};
}

}  // namespace coppice::cli
