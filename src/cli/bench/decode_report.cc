#include "cli/bench/decode_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/bench/bench_support.h"
#include "cli/bench/report_page.h"
#include "cli/bench/svg_plot.h"
#include "cli/run_stats.h"
#include "cli/terminal.h"
#include "core/format_bytes.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kWithoutAttention = BenchMode::kNoAttention;

bool HasRoom(const ordered_json& row) { return !row.contains("out_of_memory"); }
double Number(const ordered_json& row, const char* key) { return row[key].get<double>(); }
// "-" where nothing was measured.
std::string Bytes(const ordered_json& row, const char* key) { return row[key].is_null() ? "-" : FormatBytes(Number(row, key)); }
bool IsWithoutAttention(const ordered_json& row) { return row["sharing"] == kWithoutAttention; }
// The step without attention of the same case, on as many ranks.
const ordered_json* FindWithoutAttention(const ordered_json& rows, const ordered_json& like) {
  for (const ordered_json& row : rows) {
    if (row["prompt_tokens"] == like["prompt_tokens"] && row["samples"] == like["samples"] && row["ranks"] == like["ranks"] &&
        IsWithoutAttention(row) && HasRoom(row))
      return &row;
  }
  return nullptr;
}

// Milliseconds of one step's attention at least: reads and computes what is shared, then what is not. Ranks divide both.
double SerialBound(const ModelConfig& model, int32_t max_tokens, const Roofline& roofline, const ordered_json& row) {
  constexpr double kElement = 2;  // bytes
  const double layers_of_rank = static_cast<double>(model.num_layers) / std::max(1, row["ranks"].get<int>());
  const double bytes_per_token = 2 * layers_of_rank * model.num_kv_heads * model.head_dim * kElement;
  const double flops_per_token = 4 * layers_of_rank * model.num_qo_heads * model.head_dim;  // and row
  const double samples = Number(row, "samples"), prompt = Number(row, "prompt_tokens");
  const double own = 0.5 * max_tokens;  // in the mean
  const auto time = [&](double bytes, double flops) {
    return std::max(bytes / roofline.bytes_per_second, flops / roofline.flops_per_second);
  };
  const bool shares = row["sharing"] == "tree" || row["sharing"] == "one-level";
  const double shared = shares && samples > 1 ? time(prompt * bytes_per_token, samples * prompt * flops_per_token) : 0;
  const double tokens = shares && samples > 1 ? own : prompt + own;
  return 1e3 * (shared + time(samples * tokens * bytes_per_token, samples * tokens * flops_per_token));
}

// `key` over `x_key` for each mode where `fixed_key` is `fixed`; bars where x has one value.
std::string OverModes(const ordered_json& rows, const std::string& title, const std::string& y_label, const char* key,
                      const char* x_key, const std::string& x_label, const char* fixed_key, const ordered_json& fixed) {
  Plot plot{.title = title, .x_label = x_label, .y_label = y_label};
  size_t longest = 0;
  int color = 0;
  for (const std::string& mode : DistinctModes(rows)) {
    PlotSeries series{.name = mode, .color = color++, .dashed = mode.starts_with(kWithoutAttention)};
    for (const ordered_json& row : rows) {
      if (ModeOf(row) == mode && row[fixed_key] == fixed && HasRoom(row))
        series.points.emplace_back(Number(row, x_key), Number(row, key));
    }
    std::ranges::sort(series.points);
    longest = std::max(longest, series.points.size());
    if (!series.points.empty()) plot.series.push_back(std::move(series));
  }
  if (plot.series.empty()) return "";
  if (longest > 1) return LinePlot(plot);
  plot.x_label = "mode";
  return BarPlot(plot);
}

std::string Table(const ordered_json& rows) {
  std::string html = "<div class=\"scroll\"><table><tr><th>mode</th>";
  for (const char* head : {"prompt tokens", "samples", "decode tokens/s", "step ms", "graph steps", "step / graph",
                           "prefill tokens/s", "KV read a step", "KV stored", "peak memory"})
    html += fmt::format("<th>{}</th>", head);
  html += "</tr>\n";
  for (const ordered_json& row : rows) {
    html += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td>", EscapeHtml(ModeOf(row)), row["prompt_tokens"].dump(),
                        row["samples"].dump());
    if (!HasRoom(row)) {
      html += "<td colspan=\"8\">no room</td></tr>\n";
      continue;
    }
    html += fmt::format("<td>{:.1f}</td><td>{:.3f}</td><td>{:.1f}%</td><td>{}</td><td>{:.1f}</td>",
                        Number(row, "decode_tokens_per_second"), Number(row, "step_ms"), 100 * Number(row, "graph_step_share"),
                        row["step_over_graph"].is_null() ? "-" : fmt::format("{:.3f}", Number(row, "step_over_graph")),
                        Number(row, "prefill_tokens_per_second"));
    for (const char* key : {"kv_bytes_read_per_step", "kv_bytes_stored", "peak_rss_bytes"})
      html += fmt::format("<td>{}</td>", Bytes(row, key));
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

}  // namespace

std::vector<std::string> DecodeHeadCells() {
  const auto right = [](std::string_view text, int width) { return fmt::format("{:>{}}", text, width); };
  return {right("prompt", 6),
          right("n", 4),
          fmt::format("{:<18}", " sharing"),
          right("decode t/s", 10),
          right("prefill t/s", 11),
          right("KV read/step", 12),
          right("peak RSS", 10),
          right("step ms", 9),
          right("graphs", 7),
          right("/ graph", 8),
          right("first s", 8)};
}

