#include "cli/bench/bench_decode.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/bench/bench_support.h"
#include "cli/bench/decode_report.h"
#include "cli/interrupt.h"
#include "cli/parsed_option.h"
#include "cli/run_options.h"
#include "cli/run_stats.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
#include "coppice/engine/engine.h"
#include "core/check.h"
#include "core/device.h"
#include "core/thread_pool.h"
#include "engine/open_device.h"
#include "openai/generation.h"
#include "ops/peer_group.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;

// How long an engine lives.
enum class EngineLife : uint8_t {
  kAuto,  // kMode on a GPU, where loading takes longest; else kRun
  kRun,   // one run of a case, in a process of its own: its peak memory is its own
  kMode,  // all cases of a mode, one after the other
};

Result<EngineLife> ParseEngineLife(std::string_view text) {
  if (text == "auto") return EngineLife::kAuto;
  if (text == "run") return EngineLife::kRun;
  if (text == "mode") return EngineLife::kMode;
  return InvalidArgument(fmt::format("'{}' is none of auto, run and mode", text));
}

// Samples of a case that are searched for: as many as memory has room for.
constexpr int32_t kLargest = 0;
constexpr std::string_view kLargestName = "max";

Result<std::vector<int32_t>> ParseSampleCounts(std::string_view text) {
  return ParseList<int32_t>(text, [](std::string_view item) -> Result<int32_t> {
    if (item == kLargestName) return kLargest;
    int32_t count = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), count);
    if (error == std::errc() && end == item.data() + item.size() && count >= 1 && count <= (1 << 20)) return count;
    return InvalidArgument(fmt::format("'{}' is no number of samples; expected 1 to {}, or {}", item, 1 << 20, kLargestName));
  });
}

Result<std::vector<KvSplit>> ParseKvSplits(std::string_view text) { return ParseList<KvSplit>(text, ParseKvSplit); }

struct BenchDecodeOptions {
  EngineOptions engine;
  std::vector<int32_t> prompt_tokens = {512, 2048}, samples = {1, 8, 64};  // samples: kLargest among them
  std::vector<BenchMode> modes = AllSharingModes();
  std::vector<KindOrder> kinds = {KindOrder::kAuto};
  std::vector<int> ranks;          // none: as the device says
  std::vector<KvSplit> kv_splits;  // none: auto
  int32_t max_tokens = 32, repeats = 3;
  EngineLife engine_life = EngineLife::kAuto;
  bool beams = false;  // the samples of a case are the beams of one search
  std::string config, out, csv, html, append;
  std::vector<double> roofline;  // TB/s, TFLOP/s, or empty
};

struct DecodeCase {
  int32_t prompt_tokens = 0, samples = 0;  // samples: kLargest until it was found
  BenchMode mode;
  bool is_largest = false;
};

// The device that `options` name, which "auto" leaves to this machine. Asked in a child process: one that has used a GPU cannot
// fork any more.
Result<std::string> ChosenDevice(const EngineOptions& options) {
  if (options.device != "auto") return options.device;
  COPPICE_ASSIGN_OR_RETURN(const ordered_json answer, MeasureInChild([&]() -> Result<ordered_json> {
                             ThreadPool threads(1);
                             COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenDevice(options, &threads));
                             return ordered_json(NameOf(*device));
                           }));
  return answer.get<std::string>();
}

EngineOptions OptionsFor(const EngineOptions& options, const BenchMode& mode, int32_t samples) {
  EngineOptions chosen = mode.OptionsFor(options);
  chosen.max_running = std::max(chosen.max_running, samples);
  return chosen;
}

