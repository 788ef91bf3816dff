// Attention of one layer on the device: the shapes, trees and hybrid batches of docs/kernels/hopper.md, planned by the real
// planner, checked against fp64, timed as CUDA graph replays with the L2 flushed in between (median). Bounds from the copy rate
// measured in the same run and the matrix rate given (--matmul-tflops, by default the 783 that a bf16 8192-cube product reaches on
// an H200). Ends with status 1 if a case's error is above kMostError.
//   attention_cuda_bench [--cases A1,tree3,8/1:512+16x64] [--policy tree|store] [--iterations n] [--flush on|off] [--json file]
//   attention_cuda_bench --sweep on [--deterministic on] [--json file]   one shared prefix over a grid of shapes: the plan beside
//                                                     that which shares nothing and that which shares everything, cell by cell
//   attention_cuda_bench --figures on [--json file]   the grids of Hydragen's figures 5 and 8 and of Cascade Inference's figure 4:
//                                                     speed-up over reading the prefix once a request, from one copy (store) and
//                                                     from a copy each (none), beside RelayAttention's eq. 10
//   attention_cuda_bench --deterministic on [--cases ..] [--json file]   each case in deterministic mode beside the fast mode, in
//                                                     turns
//   attention_cuda_bench --overlap on [--cases ..] [--json file]   each case with overlapped tiles where they are predicted to
//                                                     gain beside the same without any, in turns
//   attention_cuda_bench --sustained SECONDS [--cases ..] [--json file]   each case, and the same without overlapped tiles where
//                                                     it has some, in bursts (as by default) and in replays one after the
//                                                     other for so long, of which the second half counts, with the SMs'
//                                                     clock and the power
//   attention_cuda_bench --page-size N [--page-run T] [--cases ..] [--json file]   each case with pages of N tokens, runs of T of
//   them
//                                                     one after the other (by default a page), beside the same with pages of 16
//   attention_cuda_bench --calibrate on               the machine model of this card, as `coppice bench calibrate --device cuda`
// --machine FILE: plan by this model in place of the shipped one.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "attention/cuda/cuda_backend.h"
#include "attention/cuda/device_memory.h"
#include "attention/plan.h"
#include "attention_tools/attention_cases.h"
#include "attention_tools/calibrate_gpu.h"
#include "attention_tools/case_forest.h"
#include "attention_tools/cuda/bench_kernels.h"
#include "attention_tools/cuda/gpu_sensors.h"
#include "core/check.h"
#include "core/interleaved_timing.h"

namespace coppice::attention::cuda::bench {
namespace {

using Case = AttentionCase;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
template <class T>
T Take(Result<T> result) {
  Check(result.status());
  return std::move(result).value();
}
void CheckCuda(cudaError_t error, const char* what) { Check(CudaStatus(error, what)); }

constexpr double kMostError = 2.4e-3;  // relative L2, bf16; 2.0e-3 to 2.4e-3 is what rounding P and the output costs

using Forest = CaseForest;

struct Options {
  std::vector<std::string> cases;
  SharePolicy policy = SharePolicy::kTree;
  int iterations = 15;
  double matmul_tflops = 783;
  std::string json, machine;
  int32_t page_size = 16, page_run = 0;
  double sustained_seconds = 0;
  bool flush = true, sweep = false, figures = false, deterministic = false, overlapped = false, calibrate = false;
};

// A case under one plan.
struct Contestant {
  const Case& c;
  PlannerOptions planner;
  bool deterministic = false;
  const MachineModel* machine = nullptr;  // in place of the bench's
  int32_t page_size = 16, page_run = 0;   // see CaseForest
};

struct Bounds {
  double bytes = 0, flops = 0, overlapped_ms = 0, serial_ms = 0;
};

// Host times of a plan, with the translation for the device and the start of its copy.
struct PlanTimes {
  double fresh_ms = 0, change_ms = 0, step_ms = 0;
};

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double Quantile(std::vector<double> values, double at) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(at * static_cast<double>(values.size() - 1) + 0.5)];
}

// Replays for a while, and what the driver said meanwhile (means).
struct SustainedRun {
  double ms = 0, sm_mhz = 0, watts = 0;
};

// A contestant's plan, uploaded and captured as a graph. All contestants read the same KV and queries and write the same output.
struct Replay {
  AttentionSpec spec;
  Forest forest;
  std::unique_ptr<Planner> planner;
  std::unique_ptr<PlanExecutor> executor;
  std::unique_ptr<BoundKv> kv;
  cudaGraphExec_t graph = nullptr;
  PlanTimes plan;
  InterleavedTimes timed;  // ms

  explicit Replay(const Contestant& contestant)
      : spec{.num_qo_heads = contestant.c.qo_heads,
             .num_kv_heads = contestant.c.kv_heads,
             .head_dim = contestant.c.head_dim,
             .deterministic = contestant.deterministic},
        forest(contestant.c, contestant.page_size, contestant.page_run) {}
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  ~Replay() {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
  }

