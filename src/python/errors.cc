#include "python/errors.h"

namespace coppice::python {

void Throw(const Status& status) {
  PyObject* type = PyExc_RuntimeError;
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange: type = PyExc_ValueError; break;
    case StatusCode::kNotFound: type = PyExc_FileNotFoundError; break;
    case StatusCode::kUnimplemented: type = PyExc_NotImplementedError; break;
    case StatusCode::kDeadlineExceeded: type = PyExc_TimeoutError; break;
    case StatusCode::kResourceExhausted: type = PyExc_MemoryError; break;
    default: break;
  }
  const std::string text = type == PyExc_RuntimeError ? status.ToString() : status.message();
  PyErr_SetString(type, text.c_str());
  throw nanobind::python_error();
}

}  // namespace coppice::python
