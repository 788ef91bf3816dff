#include "cli/bench/bench_support.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "attention/cost_model.h"
#include "cli/bench/report_page.h"
#include "cli/interrupt.h"
#include "cli/load_engine.h"
#include "cli/parsed_option.h"
#include "cli/read_file.h"
#include "cli/run_options.h"
#include "core/check.h"
#include "core/exhaustion.h"
#include "core/file.h"
#include "core/json.h"
#include "hub/model_store.h"
#include "model/random_checkpoint.h"
#include "simulate/step_times.h"

namespace coppice::cli {

using nlohmann::ordered_json;

namespace {

// The file that `path` leads to, if a report may be written there.
Result<std::string> ResolveReport(const std::string& path, std::string_view option) {
  COPPICE_ASSIGN_OR_RETURN(std::string resolved, ResolveOutput(path));
  if (std::error_code absent; !std::filesystem::exists(resolved, absent)) return resolved;
  COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(resolved, option));
  if (!text.empty() && !IsReport(text)) {
    return InvalidArgument(
        fmt::format("{} {} holds something else than a report, which would be lost; give another name or remove it", option, path));
  }
  return resolved;
}

// Hands over what a child measured: its pipe has an object a line, of which the last one says how it ended.
Status TakeFromChild(int pipe, const TakeMeasured& take) {
  constexpr int kMilliseconds = 100;  // until an interruption that came just before the wait is noticed
  std::string text;
  std::array<char, 4096> piece;
  for (;;) {
    for (size_t end; (end = text.find('\n')) != text.npos; text.erase(0, end + 1)) {
      ordered_json line = ordered_json::parse(text.substr(0, end));
      if (line.contains("error")) return Status(static_cast<StatusCode>(line["code"].get<int>()), line["error"].get<std::string>());
      COPPICE_RETURN_IF_ERROR(take(std::move(line["measured"])));
    }
    if (Interrupted()) return Status(StatusCode::kCancelled, "interrupted");
    pollfd ready = {.fd = pipe, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, kMilliseconds) <= 0) continue;
    const ssize_t count = read(pipe, piece.data(), piece.size());
    if (count <= 0) return Internal("the measuring process ended early; is there enough memory?");
    text.append(piece.data(), static_cast<size_t>(count));
  }
}

}  // namespace

EngineOptions BenchMode::OptionsFor(EngineOptions options) const {
  options.sharing = sharing;
  options.experiment.without_attention = !attends;
  options.experiment.kinds = kinds;
  if (ranks > 0) options.device = FirstGpus(ranks);
  options.kv_split = kv_split.value_or(options.kv_split);
  options.chunk = chunk.value_or(options.chunk);
  return options;
}

std::vector<BenchMode> AllSharingModes() {
  std::vector<BenchMode> modes;
  for (const SharingMode sharing : kSharingModes) modes.push_back({.sharing = sharing});
  return modes;
}

Result<std::vector<BenchMode>> ParseBenchModes(std::string_view text) {
  return ParseList<BenchMode>(text, [](std::string_view name) -> Result<BenchMode> {
    if (name == BenchMode::kNoAttention) return BenchMode{.attends = false};
    const Result<SharingMode> sharing = ParseSharingMode(name);
    if (sharing.ok()) return BenchMode{.sharing = *sharing};
    return InvalidArgument(
        fmt::format("'{}' is no mode; expected tree, one-level, store, none or {}", name, BenchMode::kNoAttention));
  });
}

Result<std::vector<KindOrder>> ParseKindOrders(std::string_view text) {
  return ParseList<KindOrder>(text, [](std::string_view name) -> Result<KindOrder> {
    for (const KindOrder order : {KindOrder::kAuto, KindOrder::kOverlapped, KindOrder::kSerial, KindOrder::kTwoLaunches}) {
      if (Name(order) == name) return order;
    }
    return InvalidArgument(fmt::format("'{}' is no order of kinds; expected auto, overlapped, serial or two-launches", name));
  });
}

std::vector<BenchMode> WithKinds(const std::vector<BenchMode>& modes, const std::vector<KindOrder>& orders) {
  std::vector<BenchMode> combined;
  const auto add = [&](const BenchMode& mode) {
    if (std::ranges::find(combined, mode) == combined.end()) combined.push_back(mode);
  };
  for (const BenchMode& mode : modes) {
    if (!mode.attends) add(mode);
    for (const KindOrder order : mode.attends ? orders : std::vector<KindOrder>())
      add({.sharing = mode.sharing, .attends = true, .kinds = order});
  }
  return combined;
}