  int64_t q_row() const { return int64_t{spec.num_qo_heads} * spec.head_dim; }
  int64_t rows() const { return forest.query_begin.back() + forest.query_count.back(); }
  double ms() const { return timed.Median(); }
  double spread_ms() const { return Quantile(timed.times, 0.9) - Quantile(timed.times, 0.1); }
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        backend_(Take(MakeCudaBackend(0))),
        machine_(options.machine.empty() ? backend_->machine() : Take(LoadMachineModel(options.machine))) {
    CheckCuda(cudaStreamCreate(&stream_), "stream");
    CheckCuda(cudaEventCreate(&begin_), "event");
    CheckCuda(cudaEventCreate(&end_), "event");
    flush_ = Take(DeviceBuffer::Allocate(kFlushBytes));
    MeasureCopy();
  }
  const MachineModel& machine() const { return machine_; }
  double copy_tbps() const { return copy_bytes_per_s_ / 1e12; }

  // Times the contestants in turns, in more rounds until their ratios are known to within `precision` or `seconds` have passed. A
  // short replay follows one of its own kind: the kernel's code stays in the SMs' instruction caches, which the flush does not
  // reach, and another plan runs other parts of it (15 or 18 us for the same plan).
  std::vector<std::unique_ptr<Replay>> Measure(std::span<const Contestant> contestants, double precision = 0, double seconds = 0) {
    std::vector<std::unique_ptr<Replay>> replays;
    int64_t kv_bytes = 0, q_bytes = 0;
    for (const Contestant& contestant : contestants) {
      replays.push_back(std::make_unique<Replay>(contestant));
      const Replay& replay = *replays.back();
      kv_bytes = std::max(kv_bytes, static_cast<int64_t>(PoolShape(replay).bytes()));
      q_bytes = std::max(q_bytes, replay.rows() * replay.q_row() * 2);
    }
    Reserve(kv_, kv_bytes, 1);
    Reserve(q_, q_bytes, 2);
    Reserve(out_, q_bytes, 3);
    for (size_t i = 0; i < replays.size(); ++i) Capture(*replays[i], contestants[i]);
    double longest_ms = 0;
    for (const auto& replay : replays) longest_ms = std::max({longest_ms, Launch(*replay), Launch(*replay)});
    // Short replays vary more.
    const int rounds = longest_ms < kShortMs ? 2 * options_.iterations
                       : longest_ms < 4      ? options_.iterations
                                             : options_.iterations / 2 + 1;
    std::vector<InterleavedTimes> timed = Take(TimeInTurns(
        replays.size(), {.repeats = rounds, .precision = precision, .seconds = seconds}, [&](size_t i) -> Result<double> {
          if (longest_ms < kShortMs) Launch(*replays[i]);
          return Launch(*replays[i]);
        }));
    for (size_t i = 0; i < replays.size(); ++i) replays[i]->timed = std::move(timed[i]);
    return replays;
  }

  // Replays one after the other, the L2 not flushed, for `seconds`; times and readings of the second half, when clocks have
  // settled.
  SustainedRun Sustain(const Replay& replay, double seconds, const GpuSensors& sensors) {
    constexpr double kReadEverySeconds = 0.05;  // replays that are queued at once
    const int replays = std::max(1, static_cast<int>(kReadEverySeconds * 1e3 / replay.ms()));
    const auto begin = std::chrono::steady_clock::now();
    SustainedRun run;
    int parts = 0;
    for (double at = 0; at < seconds || parts == 0; at = MillisecondsSince(begin) * 1e-3) {
      CheckCuda(cudaEventRecord(begin_, stream_), "event");
      for (int i = 0; i < replays; ++i) CheckCuda(cudaGraphLaunch(replay.graph, stream_), "graph");
      CheckCuda(cudaEventRecord(end_, stream_), "event");
      const GpuReadings readings = Take(sensors.Read());  // while they run
      CheckCuda(cudaEventSynchronize(end_), "the kernel");
      if (at < seconds / 2) continue;
      float ms = 0;
      CheckCuda(cudaEventElapsedTime(&ms, begin_, end_), "event");
      run.ms += ms / replays, run.sm_mhz += readings.sm_mhz, run.watts += readings.watts;
      ++parts;
    }
    return {.ms = run.ms / parts, .sm_mhz = run.sm_mhz / parts, .watts = run.watts / parts};
  }

  Bounds BoundsOf(const Case& c) const {
    Bounds bounds;
    const double matmul = options_.matmul_tflops * 1e12;
    for (const CasePass& pass : c.Passes()) {
      bounds.bytes += pass.bytes, bounds.flops += pass.flops;
      bounds.serial_ms += 1e3 * std::max(pass.bytes / copy_bytes_per_s_, pass.flops / matmul);
    }
    bounds.overlapped_ms = 1e3 * std::max(bounds.bytes / copy_bytes_per_s_, bounds.flops / matmul);
    return bounds;
  }

