// Shared by the benchmarks of the engine: a measurement in a process of its own, medians, the machine's name.
// Layer: cli.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "coppice/engine/engine.h"
#include "core/check.h"
#include "model/checkpoint.h"

namespace coppice::cli {

inline constexpr std::array<SharingMode, 4> kSharingModes = {SharingMode::kTree, SharingMode::kOneLevel, SharingMode::kStore,
                                                             SharingMode::kNone};

// The mode of a benchmark's engine: how it shares KV between requests, and how its attention's kinds run.
struct BenchMode {
  static constexpr std::string_view kNoAttention = "no-attention";

  SharingMode sharing = SharingMode::kTree;
  bool attends = true;  // false: the step without its attention, the ceiling of what sharing can reach (Hydragen, section 4.1)
  KindOrder kinds = KindOrder::kAuto;
  int ranks = 0;                    // on the first GPUs; 0: as the options' device says
  std::optional<KvSplit> kv_split;  // this and `chunk` as EngineOptions has them; absent: as the options say
  std::optional<int32_t> chunk;

  std::string_view sharing_name() const { return attends ? Name(sharing) : kNoAttention; }
  EngineOptions OptionsFor(EngineOptions options) const;
  bool operator==(const BenchMode&) const = default;
};
// Those of SharingMode.
std::vector<BenchMode> AllSharingModes();
// Calls parse(name) for names with commas between them.
template <class T, class F>
Result<std::vector<T>> ParseList(std::string_view text, F&& parse) {
  std::vector<T> values;
  while (true) {
    const size_t comma = text.find(',');
    COPPICE_ASSIGN_OR_RETURN(T value, parse(text.substr(0, comma)));
    values.push_back(std::move(value));
    if (comma == text.npos) return values;
    text.remove_prefix(comma + 1);
  }
}
// Names with commas between them: sharing modes and no-attention; orders of kinds.
Result<std::vector<BenchMode>> ParseBenchModes(std::string_view text);
Result<std::vector<KindOrder>> ParseKindOrders(std::string_view text);
// Each mode with each order; the step without attention has no kinds, and comes once.
std::vector<BenchMode> WithKinds(const std::vector<BenchMode>& modes, const std::vector<KindOrder>& orders);
// --modes and --kinds.
void AddModesOptions(CLI::App& command, std::vector<BenchMode>* modes, std::vector<KindOrder>* kinds);
// Each mode on each number of ranks; as they are where none is given.
std::vector<BenchMode> WithRanks(const std::vector<BenchMode>& modes, const std::vector<int>& ranks);
// Each mode that attends with each of these; as they are where none is given.
std::vector<BenchMode> WithKvSplits(const std::vector<BenchMode>& modes, const std::vector<KvSplit>& splits);
// Each mode with each chunk; as they are where there is one chunk or none.
std::vector<BenchMode> WithChunks(const std::vector<BenchMode>& modes, const std::vector<int32_t>& chunks);
// Values of --chunk with commas between them.
Result<std::vector<int32_t>> ParseChunks(std::string_view text);
// The fields that distinguish a row's engine: its "sharing", its "kinds" where they are not auto, its "ranks", its "kv_split" and
// its "chunk" where they were given.
std::string ModeOf(const nlohmann::ordered_json& row);
// Those of the rows, in the order in which they come first.
std::vector<std::string> DistinctModes(const nlohmann::ordered_json& rows);

// --weights and --config: a model's shape with random weights in place of a model. `config` receives the latter. Called after
// AddEngineOptions, whose --weights it widens.
void AddWeightsOptions(CLI::App& command, EngineOptions& engine, std::string& config);
// Makes `engine` name what it will run, and looks whether it is there.
Status FindBenchModel(EngineOptions& engine, const std::string& config);
// Opens what FindBenchModel found.
Result<std::unique_ptr<Checkpoint>> OpenBenchModel(const EngineOptions& engine);

// A model's file name; of a shape with random weights the name of the folder that its config.json is in.
std::string BenchModelName(const EngineOptions& engine);

// Runs `measure` in a child process, so that its peak memory is its own, and returns its object or error. CANCELLED, and the child
// has ended, once the user interrupted this process (CatchFirstInterrupt). Called before this process has threads.
Result<nlohmann::ordered_json> MeasureInChild(const std::function<Result<nlohmann::ordered_json>()>& measure);
// The same for a measurement of many objects: each that it gives to its argument comes to `take` here at once, in order. An error
// of `take` ends the child and is returned.
using TakeMeasured = std::function<Status(nlohmann::ordered_json)>;
Status MeasureInChild(const std::function<Status(const TakeMeasured& give)>& measure, const TakeMeasured& take);

double Median(std::vector<double> values);

// One object out of several of the same shape: the median of each number, other values as in the first.
nlohmann::ordered_json Medians(const std::vector<nlohmann::ordered_json>& runs);

// Values of `key` in a report's rows, in the order in which they come first.
std::vector<nlohmann::ordered_json> Distinct(const nlohmann::ordered_json& rows, const char* key);

std::string CpuName();

// How a report as CSV begins.
inline constexpr std::string_view kReportCsvBegin = "prompt_tokens,samples,sharing", kPodCsvBegin = "set,model,gpus,chunk";
// Whether `text` is what a benchmark writes: a report as JSON, HTML or CSV, a machine model, or times of steps.
bool IsReport(const std::string& text);
// Whether WriteReport would write to `path`, which `option` gave: a new name, an empty file, or what a benchmark wrote before. OK
// for an empty path, which stands for no report. Called before hours of measurement.
Status CheckReport(const std::string& path, std::string_view option);
// Replaces the report whole, or leaves the old one; nothing for an empty path. Errors as CheckReport, or with the system's reason.
Status WriteReport(const std::string& path, const std::string& text, std::string_view option);

// A file of JSON lines to which a benchmark appends each row as soon as it is measured, so that a command that was cut off goes on
// where it ended. Lines of other commands may stand between the rows.
class AppendedRows {
 public:
  AppendedRows() = default;  // no file: has nothing, keeps nothing
  // `path`: empty for no file; one that does not exist is made by the first Append. INVALID_ARGUMENT for a line that is no object.
  static Result<AppendedRows> Read(std::string path);

  // Whether a row has all members of `settings`.
  bool Has(const nlohmann::ordered_json& settings) const;
  Status Append(const nlohmann::ordered_json& row) const;

 private:
  std::string path_;
  std::vector<nlohmann::json> rows_;
};

}  // namespace coppice::cli
