// Attention of one layer on the device: the shapes and trees of docs/kernels/hopper.md, planned by the real planner, checked
// against fp64, timed as CUDA graph replays with the L2 flushed in between (median). Bounds from the copy rate measured in the same
// run and the matrix rate given (--matmul-tflops, by default the 783 that a bf16 8192-cube product reaches on an H200).
//   attention_cuda_bench [--cases A1,F,tree3] [--policy tree|store] [--iterations n] [--flush on|off] [--json file]
//   attention_cuda_bench --sweep on [--json file]   one shared prefix over a grid of shapes: the plan against the plan that shares
//                                                   nothing, cell by cell
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "attention/cuda/bench_kernels.h"
#include "attention/cuda/cuda_backend.h"
#include "attention/cuda/device_memory.h"
#include "attention/plan.h"
#include "core/check.h"

namespace coppice::attention::cuda::bench {
namespace {

struct Case {
  std::string name;
  int32_t qo_heads, kv_heads, head_dim;
  std::vector<int32_t> nodes, tokens;  // per level; the last level's nodes are the branches
  int32_t queries = 1;                 // per branch; more than one: a prefill chunk at the end of its context
  double goal_ms = 0, peer_ms = 0;     // 0: none
};

std::vector<Case> AllCases() {
  std::vector<Case> cases = {
      {"A1", 32, 32, 128, {1, 128}, {32768, 256}, 1, 0.30, 0.383},
      {"A2", 32, 32, 128, {1, 256}, {32768, 256}, 1, 0.52, 0.692},
      {"A3", 32, 32, 128, {1, 1024}, {32768, 256}, 1, 2.0, 2.518},
      {"B", 32, 8, 128, {1, 256}, {8192, 256}, 1, 0.14, 0.205},
      {"C", 8, 1, 128, {1, 4096}, {8192, 128}, 1, 0.32, 0.525},
      {"D", 32, 8, 128, {1, 1024}, {16384, 128}, 1, 0.60, 0.984},
      {"E", 8, 1, 128, {1, 16}, {1024, 128}, 1, 0.015, 0.015},
      {"E2", 32, 8, 128, {1, 8}, {512, 64}, 1, 0.017, 0.017},
      {"F", 32, 8, 128, {64}, {8192}, 1, 0.49, 0.501},
  };
  const struct {
    std::vector<int32_t> nodes, tokens;
    double peer_mha, peer_gqa;
  } trees[] = {
      {{1, 1024}, {2048, 32}, 0.298, 0.196},
      {{1, 2, 64}, {1024, 256, 256}, 0.104, 0.048},
      {{1, 8, 512}, {512, 2048, 256}, 0.640, 0.242},
      {{1, 4, 16, 512}, {1024, 256, 128, 32}, 0.152, 0.091},
      {{1, 4, 16, 64, 256, 1024}, {256, 32, 256, 64, 32, 256}, 1.240, 0.400},
      {{8, 16, 32, 256}, {512, 512, 256, 32}, 0.155, 0.072},
      {{4, 16, 256, 512}, {512, 32, 128, 32}, 0.271, 0.112},
  };
  int index = 1;
  for (const int32_t kv_heads : {32, 8}) {
    for (const auto& tree : trees) {
      cases.push_back({"tree" + std::to_string(index++), 32, kv_heads, 128, tree.nodes, tree.tokens, 1, 0,
                       kv_heads == 32 ? tree.peer_mha : tree.peer_gqa});
    }
  }
  cases.push_back({"G", 32, 8, 128, {1}, {16384}, 4096});
  cases.push_back({"G64", 32, 8, 64, {1}, {16384}, 4096});
  cases.push_back({"G2", 32, 8, 128, {1}, {8192}, 512});
  return cases;
}

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

// A balanced tree with its own pages for every node, in random page order.
struct Forest {
  PrefixForestView view;
  std::vector<int32_t> parent, begin, end, branch_node, query_begin, query_count, kv_len, page_begin, page_capacity, pages;
  int32_t num_pages = 0;

