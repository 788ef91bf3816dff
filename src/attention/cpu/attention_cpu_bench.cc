// Attention on this CPU over trees as in the papers, scaled to what a CPU holds; one JSON object a line. Also: each tile kernel
// alone against its roofline (--kernels), and the machine's constants (--calibrate). All cores; run it on an idle machine.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "attention/cpu/attention_bench.h"
#include "attention/cpu/calibrate.h"
#include "attention/cpu/kernel_table.h"
#include "core/buffer.h"
#include "core/thread_pool.h"

namespace coppice::attention {
namespace {

// One kernel on one worker, KV in the caches (dense) or from memory (stream), fastest and median of many runs.
void BenchKernel(cpu::Isa isa, const cpu::CpuRoofline& roofline, bool dense, int32_t rows, int32_t tokens, int64_t working_set) {
  const AttentionSpec spec = {.num_qo_heads = 1, .num_kv_heads = 1, .head_dim = 128};
  const cpu::TileKernels kernels = cpu::SelectKernels(isa, spec);
  const cpu::TileKernel& kernel = dense ? kernels.dense : kernels.stream;
  const int32_t d = spec.head_dim;
  const KvPoolShape shape = {.num_pages = tokens / 16, .page_size = 16, .num_kv_heads = 1, .head_dim = d};
  const int64_t copies = std::max<int64_t>(1, working_set / static_cast<int64_t>(shape.bytes()));
  Buffer pool = *Buffer::Allocate(shape.bytes() * copies), q = *Buffer::Allocate(size_t(rows) * d * 2);
  for (BF16& x : pool.Span<BF16>()) x = BF16::FromFloat(static_cast<float>(&x - pool.As<BF16>()) * 1e-9f);
  for (BF16& x : q.Span<BF16>()) x = BF16::FromFloat(0.5f);
  std::vector<int32_t> pages(tokens / 16);
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
  std::vector<cpu::TileQuery> queries(rows);
  for (int32_t r = 0; r < rows; ++r) queries[r] = {.q_row = r, .begin = 0, .end = tokens, .span_begin = INT32_MAX, .tree_mask = 0};
  std::vector<float> acc(size_t(rows) * d), m(rows), l(rows);
  Buffer scratch = *Buffer::Allocate(kernel.scratch_bytes(d, rows));
  std::vector<double> seconds;
  double total = 0;
  for (int64_t run = 0; run < copies || total < 0.3; ++run) {
    const KvLayerView kv = shape.View(pool.data() + run % copies * shape.bytes());
    const cpu::TileTask task = {.kv = {.k = static_cast<const std::byte*>(kv.k),
                                       .v = static_cast<const std::byte*>(kv.v),
                                       .page_bytes = kv.page_stride * 2,
                                       .slot_bytes = kv.slot_stride * 2,
                                       .pages = pages.data(),
                                       .page_size = 16},
                                .kv_begin = 0,
                                .kv_end = tokens,
                                .queries = queries,
                                .group_size = 1,
                                .head_dim = d,
                                .q = q.data(),
                                .q_row_bytes = d * 2,
                                .score_scale = 0.1275f,
                                .soft_cap = 0};
    const auto begin = std::chrono::steady_clock::now();
    kernel.run(task, {.acc = acc.data(), .acc_stride = d, .m = m.data(), .l = l.data()}, scratch.data());
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    total += seconds.back();
  }
  std::ranges::sort(seconds);
  const double flops = 4.0 * rows * tokens * d, bytes = static_cast<double>(shape.bytes());
  const double best = seconds.front(), median = seconds[seconds.size() / 2];
  std::printf(
      "{\"kernel\": \"%s\", \"rows\": %d, \"tokens\": %d, \"fastest_us\": %.1f, \"median_us\": %.1f, \"gflops\": %.1f, "
      "\"product_roofline_gflops\": %.1f, \"percent_of_products\": %.1f, \"gbytes_per_s\": %.2f, \"read_roofline_gbytes_per_s\": "
      "%.2f, \"percent_of_reads\": %.1f}\n",
      kernel.name, rows, tokens, best * 1e6, median * 1e6, flops / best * 1e-9, roofline.product_flops_per_s * 1e-9,
      100 * flops / best / roofline.product_flops_per_s, bytes / best * 1e-9, roofline.read_bytes_per_s * 1e-9,
      100 * bytes / best / roofline.read_bytes_per_s);
}

int Kernels() {
  for (const cpu::Isa isa : {cpu::Isa::kAmxBf16, cpu::Isa::kAvx512Bf16, cpu::Isa::kAvx512, cpu::Isa::kAvx2}) {
    if (isa > cpu::DetectIsa()) continue;
    ThreadPool one(1);
    const cpu::CpuRoofline roofline = *cpu::MeasureCpuRoofline(one, isa, DType::kBF16);
    for (const int32_t rows : {16, 64, 128, 256, 512}) BenchKernel(isa, roofline, true, rows, 2048, 0);
    for (const int32_t rows : {1, 2, 4, 8}) BenchKernel(isa, roofline, false, rows, 16384, 512 << 20);
  }
  return 0;
}

int Trees() {
  ThreadPool pool;
  const Result<cpu::CpuRoofline> roofline = cpu::MeasureCpuRoofline(pool, cpu::DetectIsa(), DType::kBF16);
  if (!roofline.ok()) return std::fprintf(stderr, "%s\n", roofline.status().ToString().c_str()), 1;
  std::printf(
      "{\"isa\": \"%s\", \"workers\": %d, \"product_gflops\": %.1f, \"read_gbytes_per_s\": %.1f, \"cache_gbytes_per_s\": %.1f}\n",
      std::string(cpu::Name(cpu::DetectIsa())).c_str(), pool.num_workers(), roofline->product_flops_per_s * 1e-9,
      roofline->read_bytes_per_s * 1e-9, roofline->cache_bytes_per_s * 1e-9);
  const auto device = MakeCpuBenchDevice(pool, cpu::DetectIsa());
  if (!device.ok()) return std::fprintf(stderr, "%s\n", device.status().ToString().c_str()), 1;
  const struct {
    const char* name;
    int32_t qo_heads, kv_heads, head_dim;
  } models[] = {{"gqa 9/3 d64", 9, 3, 64}, {"gqa 32/8 d128", 32, 8, 128}, {"mha 8/8 d128", 8, 8, 128}};
  const BenchTree trees[] = {
      {"prefix 2048, 64 samples of 64", {{1, 2048}, {64, 64}}, 1},
      {"prefix 2048, 8 samples of 64", {{1, 2048}, {8, 64}}, 1},
      {"prefix 512, 16 samples of 256", {{1, 512}, {16, 256}}, 1},
      {"system 1024, 4 documents of 512, 8 questions of 32", {{1, 1024}, {4, 512}, {8, 32}}, 1},
      {"nothing shared, 16 requests of 512", {{16, 512}}, 1},
      {"cached prefix 2048, 8 prompts of 64", {{1, 2048}, {8, 64}}, 64},
  };
  for (const auto& model : models) {
    const AttentionSpec spec = {.num_qo_heads = model.qo_heads, .num_kv_heads = model.kv_heads, .head_dim = model.head_dim};
    for (const BenchTree& tree : trees) {
      const auto rows = RunAttentionBench(**device, spec, tree, {.working_set_bytes = 160 << 20});
      if (!rows.ok()) return std::fprintf(stderr, "%s\n", rows.status().ToString().c_str()), 1;
      for (const BenchRow& row : *rows) {
        std::printf(
            "{\"model\": \"%s\", \"tree\": \"%s\", \"mode\": \"%s\", \"median_us\": %.1f, \"fastest_us\": %.1f, "
            "\"slowest_us\": %.1f, \"predicted_us\": %.1f, \"kv_mbytes\": %.3f, \"gflop\": %.4f, \"percent_of_roofline\": %.1f}\n",
            model.name, tree.name.c_str(), std::string(Name(row.mode)).c_str(), row.median_s * 1e6, row.fastest_s * 1e6,
            row.slowest_s * 1e6, row.predicted_s * 1e6, row.kv_bytes * 1e-6, row.flops * 1e-9, row.percent_of_roofline());
      }
      std::fflush(stdout);
    }
  }
  return 0;
}

int Calibrate() {
  ThreadPool pool;
  const Result<MachineModel> model = CalibrateCpu(pool);
  if (!model.ok()) return std::fprintf(stderr, "%s\n", model.status().ToString().c_str()), 1;
  std::printf("%s\n", ToJson(*model).c_str());
  return 0;
}

}  // namespace
}  // namespace coppice::attention

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--kernels") == 0) return coppice::attention::Kernels();
  if (argc == 2 && std::strcmp(argv[1], "--calibrate") == 0) return coppice::attention::Calibrate();
  if (argc == 1) return coppice::attention::Trees();
  std::fprintf(stderr, "usage: attention_cpu_bench [--kernels | --calibrate]\n");
  return 2;
}
