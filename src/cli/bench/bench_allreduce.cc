#include "cli/bench/bench_allreduce.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench/bench_support.h"
#include "cli/parsed_option.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
#include "core/check.h"
#include "core/device.h"
#include "engine/open_device.h"
#include "ops/peer_group.h"
#include "runner/rank_group.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;

struct BenchAllReduceOptions {
  std::string device = "cuda:0,cuda:1";
  int64_t cols = 4096;
  std::vector<int64_t> rows = {1, 16, 64, 256, 512, 1024, 4096, 8192};
  int32_t repeats = 20;
  std::string out;
};

constexpr int kSumsOfGraph = 20;
constexpr int64_t kHeadDim = 128;
constexpr size_t kElement = sizeof(float);

// A rank's device and what it adds up.
struct MeasuredRank {
  std::unique_ptr<Device> device;
  std::unique_ptr<OwnedStream> stream;
  std::unique_ptr<Event> begun, ended;
  DeviceMemory values, terms, normed, weight;  // f32, bf16 twice, f32
};

using Sum = std::function<Status(int rank, int64_t rows)>;

// Microseconds of one sum of rows x cols within a captured graph, on the first rank; the median.
Result<double> Microseconds(RankGroup& group, std::vector<MeasuredRank>& ranks, const Sum& sum, int64_t rows, int64_t cols,
                            int32_t repeats) {
  std::vector<double> times;
  COPPICE_RETURN_IF_ERROR(group.Run([&](int r) -> Status {
    MeasuredRank& rank = ranks[r];
    const Stream stream = rank.stream->get();
    const auto sums = [&]() -> Status {
      for (int i = 0; i < kSumsOfGraph; ++i) COPPICE_RETURN_IF_ERROR(sum(r, rows));
      return OkStatus();
    };
    COPPICE_RETURN_IF_ERROR(sums());  // libraries connect at their first call
    COPPICE_RETURN_IF_ERROR(rank.device->Synchronize(stream));
    COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Graph> graph, CaptureGraph(*rank.device, stream, sums));
    for (int32_t repeat = 0; repeat < repeats + 2; ++repeat) {
      COPPICE_RETURN_IF_ERROR(rank.device->Zero(rank.values.data(), rows * cols * kElement, stream));
      COPPICE_RETURN_IF_ERROR(rank.device->Synchronize(stream));
      COPPICE_RETURN_IF_ERROR(group.communicator(r).Barrier());
      COPPICE_RETURN_IF_ERROR(rank.device->Record(*rank.begun, stream));
      COPPICE_RETURN_IF_ERROR(rank.device->Launch(*graph, stream));
      COPPICE_RETURN_IF_ERROR(rank.device->Record(*rank.ended, stream));
      COPPICE_RETURN_IF_ERROR(rank.device->Synchronize(*rank.ended));
      if (r > 0 || repeat < 2) continue;
      COPPICE_ASSIGN_OR_RETURN(const double seconds, rank.device->SecondsBetween(*rank.begun, *rank.ended));
      times.push_back(1e6 * seconds / kSumsOfGraph);
    }
    return OkStatus();
  }));
  COPPICE_RETURN_IF_ERROR(group.CheckDone());
  return Median(times);
}

// The exchange of a layer between ranks that divide the tokens of a KV head: q of `cols` columns, a part of which is each one's, to
// all of them, then states to the ranks whose heads they are. Both are zeros in the memory of `values`.
Status ExchangeStates(Communicator& communicator, const MeasuredRank& rank, int64_t rows, int64_t cols) {
  const int64_t own = cols / communicator.size();
  std::byte* const base = rank.values.data();
  const auto bf16 = [&](std::byte* at, int64_t columns) { return DeviceTensor{at, DType::kBF16, rows, columns, columns}; };
  const DeviceTensor q = bf16(base, own), merged = bf16(base + rows * own * 2, own);
  const DeviceTensor lse = {base + rows * own * 4, DType::kF32, rows, cols / kHeadDim, cols / kHeadDim};
  COPPICE_RETURN_IF_ERROR(communicator.AllGather(q, bf16(rank.terms.data(), cols), rank.stream->get()));
  return communicator.MergeStates({.ranks = {0, communicator.size()}, .out = bf16(rank.normed.data(), cols), .lse = lse}, merged,
                                  rank.stream->get());
}