  explicit Forest(const Case& c, int32_t page_size = 16) {
    std::vector<std::vector<int32_t>> level_nodes, node_pages;
    int32_t depth_tokens = 0;
    for (size_t level = 0; level < c.nodes.size(); ++level) {
      level_nodes.emplace_back();
      const bool last = level + 1 == c.nodes.size();
      for (int32_t i = 0; i < c.nodes[level]; ++i) {
        level_nodes[level].push_back(static_cast<int32_t>(parent.size()));
        const int32_t above = level == 0 ? kNoParent : level_nodes[level - 1][int64_t{i} * c.nodes[level - 1] / c.nodes[level]];
        parent.push_back(above);
        begin.push_back(depth_tokens);
        end.push_back(last ? kLive : depth_tokens + c.tokens[level]);
        node_pages.emplace_back(c.tokens[level] / page_size);
        for (int32_t& page : node_pages.back()) page = num_pages++;
      }
      depth_tokens += c.tokens[level];
    }
    std::vector<int32_t> shuffled(num_pages);
    std::iota(shuffled.begin(), shuffled.end(), 0);
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(1));
    for (const int32_t leaf : level_nodes.back()) {
      const auto branch = static_cast<int32_t>(branch_node.size());
      branch_node.push_back(leaf);
      query_begin.push_back(branch * c.queries);
      query_count.push_back(c.queries);
      kv_len.push_back(depth_tokens);
      page_begin.push_back(static_cast<int32_t>(pages.size()));
      std::vector<int32_t> path;
      for (int32_t n = leaf; n != kNoParent; n = parent[n]) path.push_back(n);
      for (auto n = path.rbegin(); n != path.rend(); ++n) {
        for (const int32_t page : node_pages[*n]) pages.push_back(shuffled[page]);
      }
      const int32_t used = static_cast<int32_t>(pages.size()) - page_begin.back();
      for (int i = 0; i < 8; ++i) pages.push_back(0);  // room to grow
      page_capacity.push_back(used + 8);
    }
    view = {.page_size = page_size,
            .version = 1,
            .node_parent = parent,
            .node_begin = begin,
            .node_end = end,
            .branch_node = branch_node,
            .branch_query_begin = query_begin,
            .branch_query_count = query_count,
            .branch_kv_len = kv_len,
            .branch_page_begin = page_begin,
            .branch_page_capacity = page_capacity,
            .page_indices = pages};
  }
};

struct Options {
  std::vector<std::string> cases;
  SharePolicy policy = SharePolicy::kTree;
  int iterations = 15;
  double matmul_tflops = 783;
  std::string json;
  bool flush = true, sweep = false;
};

struct Measurement {
  double ms = 0, spread_ms = 0, bound_overlapped_ms = 0, bound_serial_ms = 0, error = 0, plan_ms = 0, upload_ms = 0, tflops = 0,
         tbps = 0;
  int items = 0, contributions = 0, dense_tasks = 0, stream_tasks = 0;
};

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), backend_(Take(MakeCudaBackend(0))) {
    CheckCuda(cudaStreamCreate(&stream_), "stream");
    CheckCuda(cudaEventCreate(&begin_), "event");
    CheckCuda(cudaEventCreate(&end_), "event");
    flush_ = Take(DeviceBuffer::Allocate(kFlushBytes));
    MeasureCopy();
  }
  double copy_tbps() const { return copy_bytes_per_s_ / 1e12; }

  // check: compare with fp64 too.
  Measurement Run(const Case& c, SharePolicy policy, bool check = true) {
    const AttentionSpec spec{.num_qo_heads = c.qo_heads, .num_kv_heads = c.kv_heads, .head_dim = c.head_dim};
    Forest forest(c);
    const KvPoolShape shape{.num_pages = forest.num_pages, .page_size = 16, .num_kv_heads = c.kv_heads, .head_dim = c.head_dim};
    const auto branches = static_cast<int32_t>(forest.branch_node.size());
    const int64_t rows = int64_t{branches} * c.queries, row = int64_t{c.qo_heads} * c.head_dim;
    DeviceBuffer pool = Take(DeviceBuffer::Allocate(shape.bytes())), q = Take(DeviceBuffer::Allocate(rows * row * 2));
    DeviceBuffer out = Take(DeviceBuffer::Allocate(rows * row * 2));
    FillNormal(pool.data(), shape.bytes() / 2, 1, stream_);
    FillNormal(q.data(), rows * row, 2, stream_);
    CheckCuda(cudaMemsetAsync(out.data(), 0xff, out.size(), stream_), "poison");
    const KvLayerView kv = shape.View(pool.data());

    const PlanCapacity capacity{.max_branches = branches,
                                .max_queries = static_cast<int32_t>(rows),
                                .max_page_slots = static_cast<int32_t>(forest.pages.size())};
    const BackendTraits traits = Take(backend_->Traits(spec, capacity));
    const PlanSizes sizes = Take(backend_->Sizes(spec, capacity));
    const auto planner = Take(Planner::Create(spec, capacity, {.policy = policy}, traits, backend_->machine()));
    const auto executor = Take(backend_->MakeExecutor(spec, capacity, sizes));
    Measurement m;
    Check(planner->Update(forest.view));
    ++forest.view.version;  // a second look at the whole tree, with everything warm
    const auto plan_start = std::chrono::steady_clock::now();
    Check(planner->Update(forest.view));
    m.plan_ms = MillisecondsSince(plan_start);
    const auto upload_start = std::chrono::steady_clock::now();
    Check(executor->Upload(planner->View(), forest.view, stream_));
    m.upload_ms = MillisecondsSince(upload_start);
    m.items = static_cast<int>(planner->View().compute_queue.size() + planner->View().bandwidth_queue.size());
    m.contributions = planner->Stats().num_contributions;
    const auto bound = Take(backend_->BindKv(spec, kv));
    const RunArgs args{.q = q.data(), .q_row_stride = row, .out = out.data(), .out_row_stride = row};

    cudaGraph_t graph;
    cudaGraphExec_t replay;
    CheckCuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    Check(executor->Run(*bound, args, stream_));
    CheckCuda(cudaStreamEndCapture(stream_, &graph), "capture");
    CheckCuda(cudaGraphInstantiate(&replay, graph, 0), "graph");
    CheckCuda(cudaGraphLaunch(replay, stream_), "graph");
    CheckCuda(cudaStreamSynchronize(stream_), "the kernel");
    if (check) m.error = Error(spec, c, forest, kv, q, out);

    std::vector<double> times;
    for (int i = 0; i < options_.iterations + 2; ++i) {
      if (options_.flush) Flush(flush_.data(), kFlushBytes, stream_);
      CheckCuda(cudaEventRecord(begin_, stream_), "event");
      CheckCuda(cudaGraphLaunch(replay, stream_), "graph");
      CheckCuda(cudaEventRecord(end_, stream_), "event");
      CheckCuda(cudaEventSynchronize(end_), "the kernel");
      float ms = 0;
      CheckCuda(cudaEventElapsedTime(&ms, begin_, end_), "event");
      if (i >= 2) times.push_back(ms);
    }
    std::ranges::sort(times);
    m.ms = times[times.size() / 2];
    m.spread_ms = times[times.size() * 9 / 10] - times[times.size() / 10];
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);

    double bytes = 0, flops = 0, serial = 0;
    for (size_t level = 0; level < c.nodes.size(); ++level) {
      const double level_bytes = 4.0 * c.nodes[level] * c.tokens[level] * c.kv_heads * c.head_dim;
      double visible = static_cast<double>(c.tokens[level]) * c.queries;
      if (level + 1 == c.nodes.size()) visible -= 0.5 * c.queries * (c.queries - 1);
      const double level_flops = 4.0 * c.head_dim * c.qo_heads * branches * visible;
      bytes += level_bytes, flops += level_flops;
      serial += std::max(level_bytes / copy_bytes_per_s_, level_flops / (options_.matmul_tflops * 1e12));
    }
    m.bound_overlapped_ms = 1e3 * std::max(bytes / copy_bytes_per_s_, flops / (options_.matmul_tflops * 1e12));
    m.bound_serial_ms = 1e3 * serial;
    m.tflops = flops / m.ms / 1e9;
    m.tbps = bytes / m.ms / 1e9;
    return m;
  }

 private:
  static constexpr int64_t kFlushBytes = int64_t{256} << 20;

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
    std::ranges::sort(times);
    copy_bytes_per_s_ = 2.0 * static_cast<double>(bytes) / (times[times.size() / 2] * 1e-3);
  }

  // Relative L2 error of the first, a middle and the last row; infinite if any output element was left unwritten.
  double Error(const AttentionSpec& spec, const Case& c, const Forest& forest, const KvLayerView& kv, const DeviceBuffer& q,
               const DeviceBuffer& out) {
    const int64_t row = int64_t{c.qo_heads} * c.head_dim, rows = static_cast<int64_t>(forest.branch_node.size()) * c.queries;
    DeviceBuffer pages = Take(DeviceBuffer::Allocate(forest.pages.size() * 4));
    CheckCuda(cudaMemcpy(pages.data(), forest.pages.data(), forest.pages.size() * 4, cudaMemcpyHostToDevice), "pages");
    DeviceBuffer scores = Take(DeviceBuffer::Allocate(size_t(c.qo_heads) * forest.kv_len[0] * 8)),
                 result = Take(DeviceBuffer::Allocate(row * 8));
    std::vector<BF16> got(rows * row);
    CheckCuda(cudaMemcpy(got.data(), out.data(), got.size() * 2, cudaMemcpyDeviceToHost), "out");
    for (const BF16 x : got) {
      if (std::isnan(x.ToFloat())) return INFINITY;
    }
    std::vector<double> want(row);
    double error = 0, norm = 0;
    for (const int64_t r : {int64_t{0}, rows / 2 + 1 < rows ? rows / 2 + 1 : 0, rows - 1}) {
      const int64_t branch = r / c.queries;
      const int32_t kv_len = static_cast<int32_t>(forest.kv_len[branch] - c.queries + r % c.queries + 1);
      ReferenceRow(spec, kv, reinterpret_cast<const int32_t*>(pages.data()) + forest.page_begin[branch], kv_len,
                   q.data() + r * row * 2, reinterpret_cast<double*>(scores.data()), reinterpret_cast<double*>(result.data()),
                   stream_);
      CheckCuda(cudaMemcpyAsync(want.data(), result.data(), row * 8, cudaMemcpyDeviceToHost, stream_), "reference");
      CheckCuda(cudaStreamSynchronize(stream_), "reference");
      for (int64_t e = 0; e < row; ++e) {
        const double difference = got[r * row + e].ToFloat() - want[e];
        error += difference * difference, norm += want[e] * want[e];
      }
    }
    return std::sqrt(error / norm);
  }

  Options options_;
  std::unique_ptr<Backend> backend_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  DeviceBuffer flush_;
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
    } else if (name == "--json") {
      options.json = value;
    } else {
      Check(InvalidArgument("unknown option " + name + "; see the head of attention_cuda_bench.cc"));
    }
  }
  return options;
}

