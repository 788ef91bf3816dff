// DLPack tensors (PyTorch, JAX, CuPy, ...) as the views that attention takes. Header-only and free of dependencies: the functions
// are templates over DLTensor, so include <dlpack/dlpack.h> (any version) yourself. Nothing is copied; the tensor's memory must
// outlive the view.
// Layer: public API.
#pragma once

#include <cstdint>
#include <string>

#include "coppice/attention/attention.h"
#include "coppice/core/status.h"
#include "coppice/core/types.h"

namespace coppice::attention {

// q, out, or the k / v of AppendArgs: [rows, heads, head_dim], head_dim and heads contiguous, rows row_stride elements apart. The
// stride of a single row, which is never stepped over, is the row's size.
struct RowsView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, heads = 0, head_dim = 0, row_stride = 0;
};

enum class KvLayout : uint8_t {
  kNHD,  // [pages, page_size, kv_heads, head_dim]
  kHND,  // [pages, kv_heads, page_size, head_dim]
};

namespace internal {

// Stride of dimension i in elements; DLPack allows a null `strides` for compact row-major tensors.
template <class DLTensorT>
int64_t DlpackStride(const DLTensorT& tensor, int i) {
  if (tensor.strides != nullptr) return tensor.strides[i];
  int64_t stride = 1;
  for (int j = tensor.ndim - 1; j > i; --j) stride *= tensor.shape[j];
  return stride;
}

// Float (code 2) of 32 or 16 bits, bfloat (code 4) of 16 bits, one lane: the codes are fixed by DLPack's ABI.
template <class DLTensorT>
Result<DType> DlpackDType(const DLTensorT& tensor, const char* name) {
  const int code = static_cast<int>(tensor.dtype.code), bits = tensor.dtype.bits, lanes = tensor.dtype.lanes;
  if (lanes == 1 && code == 2 && bits == 32) return DType::kF32;
  if (lanes == 1 && code == 2 && bits == 16) return DType::kF16;
  if (lanes == 1 && code == 4 && bits == 16) return DType::kBF16;
  return InvalidArgument(std::string(name) + ": DLPack dtype (code " + std::to_string(code) + ", " + std::to_string(bits) +
                         " bits, " + std::to_string(lanes) + " lanes) is not supported; use float32, float16 or bfloat16");
}

template <class DLTensorT>
Status CheckDlpackShape(const DLTensorT& tensor, int ndim, const char* name) {
  if (tensor.ndim != ndim) {
    return InvalidArgument(std::string(name) + ": the tensor has " + std::to_string(tensor.ndim) + " dimensions; expected " +
                           std::to_string(ndim));
  }
  if (DlpackStride(tensor, ndim - 1) != 1 && tensor.shape[ndim - 1] != 1) {
    return InvalidArgument(std::string(name) + ": head_dim has stride " + std::to_string(DlpackStride(tensor, ndim - 1)) +
                           "; expected 1 (call contiguous() on the last dimension)");
  }
  return OkStatus();
}

template <class DLTensorT>
void* DlpackData(const DLTensorT& tensor) {
  return static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
}

}  // namespace internal

// INVALID_ARGUMENT names `name`, the value found and what is expected.
template <class DLTensorT>
Result<RowsView> RowsFromDlpack(const DLTensorT& tensor, const char* name) {
  if (Status status = internal::CheckDlpackShape(tensor, 3, name); !status.ok()) return status;
  Result<DType> dtype = internal::DlpackDType(tensor, name);
  if (!dtype.ok()) return dtype.status();
  if (internal::DlpackStride(tensor, 1) != tensor.shape[2] && tensor.shape[1] != 1) {
    return InvalidArgument(std::string(name) + ": heads have stride " + std::to_string(internal::DlpackStride(tensor, 1)) +
                           "; expected " + std::to_string(tensor.shape[2]) + " (heads of a row must be contiguous)");
  }
  return RowsView{.data = internal::DlpackData(tensor),
                  .dtype = *dtype,
                  .rows = tensor.shape[0],
                  .heads = tensor.shape[1],
                  .head_dim = tensor.shape[2],
                  .row_stride = tensor.shape[0] > 1 ? internal::DlpackStride(tensor, 0) : tensor.shape[1] * tensor.shape[2]};
}

// One layer's paged K and V, any strides with contiguous head_dim; K and V must agree in shape, dtype and strides.
template <class DLTensorT>
Result<KvLayerView> KvLayerFromDlpack(const DLTensorT& k, const DLTensorT& v, KvLayout layout) {
  for (const DLTensorT* tensor : {&k, &v}) {
    if (Status status = internal::CheckDlpackShape(*tensor, 4, tensor == &k ? "k" : "v"); !status.ok()) return status;
  }
  Result<DType> dtype = internal::DlpackDType(k, "k");
  if (!dtype.ok()) return dtype.status();
  Result<DType> v_dtype = internal::DlpackDType(v, "v");
  if (!v_dtype.ok()) return v_dtype.status();
  if (*dtype != *v_dtype) return InvalidArgument("k is " + std::string(Name(*dtype)) + " but v is " + std::string(Name(*v_dtype)));
  for (int i = 0; i < 4; ++i) {
    const bool same_stride = k.shape[i] == 1 || internal::DlpackStride(k, i) == internal::DlpackStride(v, i);
    if (k.shape[i] != v.shape[i] || !same_stride) {
      return InvalidArgument("k and v differ in dimension " + std::to_string(i) + ": sizes " + std::to_string(k.shape[i]) +
                             " and " + std::to_string(v.shape[i]) + ", strides " + std::to_string(internal::DlpackStride(k, i)) +
                             " and " + std::to_string(internal::DlpackStride(v, i)));
    }
  }
  const int slot = layout == KvLayout::kNHD ? 1 : 2, head = layout == KvLayout::kNHD ? 2 : 1;
  return KvLayerView{.k = internal::DlpackData(k),
                     .v = internal::DlpackData(v),
                     .page_stride = internal::DlpackStride(k, 0),
                     .head_stride = internal::DlpackStride(k, head),
                     .slot_stride = internal::DlpackStride(k, slot),
                     .num_pages = static_cast<int32_t>(k.shape[0]),
                     .page_size = static_cast<int32_t>(k.shape[slot]),
                     .dtype = *dtype};
}

}  // namespace coppice::attention