// An engine, and how long it took to begin.
class MeasuredEngine {
 public:
  static Result<MeasuredEngine> Create(const EngineOptions& options) {
    const auto begin = std::chrono::steady_clock::now();
    COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Create(options));
    return MeasuredEngine(options, std::move(engine), std::chrono::steady_clock::now() - begin);
  }

  // Runs a case, of which nothing is in the cache. Two fields are of a fresh engine alone, and null in all runs but the first: the
  // time from its begin to the first token and the case's peak of the process's memory. Token ids are arbitrary but fixed: speed
  // does not depend on them, and end-of-text is ignored.
  Result<ordered_json> Run(const DecodeCase& job, int32_t max_tokens, bool beams) {
    COPPICE_RETURN_IF_ERROR(CheckRoom(job, max_tokens));
    const bool is_first = runs_ == 0;
    Request request{.n = job.samples, .max_tokens = max_tokens, .ignore_eos = true};
    if (beams) {
      request.beams.width = std::exchange(request.n, 1);
      request.beams.early_stopping = EarlyStopping::kNever;
    }
    if (!is_first) request.cache_salt = fmt::format("run {}", runs_);
    ++runs_;
    for (int32_t i = 0; i < job.prompt_tokens; ++i) request.prompt_ids.push_back(1 + i * 31 % 200);
    Result<openai::Generation> generation = openai::Generate(*engine_, std::move(request), {});
    for (bool more = true; more;) {  // a step that was launched ahead, and what a failed request left
      COPPICE_ASSIGN_OR_RETURN(more, engine_->Step());
    }
    COPPICE_RETURN_IF_ERROR(generation.status());
    if (const int64_t preempted = generation->metrics.preemptions; preempted > 0)
      return ResourceExhausted(
          fmt::format("{} of {} samples gave their pages up: their KV does not fit beside each other", preempted, job.samples));
    ordered_json stats = ToJson(MakeRunStats(options_, engine_->model_info(), *generation));
    stats["first_token_seconds"] = is_first ? ordered_json(start_.count() + generation->metrics.prefill_seconds) : ordered_json();
    if (!is_first) stats["peak_rss_bytes"] = nullptr;
    return stats;
  }

  // The most samples of the case that fit beside each other, `most` at most: by runs, since only these say what the engine makes of
  // its pages. The first is of as many as the pages are enough for if a sample has one more than its tokens fill.
  // RESOURCE_EXHAUSTED where not even one fits.
  Result<int32_t> LargestBatch(DecodeCase job, int32_t max_tokens, bool beams, int32_t most) {
    const Pages pages = LeastPages(job, max_tokens);
    const int64_t expected = (engine_->Metrics().pages_total - pages.shared) / (pages.own + 1);
    int32_t fits = 0, beyond = most + 1;
    job.samples = static_cast<int32_t>(std::clamp<int64_t>(expected, 1, most));
    Status without_room;
    while (beyond - fits > 1) {
      const Result<ordered_json> run = Run(job, max_tokens, beams);
      if (!run.ok() && run.status().code() != StatusCode::kResourceExhausted) return run.status();
      if (!run.ok()) without_room = run.status();
      (run.ok() ? fits : beyond) = job.samples;
      job.samples = fits + (beyond - fits) / 2;
    }
    if (fits == 0) return without_room;
    return fits;
  }

 private:
  MeasuredEngine(const EngineOptions& options, std::unique_ptr<Engine> engine, std::chrono::duration<double> start)
      : options_(options), engine_(std::move(engine)), start_(start) {}

  // Pages that a case holds at the end, of all samples and of each: at least so many.
  struct Pages {
    int64_t shared = 0, own = 0;
  };
  Pages LeastPages(const DecodeCase& job, int32_t max_tokens) const {
    const bool copies = job.mode.attends && job.mode.sharing == SharingMode::kNone;
    const int64_t own = (copies ? job.prompt_tokens : 0) + max_tokens - 1;
    const int32_t page_size = engine_->model_info().page_size;
    return {.shared = copies ? 0 : job.prompt_tokens / page_size, .own = own / page_size};
  }
  // Whether the pages that the samples hold at the end, all at once, are there at all: where they are not, hours of samples that
  // give their pages up and begin again would end in the same answer.
  Status CheckRoom(const DecodeCase& job, int32_t max_tokens) const {
    const int64_t total = engine_->Metrics().pages_total;
    const Pages pages = LeastPages(job, max_tokens);
    const int64_t needed = pages.shared + job.samples * pages.own;
    if (needed <= total) return OkStatus();
    return ResourceExhausted(
        fmt::format("{} samples hold {} pages of KV or more, and the engine has {}", job.samples, needed, total));
  }

  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
  std::chrono::duration<double> start_;
  int64_t runs_ = 0;
};

// The row with how its engine divides KV, where that was given.
ordered_json WithKvSplit(const DecodeCase& job, ordered_json row) {
  if (job.mode.kv_split) row["kv_split"] = Name(*job.mode.kv_split);
  return row;
}

// A case that memory has no room for.
ordered_json WithoutRoom(const DecodeCase& job, const Status& status) {
  return WithKvSplit(job, {{"prompt_tokens", job.prompt_tokens},
                           {"samples", std::max(job.samples, 1)},  // where the largest number was searched for, none fits
                           {"largest", job.is_largest},
                           {"sharing", job.mode.sharing_name()},
                           {"kinds", Name(job.mode.kinds)},
                           {"ranks", job.mode.ranks},
                           {"out_of_memory", status.message()}});
}

