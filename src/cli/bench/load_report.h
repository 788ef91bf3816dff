// The page of `coppice bench throughput` and `coppice bench serve`: plots and a table out of their JSON, one file without
// references. Layer: cli.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace coppice::cli {

// `report` as written by --out (docs/benchmarks.md).
std::string LoadReportHtml(const nlohmann::ordered_json& report);

}  // namespace coppice::cli
