// Each CPU tile kernel alone against what the machine can do: dense tiles beside bf16 matrix products of attention's shapes
// (coppice::ops, oneDNN where it is fast), stream tiles beside a loop that only reads (roofline.h). A kernel and its bound take
// turns run by run, on one thread and on all; rates are medians of all runs and of the fastest one. One JSON object a line. Run it
// on an idle machine (arguments: parts of kernel names, to measure only those); whole layers over trees: `coppice bench attention`.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/cpu/kernel_table.h"
#include "attention_tools/cpu/roofline.h"
#include "core/buffer.h"
#include "core/check.h"
#include "core/math.h"
#include "core/thread_pool.h"
#include "ops/cpu/cpu_ops.h"

namespace coppice::attention {
namespace {

constexpr int32_t kPageSize = 16;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A thing to be measured: `run(i)`, the i-th run of all, does `work` units (flops or bytes) on all workers of a pool.
struct Contestant {
  double work;
  std::function<void(int i)> run;
  std::vector<double> seconds = {};

  double fastest() const { return work / *std::ranges::min_element(seconds) * 1e-9; }
  double median() {
    std::ranges::nth_element(seconds, seconds.begin() + seconds.size() / 2);
    return work / seconds[seconds.size() / 2] * 1e-9;
  }
};

// Contestants take turns, in an order that rotates. A turn is a burst of at least `burst_s`, of which the second half counts: each
// finds the caches, the clock and the tile unit's power state as it leaves them itself, not as the one before did. burst_s 0: one
// run.
void Interleave(std::vector<Contestant>& contestants, int turns, double burst_s) {
  int runs = 0;
  for (int turn = 0; turn < turns; ++turn) {
    for (size_t i = 0; i < contestants.size(); ++i) {
      Contestant& c = contestants[(i + turn) % contestants.size()];
      const double start = Seconds();
      double begin, end;
      do {
        begin = Seconds();
        c.run(runs++);
        end = Seconds();
        if (end - start >= burst_s / 2) c.seconds.push_back(end - begin);
      } while (end - start < burst_s);
    }
  }
}

// Operands of one worker's kernel call: consecutive queries, `tokens` of KV in pages that lie one after the other.
class Problem {
 public:
  Problem(const cpu::TileKernel& kernel, int32_t head_dim, int32_t rows, int32_t tokens)
      : kernel_(kernel),
        head_dim_(head_dim),
        shape_{.num_pages = tokens / kPageSize, .page_size = kPageSize, .num_kv_heads = 1, .head_dim = head_dim},
        q_(*Buffer::Allocate(size_t(rows) * head_dim * sizeof(BF16))),
        scratch_(*Buffer::Allocate(kernel.scratch_bytes(head_dim, rows))),
        acc_(size_t(rows) * head_dim),
        m_(rows),
        l_(rows) {
    std::ranges::fill(q_.Span<BF16>(), BF16::FromFloat(0.5f));
    for (int32_t page = 0; page < shape_.num_pages; ++page) pages_.push_back(page);
    for (int32_t r = 0; r < rows; ++r) {
      queries_.push_back({.q_row = r, .begin = 0, .end = tokens, .span_begin = INT32_MAX, .tree_mask = 0});
    }
  }

  size_t kv_bytes() const { return shape_.bytes(); }
  double flops() const { return 4.0 * static_cast<double>(queries_.size()) * shape_.num_pages * kPageSize * head_dim_; }
  void Run(std::byte* kv) {
    const KvLayerView view = shape_.View(kv);
    const cpu::TileTask task = {.kv = {.k = static_cast<const std::byte*>(view.k),
                                       .v = static_cast<const std::byte*>(view.v),
                                       .page_bytes = view.page_stride * 2,
                                       .slot_bytes = view.slot_stride * 2,
                                       .pages = pages_.data(),
                                       .page_size = kPageSize},
                                .kv_begin = 0,
                                .kv_end = shape_.num_pages * kPageSize,
                                .queries = queries_,
                                .group_size = 1,
                                .head_dim = head_dim_,
                                .q = q_.data(),
                                .q_row_bytes = head_dim_ * 2,
                                .score_scale = 0.1275f,
                                .soft_cap = 0};
    kernel_.run(task, {.acc = acc_.data(), .acc_stride = head_dim_, .m = m_.data(), .l = l_.data()}, scratch_.data());
  }