// Medians of what varies, with the spread of the decode speed; the counted bytes are the same in every repeat. Null: measured by
// none of the runs.
ordered_json Summarize(const DecodeCase& job, const std::vector<ordered_json>& runs) {
  const auto median = [&](const char* key) {
    std::vector<double> values;
    for (const ordered_json& run : runs) {
      if (!run[key].is_null()) values.push_back(run[key]);
    }
    return values.empty() ? ordered_json() : ordered_json(Median(std::move(values)));
  };
  std::vector<double> decode;
  for (const ordered_json& run : runs) decode.push_back(run["decode_tokens_per_second"]);
  const auto [slowest, fastest] = std::ranges::minmax(decode);
  const double decode_steps = std::max(1.0, runs.front()["decode_steps"].get<double>());
  const double graph_steps = runs.front()["decode_graph_steps"].get<double>(), seconds = median("decode_seconds").get<double>();
  // Time of a step over the time of its graph on the device: all steps but a few are graphs.
  const ordered_json over_graph =
      graph_steps > 0 ? ordered_json(seconds / (seconds - median("device_idle_seconds").get<double>())) : ordered_json();
  return WithKvSplit(job, {{"prompt_tokens", job.prompt_tokens},
                           {"samples", job.samples},
                           {"largest", job.is_largest},
                           {"sharing", job.mode.sharing_name()},
                           {"kinds", Name(job.mode.kinds)},
                           {"ranks", job.mode.ranks},
                           {"runs", runs.size()},
                           {"decode_tokens_per_second", median("decode_tokens_per_second")},
                           {"decode_tokens_per_second_range", {slowest, fastest}},
                           {"prefill_tokens_per_second", median("prefill_tokens_per_second")},
                           {"peak_rss_bytes", median("peak_rss_bytes")},
                           {"kv_bytes_read_per_step", runs.front()["kv_bytes_read_per_step"]},
                           {"kv_bytes_distinct_per_step", runs.front()["kv_bytes_distinct_per_step"]},
                           {"kv_bytes_stored", runs.front()["kv_bytes_stored"]},
                           {"steps", runs.front()["steps"]},
                           {"decode_steps", runs.front()["decode_steps"]},
                           {"graph_steps", runs.front()["graph_steps"]},
                           {"bubbles", median("bubbles")},
                           {"decode_seconds", median("decode_seconds")},
                           {"device_idle_seconds", median("device_idle_seconds")},
                           {"step_ms", 1e3 * seconds / decode_steps},
                           {"graph_step_share", graph_steps / decode_steps},
                           {"step_over_graph", over_graph},
                           {"first_token_seconds", median("first_token_seconds")}});
}

// The measurement: what each case gave so far is printed and in the reports as soon as it is there.
class BenchDecode {
 public:
  explicit BenchDecode(BenchDecodeOptions options) : options_(std::move(options)) {}

  Result<ExitCode> Run() {
    COPPICE_RETURN_IF_ERROR(Validate(options_.engine));
    COPPICE_RETURN_IF_ERROR(CheckReport(options_.out, "--out"));
    COPPICE_RETURN_IF_ERROR(CheckReport(options_.csv, "--csv"));
    COPPICE_RETURN_IF_ERROR(CheckReport(options_.html, "--html"));
    COPPICE_RETURN_IF_ERROR(FindBenchModel(options_.engine, options_.config));
    options_.modes = WithKvSplits(WithRanks(WithKinds(options_.modes, options_.kinds), options_.ranks), options_.kv_splits);
    for (const int32_t prompt : options_.prompt_tokens) {
      for (const int32_t samples : options_.samples) {
        for (const BenchMode& mode : options_.modes)
          cases_.push_back({.job = {prompt, samples, mode, samples == kLargest}, .runs = {}, .without_room = {}});
      }
    }
    if (!options_.ranks.empty()) options_.engine.device = FirstGpus(options_.ranks.front());
    COPPICE_ASSIGN_OR_RETURN(options_.engine.device, ChosenDevice(options_.engine));
    COPPICE_RETURN_IF_ERROR(SkipAppended());
    if (options_.engine_life == EngineLife::kAuto)
      options_.engine_life = IsOnCpus(options_.engine.device) ? EngineLife::kRun : EngineLife::kMode;
    CatchFirstInterrupt();
    const Status status = options_.engine_life == EngineLife::kMode ? MeasureByMode() : MeasureByRun();
    ShowProgress("");
    if (!status.ok() && status.code() != StatusCode::kCancelled) return status;
    for (Measured& measured : cases_) COPPICE_RETURN_IF_ERROR(PrintRow(measured));  // those that were interrupted
    for (const Measured& measured : cases_) {
      if (!measured.without_room.ok()) std::cerr << fmt::format("x: {}\n", measured.without_room.message());
    }
    COPPICE_RETURN_IF_ERROR(PrintAttention());
    return status.ok() ? ExitCode::kOk : ExitCode::kInterrupted;
  }