// One prefix of P tokens under B requests of U tokens each: the plan must nowhere lose more than 2 % (5 % below 20 us, where a
// replay varies that much) to the plan that shares nothing. Cells that would read more than 40 GB unshared are left out: there
// sharing saves most of the bytes.
void Sweep(Bench& bench, const Options& options) {
  constexpr double kMostBytes = 40e9, kShortMs = 0.020;
  std::ofstream json;
  if (!options.json.empty()) json.open(options.json);
  int cells = 0, slower = 0, left_out = 0;
  double log_gain = 0;
  std::printf("%-6s %6s %5s %5s %9s %9s %7s\n", "heads", "P", "U", "B", "plan_ms", "store_ms", "ratio");
  const std::pair<int32_t, int32_t> heads[] = {{32, 32}, {32, 8}, {8, 1}};
  for (const auto& [qo_heads, kv_heads] : heads) {
    for (const int32_t prefix : {64, 512, 4096, 32768}) {
      for (const int32_t unique : {16, 128, 512, 2048}) {
        for (const int32_t batch : {1, 4, 16, 64, 256, 1024, 4096}) {
          if (4.0 * 128 * kv_heads * batch * (static_cast<double>(prefix) + unique) > kMostBytes) {
            ++left_out;
            continue;
          }
          const Case c{"sweep", qo_heads, kv_heads, 128, {1, batch}, {prefix, unique}};
          const double plan = bench.Run(c, SharePolicy::kTree, false).ms, store = bench.Run(c, SharePolicy::kStore, false).ms;
          const bool is_slower = plan > store * (std::max(plan, store) < kShortMs ? 1.05 : 1.02);
          ++cells, slower += is_slower, log_gain += std::log(store / plan);
          if (is_slower) {
            std::printf("%2d/%-3d %6d %5d %5d %9.4f %9.4f %7.3f\n", qo_heads, kv_heads, prefix, unique, batch, plan, store,
                        plan / store);
          }
          if (json.is_open()) {
            json << "{\"qo_heads\": " << qo_heads << ", \"kv_heads\": " << kv_heads << ", \"prefix\": " << prefix
                 << ", \"unique\": " << unique << ", \"batch\": " << batch << ", \"plan_ms\": " << plan
                 << ", \"store_ms\": " << store << "}\n";
          }
        }
      }
    }
  }
  std::printf("%d cells, %d left out (more than %.0f GB unshared); slower than sharing nothing: %d; geomean %.2fx faster\n", cells,
              left_out, kMostBytes / 1e9, slower, std::exp(log_gain / cells));
}

