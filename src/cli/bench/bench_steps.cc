#include "cli/bench/bench_steps.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench/bench_support.h"
#include "cli/parsed_option.h"
#include "cli/run_options.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
#include "coppice/engine/engine.h"
#include "core/check.h"
#include "openai/generation.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;

struct BenchStepsOptions {
  EngineOptions engine;
  int32_t repeats = 5;
  std::string config, out;
};

constexpr int32_t kDecodeSteps = 16;  // of a run

// Rows that are measured: powers of two, and the most there can be.
std::vector<int32_t> RowsUpTo(int32_t most) {
  std::vector<int32_t> rows;
  for (int32_t count = 1; count < most; count *= 2) rows.push_back(count);
  rows.push_back(most);
  return rows;
}

// An engine without attention that is stepped for one request at a time, of which nothing is in the cache.
class StepTimer {
 public:
  explicit StepTimer(Engine* engine) : engine_(*engine) {}

  // Seconds of a step that computes a prompt of `rows` tokens and draws nothing.
  Result<double> PromptStep(int32_t rows) {
    COPPICE_ASSIGN_OR_RETURN(const EngineMetrics spent, Run({.prompt_ids = Tokens(rows), .max_tokens = 0}));
    return spent.prefill_seconds;
  }
  // In the mean, of a step in which `rows` samples decode.
  Result<double> DecodeStep(int32_t rows) {
    COPPICE_ASSIGN_OR_RETURN(const EngineMetrics spent,
                             Run({.prompt_ids = Tokens(1), .n = rows, .max_tokens = kDecodeSteps + 1, .ignore_eos = true}));
    return spent.decode_seconds / static_cast<double>(std::max<int64_t>(spent.decode_steps, 1));
  }

 private:
  static std::vector<int32_t> Tokens(int32_t count) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; ++i) tokens.push_back(1 + i * 31 % 200);  // speed does not depend on them
    return tokens;
  }
  Result<EngineMetrics> Run(Request request) {
    request.cache_salt = fmt::format("run {}", ++runs_);
    COPPICE_ASSIGN_OR_RETURN(const openai::Generation generation, openai::Generate(engine_, std::move(request), {}));
    return generation.metrics;
  }

  Engine& engine_;
  int64_t runs_ = 0;
};

ordered_json PointsOf(const std::vector<int32_t>& rows, const std::vector<std::vector<double>>& seconds) {
  ordered_json points = ordered_json::array();
  for (size_t i = 0; i < rows.size(); ++i) points.push_back({rows[i], Median(seconds[i])});
  return points;
}

Result<ExitCode> BenchSteps(BenchStepsOptions options) {
  COPPICE_RETURN_IF_ERROR(Validate(options.engine));
  COPPICE_RETURN_IF_ERROR(CheckReport(options.out, "--out"));
  COPPICE_RETURN_IF_ERROR(FindBenchModel(options.engine, options.config));
  options.engine.experiment.without_attention = true;
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options.engine));
  const int32_t longest = options.engine.max_context > 0 ? options.engine.max_context : engine->model_info().context_length;
  const std::vector<int32_t> prompts = RowsUpTo(std::min(options.engine.max_batch_tokens, longest - 1));
  const std::vector<int32_t> samples = RowsUpTo(std::min(options.engine.max_running, options.engine.max_batch_tokens));
  StepTimer timer(engine.get());
  std::vector<std::vector<double>> prompt_seconds(prompts.size()), decode_seconds(samples.size());
  for (int32_t repeat = -1; repeat < options.repeats; ++repeat) {  // the first round makes what the engine keeps
    const auto take = [&](Result<double> seconds, std::vector<double>* all) -> Status {
      COPPICE_RETURN_IF_ERROR(seconds.status());
      if (repeat >= 0) all->push_back(*seconds);
      return OkStatus();
    };
    for (size_t i = 0; i < prompts.size(); ++i) COPPICE_RETURN_IF_ERROR(take(timer.PromptStep(prompts[i]), &prompt_seconds[i]));
    for (size_t i = 0; i < samples.size(); ++i) COPPICE_RETURN_IF_ERROR(take(timer.DecodeStep(samples[i]), &decode_seconds[i]));
  }
  const ordered_json report = {{"model", BenchModelName(options.engine)},
                               {"device", options.engine.device},
                               {"dtype", Name(engine->model_info().kv_dtype)},
                               {"threads", options.engine.num_threads},
                               {"cpu", CpuName()},
                               {"repeats", options.repeats},
                               {"prompt", PointsOf(prompts, prompt_seconds)},
                               {"decode", PointsOf(samples, decode_seconds)}};
  const std::string text = report.dump() + "\n";
  COPPICE_RETURN_IF_ERROR(options.out.empty() ? Print(text) : WriteReport(options.out, text, "--out"));
  return ExitCode::kOk;
}

}  // namespace

Command AddBenchStepsCommand(CLI::App& bench) {
  const auto options = std::make_shared<BenchStepsOptions>();
  CLI::App* command = bench.add_subcommand(
      "steps", "Measure what a model's steps take beside attention, by rows, for coppice simulate --steps, on this idle machine");
  command->add_option("--repeats", options->repeats, "Runs of each number of rows, of which the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--out", options->out, "Write them to this file (default: print them)")->check(NotEmpty());
  AddEngineOptions(*command, options->engine);
  AddWeightsOptions(*command, options->engine, options->config);
  return {command, [options] { return BenchSteps(*options); }};
}

}  // namespace coppice::cli