  // Relative L2 error of some rows (Forest::RowsToCheck), root mean square over them: a row that sees few tokens is long, and would
  // hide the others in a norm of all. Infinite if any output element was left unwritten.
  double Error(const Replay& replay) {
    const Forest& forest = replay.forest;
    const int64_t row = replay.q_row(), rows = replay.rows();
    CheckCuda(cudaMemsetAsync(out_.data(), 0xff, out_.size(), stream_), "poison");
    Launch(replay);
    DeviceBuffer pages = Take(DeviceBuffer::Allocate(forest.pages.size() * 4));
    CheckCuda(cudaMemcpy(pages.data(), forest.pages.data(), forest.pages.size() * 4, cudaMemcpyHostToDevice), "pages");
    DeviceBuffer scores = Take(DeviceBuffer::Allocate(static_cast<size_t>(replay.spec.num_qo_heads) * forest.kv_len[0] * 8)),
                 result = Take(DeviceBuffer::Allocate(row * 8));
    std::vector<BF16> got(rows * row);
    CheckCuda(cudaMemcpy(got.data(), out_.data(), got.size() * 2, cudaMemcpyDeviceToHost), "out");
    for (const BF16 x : got) {
      if (std::isnan(x.ToFloat())) return INFINITY;
    }
    std::vector<double> want(row);
    double squares = 0;
    const KvLayerView kv = PoolShape(replay).View(kv_.data());
    const std::vector<int32_t> checked = forest.RowsToCheck();
    for (const int32_t r : checked) {
      const int32_t branch = forest.BranchOf(r), first = forest.query_begin[branch], count = forest.query_count[branch];
      const int32_t kv_len = forest.kv_len[branch] - count + r - first + 1;
      double error = 0, norm = 0;
      ReferenceRow(replay.spec, kv, reinterpret_cast<const int32_t*>(pages.data()) + forest.page_begin[branch], kv_len,
                   q_.data() + int64_t{r} * row * 2, reinterpret_cast<double*>(scores.data()),
                   reinterpret_cast<double*>(result.data()), stream_);
      CheckCuda(cudaMemcpyAsync(want.data(), result.data(), row * 8, cudaMemcpyDeviceToHost, stream_), "reference");
      CheckCuda(cudaStreamSynchronize(stream_), "reference");
      for (int64_t e = 0; e < row; ++e) {
        const double difference = got[r * row + e].ToFloat() - want[e];
        error += difference * difference, norm += want[e] * want[e];
      }
      squares += error / norm;
    }
    return std::sqrt(squares / static_cast<double>(checked.size()));
  }

 private:
  static constexpr int64_t kFlushBytes = int64_t{256} << 20;
  static constexpr double kShortMs = 0.1;

  static KvPoolShape PoolShape(const Replay& replay) {
    return {.num_pages = replay.forest.num_pages,
            .page_size = replay.forest.view.page_size,
            .num_kv_heads = replay.spec.num_kv_heads,
            .head_dim = replay.spec.head_dim};
  }

  void Reserve(DeviceBuffer& buffer, int64_t bytes, uint64_t seed) {
    if (static_cast<int64_t>(buffer.size()) >= bytes) return;
    buffer = {};  // before the larger one is there
    buffer = Take(DeviceBuffer::Allocate(bytes));
    FillNormal(buffer.data(), bytes / 2, seed, stream_);
  }

  void Capture(Replay& replay, const Contestant& contestant) {
    const MachineModel& machine = contestant.machine != nullptr ? *contestant.machine : machine_;
    Forest& forest = replay.forest;
    const PlanCapacity capacity{.max_branches = static_cast<int32_t>(forest.branch_node.size()),
                                .max_queries = static_cast<int32_t>(replay.rows()),
                                .max_page_slots = static_cast<int32_t>(forest.pages.size()),
                                .page_size = contestant.page_size};
    const BackendTraits traits = Take(backend_->Traits(replay.spec, capacity));
    const PlanSizes sizes = Take(backend_->Sizes(replay.spec, capacity));
    replay.planner = Take(Planner::Create(replay.spec, capacity, contestant.planner, traits, machine));
    replay.executor = Take(backend_->MakeExecutor(replay.spec, capacity, sizes, machine));
    replay.kv = Take(backend_->BindKv(replay.spec, PoolShape(replay).View(kv_.data())));
    Plan(replay);
    const RunArgs args{.q = q_.data(), .q_row_stride = replay.q_row(), .out = out_.data(), .out_row_stride = replay.q_row()};
    cudaGraph_t graph;
    CheckCuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    Check(replay.executor->Run(*replay.kv, args, stream_));
    CheckCuda(cudaStreamEndCapture(stream_, &graph), "capture");
    CheckCuda(cudaGraphInstantiate(&replay.graph, graph, 0), "graph");
    cudaGraphDestroy(graph);
  }

  double Update(Replay& replay) {
    const auto start = std::chrono::steady_clock::now();
    Check(replay.planner->Update(replay.forest.view));
    Check(replay.executor->Upload(replay.planner->View(), replay.forest.view, stream_));
    return MillisecondsSince(start);
  }

