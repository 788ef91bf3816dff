#include "cli/simulate_command.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/different_files.h"
#include "cli/forecast_options.h"
#include "cli/interrupt.h"
#include "cli/parsed_option.h"
#include "cli/progress_line.h"
#include "cli/request_trace.h"
#include "cli/run_stats.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
#include "core/check.h"
#include "core/file.h"
#include "core/format_bytes.h"
#include "simulate/chat_mix.h"
#include "simulate/simulation.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;
using simulate::Policy;
using simulate::SimulationResult;
using simulate::Trace;

struct SimulateOptions {
  TraceSource trace;
  std::optional<int64_t> chats;  // requests of a chat mix in place of a trace
  simulate::ChatMixOptions mix;
  std::string write_trace, out;
  ForecastOptions forecast;
  simulate::SimulationOptions simulation;
  std::vector<int32_t> replicas = {2};
  std::vector<Policy> policies = {Policy::kRoundRobin, Policy::kLeastLoad, Policy::kPrefixHash, Policy::kPrefixAware};
  bool json = false;
};

Result<std::vector<Policy>> ParsePolicies(std::string_view text) {
  std::vector<Policy> policies;
  while (true) {
    const size_t comma = text.find(',');
    COPPICE_ASSIGN_OR_RETURN(const Policy policy, simulate::ParsePolicy(text.substr(0, comma)));
    policies.push_back(policy);
    if (comma == text.npos) return policies;
    text.remove_prefix(comma + 1);
  }
}

Status Check(const SimulateOptions& options) {
  if (options.trace.path.empty() != options.chats.has_value())
    return InvalidArgument("there is no trace; give a file, or --chats N for a mix of chats, and not both");
  if (!options.out.empty() && (options.policies.size() > 1 || options.replicas.size() > 1))
    return InvalidArgument("--out has the requests of one simulation; name one --policy and one number of --replicas");
  const auto file = [](const std::string& path) { return path == "-" ? std::string() : path; };
  return CheckDifferentFiles(
      {{"the trace", file(options.trace.path)}, {"--write-trace", file(options.write_trace)}, {"--out", file(options.out)}});
}

// The file that `*path`, where it is one, leads to. Only lines of requests, such as a trace's, are replaced.
Status Resolve(std::string* path) {
  if (path->empty() || *path == "-") return OkStatus();
  COPPICE_ASSIGN_OR_RETURN(std::string target, ResolveOutput(*path));
  COPPICE_RETURN_IF_ERROR(CheckReplaceable(target, *path, R"({"timestamp":)", "lines of requests"));
  *path = std::move(target);
  return OkStatus();
}

ordered_json ToJson(const simulate::Latencies& latencies) {
  return {{"mean", latencies.mean}, {"p50", latencies.p50}, {"p99", latencies.p99}};
}

ordered_json ToJson(const SimulationResult& result, int32_t replicas, Policy policy) {
  const simulate::ReplicaTotals total = result.Total();
  return {{"replicas", replicas},
          {"policy", Name(policy)},
          {"requests", total.requests},
          {"refused", result.refused},
          {"hit_rate", result.hit_rate},
          {"prompt_tokens", total.prompt_tokens},
          {"cached_tokens", total.cached_tokens},
          {"output_tokens", total.output_tokens},
          {"evicted_tokens", total.evicted_tokens},
          {"preemptions", total.preemptions},
          {"imbalance", result.imbalance},
          {"busy_imbalance", result.busy_imbalance},
          {"kv_bytes_read", total.kv_bytes_read},
          {"kv_bytes_read_unshared", total.kv_bytes_read_unshared},
          {"seconds", result.seconds},
          {"busy_seconds", total.busy_seconds},
          {"steps", total.steps},
          {"first_token_seconds", ToJson(result.first_token)},
          {"request_seconds", ToJson(result.request)}};
}

constexpr std::string_view kHead =
    "replicas  policy          hits  imbalance  KV read  unshared   first token: mean    p99   request: mean    p99  tokens/s\n";