std::vector<BenchMode> WithRanks(const std::vector<BenchMode>& modes, const std::vector<int>& ranks) {
  if (ranks.empty()) return modes;
  std::vector<BenchMode> combined;
  for (const int count : ranks) {
    for (BenchMode mode : modes) {
      mode.ranks = count;
      combined.push_back(mode);
    }
  }
  return combined;
}

std::vector<BenchMode> WithKvSplits(const std::vector<BenchMode>& modes, const std::vector<KvSplit>& splits) {
  if (splits.empty()) return modes;
  std::vector<BenchMode> combined;
  for (BenchMode mode : modes) {
    if (!mode.attends) combined.push_back(mode);
    for (const KvSplit split : mode.attends ? splits : std::vector<KvSplit>()) {
      mode.kv_split = split;
      combined.push_back(mode);
    }
  }
  return combined;
}

std::vector<BenchMode> WithChunks(const std::vector<BenchMode>& modes, const std::vector<int32_t>& chunks) {
  if (chunks.size() < 2) return modes;
  std::vector<BenchMode> combined;
  for (BenchMode mode : modes) {
    for (const int32_t chunk : chunks) {
      mode.chunk = chunk;
      if (std::ranges::find(combined, mode) == combined.end()) combined.push_back(mode);
    }
  }
  return combined;
}

Result<std::vector<int32_t>> ParseChunks(std::string_view text) { return ParseList<int32_t>(text, ParseChunk); }

void AddModesOptions(CLI::App& command, std::vector<BenchMode>* modes, std::vector<KindOrder>* kinds) {
  AddParsed<std::vector<BenchMode>>(command, "--modes", *modes, ParseBenchModes,
                                    "Modes to measure: tree, one-level, store, none (default: these), and no-attention, steps "
                                    "without their attention");
  AddParsed<std::vector<KindOrder>>(
      command, "--kinds", *kinds, ParseKindOrders,
      "How attention of many rows and of few run in a step, a list: auto (default): as predicted to take least; overlapped: side "
      "by side wherever there is a kernel for it; serial: one after the other in one launch; two-launches: a kernel for prompts' "
      "chunks, then one for what decodes");
}

std::string ModeOf(const ordered_json& row) {
  const std::string sharing = row["sharing"].get<std::string>(), kinds = row.value("kinds", "auto");
  const int ranks = row.value("ranks", 0);
  const int32_t chunk = row.value("chunk", 0);
  const std::string split = row.value("kv_split", "");
  const std::string of_chunk = !row.contains("chunk") ? "" : chunk == kAutoChunk ? " chunk auto" : fmt::format(" chunk {}", chunk);
  return sharing + (kinds == Name(KindOrder::kAuto) ? "" : " " + kinds) + (ranks == 0 ? "" : fmt::format(" tp {}", ranks)) +
         (split.empty() ? "" : fmt::format(" by {}", split)) + of_chunk;
}

std::vector<std::string> DistinctModes(const ordered_json& rows) {
  std::vector<std::string> modes;
  for (const ordered_json& row : rows) {
    if (std::ranges::find(modes, ModeOf(row)) == modes.end()) modes.push_back(ModeOf(row));
  }
  return modes;
}

void AddWeightsOptions(CLI::App& command, EngineOptions& engine, std::string& config) {
  AddRandomWeights(command, engine, "--model, as in coppice run; random: of the shape that --config says, bf16");
  command.add_option("--config", config, "A model's config.json, for --weights random")->check(NotEmpty());
}

Status FindBenchModel(EngineOptions& engine, const std::string& config) {
  if (engine.experiment.random_weights != !config.empty())
    return InvalidArgument("--weights random and --config FILE go together; give both or neither");
  if (engine.experiment.random_weights) engine.model_path = config;
  COPPICE_ASSIGN_OR_RETURN(engine.model_path, hub::FindModel(engine.model_path));
  return OkStatus();
}

Result<std::unique_ptr<Checkpoint>> OpenBenchModel(const EngineOptions& engine) {
  return engine.experiment.random_weights ? MakeRandomCheckpoint(engine.model_path) : Checkpoint::Open(engine.model_path);
}

std::string BenchModelName(const EngineOptions& engine) {
  const std::string& path = engine.model_path;
  return ModelName(engine.experiment.random_weights ? std::filesystem::absolute(path).parent_path().string() : path);
}