  // Plans a replay's forest. Times of planning are measured before the last plan: a fresh one; one after the last request left or
  // came (the median of both); and a decode step, the mean over 64 of them of which every 16th begins with such a change.
  void Plan(Replay& replay) {
    Forest& forest = replay.forest;
    replay.plan.fresh_ms = Update(replay);
    if (forest.branch_node.size() > 1 && forest.end.back() == kLive) {
      const int32_t last = static_cast<int32_t>(forest.branch_node.size()) - 1, leaf = forest.branch_node[last];
      const int32_t above = forest.parent[leaf], queries = forest.query_count[last];
      const auto change = [&] {
        const bool leaves = forest.branch_node[last] != kFreeSlot;
        forest.branch_node[last] = leaves ? kFreeSlot : leaf;
        forest.parent[leaf] = leaves ? kFreeSlot : above;
        forest.query_count[last] = leaves ? 0 : queries;
        forest.view.changed_since = forest.view.version++;  // as BranchForest says it
        forest.view.changed_branches = std::span(&last, 1);
      };
      std::vector<double> changes;
      for (int i = 0; i < 8; ++i) {
        change();
        changes.push_back(Update(replay));
      }
      replay.plan.change_ms = Quantile(changes, 0.5);
      const std::vector<int32_t> lengths = forest.kv_len;
      constexpr int kSteps = 64;
      for (int step = 0; step < kSteps; ++step) {
        if (step % 16 == 0) change();
        for (int32_t& length : forest.kv_len) ++length;
        replay.plan.step_ms += Update(replay) / kSteps;
      }
      forest.kv_len = lengths;
      ++forest.view.version;
      forest.view.changed_since = 0;
      forest.view.changed_branches = {};
    }
    Update(replay);
    CheckCuda(cudaStreamSynchronize(stream_), "upload");
  }

  // One replay, in ms.
  double Launch(const Replay& replay) {
    if (options_.flush) Flush(flush_.data(), kFlushBytes, stream_);
    CheckCuda(cudaEventRecord(begin_, stream_), "event");
    CheckCuda(cudaGraphLaunch(replay.graph, stream_), "graph");
    CheckCuda(cudaEventRecord(end_, stream_), "event");
    CheckCuda(cudaEventSynchronize(end_), "the kernel");
    float ms = 0;
    CheckCuda(cudaEventElapsedTime(&ms, begin_, end_), "event");
    return ms;
  }

  void MeasureCopy() {
    const size_t bytes = size_t{2} << 30;
    DeviceBuffer a = Take(DeviceBuffer::Allocate(bytes)), b = Take(DeviceBuffer::Allocate(bytes));
    std::vector<double> times;
    for (int i = 0; i < 12; ++i) {
      CheckCuda(cudaEventRecord(begin_, stream_), "event");
      CheckCuda(cudaMemcpyAsync(b.data(), a.data(), bytes, cudaMemcpyDeviceToDevice, stream_), "copy");
      CheckCuda(cudaEventRecord(end_, stream_), "event");
      CheckCuda(cudaEventSynchronize(end_), "copy");
      float ms = 0;
      CheckCuda(cudaEventElapsedTime(&ms, begin_, end_), "event");
      times.push_back(ms);
    }
    copy_bytes_per_s_ = 2.0 * static_cast<double>(bytes) / (Quantile(times, 0.5) * 1e-3);
  }

  Options options_;
  std::unique_ptr<Backend> backend_;
  MachineModel machine_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  DeviceBuffer flush_, kv_, q_, out_;
  double copy_bytes_per_s_ = 0;
};

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--cases") {
      std::stringstream list(value);
      for (std::string item; std::getline(list, item, ',');) options.cases.push_back(item);
    } else if (name == "--policy") {
      options.policy = value == "store" ? SharePolicy::kStore : SharePolicy::kTree;
    } else if (name == "--iterations") {
      options.iterations = std::stoi(value);
    } else if (name == "--matmul-tflops") {
      options.matmul_tflops = std::stod(value);
    } else if (name == "--flush") {
      options.flush = value != "off";
    } else if (name == "--sweep") {
      options.sweep = value == "on";
    } else if (name == "--figures") {
      options.figures = value == "on";
    } else if (name == "--deterministic") {
      options.deterministic = value == "on";
    } else if (name == "--overlap") {
      options.overlapped = value == "on";
    } else if (name == "--sustained") {
      options.sustained_seconds = std::stod(value);
    } else if (name == "--page-size") {
      options.page_size = std::stoi(value);
    } else if (name == "--page-run") {
      options.page_run = std::stoi(value);
    } else if (name == "--calibrate") {
      options.calibrate = value == "on";
    } else if (name == "--machine") {
      options.machine = value;
    } else if (name == "--json") {
      options.json = value;
    } else {
      Check(InvalidArgument("unknown option " + name + "; see the head of attention_cuda_bench.cc"));
    }
  }
  return options;
}

// Those that --cases names, or all but the sweep's.
std::vector<Case> ChosenCases(const Options& options) {
  std::vector<Case> cases = HopperCases();
  if (options.cases.empty()) return cases;
  std::ranges::move(SweepCases(), std::back_inserter(cases));
  std::vector<Case> chosen;
  for (const std::string& name : options.cases) {
    const auto found = std::ranges::find(cases, name, &Case::name);
    if (found == cases.end()) {
      Check(InvalidArgument("no case is named \"" + name + "\"; A1 to F, tree1 to tree14, G, G64, G2, H1 to H5 and 8/1:P+UxB are"));
    }
    chosen.push_back(*found);
  }
  return chosen;
}

