#include "cli/bench/bench_update.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
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
#include "core/buffer.h"
#include "core/check.h"
#include "core/device.h"
#include "core/thread_pool.h"
#include "engine/open_device.h"
#include "model/checkpoint.h"
#include "model/tensor_source.h"
#include "model/weight_store.h"
#include "ops/ops.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double ThreadCpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct BenchUpdateOptions {
  EngineOptions engine;
  int32_t repeats = 5;
  std::string config, out;
};

// All weights of a model in the dtype of its products, in the memory of a device.
class Source {
 public:
  static Result<Source> Create(const Checkpoint& checkpoint, DType dtype, Device* device) {
    Source source;
    for (const auto& [name, shape] : ExpectedWeights(checkpoint.config())) {
      const int64_t rows = shape.size() == 1 ? 1 : shape[0], cols = shape.back();
      const int64_t bytes = rows * cols * static_cast<int64_t>(SizeOf(dtype));
      COPPICE_ASSIGN_OR_RETURN(Buffer host, Buffer::Allocate(bytes));
      COPPICE_RETURN_IF_ERROR(checkpoint.Load(name, rows, cols, dtype, host.Span<std::byte>()));
      COPPICE_ASSIGN_OR_RETURN(DeviceMemory memory, device->Allocate(bytes));
      COPPICE_RETURN_IF_ERROR(device->Copy(memory.data(), host.data(), bytes, nullptr));
      COPPICE_RETURN_IF_ERROR(device->Synchronize(Stream{nullptr}));
      source.tensors_.push_back({.name = name, .dtype = dtype, .shape = shape, .data = memory.data(), .device = device->kind()});
      source.memory_.push_back(std::move(memory));
      source.bytes_ += bytes;
    }
    return source;
  }

  const std::vector<WeightTensor>& tensors() const { return tensors_; }
  int64_t bytes() const { return bytes_; }

  // Seconds to copy as many bytes within the device, tensor by tensor; the median.
  Result<double> CopySeconds(Device& device, int32_t repeats) const {
    size_t largest = 0;
    for (const DeviceMemory& memory : memory_) largest = std::max(largest, memory.size());
    COPPICE_ASSIGN_OR_RETURN(const DeviceMemory to, device.Allocate(largest));
    std::vector<double> seconds;
    for (int32_t repeat = 0; repeat < repeats; ++repeat) {
      const Clock::time_point begin = Clock::now();
      for (const DeviceMemory& memory : memory_)
        COPPICE_RETURN_IF_ERROR(device.Copy(to.data(), memory.data(), memory.size(), nullptr));
      COPPICE_RETURN_IF_ERROR(device.Synchronize(Stream{nullptr}));
      seconds.push_back(SecondsSince(begin));
    }
    return Median(seconds);
  }

 private:
  std::vector<WeightTensor> tensors_;
  std::vector<DeviceMemory> memory_;
  int64_t bytes_ = 0;
};

// Seconds to read all weights and pack them, as loading a model does; the median.
Result<double> LoadSeconds(const Checkpoint& checkpoint, DType dtype, Device& device, int32_t repeats) {
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<ops::Ops> ops, ops::Ops::Create(&device, {}));
  std::vector<double> seconds;
  for (int32_t repeat = 0; repeat < repeats; ++repeat) {
    const Clock::time_point begin = Clock::now();
    COPPICE_ASSIGN_OR_RETURN(
        const WeightStore store,
        WeightStore::Load(checkpoint, checkpoint.config(), {.dtype = dtype, .keep_stored = KeepStored::kNone}, device, *ops));
    seconds.push_back(SecondsSince(begin));
  }
  return Median(seconds);
}

