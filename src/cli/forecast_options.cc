#include "cli/forecast_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/model_memory.h"
#include "cli/parsed_option.h"
#include "cli/read_file.h"
#include "cli/run_options.h"
#include "cli/run_stats.h"
#include "core/check.h"
#include "core/format_bytes.h"
#include "engine/open_device.h"
#include "hub/model_store.h"
#include "model/random_checkpoint.h"
#include "model/shard.h"
#include "ops/peer_group.h"

namespace coppice::cli {

void AddForecastOptions(CLI::App& command, ForecastOptions* options) {
  CLI::Option* const model = command.add_option(
      "-m,--model", options->model, "A GGUF file, a Hugging Face folder, or the name of a pulled one; weights are not read");
  command.add_option("--config", options->config, "A model's config.json in place of a model")->excludes(model)->check(NotEmpty());
  command.add_option("--machine", options->costs.machine,
                     "What it runs on: a name such as h100, h200 or zen5, or a file of `coppice bench calibrate`; default: this "
                     "machine");
  CLI::Option* const device =
      command
          .add_option("--device", options->devices,
                      "GPUs that divide the model, as the engine names them: cuda:0,cuda:1, each of them --machine's; steps, bytes "
                      "and --kv-cache are those of each")
          ->check(NotEmpty());
  command
      .add_option_function<int>(
          "--tp", [options](int gpus) { options->devices = FirstGpus(gpus); }, "Likewise the first N GPUs")
      ->type_name("N")
      ->check(CLI::Range(1, ops::kMostPeers))
      ->excludes(device);
  AddParsed<KvSplit>(
      command, "--kv-split", options->costs.kv_split, ParseKvSplit,
      "What of KV heads that several GPUs have each holds: heads: all tokens; tokens: its part of them; auto (default): "
      "as an engine chooses");
  command
      .add_option("--steps", options->steps,
                  "A file of `coppice bench steps`: what the model's steps take there beside attention; default: by the roofline "
                  "of its weights in 16 bits")
      ->check(NotEmpty());
  command.add_option("--threads", options->costs.threads, "Worker threads on CPUs; 0: one per core of this machine")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  AddParsed<DType>(command, "--dtype", options->costs.dtype, ParseDType, "Of KV: bf16 (default), f16 or f32");
  simulate::ServerOptions& server = options->server;
  command.add_option("--kv-cache", options->kv_cache_bytes, "Size of the KV cache, e.g. 40GiB")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("16GiB");
  command.add_option("--max-running", server.max_running, "Samples that decode at the same moment")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command.add_option("--max-batch-tokens", server.max_batch_tokens, "Token budget of a step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--page-size", server.page_size, "Tokens per KV page")->check(CLI::Range(1, 256))->capture_default_str();
}

std::string ForecastModel::Describe() const {
  return fmt::format("on {}{}, steps {}", machine.ranks > 1 ? fmt::format("each of {} ", machine.ranks) : "", machine.machine,
                     machine.has_step_times ? "as measured" : "by the roofline of their weights");
}

Result<ForecastModel> OpenForecastModel(const ForecastOptions& options) {
  if (options.server.max_running > options.server.max_batch_tokens)
    return InvalidArgument(
        fmt::format("--max-running is {} and --max-batch-tokens {}, expected no more samples than a step has tokens",
                    options.server.max_running, options.server.max_batch_tokens));
  simulate::CostOptions costs = options.costs;
  if (!options.devices.empty()) {
    COPPICE_ASSIGN_OR_RETURN(const std::vector<DeviceName> names, ParseDeviceNames(options.devices));
    if (names.size() > 1 && names.front().kind == DeviceKind::kCpu)
      return InvalidArgument(
          fmt::format("--device is {}, expected GPUs such as cuda:0,cuda:1: a forecast has ranks of GPUs alone", options.devices));
    costs.ranks = static_cast<int>(names.size());
  }
  std::unique_ptr<Checkpoint> checkpoint;
  if (options.config.empty()) {
    COPPICE_ASSIGN_OR_RETURN(const std::string path, hub::FindModel(options.model));
    COPPICE_ASSIGN_OR_RETURN(checkpoint, Checkpoint::Open(path));
  } else {
    COPPICE_ASSIGN_OR_RETURN(checkpoint, MakeRandomCheckpoint(options.config));
  }
  if (!options.steps.empty()) {
    COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.steps, "--steps"));
    const Result<simulate::StepTimes> steps = simulate::StepTimes::Parse(text);
    if (!steps.ok()) return Status(steps.status().code(), fmt::format("{}: {}", options.steps, steps.status().message()));
    costs.steps = *steps;
  }
  costs.page_size = options.server.page_size;
  costs.max_running = options.server.max_running;
  costs.kv_bytes = options.kv_cache_bytes;
  costs.parameters = MemoryOf(*checkpoint).parameters;
  COPPICE_ASSIGN_OR_RETURN(simulate::MachineCosts machine, simulate::MakeCosts(checkpoint->config(), costs));
  const int64_t token_bytes = machine.costs.attention.kv_bytes_per_token();
  simulate::ServerOptions server = options.server;
  if (machine.kv_split == KvSplit::kTokens) server.page_size *= Shard::KvSharers(checkpoint->config(), machine.ranks);
  server.kv_tokens = options.kv_cache_bytes / token_bytes;
  if (server.kv_tokens < 1)
    return InvalidArgument(fmt::format("--kv-cache is {}, expected room for a token, {}",
                                       FormatBytes(static_cast<double>(options.kv_cache_bytes)),
                                       FormatBytes(static_cast<double>(token_bytes))));
  return ForecastModel{.checkpoint = std::move(checkpoint), .machine = std::move(machine), .server = server};
}

}  // namespace coppice::cli