int Main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  Bench bench(options);
  if (options.sweep) {
    Sweep(bench, options);
    return 0;
  }
  std::printf("copy %.2f TB/s, matmul %.0f TFLOP/s (given)\n", bench.copy_tbps(), options.matmul_tflops);
  std::printf("%-7s %8s %7s %8s %8s %6s %7s %7s %8s %7s %6s %8s %7s %6s\n", "case", "ms", "spread", "overlap", "serial", "x_over",
              "TFLOP/s", "TB/s", "goal_ms", "peer_ms", "peer/x", "error", "plan_ms", "items");
  std::ofstream json;
  if (!options.json.empty()) json.open(options.json);
  double peers = 0;
  int compared = 0;
  for (const Case& c : AllCases()) {
    if (!options.cases.empty() && std::ranges::find(options.cases, c.name) == options.cases.end()) continue;
    const Measurement m = bench.Run(c, options.policy);
    std::printf("%-7s %8.4f %7.4f %8.4f %8.4f %6.2f %7.0f %7.2f %8.3f %7.3f %6.2f %8.1e %7.3f %6d\n", c.name.c_str(), m.ms,
                m.spread_ms, m.bound_overlapped_ms, m.bound_serial_ms, m.ms / m.bound_overlapped_ms, m.tflops, m.tbps, c.goal_ms,
                c.peer_ms, c.peer_ms / m.ms, m.error, m.plan_ms, m.items);
    std::fflush(stdout);
    if (c.name.starts_with("tree")) peers += std::log(c.peer_ms / m.ms), ++compared;
    if (json.is_open()) {
      json << "{\"case\": \"" << c.name << "\", \"ms\": " << m.ms << ", \"spread_ms\": " << m.spread_ms
           << ", \"bound_overlapped_ms\": " << m.bound_overlapped_ms << ", \"bound_serial_ms\": " << m.bound_serial_ms
           << ", \"tflops\": " << m.tflops << ", \"tbps\": " << m.tbps << ", \"best_peer_ms\": " << c.peer_ms
           << ", \"error\": " << m.error << ", \"plan_ms\": " << m.plan_ms << ", \"upload_ms\": " << m.upload_ms
           << ", \"items\": " << m.items << ", \"contributions\": " << m.contributions << ", \"copy_tbps\": " << bench.copy_tbps()
           << ", \"matmul_tflops\": " << options.matmul_tflops << "}\n";
    }
  }
  if (compared > 0) std::printf("trees: geomean %.2fx the best peer\n", std::exp(peers / compared));
  return 0;
}

}  // namespace
}  // namespace coppice::attention::cuda::bench

int main(int argc, char** argv) { return coppice::attention::cuda::bench::Main(argc, argv); }