// One prefix of P tokens under B requests of U tokens each: the plan must nowhere lose more than 2 % (5 % below 20 us, where a
// replay varies that much) to the plan that shares nothing. A cell's ratio is the median of its rounds' ratios, known to 1 % or as
// far as a quarter of a second allows. Where the planner shares nothing the two plans are equal and the ratio is 1: what was
// measured there says how good the measurement is. Cells that would read more than 40 GB unshared are left out: there sharing saves
// most of the bytes.
void Sweep(Bench& bench, const Options& options) {
  constexpr double kVariesMs = 0.020, kPrecision = 0.01, kSeconds = 0.25;
  std::ofstream json;
  if (!options.json.empty()) json.open(options.json);
  int cells = 0, slower = 0, slower_beyond_error = 0, left_out = 0, equal = 0, equal_slower = 0, equal_within = 0;
  double log_gain = 0, log_best = 0, noise = 0, widest = 0;
  std::printf("%-6s %6s %5s %5s %9s %9s %9s %7s %7s %7s %6s %6s\n", "heads", "P", "U", "B", "plan_ms", "store_ms", "shared_ms",
              "ratio", "from", "to", "rounds", "plan");
  for (const Case& c : SweepCases(&left_out)) {
    const int32_t qo_heads = c.qo_heads, kv_heads = c.kv_heads, prefix = c.tokens[0], unique = c.tokens[1], batch = c.nodes[1];
    const Contestant contestants[] = {{c, {.policy = SharePolicy::kStore}, options.deterministic},
                                      {c, {}, options.deterministic},
                                      {c, {.force_sharing = true}, options.deterministic}};
    const auto replays = bench.Measure(contestants, kPrecision, kSeconds);
    const double store = replays[0]->ms(), plan = replays[1]->ms(), shared = replays[2]->ms();
    const Estimate ratio = replays[1]->timed.over_first;
    const size_t rounds = replays[1]->timed.times.size();
    const bool same = replays[1]->planner->Stats().shared_nodes == 0;
    const double most = std::max(plan, store) < kVariesMs ? 1.05 : 1.02;
    const bool is_slower = ratio.median > most;
    ++cells, widest = std::max(widest, ratio.width());
    log_best += std::log(plan / std::min(store, shared));
    if (same) {
      ++equal, equal_slower += is_slower, equal_within += ratio.low <= 1 && 1 <= ratio.high;
      noise = std::max(noise, std::abs(ratio.median - 1));
    } else {
      slower += is_slower, slower_beyond_error += ratio.low > most, log_gain -= std::log(ratio.median);
    }
    if (is_slower) {
      std::printf("%2d/%-3d %6d %5d %5d %9.4f %9.4f %9.4f %7.3f %7.3f %7.3f %6zu %6s\n", qo_heads, kv_heads, prefix, unique, batch,
                  plan, store, shared, ratio.median, ratio.low, ratio.high, rounds, same ? "equal" : "shares");
    }
    if (json.is_open()) {
      json << "{\"qo_heads\": " << qo_heads << ", \"kv_heads\": " << kv_heads << ", \"prefix\": " << prefix
           << ", \"unique\": " << unique << ", \"batch\": " << batch << ", \"plan_ms\": " << plan << ", \"store_ms\": " << store
           << ", \"shared_ms\": " << shared << ", \"plan_over_store\": " << ratio.median << ", \"from\": " << ratio.low
           << ", \"to\": " << ratio.high << ", \"rounds\": " << rounds << ", \"shares\": " << (same ? "false" : "true") << "}\n";
    }
  }
  std::printf(
      "%d cells, %d left out (more than %.0f GB unshared); slower than sharing nothing: %d (%d beyond the error); geomean %.2fx "
      "faster, "
      "%.3fx the better of sharing and not; widest interval %.1f %%\n"
      "%d plans are the one that shares nothing: measured within %.1f %% of themselves, the interval had 1 in %d, %d beyond the "
      "limit\n",
      cells, left_out, kMostSweepBytes / 1e9, slower, slower_beyond_error, std::exp(log_gain / cells), std::exp(log_best / cells),
      100 * widest, equal, 100 * noise, equal_within, equal_slower);
}

struct Grid {
  const char* name;
  int32_t qo_heads, kv_heads;
  std::vector<int32_t> prefixes, uniques, batches;
};

