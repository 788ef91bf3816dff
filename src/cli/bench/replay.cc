#include "cli/bench/replay.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "cli/bench/bench_support.h"
#include "core/check.h"
#include "core/file.h"

namespace coppice::cli {
namespace {

using attention::BenchRow;
using attention::TracedLayers;
using nlohmann::ordered_json;

constexpr size_t kMostTraceBytes = size_t{1} << 30;  // decoded
constexpr size_t kCheckedSteps = 3;

// A file as it is, or what gzip packed into it.
Result<std::string> ReadDecoded(const std::string& path) {
  COPPICE_ASSIGN_OR_RETURN(const RegularFile opened, OpenRegularFile(path));
  const int copy = dup(opened.file.get());
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(copy < 0 ? nullptr : gzdopen(copy, "rb"), gzclose);
  if (!file) return SystemError("read", path);
  std::string text;
  for (int taken = 1; taken > 0;) {
    constexpr size_t kPiece = size_t{1} << 18;
    const size_t before = text.size();
    if (before > kMostTraceBytes) return InvalidArgument(fmt::format("{}: more than {} bytes when decoded", path, kMostTraceBytes));
    text.resize(before + kPiece);
    taken = gzread(file.get(), text.data() + before, kPiece);
    text.resize(before + static_cast<size_t>(std::max(taken, 0)));
  }
  int error = Z_OK;
  std::string_view why = gzerror(file.get(), &error);  // "<fd:4>: unexpected end of file"
  why.remove_prefix(why.find(' ') + 1);
  if (error != Z_OK && error != Z_STREAM_END) return DataLoss(fmt::format("{}: cannot read it as gzip: {}", path, why));
  return text;
}

std::vector<std::string_view> LinesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// The line of a step; the head is line 1.
Status AtStep(const std::string& path, int64_t step, const Status& status) {
  return Status(status.code(), fmt::format("{}:{}: {}", path, step + 1, status.message()));
}

Result<ReplayedStep> LayOutStep(const attention::TracedForest& forest, int64_t number, int32_t page_size) {
  ReplayedStep step{.number = number};
  COPPICE_ASSIGN_OR_RETURN(step.forest, attention::LayOutPages(forest, page_size));
  if (step.forest.num_queries() == 0) return InvalidArgument("no branch has queries, expected some in each step");
  return step;
}

}  // namespace

Result<ReplayedTrace> ReadForestTrace(const std::string& path, int32_t most_steps) {
  COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadDecoded(path));
  const std::vector<std::string_view> lines = LinesOf(text);
  const Result<attention::ForestTraceHead> head = attention::ParseForestTraceHead(lines.empty() ? "" : lines.front());
  if (!head.ok()) return AtStep(path, 0, head.status());
  ReplayedTrace trace{.path = path, .head = *head, .num_steps = std::ssize(lines) - 1};
  if (trace.num_steps == 0) return InvalidArgument(path + ": a trace without steps, expected at least one line behind the first");
  const int64_t wanted = most_steps == 0 ? trace.num_steps : std::min<int64_t>(most_steps, trace.num_steps);
  attention::ForestTraceReader reader;
  for (int64_t number = 1; number <= trace.num_steps; ++number) {
    if (const Status read = reader.ReadStep(lines[number]); !read.ok()) return AtStep(path, number, read);
    // The middle of each of `wanted` equal parts of the trace.
    if (number - 1 != (2 * std::ssize(trace.steps) + 1) * trace.num_steps / (2 * wanted)) continue;
    Result<ReplayedStep> step = LayOutStep(reader.forest(), number, trace.head.page_size);
    if (!step.ok()) return AtStep(path, number, step.status());
    trace.steps.push_back(*std::move(step));
  }
  return trace;
}

Result<ReplayResult> Replay(attention::AttentionBench& bench, const ReplayedTrace& trace, std::span<const TracedLayers> layers) {
  ReplayResult result{.rows = ordered_json::array()};
  std::vector<std::vector<double>> seconds(std::size(kReplayModes));  // by mode, of each step
  for (const attention::BenchMode mode : kReplayModes) result.totals.push_back({.mode = mode});
  const size_t check_every = std::max<size_t>(trace.steps.size() / kCheckedSteps, 1);
  for (size_t i = 0; i < trace.steps.size(); ++i) {
    const ReplayedStep& step = trace.steps[i];
    std::vector<ReplayTotals> of_step(std::size(kReplayModes));
    for (const TracedLayers& group : layers) {
      if (i % check_every == 0) {
        const Result<double> error = bench.Check(group.spec, step.forest);
        if (!error.ok()) return AtStep(trace.path, step.number, error.status());
        result.largest_error = std::max(result.largest_error, *error);
      }
      const Result<std::vector<BenchRow>> rows = bench.Run(group.spec, step.forest);
      if (!rows.ok()) return AtStep(trace.path, step.number, rows.status());
      for (size_t m = 0; m < rows->size(); ++m) {
        of_step[m].attention_s += group.num_layers * (*rows)[m].median_s;
        of_step[m].kv_bytes += group.num_layers * (*rows)[m].kv_bytes;
        of_step[m].kv_bytes_unshared += group.num_layers * (*rows)[m].kv_bytes_unshared;
      }
    }
    for (size_t m = 0; m < of_step.size(); ++m) {
      ReplayTotals& total = result.totals[m];
      total.attention_s += of_step[m].attention_s;
      total.kv_bytes += of_step[m].kv_bytes;
      total.kv_bytes_unshared += of_step[m].kv_bytes_unshared;
      seconds[m].push_back(of_step[m].attention_s);
      result.rows.push_back({{"step", step.number},
                             {"queries", step.forest.num_queries()},
                             {"mode", Name(total.mode)},
                             {"attention_us", of_step[m].attention_s * 1e6},
                             {"kv_bytes", of_step[m].kv_bytes},
                             {"kv_bytes_unshared", of_step[m].kv_bytes_unshared}});
    }
  }
  for (size_t m = 0; m < seconds.size(); ++m) result.totals[m].median_step_s = Median(seconds[m]);
  return result;
}

}  // namespace coppice::cli