Result<ExitCode> BenchUpdate(BenchUpdateOptions options) {
  COPPICE_RETURN_IF_ERROR(CheckReport(options.out, "--out"));
  EngineOptions& engine_options = options.engine;
  COPPICE_RETURN_IF_ERROR(FindBenchModel(engine_options, options.config));
  ThreadPool threads(engine_options.num_threads);
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenDevice(engine_options, &threads));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenBenchModel(engine_options));
  const DType dtype = engine_options.dtype.value_or(DType::kBF16);
  engine_options.dtype = dtype;
  engine_options.weights = dtype == DType::kF32 ? WeightForm::kF32 : WeightForm::kBF16;
  COPPICE_ASSIGN_OR_RETURN(const double load_seconds, LoadSeconds(*checkpoint, dtype, *device, options.repeats));
  COPPICE_ASSIGN_OR_RETURN(const Source source, Source::Create(*checkpoint, dtype, device.get()));
  COPPICE_ASSIGN_OR_RETURN(const double copy_seconds, source.CopySeconds(*device, options.repeats));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(engine_options));
  std::vector<double> seconds, cpu_seconds;
  for (int32_t repeat = 0; repeat < options.repeats + 1; ++repeat) {
    const Clock::time_point begin = Clock::now();
    const double cpu_begin = ThreadCpuSeconds();
    COPPICE_RETURN_IF_ERROR(engine->UpdateWeights(source.tensors(), {}).status());
    if (repeat == 0) continue;  // the first touches what later ones find touched
    seconds.push_back(SecondsSince(begin));
    cpu_seconds.push_back(ThreadCpuSeconds() - cpu_begin);
  }
  // Sleep and waking, at both levels.
  ordered_json sleeps = ordered_json::array();
  for (const SleepLevel level : {SleepLevel::kKeepWeights, SleepLevel::kDropWeights}) {
    COPPICE_ASSIGN_OR_RETURN(const Device::MemoryInfo awake, device->GetMemoryInfo());
    const Clock::time_point begin = Clock::now();
    COPPICE_RETURN_IF_ERROR(engine->Sleep({.level = level}));
    const double sleep_seconds = SecondsSince(begin);
    COPPICE_ASSIGN_OR_RETURN(const Device::MemoryInfo asleep, device->GetMemoryInfo());
    const Clock::time_point asleep_since = Clock::now();
    const bool drops = level == SleepLevel::kDropWeights;
    COPPICE_RETURN_IF_ERROR(engine->Wake({.reload = false, .resume = !drops}));
    const double wake_seconds = SecondsSince(asleep_since);
    if (drops) COPPICE_RETURN_IF_ERROR(engine->UpdateWeights(source.tensors(), {}).status());
    sleeps.push_back({{"level", static_cast<int>(level)},
                      {"sleep_seconds", sleep_seconds},
                      {"given_back_bytes", asleep.free_bytes - awake.free_bytes},
                      {"free_bytes", asleep.free_bytes},
                      {"wake_seconds", wake_seconds},
                      {"wake_and_update_seconds", SecondsSince(asleep_since)}});
  }
  const double update_seconds = Median(seconds);
  const auto bytes = static_cast<double>(source.bytes());
  const ordered_json report = {{"model", BenchModelName(engine_options)},
                               {"device", device->name()},
                               {"dtype", Name(dtype)},
                               {"bytes", source.bytes()},
                               {"repeats", options.repeats},
                               {"load_seconds", load_seconds},
                               {"update_seconds", update_seconds},
                               {"update_cpu_seconds", Median(cpu_seconds)},
                               {"copy_seconds", copy_seconds},
                               {"sleeps", sleeps}};
  std::string text = fmt::format("{:.2f} GB of weights on {}\n", bytes / 1e9, device->name());
  const auto line = [&](const char* what, double value) {
    text += fmt::format("{:<34} {:>9.1f} ms {:>8.1f} GB/s {:>7.2f} of a copy's rate\n", what, 1e3 * value, bytes / value / 1e9,
                        copy_seconds / value);
  };
  line("a copy of as many bytes", copy_seconds);
  line("read and packed, as at loading", load_seconds);
  line("updated", update_seconds);
  text += fmt::format("{:<34} {:>9.1f} ms\n", "of it, of the calling thread", 1e3 * Median(cpu_seconds));
  for (const ordered_json& sleep : sleeps) {
    text += fmt::format("sleep level {}: {:.0f} ms, gives back {:.2f} GB, wakes in {:.0f} ms{}\n", sleep["level"].get<int>(),
                        1e3 * sleep["sleep_seconds"].get<double>(), sleep["given_back_bytes"].get<double>() / 1e9,
                        1e3 * sleep["wake_seconds"].get<double>(),
                        sleep["level"] == 2
                            ? fmt::format(", with an update in {:.0f} ms", 1e3 * sleep["wake_and_update_seconds"].get<double>())
                            : "");
  }
  COPPICE_RETURN_IF_ERROR(Print(ForTerminal(text)));
  COPPICE_RETURN_IF_ERROR(WriteReport(options.out, report.dump(1) + "\n", "--out"));
  return ExitCode::kOk;
}

}  // namespace

Command AddBenchUpdateCommand(CLI::App& bench) {
  const auto options = std::make_shared<BenchUpdateOptions>();
  CLI::App* command = bench.add_subcommand(
      "update", "Updates of all weights from the device's own memory, beside loading them and a copy of as many bytes; sleep");
  command->add_option("--repeats", options->repeats, "Runs of each part; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--out", options->out, "Write the result to this file as JSON")->check(NotEmpty());
  AddEngineOptions(*command, options->engine);
  AddWeightsOptions(*command, options->engine, options->config);
  return {command, [options] { return BenchUpdate(*options); }};
}

}  // namespace coppice::cli
