#include "cli/bench/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <tuple>
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

std::string Str(const ordered_json& row, const char* key) { return row[key].get<std::string>(); }

// 0 for what was not measured, such as KV bytes of a server.
double Value(const ordered_json& row, const char* group, const char* key) {
  const ordered_json& values = group ? row["result"][group] : row["result"];
  const auto value = values.find(key);
  return value != values.end() && value->is_number() ? value->get<double>() : 0;
}

// The name of a plot's line: a mode, or a server.
std::string Series(const ordered_json& row) { return row.contains("server") ? Str(row, "server") : ModeOf(row); }

std::vector<std::string> DistinctSeries(const ordered_json& rows) {
  std::vector<std::string> names;
  for (const ordered_json& row : rows) {
    if (std::ranges::find(names, Series(row)) == names.end()) names.push_back(Series(row));
  }
  return names;
}

struct Measure {
  const char *group, *key;
  std::string name;
  bool dashed = false;
};

// A plot of measures over `x_key` for each mode, of the rows that `in` lets in; bars where there is one row a mode.
std::string OverModes(const ordered_json& rows, const std::string& title, const char* x_key, const std::string& x_label,
                      const std::string& y_label, const std::vector<Measure>& measures,
                      const std::function<bool(const ordered_json&)>& in) {
  Plot plot{.title = title, .x_label = x_label, .y_label = y_label};
  size_t longest = 0;
  const std::vector<std::string> modes = DistinctSeries(rows);
  for (size_t mode = 0; mode < modes.size(); ++mode) {
    for (const Measure& measure : measures) {
      PlotSeries series{.name = modes[mode] + (measure.name.empty() ? "" : " " + measure.name),
                        .color = static_cast<int>(mode),
                        .dashed = measure.dashed};
      for (const ordered_json& row : rows) {
        if (Series(row) == modes[mode] && in(row))
          series.points.emplace_back(row[x_key].get<double>(), Value(row, measure.group, measure.key));
      }
      longest = std::max(longest, series.points.size());
      plot.series.push_back(std::move(series));
    }
  }
  if (longest > 1) return LinePlot(plot);
  plot.x_label = rows.front().contains("server") ? "server" : "sharing mode";
  return BarPlot(plot);
}

std::string DistributionPlot(const ordered_json& rows, const char* group, const std::string& title,
                             const std::function<bool(const ordered_json&)>& in) {
  Plot plot{.title = title, .x_label = "share of measurements, %", .y_label = "milliseconds"};
  const std::vector<std::string> modes = DistinctSeries(rows);
  for (const ordered_json& row : rows) {
    if (!in(row)) continue;
    PlotSeries series{.name = Series(row), .color = static_cast<int>(std::ranges::find(modes, Series(row)) - modes.begin())};
    const ordered_json& percentiles = row["result"][group]["percentiles"];
    for (size_t percent = 0; percent < percentiles.size(); ++percent)
      series.points.emplace_back(static_cast<double>(percent), 1000 * percentiles[percent].get<double>());
    plot.series.push_back(std::move(series));
  }
  return LinePlot(plot);
}

