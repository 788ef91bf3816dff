// Keyword arguments of Python as EngineOptions. Layer: python.
#pragma once

#include <nanobind/nanobind.h>

#include "coppice/engine/engine.h"

namespace coppice::python {

// The options that have other values than EngineOptions gives them, under its names ("model_path", "kv_cache_bytes"); enumerators
// by their names ("bf16", "one-level"). TypeError names an option that there is not, or whose value is of another type, with the
// value; ValueError the value of an enumeration that is none.
EngineOptions ToEngineOptions(const nanobind::dict& options);

}  // namespace coppice::python
