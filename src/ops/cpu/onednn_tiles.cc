#include "ops/cpu/onednn_tiles.h"

#include <omp.h>

#include <dnnl.hpp>
#include <string_view>

#include "core/check.h"

namespace coppice::ops {
namespace {

using dnnl::memory;

constexpr int64_t kRowClasses = OneDnnTiles::kMaxRows / OneDnnTiles::kRowStep;

// The library reads the calling thread's OpenMP setting when it builds a kernel.
class OneThread {
 public:
  OneThread() : saved_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(saved_); }

 private:
  int saved_;
};

// What one worker passes to the library; the data handles are set before each call.
struct Arguments {
  memory x, weight, tile, scratchpad;
  std::vector<std::byte> scratch;
  std::array<dnnl_exec_arg_t, 4> list;
};

}  // namespace

struct OneDnnTiles::Library {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::vector<dnnl::stream> streams;  // per worker
};

struct OneDnnTiles::Plan {
  struct RowClass {
    dnnl::matmul primitive;
    std::vector<Arguments> workers;
  };
  std::array<RowClass, kRowClasses> classes;
  bool matrix_units = true;
};

bool OneDnnTiles::UsesMatrixUnits(const Plan& plan) { return plan.matrix_units; }

OneDnnTiles::OneDnnTiles(int num_workers) : library_(std::make_unique<Library>()) {
  for (int i = 0; i < num_workers; ++i) library_->streams.emplace_back(library_->engine);
}

OneDnnTiles::~OneDnnTiles() = default;

const OneDnnTiles::Plan* OneDnnTiles::Prepare(DType dtype, int64_t k, int64_t panels) {
  auto [entry, inserted] = plans_.try_emplace(Key{dtype, k, panels});
  if (!inserted) return entry->second.get();
  const OneThread one_thread;
  const bool bf16 = dtype == DType::kBF16;
  const memory::data_type type = bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::format_tag packed = bf16 ? memory::format_tag::BA16a64b2a : memory::format_tag::BA16a64b;
  const int64_t n = panels * kPanelCols;
  try {
    auto plan = std::make_unique<Plan>();
    for (int64_t i = 0; i < kRowClasses; ++i) {
      const int64_t rows = (i + 1) * kRowStep;
      const dnnl::matmul::desc desc({{rows, k}, type, memory::format_tag::ab}, {{k, n}, type, packed},
                                    {{rows, n}, memory::data_type::f32, memory::format_tag::ab});
      dnnl::primitive_attr attributes;
      attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
      const dnnl::matmul::primitive_desc primitive(desc, attributes, library_->engine);
      const std::string_view name = primitive.impl_info_str();
      if (!name.starts_with("brg:")) return nullptr;
      plan->matrix_units = plan->matrix_units && name.find("amx") != name.npos;
      Plan::RowClass& row_class = plan->classes[i];
      row_class.primitive = dnnl::matmul(primitive);
      row_class.workers.resize(library_->streams.size());
      for (Arguments& a : row_class.workers) {
        a.scratch.resize(primitive.scratchpad_desc().get_size());
        a.x = memory(primitive.src_desc(), library_->engine, nullptr);
        a.weight = memory(primitive.weights_desc(), library_->engine, nullptr);
        a.tile = memory(primitive.dst_desc(), library_->engine, nullptr);
        a.scratchpad = memory(primitive.scratchpad_desc(), library_->engine, a.scratch.data());
        a.list = {{{DNNL_ARG_SRC, a.x.get()},
                   {DNNL_ARG_WEIGHTS, a.weight.get()},
                   {DNNL_ARG_DST, a.tile.get()},
                   {DNNL_ARG_SCRATCHPAD, a.scratchpad.get()}}};
      }
    }
    entry->second = std::move(plan);
  } catch (const dnnl::error&) {  // this machine or version has no such kernel; the panel kernels have
  }
  return entry->second.get();
}

void OneDnnTiles::Run(const Plan& plan, int worker, const void* x, int64_t rows, const void* weight, float* tile) {
  const Plan::RowClass& row_class = plan.classes[rows / kRowStep - 1];
  const Arguments& a = row_class.workers[worker];
  // The C interface: the C++ one builds a hash map for every call.
  const bool ok = dnnl_memory_set_data_handle(a.x.get(), const_cast<void*>(x)) == dnnl_success &&
                  dnnl_memory_set_data_handle(a.weight.get(), const_cast<void*>(weight)) == dnnl_success &&
                  dnnl_memory_set_data_handle(a.tile.get(), tile) == dnnl_success &&
                  dnnl_primitive_execute(row_class.primitive.get(), library_->streams[worker].get(),
                                         static_cast<int>(a.list.size()), a.list.data()) == dnnl_success;
  COPPICE_CHECK(ok);
}

}  // namespace coppice::ops
