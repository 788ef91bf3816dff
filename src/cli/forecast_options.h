// Options of `coppice simulate` and `coppice explain` about a model, a machine and its server. Layer: cli.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "coppice/core/status.h"
#include "model/checkpoint.h"
#include "simulate/costs.h"
#include "simulate/replica.h"

namespace CLI {
class App;
}

namespace coppice::cli {

struct ForecastOptions {
  std::string model, config, steps, devices;
  simulate::CostOptions costs;
  simulate::ServerOptions server;
  int64_t kv_cache_bytes = int64_t{16} << 30;
};

// --model, --config, --machine, --steps, --kv-cache, --max-running and the like.
void AddForecastOptions(CLI::App& command, ForecastOptions* options);

// The model's shape and tokenizer, and what its steps cost. Weights are not read.
struct ForecastModel {
  std::unique_ptr<Checkpoint> checkpoint;
  simulate::MachineCosts machine;
  simulate::ServerOptions server;  // with the tokens that the cache holds

  // "on h100, steps as measured".
  std::string Describe() const;
};
// INVALID_ARGUMENT names the option, its value and what is expected; errors of files name them.
Result<ForecastModel> OpenForecastModel(const ForecastOptions& options);

}  // namespace coppice::cli