std::string Row(const SimulationResult& result, int32_t replicas, Policy policy) {
  const simulate::ReplicaTotals total = result.Total();
  return fmt::format("{:8}  {:12} {:6.1f}%  {:9.2f}  {:>7}  {:>8}  {:16.3f} s {:5.2f} s {:12.2f} s {:5.1f} s  {:8.0f}\n", replicas,
                     Name(policy), 100 * result.hit_rate, result.imbalance, FormatBytes(total.kv_bytes_read),
                     FormatBytes(total.kv_bytes_read_unshared), result.first_token.mean, result.first_token.p99,
                     result.request.mean, result.request.p99,
                     static_cast<double>(total.output_tokens) / std::max(result.seconds, 1e-9));
}

// A line a request, in the order of arrival.
std::string FormatOutcomes(const Trace& trace, const SimulationResult& result) {
  std::string text;
  for (size_t i = 0; i < result.outcomes.size(); ++i) {
    const simulate::Outcome& outcome = result.outcomes[i];
    text += fmt::format("{{\"timestamp\":{:.3f},\"replica\":{},\"prompt_tokens\":{},\"cached_tokens\":{}",
                        trace.requests()[i].arrival * 1e3, outcome.replica, trace.prompt_tokens(trace.requests()[i]),
                        outcome.cached_tokens);
    text += outcome.refused ? ",\"refused\":true}\n"
                            : fmt::format(",\"first_token_seconds\":{:.6f},\"seconds\":{:.6f}}}\n", outcome.first_token_seconds,
                                          outcome.seconds);
  }
  return text;
}

std::string FormatTrace(const Trace& trace) {
  std::string text;
  for (const simulate::TraceRequest& request : trace.requests()) text += simulate::FormatTraceLine(trace, request);
  return text;
}

Status WriteFile(const std::string& path, const std::string& text) { return path == "-" ? Print(text) : ReplaceFile(path, text); }

Result<ExitCode> Simulate(SimulateOptions options) {
  COPPICE_RETURN_IF_ERROR(Check(options));
  COPPICE_RETURN_IF_ERROR(Resolve(&options.write_trace));
  COPPICE_RETURN_IF_ERROR(Resolve(&options.out));
  COPPICE_ASSIGN_OR_RETURN(const ForecastModel model, OpenForecastModel(options.forecast));
  options.simulation.server = model.server;
  Trace trace;
  if (options.chats) {
    options.mix.requests = *options.chats;
    trace = simulate::MakeChatMix(options.mix);
  } else {
    COPPICE_ASSIGN_OR_RETURN(trace, ReadTrace(options.trace, *model.checkpoint));
  }
  if (!options.write_trace.empty()) COPPICE_RETURN_IF_ERROR(WriteFile(options.write_trace, FormatTrace(trace)));
  const double endless = simulate::EndlessHitRate(trace);
  ordered_json report = {{"machine", model.machine.machine},
                         {"ranks", model.machine.ranks},
                         {"step_times", model.machine.has_step_times ? "measured" : "roofline"},
                         {"kv_tokens", model.server.kv_tokens},
                         {"requests", trace.requests().size()},
                         {"endless_hit_rate", endless},
                         {"rows", ordered_json::array()}};
  if (!options.json)
    COPPICE_RETURN_IF_ERROR(Print(
        ForTerminal(fmt::format("{} requests {}; the KV cache of a replica has room for {} tokens; one that keeps all would find "
                                "{:.1f}% of prompts\n{}",
                                trace.requests().size(), model.Describe(), model.server.kv_tokens, 100 * endless, kHead))));
  int64_t refused = 0;  // the same ones in every row
  CatchFirstInterrupt();
  ProgressLine progress(ProgressLine::WithoutTerminal::kPlainLines);
  for (const int32_t replicas : options.replicas) {
    for (const Policy policy : options.policies) {
      options.simulation.replicas = replicas;
      options.simulation.router.policy = policy;
      const SimulationResult result = simulate::Simulate(trace, model.machine.costs, options.simulation, [&](int64_t done) {
        if (progress.due())
          progress.Show({fmt::format("{} of {} requests", done, trace.requests().size()), std::string(Name(policy))});
        return !Interrupted();
      });
      progress.Clear();
      if (Interrupted()) return ExitCode::kInterrupted;
      refused = result.refused;
      report["rows"].push_back(ToJson(result, replicas, policy));
      if (!options.json) COPPICE_RETURN_IF_ERROR(Print(ForTerminal(Row(result, replicas, policy))));
      if (!options.out.empty()) COPPICE_RETURN_IF_ERROR(WriteFile(options.out, FormatOutcomes(trace, result)));
    }
  }
  if (options.json) {
    COPPICE_RETURN_IF_ERROR(Print(report.dump() + "\n"));
  } else if (refused > 0) {
    spdlog::warn("{} of {} requests do not fit the KV cache of a replica and are left out; raise --kv-cache", refused,
                 trace.requests().size());
  }
  return ExitCode::kOk;
}