std::vector<std::string> DecodeRowCells(const ordered_json& row) {
  const std::vector<std::string> head = DecodeHeadCells();
  std::vector<std::string> cells = {row["prompt_tokens"].dump(), row["samples"].dump(), fmt::format(" {:<17}", ModeOf(row))};
  if (HasRoom(row)) {
    const auto number = [&](const char* key, int digits) {
      return row[key].is_null() ? "-" : fmt::format("{:.{}f}", Number(row, key), digits);
    };
    const bool graphs = Number(row, "graph_steps") > 0;
    cells.insert(cells.end(), {number("decode_tokens_per_second", 1), number("prefill_tokens_per_second", 1),
                               Bytes(row, "kv_bytes_read_per_step"), Bytes(row, "peak_rss_bytes"), number("step_ms", 3),
                               graphs ? fmt::format("{:.1f}%", 100 * Number(row, "graph_step_share")) : "-",
                               number("step_over_graph", 3), number("first_token_seconds", 2)});
  } else {
    cells.resize(head.size() - 4, "x");
  }
  return FillUp(std::move(cells), head);
}

void AddAttention(const ModelConfig& model, int32_t max_tokens, const std::optional<Roofline>& roofline, ordered_json* rows) {
  for (ordered_json& row : *rows) {
    if (!HasRoom(row) || IsWithoutAttention(row)) continue;
    const ordered_json* without = FindWithoutAttention(*rows, row);
    if (without == nullptr) continue;
    ordered_json attention = {{"step_ms", Number(row, "step_ms") - Number(*without, "step_ms")}};
    if (roofline) attention["bound_ms"] = SerialBound(model, max_tokens, *roofline, row);
    row["attention"] = std::move(attention);
  }
}

std::string FormatAttention(const ModelConfig& model, const ordered_json& rows) {
  std::string text;
  for (const ordered_json& row : rows) {
    if (!row.contains("attention")) continue;
    const double step = Number(row["attention"], "step_ms"), layers = model.num_layers;
    text += fmt::format("attention of a step, prompt {}, n {}, {}: {:.3f} ms ({:.1f} us a layer)", row["prompt_tokens"].dump(),
                        row["samples"].dump(), ModeOf(row), step, 1e3 * step / layers);
    if (row["attention"].contains("bound_ms")) {
      const double bound = Number(row["attention"], "bound_ms");
      text += fmt::format("; serial bound {:.3f} ms, beyond 1.3 times of it {:.1f} us a layer", bound,
                          1e3 * (step - 1.3 * bound) / layers);
    }
    text += "\n";
  }
  return text;
}

std::string DecodeReportCsv(const ordered_json& rows) {
  constexpr std::string_view kKeys[] = {"decode_tokens_per_second",
                                        "prefill_tokens_per_second",
                                        "peak_rss_bytes",
                                        "kv_bytes_read_per_step",
                                        "kv_bytes_distinct_per_step",
                                        "kv_bytes_stored",
                                        "steps",
                                        "decode_steps",
                                        "graph_steps",
                                        "bubbles",
                                        "decode_seconds",
                                        "device_idle_seconds",
                                        "step_ms",
                                        "step_over_graph",
                                        "first_token_seconds"};
  std::string text(kReportCsvBegin);
  text += fmt::format(",{}\n", fmt::join(kKeys, ","));
  for (const ordered_json& row : rows) {
    text += fmt::format("{},{},{}", row["prompt_tokens"].get<int>(), row["samples"].get<int>(), ModeOf(row));
    for (const std::string_view key : kKeys) text += "," + (row.contains(key) && !row[key].is_null() ? row[key].dump() : "");
    text += "\n";
  }
  return text;
}

std::string DecodeReportHtml(const ordered_json& report) {
  const ordered_json& rows = report["rows"];
  std::string html = BeginReportPage("coppice bench decode");
  html += fmt::format("<p>{} on {}, {}; {} tokens a sample, medians of {} runs, {}.</p>\n",
                      EscapeHtml(report["model"].get<std::string>()), EscapeHtml(report["device"].get<std::string>()),
                      EscapeHtml(report["dtype"].get<std::string>()), report["max_tokens"].dump(), report["repeats"].dump(),
                      report["engine_per"] == "run" ? "modes interleaved" : "those of a mode on one engine");
  const auto prompts = Distinct(rows, "prompt_tokens"), samples = Distinct(rows, "samples");
  struct Measure {
    const char *title, *y_label, *key;
  };
  for (const Measure& measure : {Measure{"Decoding", "tokens/s", "decode_tokens_per_second"},
                                 {"Step", "milliseconds", "step_ms"},
                                 {"KV read by attention in a step", "bytes", "kv_bytes_read_per_step"}}) {
    html += fmt::format("<h2>{}</h2>\n<div class=\"plots\">\n", measure.title);
    if (prompts.size() > 1 || samples.size() == 1) {
      for (const ordered_json& n : samples) {
        html += OverModes(rows, fmt::format("{} samples", n.dump()), measure.y_label, measure.key, "prompt_tokens", "prompt tokens",
                          "samples", n);
      }
    }
    if (samples.size() > 1) {
      for (const ordered_json& prompt : prompts) {
        html += OverModes(rows, fmt::format("Prompt of {} tokens", prompt.dump()), measure.y_label, measure.key, "samples",
                          "samples", "prompt_tokens", prompt);
      }
    }
    html += "</div>\n";
  }
  html += "<h2>All figures</h2>\n" + Table(rows);
  return html + "</body></html>\n";
}

}  // namespace coppice::cli
