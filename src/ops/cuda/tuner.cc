#include "ops/cuda/tuner.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/check.h"
#include "ops/cuda/product_timer.h"

namespace coppice::ops::cuda {
namespace {

// The numbers of rows that are measured; others run as the next larger one does. Kernels' tiles are powers of two and their halves.
std::vector<int64_t> RowsToMeasure(int64_t max_rows) {
  std::vector<int64_t> rows;
  for (int64_t power = 1;; power *= 2) {
    rows.push_back(power);
    if (power >= max_rows) return rows;
    if (power >= 32) rows.push_back(power + power / 2);
  }
}

struct Form {
  DType out_dtype;
  bool accumulates;
};

// How a model uses a weight: gate and up come back in the weights' dtype, all others in fp32, stored or added to the residual.
std::vector<Form> FormsOf(const WeightShape& weight) {
  if (weight.is_gated) return {{.out_dtype = weight.dtype, .accumulates = false}};
  return {{.out_dtype = DType::kF32, .accumulates = false}, {.out_dtype = DType::kF32, .accumulates = true}};
}

Status Measure(const TuneParts& parts, const WeightShape& weight, const Form& form, int64_t rows,
               const ProductOperandsMemory& memory, cudaStream_t stream) {
  const ProductShape shape = {.dtype = weight.dtype,
                              .out_dtype = form.out_dtype,
                              .accumulates = form.accumulates,
                              .rows = rows,
                              .n = weight.n,
                              .k = weight.k,
                              .x_stride = weight.stride,
                              .w_stride = weight.stride,
                              .y_stride = weight.n};
  COPPICE_ASSIGN_OR_RETURN(const MeasuredAlgorithm measured, parts.library->Measure(shape, memory, stream));
  parts.algorithms->Set(AlgorithmKeyOf(shape), rows, measured);
  return OkStatus();
}

}  // namespace

Status TuneProducts(const TuneParts& parts, const std::set<WeightShape>& weights, int64_t max_rows, cudaStream_t stream) {
  bool is_changed = false;
  for (const WeightShape& weight : weights) {
    for (const Form& form : FormsOf(weight)) {
      const AlgorithmKey key = {
          .dtype = weight.dtype, .out_dtype = form.out_dtype, .accumulates = form.accumulates, .n = weight.n, .k = weight.k};
      std::vector<int64_t> missing = RowsToMeasure(max_rows);
      std::erase_if(missing, [&](int64_t rows) { return parts.algorithms->FindExact(key, rows) != nullptr; });
      if (missing.empty()) continue;
      const ProductOperandsMemory::Shape operands = {
          .dtype = weight.dtype, .out_dtype = form.out_dtype, .n = weight.n, .stride = weight.stride, .max_rows = missing.back()};
      COPPICE_ASSIGN_OR_RETURN(const ProductOperandsMemory memory, ProductOperandsMemory::Create(parts.device, operands));
      for (const int64_t rows : missing) COPPICE_RETURN_IF_ERROR(Measure(parts, weight, form, rows, memory, stream));
      is_changed = true;
    }
  }
  return is_changed ? parts.algorithms->Save() : OkStatus();
}

}  // namespace coppice::ops::cuda