// Speed-up over `store` (one copy of the prefix, read once a request) and `none` (a copy a request), and RelayAttention's eq. 10:
// the ratio of elements moved, (s + c + 2 g) / (s / b + c + 7 g), its g = 1 extended to g query heads a kv head.
void Figures(Bench& bench, const Options& options) {
  const Grid grids[] = {
      {"Hydragen, figures 5 and 8", 8, 1, {1024, 2048, 4096, 8192, 16384}, {0, 128, 256, 512}, {16, 64, 256, 1024, 4096}},
      {"Cascade Inference, figure 4",
       32,
       32,
       {1024, 2048, 4096, 8192, 16384, 32768},
       {128, 256, 512, 1024, 2048},
       {1, 4, 16, 64, 128, 256}}};
  std::ofstream json;
  if (!options.json.empty()) json.open(options.json);
  for (const Grid& grid : grids) {
    std::printf("%s: %d/%d heads; ms, and speed-up over store, over none, eq. 10\n%6s %5s", grid.name, grid.qo_heads, grid.kv_heads,
                "P", "U");
    for (const int32_t batch : grid.batches) std::printf("  | B %-26d", batch);
    std::printf("\n");
    for (const int32_t prefix : grid.prefixes) {
      for (const int32_t unique : grid.uniques) {
        std::printf("%6d %5d", prefix, unique);
        for (const int32_t batch : grid.batches) {
          const Case shared{"shared", grid.qo_heads, grid.kv_heads, 128, {1, batch}, {prefix, unique}};
          const Case copies{"copies", grid.qo_heads, grid.kv_heads, 128, {batch}, {prefix + unique}};
          const Contestant contestants[] = {{shared, {}}, {shared, {.policy = SharePolicy::kStore}}, {copies, {}}};
          const auto replays = bench.Measure(contestants);
          const double plan = replays[0]->ms(), store = replays[1]->ms(), none = replays[2]->ms();
          const double group = grid.qo_heads / grid.kv_heads;
          const double predicted = (prefix + unique + 2 * group) / (static_cast<double>(prefix) / batch + unique + 7 * group);
          std::printf("  | %7.4f %6.2f %6.2f %6.2f", plan, store / plan, none / plan, predicted);
          if (json.is_open()) {
            json << "{\"figure\": \"" << grid.name << "\", \"qo_heads\": " << grid.qo_heads << ", \"kv_heads\": " << grid.kv_heads
                 << ", \"prefix\": " << prefix << ", \"unique\": " << unique << ", \"batch\": " << batch << ", \"ms\": " << plan
                 << ", \"store_ms\": " << store << ", \"none_ms\": " << none << ", \"over_store\": " << store / plan
                 << ", \"over_none\": " << none / plan << ", \"relay_eq10\": " << predicted << "}\n";
          }
        }
        std::printf("\n");
        std::fflush(stdout);
      }
    }
  }
}

// Deterministic mode over the fast one. False if a case's error is above kMostError.
bool Deterministic(Bench& bench, const Options& options) {
  std::ofstream json;
  if (!options.json.empty()) json.open(options.json);
  double trees = 0;
  int compared = 0;
  bool right = true;
  std::printf("%-7s %8s %8s %7s %7s %7s %8s %6s\n", "case", "fast_ms", "exact_ms", "ratio", "from", "to", "error", "items");
  for (const Case& c : ChosenCases(options)) {
    const Contestant contestants[] = {{c, {.policy = options.policy}}, {c, {.policy = options.policy}, true}};
    const auto replays = bench.Measure(contestants);
    const Replay& exact = *replays[1];
    const Estimate ratio = exact.timed.over_first;
    const double error = bench.Error(exact);
    std::printf("%-7s %8.4f %8.4f %7.3f %7.3f %7.3f %8.1e %6d\n", c.name.c_str(), replays[0]->ms(), exact.ms(), ratio.median,
                ratio.low, ratio.high, error, exact.planner->Stats().num_items);
    std::fflush(stdout);
    if (!(error <= kMostError)) {
      std::fprintf(stderr, "%s: error %.2e against fp64; at most %.2e expected\n", c.name.c_str(), error, kMostError);
      right = false;
    }
    if (c.name.starts_with("tree")) trees += std::log(ratio.median), ++compared;
    if (json.is_open()) {
      json << "{\"case\": \"" << c.name << "\", \"fast_ms\": " << replays[0]->ms() << ", \"exact_ms\": " << exact.ms()
           << ", \"exact_over_fast\": " << ratio.median << ", \"from\": " << ratio.low << ", \"to\": " << ratio.high
           << ", \"error\": " << error << "}\n";
    }
  }
  if (compared > 0) std::printf("trees: geomean %.3fx the fast mode's time\n", std::exp(trees / compared));
  return right;
}

// The executor's description of a plan's kernel: the first line, before the ranges.
std::string HowItRuns(const Replay& replay) {
  std::string text = replay.executor->Explain();
  return text.substr(0, text.find('\n'));
}

// By which no plan has overlapped tiles: they are never worth it.
MachineModel WithoutOverlappedTiles(MachineModel machine) {
  machine.sm.overlapped_step_ns = 1e12;
  return machine;
}

