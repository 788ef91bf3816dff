// Errors of Coppice as exceptions of Python. Layer: python.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "coppice/core/status.h"

namespace coppice::python {

// The exception that stands for a status: ValueError for INVALID_ARGUMENT and OUT_OF_RANGE, FileNotFoundError for NOT_FOUND,
// NotImplementedError for UNIMPLEMENTED, TimeoutError for DEADLINE_EXCEEDED, MemoryError for RESOURCE_EXHAUSTED, RuntimeError with
// the code's name for all others. REQUIRES: the GIL, and an error.
[[noreturn]] void Throw(const Status& status);

inline void ThrowIfError(const Status& status) {
  if (!status.ok()) Throw(status);
}

template <class T>
T ValueOrThrow(Result<T> result) {
  ThrowIfError(result.status());
  return std::move(result).value();
}

}  // namespace coppice::python