 private:
  struct Measured {
    DecodeCase job;
    std::vector<ordered_json> runs;
    Status without_room;
    bool is_printed = false, is_appended = false;  // the latter by an earlier command

    bool is_empty() const { return runs.empty() && without_room.ok(); }
    ordered_json row() const { return without_room.ok() ? Summarize(job, runs) : WithoutRoom(job, without_room); }
  };

  // Modes, and all else, in turns.
  Status MeasureByRun() {
    for (Measured& measured : cases_) {
      if (measured.job.samples != kLargest || measured.is_appended) continue;
      ShowProgress(
          fmt::format("{}, {} tokens: searching the largest batch", measured.job.mode.sharing_name(), measured.job.prompt_tokens));
      const Result<ordered_json> found = MeasureInChild([&]() -> Result<ordered_json> {
        COPPICE_ASSIGN_OR_RETURN(MeasuredEngine engine, MeasuredEngine::Create(OptionsFor(options_.engine, measured.job.mode, 1)));
        COPPICE_ASSIGN_OR_RETURN(const int32_t samples, SearchLargest(engine, measured.job));
        return ordered_json(samples);
      });
      if (found.ok()) {
        measured.job.samples = found->get<int32_t>();
      } else {
        COPPICE_RETURN_IF_ERROR(Take(measured, found.status()));
      }
    }
    for (int32_t repeat = 0; repeat < options_.repeats; ++repeat) {
      for (size_t c = 0; c < cases_.size(); ++c) {
        ShowProgress(fmt::format("repeat {}/{}, case {}/{}", repeat + 1, options_.repeats, c + 1, cases_.size()));
        if (cases_[c].is_appended || !cases_[c].without_room.ok()) continue;
        const DecodeCase& job = cases_[c].job;
        Result<ordered_json> stats = MeasureInChild([&]() -> Result<ordered_json> {
          COPPICE_ASSIGN_OR_RETURN(MeasuredEngine engine,
                                   MeasuredEngine::Create(OptionsFor(options_.engine, job.mode, job.samples)));
          return engine.Run(job, options_.max_tokens, options_.beams);
        });
        COPPICE_RETURN_IF_ERROR(Take(cases_[c], std::move(stats)));
      }
    }
    return OkStatus();
  }

  Status MeasureByMode() {
    const int32_t samples = std::ranges::max(options_.samples);
    for (const BenchMode& mode : options_.modes) {
      const auto is_due = [&](const Measured& measured) { return measured.job.mode == mode && !measured.is_appended; };
      if (std::ranges::none_of(cases_, is_due)) continue;
      ShowProgress(fmt::format("{}: starting", mode.sharing_name()));
      const auto measure = [&](const TakeMeasured& give) -> Status {
        Result<MeasuredEngine> engine = MeasuredEngine::Create(OptionsFor(options_.engine, mode, samples));
        for (size_t c = 0; c < cases_.size(); ++c) {
          if (!is_due(cases_[c])) continue;
          DecodeCase job = cases_[c].job;
          Status searched;
          if (job.samples == kLargest && engine.ok()) {
            const Result<int32_t> found = SearchLargest(*engine, job);
            searched = found.status();
            if (found.ok()) COPPICE_RETURN_IF_ERROR(give({{"case", c}, {"samples", job.samples = *found}}));
          }
          bool has_room = true;
          for (int32_t repeat = 0; has_room && repeat < options_.repeats; ++repeat) {
            const Status ready = engine.ok() ? searched : engine.status();
            Result<ordered_json> stats =
                ready.ok() ? engine->Run(job, options_.max_tokens, options_.beams) : Result<ordered_json>(ready);
            has_room = stats.ok();
            if (!has_room && stats.status().code() != StatusCode::kResourceExhausted) return stats.status();
            COPPICE_RETURN_IF_ERROR(give(has_room ? ordered_json{{"case", c}, {"stats", *std::move(stats)}}
                                                  : ordered_json{{"case", c}, {"without_room", stats.status().message()}}));
          }
        }
        return OkStatus();
      };
      COPPICE_RETURN_IF_ERROR(MeasureInChild(measure, [&](ordered_json run) {
        Measured& measured = cases_[run["case"].get<size_t>()];
        if (run.contains("samples")) {
          measured.job.samples = run["samples"].get<int32_t>();
          return OkStatus();
        }
        return Take(measured, run.contains("stats") ? Result<ordered_json>(std::move(run["stats"]))
                                                    : ResourceExhausted(run["without_room"].get<std::string>()));
      }));
    }
    return OkStatus();
  }

