#include "cli/explain_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/bench/bench_support.h"
#include "cli/bench/report_page.h"
#include "cli/bench/svg_plot.h"
#include "cli/forecast_options.h"
#include "cli/parsed_option.h"
#include "cli/request_trace.h"
#include "cli/run_stats.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
#include "core/check.h"
#include "core/format_bytes.h"
#include "simulate/forecast.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;
using simulate::BreakEven;
using simulate::Forecast;
using simulate::JobNode;
using simulate::Trace;

struct ExplainOptions {
  TraceSource job;
  ForecastOptions forecast;
  int32_t nodes = 40;
  std::string html;
  bool json = false;
};

std::string Count(int64_t count, const char* one) { return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s"); }

// Prompt tokens that a node spares: read and stored once in place of once for each request.
int64_t SparedBy(const Trace& trace, const JobNode& node) {
  return node.node == simulate::kNoNode ? 0 : (node.requests - 1) * trace.nodes()[node.node].tokens;
}

std::string EndsText(const JobNode& node) {
  if (node.ends == 0) return "";
  const std::string tokens = node.shortest_end == node.longest_end ? fmt::format("{}", node.longest_end)
                                                                   : fmt::format("{} to {}", node.shortest_end, node.longest_end);
  return fmt::format("{}{} tokens of {} own",
                     node.ends == node.requests ? "" : fmt::format("{} with ", Count(node.ends, "request")), tokens,
                     node.ends == 1 ? "its" : "their");
}

// A line a node, the ones that spare most where there are more than `most`; 0: all.
std::string FormatTree(const Trace& trace, const std::vector<JobNode>& nodes, size_t most) {
  int64_t least = 0;
  if (most > 0 && nodes.size() > most) {
    std::vector<int64_t> spared;
    for (const JobNode& node : nodes) spared.push_back(SparedBy(trace, node));
    std::ranges::nth_element(spared, spared.begin() + static_cast<ptrdiff_t>(most) - 1, std::greater<>());
    least = std::max<int64_t>(spared[most - 1], 1);
  }
  std::string text;
  size_t left_out = 0;
  for (const JobNode& node : nodes) {
    if (SparedBy(trace, node) < least) {
      ++left_out;
      continue;
    }
    const std::string ends = EndsText(node);
    if (node.node == simulate::kNoNode) {
      text += fmt::format("nothing shared: {}, {}\n", Count(node.requests, "request"), ends);
      continue;
    }
    text += fmt::format(
        "{:{}}{} tokens: {}{}{}\n", "", 2 * node.depth, trace.nodes()[node.node].tokens, Count(node.requests, "request"),
        node.samples == node.requests ? "" : fmt::format(", {}", Count(node.samples, "sample")), ends.empty() ? "" : ", " + ends);
  }
  if (left_out > 0)
    text += fmt::format("({} that spare less; --nodes 0 shows all)\n", Count(static_cast<int64_t>(left_out), "node"));
  return text;
}

std::string FormatBreakEven(const Forecast& forecast) {
  std::string text = fmt::format(
      "{:.0f} tokens of a prompt shared with others and {:.0f} of its own, in the mean; by samples that share them:\n"
      "samples  attention, times faster  by bytes alone  attention's part of a step  step, times faster\n",
      forecast.shared_tokens, forecast.own_tokens);
  for (const BreakEven& row : forecast.break_even)
    text += fmt::format("{:7}  {:23.2f}  {:14.2f}  {:25.0f}%  {:18.2f}\n", row.samples, row.attention_gain, row.relay_gain,
                        100 * row.attention_share, row.step_gain);
  const auto gain = std::ranges::find_if(forecast.break_even, [](const BreakEven& row) { return row.attention_gain >= 1.01; });
  text += gain == forecast.break_even.end() ? "sharing reads saves time at none of these\n"
                                            : fmt::format("sharing reads saves time from {} on\n", Count(gain->samples, "sample"));
  return text;
}

double Times(double more, double less) { return less > 0 ? more / less : 1; }

// Tokens and bytes that are stored, computed and read, and the time of a step.
std::string FormatFigures(const Forecast& forecast, const ForecastModel& model) {
  const auto kv_bytes = static_cast<double>(model.machine.costs.attention.kv_bytes_per_token());
  const auto stored = [&](int64_t tokens) {
    return fmt::format("{} tokens ({})", tokens, FormatBytes(kv_bytes * static_cast<double>(tokens)));
  };
  std::string text = fmt::format("{}, {}, {} prompt tokens, {} output tokens at most\n", Count(forecast.requests, "request"),
                                 Count(forecast.samples, "sample"), forecast.prompt_tokens, forecast.output_tokens);
  if (!model.machine.kv_split_reason.empty())
    text += fmt::format("KV is divided by {}: {}\n", Name(model.machine.kv_split), model.machine.kv_split_reason);
  text += fmt::format("prompt tokens to compute: {}, {:.1f}% of all\n", forecast.computed_tokens,
                      100 * Times(static_cast<double>(forecast.computed_tokens), static_cast<double>(forecast.prompt_tokens)));
  text += fmt::format("KV of all of it: {}; a copy for each sample: {}, {:.1f} times as much\n", stored(forecast.stored_tokens),
                      stored(forecast.stored_tokens_apart),
                      Times(static_cast<double>(forecast.stored_tokens_apart), static_cast<double>(forecast.stored_tokens)));
  text += fmt::format("the KV cache has room for {}: {} at once; with a copy for each: {}\n", stored(forecast.kv_tokens),
                      Count(forecast.largest_batch, "sample"), forecast.largest_batch_apart);
  if (forecast.largest_batch == 0) {
    text += "no request fits; raise --kv-cache\n";
  } else {
    const simulate::ForecastStep& step = forecast.step;
    text += fmt::format(
        "a step of {} {}: {:.2f} ms, of which {:.2f} attention; reading for each: {:.2f} ms ({:.2f}), {:.2f} times as long\n",
        Count(step.samples, "sample"), model.Describe(), 1e3 * step.seconds, 1e3 * step.attention_seconds,
        1e3 * step.seconds_apart(), 1e3 * step.attention_seconds_apart, Times(step.seconds_apart(), step.seconds));
    text += fmt::format("it reads {} of KV; reading for each: {}, {:.1f} times as much\n", FormatBytes(step.kv_bytes_read),
                        FormatBytes(step.kv_bytes_read_unshared), Times(step.kv_bytes_read_unshared, step.kv_bytes_read));
    text += fmt::format("{:.0f} tokens/s\n", static_cast<double>(step.samples) / step.seconds);
  }
  return text;
}

std::string FormatForecast(const Trace& trace, const Forecast& forecast, const ForecastModel& model, int32_t nodes) {
  return FormatTree(trace, forecast.tree, static_cast<size_t>(nodes)) + "\n" + FormatFigures(forecast, model) + "\n" +
         FormatBreakEven(forecast);
}

// A line a node, with a bar as long as the tokens that it spares.
std::string TreeTable(const Trace& trace, const std::vector<JobNode>& nodes) {
  int64_t most = 1;
  for (const JobNode& node : nodes) most = std::max(most, SparedBy(trace, node));
  std::string html =
      "<div class=\"scroll\"><table><tr><th>tokens of the node</th><th>requests</th><th>samples</th><th>that go on alone</th>"
      "<th>prompt tokens spared</th><th></th></tr>\n";
  for (const JobNode& node : nodes) {
    const bool is_alone = node.node == simulate::kNoNode;
    const int64_t spared = SparedBy(trace, node);
    html += fmt::format(
        "<tr><td style=\"padding-left:{}em\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
        "<td><svg viewBox=\"0 0 100 10\" style=\"width:10em\"><rect width=\"{}\" height=\"10\" "
        "fill=\"var(--series-0)\"/></svg></td></tr>\n",
        0.7 + 1.5 * node.depth, is_alone ? "nothing shared" : fmt::format("{}", trace.nodes()[node.node].tokens), node.requests,
        node.samples, EscapeHtml(EndsText(node)), spared, 100 * spared / most);
  }
  return html + "</table></div>\n";
}

std::string ForecastPage(const Trace& trace, const Forecast& forecast, const ForecastModel& model, const std::string& job) {
  PlotSeries attention{.name = "attention", .color = 0}, bytes{.name = "attention, by bytes alone", .color = 1, .dashed = true},
      step{.name = "whole step", .color = 2};
  for (const BreakEven& row : forecast.break_even) {
    attention.points.emplace_back(row.samples, row.attention_gain);
    bytes.points.emplace_back(row.samples, row.relay_gain);
    step.points.emplace_back(row.samples, row.step_gain);
  }
  return BeginReportPage(fmt::format("coppice explain {}", job)) + "<h2>The tree</h2>\n" + TreeTable(trace, forecast.tree) +
         "<h2>Figures</h2>\n<pre>" + EscapeHtml(FormatFigures(forecast, model)) + "</pre>\n<h2>Where sharing saves time</h2>\n" +
         "<div class=\"plots\">\n" +
         LinePlot({.title = "Times faster than if each sample reads for itself",
                   .x_label = "samples that share the prompt",
                   .y_label = "times faster",
                   .series = {attention, bytes, step}}) +
         "</div>\n<pre>" + EscapeHtml(FormatBreakEven(forecast)) + "</pre>\n</body></html>\n";
}

ordered_json ToJson(const Trace& trace, const Forecast& forecast, const ForecastModel& model) {
  ordered_json report = {{"machine", model.machine.machine},
                         {"ranks", model.machine.ranks},
                         {"kv_split", Name(model.machine.kv_split)},
                         {"kv_split_reason", model.machine.kv_split_reason},
                         {"step_times", model.machine.has_step_times ? "measured" : "roofline"},
                         {"requests", forecast.requests},
                         {"samples", forecast.samples},
                         {"prompt_tokens", forecast.prompt_tokens},
                         {"output_tokens", forecast.output_tokens},
                         {"computed_tokens", forecast.computed_tokens},
                         {"kv_bytes_per_token", model.machine.costs.attention.kv_bytes_per_token()},
                         {"stored_tokens", forecast.stored_tokens},
                         {"stored_tokens_apart", forecast.stored_tokens_apart},
                         {"kv_tokens", forecast.kv_tokens},
                         {"largest_batch", forecast.largest_batch},
                         {"largest_batch_apart", forecast.largest_batch_apart},
                         {"step_seconds", forecast.step.seconds},
                         {"step_seconds_apart", forecast.step.seconds_apart()},
                         {"attention_seconds", forecast.step.attention_seconds},
                         {"attention_seconds_apart", forecast.step.attention_seconds_apart},
                         {"kv_bytes_read", forecast.step.kv_bytes_read},
                         {"kv_bytes_read_unshared", forecast.step.kv_bytes_read_unshared},
                         {"shared_tokens", forecast.shared_tokens},
                         {"own_tokens", forecast.own_tokens},
                         {"break_even", ordered_json::array()},
                         {"tree", ordered_json::array()}};
  for (const BreakEven& row : forecast.break_even)
    report["break_even"].push_back({{"samples", row.samples},
                                    {"attention_gain", row.attention_gain},
                                    {"relay_gain", row.relay_gain},
                                    {"attention_share", row.attention_share},
                                    {"step_gain", row.step_gain}});
  for (const JobNode& node : forecast.tree) {
    const bool is_alone = node.node == simulate::kNoNode;
    report["tree"].push_back({{"depth", node.depth},
                              {"tokens", is_alone ? 0 : trace.nodes()[node.node].tokens},
                              {"requests", node.requests},
                              {"samples", node.samples},
                              {"own", node.ends},
                              {"own_tokens", {node.shortest_end, node.longest_end}}});
  }
  return report;
}

Result<ExitCode> Explain(const ExplainOptions& options) {
  COPPICE_ASSIGN_OR_RETURN(const ForecastModel model, OpenForecastModel(options.forecast));
  COPPICE_ASSIGN_OR_RETURN(const Trace trace, ReadTrace(options.job, *model.checkpoint));
  const Forecast forecast = simulate::MakeForecast(trace, model.machine.costs, model.server);
  if (!options.html.empty())
    COPPICE_RETURN_IF_ERROR(WriteReport(options.html, ForecastPage(trace, forecast, model, options.job.path), "--html"));
  COPPICE_RETURN_IF_ERROR(Print(options.json ? ToJson(trace, forecast, model).dump() + "\n"
                                             : ForTerminal(FormatForecast(trace, forecast, model, options.nodes))));
  return ExitCode::kOk;
}

}  // namespace

Command AddExplainCommand(CLI::App& app) {
  const auto options = std::make_shared<ExplainOptions>();
  CLI::App* command =
      app.add_subcommand("explain", "Forecast a file of requests: its tree, what sharing spares, memory, step times; runs nothing");
  command->add_option("job", options->job.path, "OpenAI batch requests, or a trace as of coppice simulate; -: standard input")
      ->required()
      ->check(NotEmpty());
  AddBlockTokens(*command, &options->job);
  command->add_option("--nodes", options->nodes, "Nodes of the tree that are shown, those that spare most; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  AddForecastOptions(*command, &options->forecast);
  command->add_option("--html", options->html, "Write it as a page, with the whole tree, to this file, too")->check(NotEmpty());
  command->add_flag("--json", options->json, "Print the forecast as JSON");
  return {command, [options] { return Explain(*options); }};
}

}  // namespace coppice::cli