// Bursts beside replays that go on, where clocks fall to what the power allows. Shares of the products and copies per second that
// the bounds take.
void Sustained(Bench& bench, const Options& options) {
  const MachineModel without = WithoutOverlappedTiles(bench.machine());
  char bus_id[32];
  CheckCuda(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, 0), "the device's bus id");
  const GpuSensors sensors = Take(GpuSensors::Open(bus_id));
  std::ofstream json;
  if (!options.json.empty()) json.open(options.json);
  std::printf("%-7s %9s %9s %6s %6s %6s %9s %9s\n", "case", "burst_ms", "sust_ms", "ratio", "MHz", "W", "products", "memory");
  for (const Case& c : ChosenCases(options)) {
    const Contestant contestants[] = {{c, {.policy = options.policy}}, {c, {.policy = options.policy}, false, &without}};
    const auto replays = bench.Measure(contestants);
    const bool same = HowItRuns(*replays[0]) == HowItRuns(*replays[1]);
    const Bounds bounds = bench.BoundsOf(c);
    for (const auto& replay : std::span(replays).first(same ? 1 : 2)) {
      const SustainedRun run = bench.Sustain(*replay, options.sustained_seconds, sensors);
      const double products = bounds.flops / (run.ms * 1e9) / options.matmul_tflops,
                   memory = bounds.bytes / (run.ms * 1e9) / bench.copy_tbps();
      std::printf("%-7s %9.4f %9.4f %6.3f %6.0f %6.0f %8.0f%% %8.0f%%  %s\n", c.name.c_str(), replay->ms(), run.ms,
                  run.ms / replay->ms(), run.sm_mhz, run.watts, 100 * products, 100 * memory, HowItRuns(*replay).c_str());
      std::fflush(stdout);
      if (json.is_open()) {
        json << "{\"case\": \"" << c.name << "\", \"burst_ms\": " << replay->ms() << ", \"sustained_ms\": " << run.ms
             << ", \"sm_mhz\": " << run.sm_mhz << ", \"watts\": " << run.watts << ", \"products\": " << products
             << ", \"memory\": " << memory << ", \"runs\": \"" << HowItRuns(*replay) << "\"}\n";
      }
    }
  }
}

// Plans with overlapped tiles, where they are predicted to gain, beside those without. False if a case's error is above kMostError.
bool OverlappedTiles(Bench& bench, const Options& options) {
  const MachineModel without = WithoutOverlappedTiles(bench.machine());
  std::ofstream json;
  if (!options.json.empty()) json.open(options.json);
  bool right = true;
  std::printf("%-7s %8s %8s %8s %8s %7s %7s %7s %8s\n", "case", "ms", "without", "overlap", "serial", "ratio", "from", "to",
              "error");
  for (const Case& c : ChosenCases(options)) {
    const Contestant contestants[] = {{c, {.policy = options.policy}, false, &without}, {c, {.policy = options.policy}}};
    const auto replays = bench.Measure(contestants);
    const Replay& replay = *replays[1];
    const Estimate ratio = replay.timed.over_first;
    const Bounds bounds = bench.BoundsOf(c);
    const double error = bench.Error(replay);
    std::printf("%-7s %8.4f %8.4f %8.4f %8.4f %7.3f %7.3f %7.3f %8.1e  %s\n", c.name.c_str(), replay.ms(), replays[0]->ms(),
                bounds.overlapped_ms, bounds.serial_ms, ratio.median, ratio.low, ratio.high, error, HowItRuns(replay).c_str());
    std::fflush(stdout);
    if (!(error <= kMostError)) {
      std::fprintf(stderr, "%s: error %.2e against fp64; at most %.2e expected\n", c.name.c_str(), error, kMostError);
      right = false;
    }
    if (json.is_open()) {
      json << "{\"case\": \"" << c.name << "\", \"ms\": " << replay.ms() << ", \"without_ms\": " << replays[0]->ms()
           << ", \"ratio\": " << ratio.median << ", \"from\": " << ratio.low << ", \"to\": " << ratio.high
           << ", \"error\": " << error << ", \"runs\": \"" << HowItRuns(replay) << "\"}\n";
    }
  }
  return right;
}

// Pages of another size beside those of 16. False if a case's error is above kMostError.
bool PageSizes(Bench& bench, const Options& options) {
  std::ofstream json;
  if (!options.json.empty()) json.open(options.json);
  double all = 0;
  int compared = 0;
  bool right = true;
  std::printf("%-7s %8s %8s %7s %7s %7s %8s\n", "case", "ms", "16_ms", "ratio", "from", "to", "error");
  for (const Case& c : ChosenCases(options)) {
    const Contestant contestants[] = {
        {.c = c, .planner = {.policy = options.policy}},
        {.c = c, .planner = {.policy = options.policy}, .page_size = options.page_size, .page_run = options.page_run}};
    const auto replays = bench.Measure(contestants);
    const Replay& replay = *replays[1];
    const Estimate ratio = replay.timed.over_first;
    const double error = bench.Error(replay);
    std::printf("%-7s %8.4f %8.4f %7.3f %7.3f %7.3f %8.1e  %s\n", c.name.c_str(), replay.ms(), replays[0]->ms(), ratio.median,
                ratio.low, ratio.high, error, HowItRuns(replay).c_str());
    std::fflush(stdout);
    if (!(error <= kMostError)) {
      std::fprintf(stderr, "%s: error %.2e against fp64; at most %.2e expected\n", c.name.c_str(), error, kMostError);
      right = false;
    }
    all += std::log(ratio.median), ++compared;
    if (json.is_open()) {
      json << "{\"case\": \"" << c.name << "\", \"page_size\": " << options.page_size << ", \"page_run\": " << options.page_run
           << ", \"ms\": " << replay.ms() << ", \"page_16_ms\": " << replays[0]->ms() << ", \"ratio\": " << ratio.median
           << ", \"from\": " << ratio.low << ", \"to\": " << ratio.high << ", \"error\": " << error << "}\n";
    }
  }
  if (compared > 0) std::printf("geomean %.3fx the time of pages of 16\n", std::exp(all / compared));
  return right;
}

