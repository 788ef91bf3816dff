// The page of `coppice bench throughput` and `coppice bench serve`: plots and a table out of their JSON, one file without
// references. Layer: cli.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace coppice::cli {

// `report` as written by --out (docs/benchmarks.md).
std::string LoadReportHtml(const nlohmann::ordered_json& report);

// The report as lines of text: the head of the columns, and a row of "rows", of servers or of sharing modes.
std::string FormatLoadHead(bool servers);
std::string FormatLoadRow(const nlohmann::ordered_json& row);

}  // namespace coppice::cli