void AddTraceOptions(CLI::App& command, SimulateOptions* options) {
  command.add_option("trace", options->trace.path,
                     "JSON lines: timestamp (ms), segments ([[id, tokens], ...]) or hash_ids with input_length, output_length; or "
                     "a file of OpenAI batch requests, which all come at once; -: standard input");
  AddBlockTokens(command, &options->trace);
  command.add_option("--chats", options->chats, "In place of a trace: so many requests of a mix of chats")
      ->check(CLI::Range(int64_t{1}, int64_t{100} << 20));
  command.add_option("--rate", options->mix.rate, "--chats: requests a second of all, in the mean (Poisson)")
      ->check(AboveZero())
      ->capture_default_str();
  command.add_option("--turns", options->mix.turns, "--chats: turns of a conversation, in the mean")
      ->check(CLI::Range(1.0, 1000.0))
      ->capture_default_str();
  command.add_option("--think-seconds", options->mix.think_seconds, "--chats: from an answer to the next turn, in the mean")
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
  command
      .add_option("--system-prompts", options->mix.system_prompts, "--chats: how many there are; of few most requests are (Zipf)")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command.add_option("--max-context", options->mix.max_context, "--chats: most tokens of a conversation")
      ->check(CLI::Range(256, 1 << 24))
      ->capture_default_str();
  command.add_option("--seed", options->mix.seed, "--chats: of lengths and arrivals")->capture_default_str();
  command.add_option("--write-trace", options->write_trace, "Write the trace to this file, with segments; -: print it")
      ->check(NotEmpty());
}

}  // namespace

Command AddSimulateCommand(CLI::App& app) {
  const auto options = std::make_shared<SimulateOptions>();
  CLI::App* command =
      app.add_subcommand("simulate", "Forecast what many servers make of a trace, by router policy: hits, reads, times");
  AddTraceOptions(*command, options.get());
  command->add_option("--replicas", options->replicas, "Servers; a list is simulated one after the other")
      ->delimiter(',')
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  AddParsed<std::vector<Policy>>(*command, "--policy", options->policies, ParsePolicies,
                                 "A list of round-robin, least-load, prefix-hash and prefix-aware (default: all)");
  command
      ->add_option("--bound", options->simulation.router.bound,
                   "prefix-hash, prefix-aware: work of a replica over that of all in the mean from which on others get requests")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  command
      ->add_option("--hash-tokens", options->simulation.router.hash_tokens, "prefix-hash: tokens of a prompt that its hash is of")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  AddForecastOptions(*command, &options->forecast);
  simulate::ServerOptions& server = options->forecast.server;
  command->add_option("--chunk", server.chunk, "Prompt tokens of a step at most; 0: what the budget leaves")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--request-seconds", server.request_seconds, "What a request takes beside its steps, such as its HTTP")
      ->check(AtLeastZero())
      ->capture_default_str();
  command->add_option("--out", options->out, "Write what became of each request to this file as JSON lines; -: print it")
      ->check(NotEmpty());
  command->add_flag("--json", options->json, "Print the result as JSON");
  return {command, [options] { return Simulate(*options); }};
}

}  // namespace coppice::cli
