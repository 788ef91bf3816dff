// oneDNN's block-matrix kernels (AMX, AVX-512) on tiles that our own threads hand out. The library always uses one thread: its
// OpenMP barriers stall for milliseconds when another process takes a core (docs/matrix_products.md). Layer: ops, private.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "coppice/core/types.h"
#include "ops/cpu/kernels.h"

namespace coppice::ops {

class OneDnnTiles {
 public:
  static constexpr int64_t kRowStep = 16, kMaxRows = 64;  // 16: the rows of an AMX tile register

  // Kernels and arguments of products of fixed k and panel count by padded row count; owned by the OneDnnTiles that made it.
  struct Plan;
  // Whether the plan's kernels use matrix units (AMX), several times as fast as vectors.
  static bool UsesMatrixUnits(const Plan& plan);

  explicit OneDnnTiles(int num_workers);
  ~OneDnnTiles();

  enum class Units : uint8_t {
    kAny,
    kMatrix,  // none where the library would not use them, at no cost
  };
  // Builds, or finds, the kernels for x [rows, k] (dense) times `panels` panels. Null where the library has only slow generic code
  // (before AVX-512, or bf16 before AVX-512 BF16), or not those asked for. Costs a millisecond or so the first time. One kind of
  // kernels is asked for in the life of this object.
  const Plan* Prepare(DType dtype, int64_t k, int64_t panels, Units units);

  // tile [rows, panels * kPanelCols] (dense) = x times the panels at `weight`. rows: a multiple of kRowStep, at most kMaxRows.
  // Different workers may run at the same moment, also on one plan.
  void Run(const Plan& plan, int worker, const void* x, int64_t rows, const void* weight, float* tile);

 private:
  struct Library;  // engine and per-worker streams
  struct Key {
    DType dtype;
    int64_t k, panels;
    auto operator<=>(const Key&) const = default;
  };
  std::unique_ptr<Library> library_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace coppice::ops
