// Products of few rows: a step of up to 16 sequences reads every weight once, so its time is the weights' bytes over the memory's
// rate. Layer: ops/cuda. Design and figures: docs/matrix_products.md, "Products of few rows".
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/device.h"
#include "ops/cuda/cuda_weight.h"
#include "ops/ops.h"

namespace coppice::ops::cuda {

struct FewRowsParams;  // few_rows_params.h

class FewRowsProduct {
 public:
  FewRowsProduct() = default;
  static Result<FewRowsProduct> Create(Device* device);

  // After a norm of more rows the product must not begin before that ends: a CTA of it, one of the product before and one of the
  // norm are more than an SM has room for, so it would go where another of its kind is, and both take twice as long.
  static constexpr int64_t kMostRowsBesideNorm = 8;

  // The most rows of x: 16, or fewer on a device with little shared memory.
  int32_t max_rows() const { return max_rows_; }
  // Whether the operands are of a size, dtype and alignment that the kernel takes. All others are the library's.
  bool Takes(const ConstDeviceTensor& x, const WeightView& weight) const;
  // Whether it takes the product with the norm of rows of fp32 instead.
  bool TakesNormed(const ConstDeviceTensor& x, const NormArgs& norm, const WeightView& weight) const;
  // Whether it takes what becomes of the product's rows, too.
  static bool TakesRope(const WeightView& weight, const RopeAppendArgs& args);
  // `after_own`: the last large kernel in the stream was such a product, so that each SM has room for one CTA more.
  // REQUIRES: Takes(x, weight); with a norm, which is null otherwise, TakesNormed.
  Status Run(const ConstDeviceTensor& x, const WeightView& weight, const DeviceTensor& y, const Epilogue& epilogue,
             const NormArgs* norm, bool after_own, cudaStream_t stream) const;
  // RopeAppend(args) of the product. REQUIRES: as Run, and TakesRope.
  Status RunQkvRope(const ConstDeviceTensor& x, const WeightView& weight, const RopeAppendArgs& args, const NormArgs* norm,
                    bool after_own, cudaStream_t stream) const;

 private:
  static FewRowsParams ParamsOf(const ConstDeviceTensor& x, const WeightView& weight, const NormArgs* norm);
  Status Launch(const FewRowsParams& params, DType dtype, bool after_own, cudaStream_t stream) const;

  int32_t num_sms_ = 0, max_rows_ = 0;
  bool overlaps_ = false;
};

}  // namespace coppice::ops::cuda
