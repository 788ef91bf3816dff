// The page of `coppice bench throughput` and `coppice bench serve`: plots and a table out of their JSON, one file without
// references. Layer: cli.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace coppice::cli {

// `report` as written by --out (docs/benchmarks.md).
std::string LoadReportHtml(const nlohmann::ordered_json& report);

// The report as a table: the cells of its head, and of a row of "rows", of servers or of sharing modes.
std::vector<std::string> LoadHeadCells(bool servers);
std::vector<std::string> LoadRowCells(const nlohmann::ordered_json& row);

}  // namespace coppice::cli
