#include "ops/cuda/tuner.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/check.h"
#include "core/math.h"
#include "ops/cuda/product_timer.h"
#include "ops/cuda/rows.h"

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

constexpr int kLaunches = 8;  // at least, of a measurement

struct Form {
  DType out_dtype;
  bool accumulates;
};

// How a model uses a weight: gate and up come back in the weights' dtype, all others in fp32, stored or added to the residual.
std::vector<Form> FormsOf(const WeightShape& weight) {
  if (weight.is_gated) return {{.out_dtype = weight.dtype, .accumulates = false}};
  return {{.out_dtype = DType::kF32, .accumulates = false}, {.out_dtype = DType::kF32, .accumulates = true}};
}

ProductShape ShapeOf(const WeightShape& weight, const Form& form, int64_t rows) {
  return {.dtype = weight.dtype,
          .out_dtype = form.out_dtype,
          .accumulates = form.accumulates,
          .rows = rows,
          .n = weight.n,
          .k = weight.k,
          .x_stride = weight.stride,
          .w_stride = weight.stride,
          .y_stride = weight.n};
}

// The library's product, in pieces, and the pass that gates its output, or our kernel if that takes less. `gated` receives outputs.
Result<MeasuredAlgorithm> MeasureGated(const TuneParts& parts, const WeightShape& weight, const Form& form, int64_t rows,
                                       const ProductOperandsMemory& memory, const DeviceMemory& gated, cudaStream_t stream) {
  const int64_t piece = std::min(rows, parts.gate_rows);
  COPPICE_ASSIGN_OR_RETURN(MeasuredAlgorithm library, parts.library->Measure(ShapeOf(weight, form, piece), memory, stream));
  const ConstDeviceTensor x = {memory.x(), weight.dtype, rows, weight.k, weight.stride},
                          gate_up = {memory.y(), weight.dtype, rows, weight.n, weight.n};
  const DeviceTensor y = {gated.data(), weight.dtype, rows, weight.out_features, weight.out_features};
  const auto run_pass = [&](int) {
    return LaunchGate(gate_up, /*bias=*/nullptr, Activation::kSilu, y, /*overlaps=*/false, stream);
  };
  COPPICE_ASSIGN_OR_RETURN(const double pass, TimeInGraph(parts.device, kLaunches, run_pass, stream));
  library.microseconds = library.microseconds * static_cast<double>(rows) / static_cast<double>(piece) + pass;
  WeightView view = {.dtype = weight.dtype,
                     .n = weight.n,
                     .k = weight.k,
                     .stride = weight.stride,
                     .out_features = weight.out_features,
                     .is_gated = true};
  if (!parts.gated->Takes(x, view, y, Activation::kSilu)) return library;
  const auto run_ours = [&](int i) {
    view.data = memory.Weight(i % memory.copies());
    return parts.gated->Run(x, view, y, Activation::kSilu, stream);
  };
  COPPICE_ASSIGN_OR_RETURN(const double ours, TimeInGraph(parts.device, std::max(memory.copies(), kLaunches), run_ours, stream));
  if (ours >= library.microseconds) return library;
  return MeasuredAlgorithm{.is_ours = true, .microseconds = ours};
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
      DeviceMemory gated;
      if (weight.is_gated) {
        const int64_t outputs = RoundUp<int64_t>(missing.back(), kRowPadding) * weight.out_features;
        COPPICE_ASSIGN_OR_RETURN(gated, parts.device->Allocate(static_cast<size_t>(outputs) * SizeOf(weight.dtype)));
      }
      for (const int64_t rows : missing) {
        COPPICE_ASSIGN_OR_RETURN(const MeasuredAlgorithm measured,
                                 weight.is_gated ? MeasureGated(parts, weight, form, rows, memory, gated, stream)
                                                 : parts.library->Measure(ShapeOf(weight, form, rows), memory, stream));
        parts.algorithms->Set(key, rows, measured);
      }
      is_changed = true;
    }
  }
  return is_changed ? parts.algorithms->Save() : OkStatus();
}

}  // namespace coppice::ops::cuda
