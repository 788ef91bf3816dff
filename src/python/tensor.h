// Tensors of Python with the members of a DLTensor, as coppice/attention/dlpack.h takes them. Layer: python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>

#include "coppice/core/types.h"

namespace coppice::python {

// A view, without the array's reference.
struct Tensor {
  void* data = nullptr;
  nanobind::dlpack::dtype dtype = {};
  int ndim = 0;
  const int64_t* shape = nullptr;
  const int64_t* strides = nullptr;
  uint64_t byte_offset = 0;
};

template <class... Args>
Tensor ToTensor(const nanobind::ndarray<Args...>& array) {
  return {.data = const_cast<void*>(static_cast<const void*>(array.data())),  // a function that only reads took a read-only array
          .dtype = array.dtype(),
          .ndim = static_cast<int>(array.ndim()),
          .shape = array.shape_ptr(),
          .strides = array.stride_ptr()};
}

// The tensor that `value` is, by DLPack or the buffer protocol, without a copy. TypeError names the argument where it is none, or
// is read-only and Array is not.
template <class Array>
Array TakeTensor(const std::string& name, nanobind::handle value) {
  Array array;
  if (!nanobind::try_cast<Array>(value, array, false)) {
    std::string type = nanobind::cast<std::string>(nanobind::str(nanobind::type_name(value.type())));
    if (nanobind::hasattr(value, "dtype"))
      type += " of " + nanobind::cast<std::string>(nanobind::str(nanobind::object(value.attr("dtype"))));
    throw nanobind::type_error((name + " is " + type + ", expected a tensor with DLPack or the buffer protocol" +
                                (Array::ReadOnly ? "" : ", and one that can be written"))
                                   .c_str());
  }
  return array;
}

// Its element type. ValueError names the argument where it is none of float32, float16 and bfloat16.
DType TakeDType(const std::string& name, const Tensor& tensor);
// ValueError names the argument where elements do not follow each other.
void CheckContiguous(const std::string& name, const Tensor& tensor);

}  // namespace coppice::python