std::string Table(const ordered_json& rows, bool rates) {
  std::string html = "<div class=\"scroll\"><table><tr><th>workload</th><th>x</th>";
  if (rates) html += "<th>requests/s offered</th>";
  for (const char* head :
       {"sharing", "requests/min", "output tokens/s", "TTFT p50 s", "p90", "p99", "TBT p50 ms", "p90", "p99", "latency p50 s",
        "p90", "p99", "s per token", "stall &gt; 200 ms", "&gt; 500 ms", "hit rate", "KV read", "KV not read", "peak memory"})
    html += fmt::format("<th>{}</th>", head);
  html += "</tr>\n";
  for (const ordered_json& row : rows) {
    html += fmt::format("<tr><td>{}</td><td>{:g}</td>", EscapeHtml(Str(row, "label")), row["x"].get<double>());
    if (rates) html += fmt::format("<td>{:g}</td>", row["rate"].get<double>());
    html += fmt::format("<td>{}</td><td>{:.1f}</td><td>{:.1f}</td>", EscapeHtml(Series(row)),
                        60 * Value(row, nullptr, "requests_per_second"), Value(row, nullptr, "output_tokens_per_second"));
    for (const auto& [group, unit, digits] :
         {std::tuple("ttft", 1.0, 2), std::tuple("tbt", 1e3, 1), std::tuple("latency", 1.0, 2)}) {
      for (const char* key : {"p50", "p90", "p99"}) html += fmt::format("<td>{:.{}f}</td>", unit * Value(row, group, key), digits);
    }
    html += fmt::format("<td>{:.4f}</td>", Value(row, "normalized_latency", "mean"));
    for (const char* key : {"stalled_200ms_share", "stalled_500ms_share", "hit_rate"})
      html += fmt::format("<td>{:.1f}%</td>", 100 * Value(row, nullptr, key));
    for (const char* key : {"kv_bytes_read", "kv_bytes_saved", "peak_rss_bytes"})
      html += fmt::format("<td>{}</td>", FormatBytes(Value(row, nullptr, key)));
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

}  // namespace

std::string LoadReportHtml(const ordered_json& report) {
  const ordered_json& rows = report["rows"];
  const bool rates = Str(report, "command") == "serve";
  const std::string heading = fmt::format("coppice bench {}: {}", Str(report, "command"), Str(report, "workload"));
  std::string html = BeginReportPage(heading);
  const auto number_of = [&](const char* key) { return report[key].get<int>(); };
  const std::string where =
      report.contains("dtype") ? fmt::format(" ({} threads), {}", number_of("threads"), EscapeHtml(Str(report, "dtype"))) : "";
  html += fmt::format("<p>{}, {}{}; medians of {} runs, {} interleaved.</p>\n", EscapeHtml(Str(report, "model")),
                      EscapeHtml(Str(report, "cpu")), where, number_of("repeats"), where.empty() ? "servers" : "modes");

  const std::vector<ordered_json> labels = Distinct(rows, "label");
  const bool x_varies = Distinct(rows, "x").size() > 1;
  const std::string x_label = x_varies ? Str(report, "x_label") : rates ? "requests per second offered" : "";
  const char* const x_key = x_varies || !rates ? "x" : "rate";
  for (const ordered_json& label : labels) {
    // With both a rate and an x, a section for each rate.
    for (const ordered_json& rate : x_varies&& rates ? Distinct(rows, "rate") : std::vector<ordered_json>{ordered_json()}) {
      const auto in = [&](const ordered_json& row) { return row["label"] == label && (rate.is_null() || row["rate"] == rate); };
      html += fmt::format("<h2>{}{}</h2>\n<div class=\"plots\">\n", EscapeHtml(label.get<std::string>()),
                          rate.is_null() ? "" : fmt::format(", {:g} requests a second", rate.get<double>()));
      const auto over = [&](const std::string& title, const std::string& y_label, const std::vector<Measure>& measures) {
        html += OverModes(rows, title, x_key, x_label, y_label, measures, in);
      };
      over("Output tokens per second", "tokens/s", {{nullptr, "output_tokens_per_second", ""}});
      over("Requests per second", "requests/s", {{nullptr, "requests_per_second", ""}});
      over("Time to first token", "seconds", {{"ttft", "p50", "p50"}, {"ttft", "p99", "p99", true}});
      over("Time between tokens", "seconds", {{"tbt", "p50", "p50"}, {"tbt", "p99", "p99", true}});
      over("Request latency", "seconds", {{"latency", "p50", "p50"}, {"latency", "p99", "p99", true}});
      over("Normalized latency", "seconds per output token", {{"normalized_latency", "mean", "mean"}});
      over("Requests with a stall above 200 and 500 ms", "share of requests",
           {{nullptr, "stalled_200ms_share", "200"}, {nullptr, "stalled_500ms_share", "500", true}});
      if (!rows.front().contains("server")) over("KV bytes read by attention", "bytes", {{nullptr, "kv_bytes_read", ""}});
      html += "</div>\n";
      // Whole distributions where they are few: at each x or rate.
      std::vector<ordered_json> places;
      for (const ordered_json& row : rows) {
        if (in(row) && std::ranges::find(places, row[x_key]) == places.end()) places.push_back(row[x_key]);
      }
      for (const ordered_json& place : places) {
        const auto here = [&](const ordered_json& row) { return in(row) && row[x_key] == place; };
        const std::string where = places.size() > 1 ? fmt::format(" ({} {:g})", x_label, place.get<double>()) : "";
        html += fmt::format("<details{}><summary>Distributions{}</summary>\n<div class=\"plots\">\n",
                            places.size() == 1 ? " open" : "", EscapeHtml(where));
        html += DistributionPlot(rows, "ttft", "Time to first token", here);
        html += DistributionPlot(rows, "tbt", "Time between tokens", here);
        html += DistributionPlot(rows, "latency", "Request latency", here);
        html += "</div></details>\n";
      }
    }
  }
  html += "<h2>All figures</h2>\n" + Table(rows, rates);
  return html + "</body></html>\n";
}

std::vector<std::string> LoadHeadCells(bool servers) {
  const auto right = [](std::string_view text, int width) { return fmt::format("{:>{}}", text, width); };
  std::vector<std::string> cells = {fmt::format("{:<24}", "workload"),
                                    right("x", 6),
                                    right("rate", 6),
                                    fmt::format("{:<{}}", servers ? " server" : " sharing", servers ? 25 : 18),
                                    right("req/min", 9),
                                    right("out tok/s", 9),
                                    right("TTFT p50", 8),
                                    right("p99 s", 8),
                                    right("TBT p50", 8),
                                    right("p99 ms", 8),
                                    right("latency50", 9),
                                    right("s/token", 8),
                                    right(">200ms", 7),
                                    right(">500ms", 7)};
  const std::vector<std::string> last = servers ? std::vector{right("refused", 7), right("CPU us/tok", 10), right("server's", 10)}
                                                : std::vector{right("hits", 6), right("KV read", 10), right("not read", 10)};
  cells.insert(cells.end(), last.begin(), last.end());
  return cells;
}

std::vector<std::string> LoadRowCells(const ordered_json& row) {
  const ordered_json& result = row["result"];
  const bool servers = row.contains("server");
  const std::vector<std::string> head = LoadHeadCells(servers);
  const auto value = [&](const char* group, const char* key, int digits, double unit = 1) {
    return fmt::format("{:.{}f}", unit * Value(row, group, key), digits);
  };
  const auto percent = [&](const char* key) { return value(nullptr, key, 1, 100) + "%"; };
  std::vector<std::string> cells = {fmt::format("{:<{}}", Str(row, "label"), head[0].size()),
                                    fmt::format("{:g}", row["x"].get<double>()),
                                    row["rate"].is_null() ? "all" : fmt::format("{:.4g}", row["rate"].get<double>()),
                                    fmt::format(" {:<{}}", Series(row), head[3].size() - 1),
                                    value(nullptr, "requests_per_second", 1, 60),
                                    value(nullptr, "output_tokens_per_second", 1),
                                    value("ttft", "p50", 3),
                                    value("ttft", "p99", 3),
                                    value("tbt", "p50", 2, 1e3),
                                    value("tbt", "p99", 2, 1e3),
                                    value("latency", "p50", 2),
                                    value("normalized_latency", "mean", 4),
                                    percent("stalled_200ms_share"),
                                    percent("stalled_500ms_share")};
  if (servers) {
    const auto cpu = [&](const char* key) {
      return result.contains(key) ? fmt::format("{:.2f}", 1e6 * result[key].get<double>()) : std::string("-");
    };
    cells.insert(cells.end(), {result["refused"].dump(), cpu("client_cpu_seconds_per_token"), cpu("server_cpu_seconds_per_token")});
  } else {
    cells.insert(cells.end(), {percent("hit_rate"), FormatBytes(Value(row, nullptr, "kv_bytes_read")),
                               FormatBytes(Value(row, nullptr, "kv_bytes_saved"))});
  }
  cells = FillUp(std::move(cells), head);
  if (const auto capacity = row.find("capacity"); capacity != row.end()) {
    const double rate = (*capacity)["rate"].get<double>();
    cells.push_back(rate == 0                         ? " capacity: below this rate"
                    : (*capacity)["beyond"].is_null() ? fmt::format(" capacity: at least {:.4g}/s; more --requests show more", rate)
                                                      : fmt::format(" capacity: {:.4g}/s", rate));
  }
  return cells;
}

}  // namespace coppice::cli
