#include "python/tensor.h"

#include <fmt/format.h>

#include "coppice/attention/dlpack.h"
#include "python/errors.h"

namespace coppice::python {

DType TakeDType(const std::string& name, const Tensor& tensor) {
  return ValueOrThrow(attention::internal::DlpackDType(tensor, name.c_str()));
}

void CheckContiguous(const std::string& name, const Tensor& tensor) {
  int64_t expected = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    const int64_t stride = attention::internal::DlpackStride(tensor, i);
    if (tensor.shape[i] != 1 && stride != expected) {
      throw nanobind::value_error(
          fmt::format("{}: dimension {} has stride {}, expected {}; make it contiguous", name, i, stride, expected).c_str());
    }
    expected *= tensor.shape[i];
  }
}

}  // namespace coppice::python