// Bytes a second of a large copy from the second rank's device to the first one's.
Result<double> LinkRate(std::vector<MeasuredRank>& ranks, int32_t repeats) {
  const MeasuredRank& first = ranks.front();
  const size_t bytes = first.values.size();
  std::vector<double> rates;
  for (int32_t repeat = 0; repeat < repeats; ++repeat) {
    COPPICE_RETURN_IF_ERROR(first.device->Record(*first.begun, first.stream->get()));
    COPPICE_RETURN_IF_ERROR(first.device->Copy(first.values.data(), ranks.back().values.data(), bytes, first.stream->get()));
    COPPICE_RETURN_IF_ERROR(first.device->Record(*first.ended, first.stream->get()));
    COPPICE_RETURN_IF_ERROR(first.device->Synchronize(*first.ended));
    COPPICE_ASSIGN_OR_RETURN(const double seconds, first.device->SecondsBetween(*first.begun, *first.ended));
    rates.push_back(static_cast<double>(bytes) / seconds);
  }
  return Median(rates);
}

Result<ExitCode> BenchAllReduce(const BenchAllReduceOptions& options) {
  COPPICE_RETURN_IF_ERROR(CheckReport(options.out, "--out"));
  COPPICE_ASSIGN_OR_RETURN(const std::vector<DeviceName> names, ParseDeviceNames(options.device));
  if (names.size() < 2 || names.front().kind != DeviceKind::kCuda) {
    return InvalidArgument("--device is \"" + options.device + "\": sums are over several GPUs; expected cuda:0,cuda:1 or more");
  }
  const int64_t max_bytes = *std::ranges::max_element(options.rows) * options.cols * static_cast<int64_t>(kElement);
  std::vector<MeasuredRank> ranks;
  std::vector<int> ordinals;
  for (const DeviceName& name : names) {
    MeasuredRank& rank = ranks.emplace_back();
    ordinals.push_back(name.ordinal);
    COPPICE_ASSIGN_OR_RETURN(rank.device, Device::CreateCuda(name.ordinal));
    COPPICE_ASSIGN_OR_RETURN(rank.stream, rank.device->CreateStream());
    COPPICE_ASSIGN_OR_RETURN(rank.begun, rank.device->CreateTimedEvent());
    COPPICE_ASSIGN_OR_RETURN(rank.ended, rank.device->CreateTimedEvent());
    COPPICE_ASSIGN_OR_RETURN(rank.values, rank.device->Allocate(max_bytes));
    COPPICE_ASSIGN_OR_RETURN(rank.terms, rank.device->Allocate(max_bytes / 2));
    COPPICE_ASSIGN_OR_RETURN(rank.normed, rank.device->Allocate(max_bytes / 2));
    COPPICE_ASSIGN_OR_RETURN(rank.weight, rank.device->Allocate(options.cols * kElement));
  }
  ordered_json report = {
      {"device", ranks.front().device->name()}, {"ranks", names.size()}, {"cols", options.cols}, {"rows", ordered_json::array()}};
  std::vector<std::vector<double>> times;  // of each form, by rows
  std::vector<std::string> forms, head = {"    rows"};
  std::string notes;
  double rate = 0;
  const auto measure = [&](const std::string& form, RankGroup& group, const Sum& sum) -> Status {
    forms.push_back(form);
    head.push_back(fmt::format("{:>17}", form + " us"));
    std::vector<double>& of_form = times.emplace_back();
    for (const int64_t rows : options.rows) {
      COPPICE_ASSIGN_OR_RETURN(const double microseconds, Microseconds(group, ranks, sum, rows, options.cols, options.repeats));
      of_form.push_back(microseconds);
    }
    if (rate == 0) {
      COPPICE_ASSIGN_OR_RETURN(rate, LinkRate(ranks, options.repeats));
    }
    return OkStatus();
  };
  struct Library {
    const char* name;
    Result<std::unique_ptr<CommunicatorGroup>> (*make)(std::span<const int>, int64_t);
  };
  for (const Library& library : {Library{"coppice", ops::MakePeerGroup}, Library{"nccl", ops::MakeNcclGroup}}) {
    Result<std::unique_ptr<CommunicatorGroup>> connected = library.make(ordinals, max_bytes);
    if (!connected.ok()) {
      notes += fmt::format("{} was not measured: {}\n", library.name, connected.status().message());
      continue;
    }
    COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<RankGroup> group, RankGroup::Create(*std::move(connected)));
    const auto values = [&](int r, int64_t rows) {
      return DeviceTensor{ranks[r].values.data(), DType::kF32, rows, options.cols, options.cols};
    };
    COPPICE_RETURN_IF_ERROR(measure(library.name, *group, [&](int r, int64_t rows) {
      return group->communicator(r).AllReduce(values(r, rows), ranks[r].stream->get());
    }));
    if (options.cols % (kHeadDim * std::ssize(names)) == 0) {
      COPPICE_RETURN_IF_ERROR(measure(library.name + std::string(" states"), *group, [&](int r, int64_t rows) {
        return ExchangeStates(group->communicator(r), ranks[r], rows, options.cols);
      }));
    }
    if (dynamic_cast<ops::PeerRank*>(&group->communicator(0)) == nullptr) continue;
    COPPICE_RETURN_IF_ERROR(measure(library.name + std::string(" + norm"), *group, [&](int r, int64_t rows) {
      const MeasuredRank& rank = ranks[r];
      const ConstDeviceTensor terms = {rank.terms.data(), DType::kBF16, rows, options.cols, options.cols};
      const DeviceTensor normed = {rank.normed.data(), DType::kBF16, rows, options.cols, options.cols};
      const ops::NormArgs norm = {.weight = {rank.weight.As<float>(), options.cols}};
      return dynamic_cast<ops::PeerRank&>(group->communicator(r)).AddNorm(terms, values(r, rows), norm, normed, rank.stream->get());
    }));
  }
  if (times.empty()) return Unavailable(notes);
  head.push_back(fmt::format("{:>13}", "f32 bytes us"));
  std::string text = RowForTerminal(head);
  const auto others = static_cast<double>(names.size() - 1);
  for (size_t i = 0; i < options.rows.size(); ++i) {
    const double bytes = static_cast<double>(options.rows[i] * options.cols) * kElement;
    // Time of the bytes that a rank receives at least: the others' terms of its share, and the sums of the others' shares.
    const double bound = 1e6 * bytes * 2 * others / static_cast<double>(names.size()) / rate;
    std::vector<std::string> cells = {fmt::format("{}", options.rows[i])};
    ordered_json row = {{"rows", options.rows[i]}};
    for (size_t form = 0; form < times.size(); ++form) {
      cells.push_back(fmt::format("{:.1f}", times[form][i]));
      row[forms[form] + " us"] = times[form][i];
    }
    cells.push_back(fmt::format("{:.1f}", bound));
    row["f32 bytes us"] = bound;
    report["rows"].push_back(std::move(row));
    text += RowForTerminal(FillUp(std::move(cells), head));
  }
  report["link_bytes_per_second"] = rate;
  text += fmt::format(
      "{} columns. Sums are of f32; states: no sum, but q in bf16 to all ranks, and states of heads of {} to the ranks whose they "
      "are, "
      "as where tokens of KV are divided; + norm: of bf16 terms, added to f32, with the norm of the rows. A copy between two of "
      "the "
      "devices: {:.0f} GB/s\n{}",
      options.cols, kHeadDim, rate / 1e9, notes);
  COPPICE_RETURN_IF_ERROR(Print(ForTerminal(text)));
  COPPICE_RETURN_IF_ERROR(WriteReport(options.out, report.dump(1) + "\n", "--out"));
  return ExitCode::kOk;
}

}  // namespace

Command AddBenchAllReduceCommand(CLI::App& bench) {
  const auto options = std::make_shared<BenchAllReduceOptions>();
  CLI::App* command = bench.add_subcommand(
      "allreduce", "Sums over ranks on GPUs, of rows x columns in f32 within a captured graph: kernels of Coppice beside NCCL");
  command->add_option("--device", options->device, "The ranks' GPUs")->capture_default_str();
  command->add_option("--cols", options->cols, "Columns: a model's hidden size")
      ->check(CLI::Range(4, 1 << 20))
      ->capture_default_str();
  command->add_option("--rows", options->rows, "Rows of a sum: a step's tokens")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "Launches of each graph; medians are printed")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->add_option("--out", options->out, "Write the result to this file as JSON")->check(NotEmpty());
  return {command, [options] { return BenchAllReduce(*options); }};
}

}  // namespace coppice::cli