Status MeasureInChild(const std::function<Status(const TakeMeasured& give)>& measure, const TakeMeasured& take) {
  int ends[2];
  if (pipe(ends) != 0) return Internal(fmt::format("pipe: {}", std::strerror(errno)));
  const pid_t child = fork();
  if (child < 0) return Internal(fmt::format("fork: {}", std::strerror(errno)));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // without a reader from then on
    close(ends[0]);
    const auto write = [&](const ordered_json& line) { return WriteAll(ends[1], line.dump() + "\n", "the pipe"); };
    const auto give = [&](ordered_json object) { return write({{"measured", std::move(object)}}); };
    const Status status = CatchExhaustion("measuring", [&] { return measure(give); });
    _exit(write({{"code", static_cast<int>(status.code())}, {"error", status.message()}}).ok() ? 0 : 1);
  }
  close(ends[1]);
  const Status status = TakeFromChild(ends[0], take);
  close(ends[0]);
  kill(child, SIGKILL);  // where it has not ended by itself
  waitpid(child, nullptr, 0);
  return status;
}

Result<ordered_json> MeasureInChild(const std::function<Result<ordered_json>()>& measure) {
  ordered_json result;
  COPPICE_RETURN_IF_ERROR(MeasureInChild(
      [&](const TakeMeasured& give) -> Status {
        COPPICE_ASSIGN_OR_RETURN(ordered_json object, measure());
        return give(std::move(object));
      },
      [&](ordered_json object) {
        result = std::move(object);
        return OkStatus();
      }));
  return result;
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

ordered_json Medians(const std::vector<ordered_json>& runs) {
  const ordered_json& first = runs.front();
  if (first.is_number()) {
    std::vector<double> values;
    for (const ordered_json& run : runs) {
      if (run.is_number()) values.push_back(run.get<double>());  // null where a run measured nothing
    }
    const double median = Median(std::move(values));
    return first.is_number_integer() ? ordered_json(static_cast<int64_t>(median)) : ordered_json(median);
  }
  if (!first.is_structured()) return first;
  ordered_json combined = first;
  for (auto element = combined.begin(); element != combined.end(); ++element) {
    std::vector<ordered_json> values;
    for (const ordered_json& run : runs)
      values.push_back(first.is_object() ? run.at(element.key()) : run.at(static_cast<size_t>(element - combined.begin())));
    *element = Medians(values);
  }
  return combined;
}

std::vector<ordered_json> Distinct(const ordered_json& rows, const char* key) {
  std::vector<ordered_json> values;
  for (const ordered_json& row : rows) {
    if (std::ranges::find(values, row[key]) == values.end()) values.push_back(row[key]);
  }
  return values;
}

std::string CpuName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

bool IsReport(const std::string& text) {
  if (text.starts_with(kReportHtmlBegin) || text.starts_with(kReportCsvBegin) || text.starts_with(kPodCsvBegin)) return true;
  const ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto has = [&](const char* key) { return json.is_object() && json.contains(key); };
  return (has("rows") && json["rows"].is_array()) || (has("eval") && has("modes")) || has("update_seconds") ||
         attention::ParseMachineModel(text).ok() || simulate::StepTimes::Parse(text).ok();
}

Status CheckReport(const std::string& path, std::string_view option) {
  return path.empty() ? OkStatus() : ResolveReport(path, option).status();
}

Status WriteReport(const std::string& path, const std::string& text, std::string_view option) {
  if (path.empty()) return OkStatus();
  COPPICE_ASSIGN_OR_RETURN(const std::string resolved, ResolveReport(path, option));
  return ReplaceFile(resolved, text);
}

Result<AppendedRows> AppendedRows::Read(std::string path) {
  AppendedRows appended;
  appended.path_ = std::move(path);
  if (appended.path_.empty() || !std::filesystem::exists(appended.path_)) return appended;
  COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(appended.path_, "--append"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    Result<nlohmann::json> row = ParseJson(line);
    if (!row.ok() || !row->is_object()) {
      return InvalidArgument(fmt::format("{}:{} is no JSON object; --append takes a file of one object a line", appended.path_,
                                         appended.rows_.size() + 1));
    }
    appended.rows_.push_back(*std::move(row));
  }
  return appended;
}

bool AppendedRows::Has(const ordered_json& settings) const {
  return std::ranges::any_of(rows_, [&](const nlohmann::json& row) {
    return std::ranges::all_of(settings.items(), [&](const auto& setting) {
      return row.contains(setting.key()) && row[setting.key()] == nlohmann::json(setting.value());
    });
  });
}

Status AppendedRows::Append(const ordered_json& row) const {
  if (path_.empty()) return OkStatus();
  const FileDescriptor file(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (file.get() < 0) return SystemError("append to", path_);
  return WriteAll(file.get(), row.dump() + "\n", path_);
}

}  // namespace coppice::cli