int Main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  if (options.calibrate) {
    const auto device = Take(MakeCudaBenchDevice(0));
    std::printf("%s\n", ToJson(Take(CalibrateGpu(*device))).c_str());
    return 0;
  }
  Bench bench(options);
  std::printf("copy %.2f TB/s, matmul %.0f TFLOP/s (given)\n", bench.copy_tbps(), options.matmul_tflops);
  if (options.sweep) {
    Sweep(bench, options);
    return 0;
  }
  if (options.figures) {
    Figures(bench, options);
    return 0;
  }
  if (options.sustained_seconds > 0) {
    Sustained(bench, options);
    return 0;
  }
  if (options.page_size != 16 || options.page_run != 0) return PageSizes(bench, options) ? 0 : 1;
  if (options.overlapped) return OverlappedTiles(bench, options) ? 0 : 1;
  if (options.deterministic) return Deterministic(bench, options) ? 0 : 1;
  std::printf("%-7s %8s %7s %8s %8s %6s %7s %7s %8s %7s %6s %8s %6s %8s %9s %8s\n", "case", "ms", "spread", "overlap", "serial",
              "x_over", "TFLOP/s", "TB/s", "goal_ms", "peer_ms", "peer/x", "error", "items", "fresh_ms", "change_ms", "step_ms");
  std::ofstream json;
  if (!options.json.empty()) json.open(options.json);
  double peers = 0;
  int compared = 0;
  bool right = true;
  for (const Case& c : ChosenCases(options)) {
    const Contestant contestants[] = {{c, {.policy = options.policy}}};
    const auto replays = bench.Measure(contestants);
    const Replay& replay = *replays[0];
    const double ms = replay.ms(), error = bench.Error(replay);
    const Bounds bounds = bench.BoundsOf(c);
    const PlanStats stats = replay.planner->Stats();
    std::printf("%-7s %8.4f %7.4f %8.4f %8.4f %6.2f %7.0f %7.2f %8.3f %7.3f %6.2f %8.1e %6d %8.3f %9.3f %8.4f\n", c.name.c_str(),
                ms, replay.spread_ms(), bounds.overlapped_ms, bounds.serial_ms, ms / bounds.overlapped_ms, bounds.flops / ms / 1e9,
                bounds.bytes / ms / 1e9, c.goal_ms, c.peer_ms, c.peer_ms / ms, error, stats.num_items, replay.plan.fresh_ms,
                replay.plan.change_ms, replay.plan.step_ms);
    std::fflush(stdout);
    if (!(error <= kMostError)) {
      std::fprintf(stderr, "%s: error %.2e against fp64; at most %.2e expected\n", c.name.c_str(), error, kMostError);
      right = false;
    }
    if (c.name.starts_with("tree")) peers += std::log(c.peer_ms / ms), ++compared;
    if (json.is_open()) {
      json << "{\"case\": \"" << c.name << "\", \"ms\": " << ms << ", \"spread_ms\": " << replay.spread_ms()
           << ", \"bound_overlapped_ms\": " << bounds.overlapped_ms << ", \"bound_serial_ms\": " << bounds.serial_ms
           << ", \"tflops\": " << bounds.flops / ms / 1e9 << ", \"tbps\": " << bounds.bytes / ms / 1e9
           << ", \"best_peer_ms\": " << c.peer_ms << ", \"error\": " << error << ", \"items\": " << stats.num_items
           << ", \"contributions\": " << stats.num_contributions << ", \"plan_fresh_ms\": " << replay.plan.fresh_ms
           << ", \"plan_change_ms\": " << replay.plan.change_ms << ", \"plan_step_ms\": " << replay.plan.step_ms
           << ", \"copy_tbps\": " << bench.copy_tbps() << ", \"matmul_tflops\": " << options.matmul_tflops << ", \"times_ms\": [";
      for (size_t i = 0; i < replay.timed.times.size(); ++i) json << (i > 0 ? ", " : "") << replay.timed.times[i];
      json << "]}\n";
    }
  }
  if (compared > 0) std::printf("trees: geomean %.2fx the best peer\n", std::exp(peers / compared));
  return right ? 0 : 1;
}

}  // namespace
}  // namespace coppice::attention::cuda::bench

int main(int argc, char** argv) { return coppice::attention::cuda::bench::Main(argc, argv); }