  Result<int32_t> SearchLargest(MeasuredEngine& engine, const DecodeCase& job) const {
    return engine.LargestBatch(job, options_.max_tokens, options_.beams, options_.engine.max_running);
  }

  // A run of a case ended.
  Status Take(Measured& measured, Result<ordered_json> stats) {
    if (stats.ok()) {
      measured.runs.push_back(*std::move(stats));
    } else if (stats.status().code() == StatusCode::kResourceExhausted) {
      measured.without_room = stats.status();
    } else {
      return stats.status();
    }
    if (std::ssize(measured.runs) == options_.repeats || !measured.without_room.ok()) {
      COPPICE_RETURN_IF_ERROR(PrintRow(measured));
      COPPICE_RETURN_IF_ERROR(Append(measured));
    }
    return WriteReports(Report());
  }

  // Settings by which --append's lines are the same measurement of a case.
  ordered_json Settings(const DecodeCase& job) const {
    const EngineOptions& engine = options_.engine;
    ordered_json settings = {{"model", BenchModelName(options_.engine)},
                             {"device", engine.device},
                             {"max_tokens", options_.max_tokens},
                             {"repeats", options_.repeats},
                             {"max_batch_tokens", engine.max_batch_tokens},
                             {"page_size", engine.page_size},
                             {"prompt_tokens", job.prompt_tokens},
                             {"samples", job.samples},
                             {"sharing", job.mode.sharing_name()},
                             {"kinds", Name(job.mode.kinds)},
                             {"ranks", job.mode.ranks}};
    if (job.mode.kv_split) settings["kv_split"] = Name(*job.mode.kv_split);
    if (job.is_largest) {  // how many samples there will be is not known before
      settings.erase("samples");
      settings.update({{"asked_samples", kLargestName}, {"max_running", engine.max_running}});
    }
    return settings;
  }

  // Cases that an earlier command appended are not measured again.
  Status SkipAppended() {
    COPPICE_ASSIGN_OR_RETURN(appended_, AppendedRows::Read(options_.append));
    for (Measured& measured : cases_) measured.is_appended = appended_.Has(Settings(measured.job));
    return OkStatus();
  }

  Status Append(const Measured& measured) const {
    ordered_json line = Settings(measured.job);
    line.update(measured.row());
    return appended_.Append(line);
  }

  // The last line of a terminal, without a line break; "" removes it.
  static void ShowProgress(std::string_view text) {
    if (isatty(STDERR_FILENO)) std::cerr << "\r\x1b[K" << text << std::flush;
  }

  Status PrintRow(Measured& measured) {
    if (measured.is_empty() || std::exchange(measured.is_printed, true)) return OkStatus();
    ShowProgress("");
    return Print((std::exchange(has_head_, true) ? "" : RowForTerminal(DecodeHeadCells())) +
                 RowForTerminal(DecodeRowCells(measured.row())));
  }