 private:
  const cpu::TileKernel& kernel_;
  int32_t head_dim_;
  KvPoolShape shape_;
  Buffer q_, scratch_;
  std::vector<int32_t> pages_;
  std::vector<cpu::TileQuery> queries_;
  std::vector<float> acc_, m_, l_;
};

// y = x W^T with bf16 inputs, `rows` rows a worker.
Contestant Product(ThreadPool& pool, ops::Ops& ops, int64_t rows, int64_t k, int64_t n) {
  struct Operands {
    Buffer x, y;
    std::unique_ptr<ops::Weight> weight;
  };
  const int64_t all_rows = rows * pool.num_workers();
  const std::vector<BF16> values(k * n, BF16::FromFloat(0.01f));
  const ops::LinearPart part = {values.data(), n};
  auto operands =
      std::make_shared<Operands>(Operands{*Buffer::Allocate(RoundUp(all_rows, ops::kRowPadding) * k * sizeof(BF16)),
                                          *Buffer::Allocate(all_rows * n * sizeof(float)), *ops.Pack(DType::kBF16, k, {&part, 1})});
  return {.work = 2.0 * static_cast<double>(all_rows * k * n), .run = [=, &ops](int) {
            COPPICE_CHECK(ops.Linear({operands->x.data(), DType::kBF16, all_rows, k, k}, *operands->weight,
                                     {operands->y.data(), DType::kF32, all_rows, n, n}, {}, nullptr)
                              .ok());
          }};
}

// KV of 2,048 tokens in the private cache. The bound is the fastest of three matrix products with packed weights: the two of
// attention at this number of rows, and a large square one.
void BenchDense(ThreadPool& pool, const cpu::TileKernel& kernel, cpu::Isa isa, int32_t head_dim, int32_t rows) {
  constexpr int32_t kTokens = 2048;
  const int workers = pool.num_workers();
  std::vector<Problem> problems;
  for (int w = 0; w < workers; ++w) problems.emplace_back(kernel, head_dim, rows, kTokens);
  const size_t kv_bytes = problems[0].kv_bytes();
  Buffer kv = *Buffer::Allocate(kv_bytes * workers);
  std::ranges::fill(kv.Span<BF16>(), BF16::FromFloat(0.25f));
  const auto device = Device::CreateCpu(&pool);
  const auto ops = ops::MakeCpuOps(device.get(), {}, ops::SelectKernels(), ops::ProductLibrary::kAuto);
  std::vector<Contestant> contestants;
  contestants.push_back({.work = problems[0].flops() * workers, .run = [&](int) {
                           pool.ParallelFor(workers, [&](int64_t w, int) { problems[w].Run(kv.data() + w * kv_bytes); });
                         }});
  const double instructions = cpu::ComputeProducts(isa, DType::kBF16) * workers;
  contestants.push_back({.work = instructions, .run = [&](int) {
                           pool.ParallelFor(workers, [&](int64_t, int) { cpu::ComputeProducts(isa, DType::kBF16); });
                         }});
  contestants.push_back(Product(pool, *ops, rows, head_dim, kTokens));
  contestants.push_back(Product(pool, *ops, rows, kTokens, head_dim));
  contestants.push_back(Product(pool, *ops, 256, 1024, 1024));
  Interleave(contestants, /*turns=*/10, /*burst_s=*/6e-3);
  double product = 0, median_product = 0;
  for (Contestant& c : std::span(contestants).subspan(2)) {
    product = std::max(product, c.fastest());
    median_product = std::max(median_product, c.median());
  }
  Contestant& tile = contestants[0];
  std::printf(
      "{\"kernel\": \"%s\", \"threads\": %d, \"head_dim\": %d, \"rows\": %d, \"tokens\": %d, \"gflops\": %.1f, \"median_gflops\": "
      "%.1f, "
      "\"product_gflops\": %.1f, \"median_product_gflops\": %.1f, \"instruction_gflops\": %.1f, \"percent_of_products\": %.1f, "
      "\"median_percent_of_products\": %.1f}\n",
      kernel.name, workers, head_dim, rows, kTokens, tile.fastest(), tile.median(), product, median_product,
      contestants[1].fastest(), 100 * tile.fastest() / product, 100 * tile.median() / median_product);
}

// KV from memory: a kernel and the two loops that only read, of which the faster one counts, take turns on pieces of 8 MiB a
// worker, none of which comes again before `kv` has been read once. Each piece comes up kPasses times a contestant: medians of
// fewer turns differ by 10 % from run to run.
void BenchStream(ThreadPool& pool, const cpu::TileKernel& kernel, int32_t head_dim, int32_t rows, Buffer& kv) {
  constexpr size_t kPieceBytes = size_t{8} << 20;
  constexpr int kPasses = 8;
  const int workers = pool.num_workers();
  const int32_t tokens = static_cast<int32_t>(kPieceBytes / (2 * head_dim * sizeof(BF16)));
  std::vector<Problem> problems;
  for (int w = 0; w < workers; ++w) problems.emplace_back(kernel, head_dim, rows, tokens);
  const double bytes = static_cast<double>(kPieceBytes) * workers;
  const int pieces = static_cast<int>(kv.size() / kPieceBytes) / workers;
  const auto piece = [&](int run, int64_t w) { return kv.data() + (run % pieces * workers + w) * kPieceBytes; };
  std::vector<Contestant> contestants;
  for (const cpu::ReadOrder order : {cpu::ReadOrder::kPagesInTurn, cpu::ReadOrder::kMemory}) {
    contestants.push_back({.work = bytes, .run = [&, order](int i) {
                             pool.ParallelFor(workers, [&](int64_t w, int) { cpu::ReadLines(piece(i, w), kPieceBytes, order); });
                           }});
  }
  contestants.push_back(
      {.work = bytes, .run = [&](int i) { pool.ParallelFor(workers, [&](int64_t w, int) { problems[w].Run(piece(i, w)); }); }});
  Interleave(contestants, kPasses * pieces, 0);
  Contestant& read = contestants[0].median() > contestants[1].median() ? contestants[0] : contestants[1];
  Contestant& tile = contestants[2];
  std::printf(
      "{\"kernel\": \"%s\", \"threads\": %d, \"head_dim\": %d, \"rows\": %d, \"tokens\": %d, \"gbytes_per_s\": %.2f, "
      "\"median_gbytes_per_s\": %.2f, \"read_gbytes_per_s\": %.2f, \"median_read_gbytes_per_s\": %.2f, \"percent_of_reads\": %.1f, "
      "\"median_percent_of_reads\": %.1f}\n",
      kernel.name, workers, head_dim, rows, tokens, tile.fastest(), tile.median(), read.fastest(), read.median(),
      100 * tile.fastest() / read.fastest(), 100 * tile.median() / read.median());
}

// `names`: only kernels whose name contains one of them; none: all.
int Main(std::span<char*> names) {
  const auto wanted = [&](const cpu::TileKernel& kernel) {
    return names.empty() || std::ranges::any_of(names, [&](const char* name) { return std::strstr(kernel.name, name) != nullptr; });
  };
  Buffer kv = *Buffer::Allocate(size_t{512} << 20);
  ThreadPool all, one(1);
  all.ParallelFor(64, [&](int64_t part, int) {
    std::ranges::fill(kv.Span<BF16>().subspan(part * (kv.size() / 128), kv.size() / 128), BF16::FromFloat(0.25f));
  });
  for (const cpu::Isa isa : {cpu::Isa::kAmxBf16, cpu::Isa::kAvx512Bf16, cpu::Isa::kAvx512, cpu::Isa::kAvxVnni, cpu::Isa::kAvx2}) {
    if (!cpu::HasIsa(isa)) continue;
    std::printf("{\"isa\": \"%s\"}\n", std::string(cpu::Name(isa)).c_str());
    for (ThreadPool* pool : {&one, &all}) {
      for (const int32_t head_dim : {128, 64}) {
        const cpu::TileKernels kernels = cpu::SelectKernels(isa, {.num_qo_heads = 1, .num_kv_heads = 1, .head_dim = head_dim});
        for (const int32_t rows : {1, 2, 4, 8, 16}) {
          if (wanted(kernels.stream)) BenchStream(*pool, kernels.stream, head_dim, rows, kv);
        }
        if (head_dim != 128 || !wanted(kernels.dense)) continue;
        for (const int32_t rows : {16, 64, 128, 256, 512}) BenchDense(*pool, kernels.dense, isa, head_dim, rows);
      }
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace coppice::attention

int main(int argc, char** argv) { return coppice::attention::Main({argv + 1, argv + argc}); }
