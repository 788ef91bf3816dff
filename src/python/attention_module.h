// The attention half of coppice_llm._native. Layer: python.
#pragma once

#include <nanobind/nanobind.h>

namespace coppice::python {

void AddAttention(nanobind::module_& module);

}  // namespace coppice::python