  // The time of attention, where the step without it is there to compare; reports have it then, too.
  Status PrintAttention() {
    if (std::ranges::none_of(options_.modes, [](const BenchMode& mode) { return !mode.attends; })) return OkStatus();
    COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenBenchModel(options_.engine));
    std::optional<Roofline> roofline;
    if (!options_.roofline.empty())
      roofline = {.bytes_per_second = 1e12 * options_.roofline[0], .flops_per_second = 1e12 * options_.roofline[1]};
    ordered_json report = Report();
    AddAttention(checkpoint->config(), options_.max_tokens, roofline, &report["rows"]);
    COPPICE_RETURN_IF_ERROR(Print(ForTerminal(FormatAttention(checkpoint->config(), report["rows"]))));
    return WriteReports(report);
  }

  // The dtype that the engines chose, where the options leave it to them.
  std::string DTypeName() const {
    if (options_.engine.dtype) return std::string(Name(*options_.engine.dtype));
    const auto ran = std::ranges::find_if(cases_, [](const Measured& measured) { return !measured.runs.empty(); });
    return ran == cases_.end() ? "auto" : ran->runs.front()["dtype"].get<std::string>();
  }

  // In the order of the cases, those that ran.
  ordered_json Report() const {
    const EngineOptions& engine = options_.engine;
    ordered_json report = {{"model", BenchModelName(options_.engine)},
                           {"device", engine.device},
                           {"dtype", DTypeName()},
                           {"page_size", engine.page_size},
                           {"cpu", CpuName()},
                           {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
                           {"threads", engine.num_threads},
                           {"max_tokens", options_.max_tokens},
                           {"repeats", options_.repeats},
                           {"engine_per", options_.engine_life == EngineLife::kMode ? "mode" : "run"},
                           {"rows", ordered_json::array()}};
    for (const Measured& measured : cases_) {
      if (!measured.is_empty()) report["rows"].push_back(measured.row());
    }
    return report;
  }

  Status WriteReports(const ordered_json& report) const {
    COPPICE_RETURN_IF_ERROR(WriteReport(options_.out, report.dump(1) + "\n", "--out"));
    COPPICE_RETURN_IF_ERROR(WriteReport(options_.csv, DecodeReportCsv(report["rows"]), "--csv"));
    return WriteReport(options_.html, DecodeReportHtml(report), "--html");
  }

  BenchDecodeOptions options_;
  std::vector<Measured> cases_;
  AppendedRows appended_;
  bool has_head_ = false;  // the head of the table was printed
};

}  // namespace

Command AddBenchDecodeCommand(CLI::App& bench) {
  const auto options = std::make_shared<BenchDecodeOptions>();
  CLI::App* command =
      bench.add_subcommand("decode", "Decode tokens/s and peak memory in the four sharing modes, interleaved, medians");
  command->add_option("--prompt-tokens", options->prompt_tokens, "Prompt lengths")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  AddParsed<std::vector<int32_t>>(*command, "-n,--samples", options->samples, ParseSampleCounts,
                                  "Samples of a prompt, a list (default: 1,8,64); max: as many as memory has room for, found by "
                                  "runs, --max-running at most");
  command->add_option("--max-tokens", options->max_tokens, "Tokens of each sample")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "Runs of each case")->check(CLI::Range(1, 1000))->capture_default_str();
  command->add_flag("--beams", options->beams, "The samples of a case are the beams of one search");
  AddParsed<EngineLife>(*command, "--engine-per", options->engine_life, ParseEngineLife,
                        "run: each run of a case on a fresh engine in a process of its own; mode: all cases of a mode on one "
                        "engine, which loads the model once; auto (default): mode on a GPU, run on a CPU");
  command->add_option("--out", options->out, "Write the result to this file as JSON")->check(NotEmpty());
  command->add_option("--csv", options->csv, "Write it to this file as CSV, a line a case")->check(NotEmpty());
  command->add_option("--html", options->html, "Write a page with plots to this file")->check(NotEmpty());
  command
      ->add_option("--append", options->append,
                   "Append each case to this file as a line of JSON once it is measured; cases that the file has are left out")
      ->check(NotEmpty());
  command
      ->add_option("--roofline", options->roofline,
                   "TB/s and TFLOP/s of the device: beside no-attention, the bound of a step's attention, too")
      ->expected(2)
      ->check(AboveZero());
  AddModesOptions(*command, &options->modes, &options->kinds);
  AddEngineOptions(*command, options->engine);
  AddWeightsOptions(*command, options->engine, options->config);
  command->remove_option(command->get_option("--sharing"));  // every mode is measured
  command->remove_option(command->get_option("--tp"));
  command->add_option("--tp", options->ranks, "Tensor parallelism: each mode on the first N GPUs, for each N of this list")
      ->delimiter(',')
      ->check(CLI::Range(1, ops::kMostPeers))
      ->excludes(command->get_option("--device"));
  command->remove_option(command->get_option("--kv-split"));
  AddParsed<std::vector<KvSplit>>(
      *command, "--kv-split", options->kv_splits, ParseKvSplits,
      "What of KV heads that several ranks have each rank holds, a list: heads: all tokens; tokens: its "
      "part of them; auto (default): tokens unless that is predicted to be slower");
  return {command, [options] { return BenchDecode(*options).Run(); }};
}

}  // namespace coppice::cli
