// Counters of the engine as dictionaries of Python, under the names that EngineMetrics has. Layer: python.
#pragma once

#include <nanobind/nanobind.h>

#include "coppice/engine/engine.h"

namespace coppice::python {

nanobind::dict ToDict(const EngineMetrics& metrics);
nanobind::dict ToDict(const ModelInfo& model);

}  // namespace coppice::python
