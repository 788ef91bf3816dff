// The results of `coppice bench decode`, in their forms: lines of text, CSV, a page with plots. Layer: cli.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace coppice::cli {

// A device's rates, for the bound of attention.
struct Roofline {
  double bytes_per_second = 0, flops_per_second = 0;
};

// The cells of the table's head, and of a row of "rows"; a case that memory has no room for shows x.
std::vector<std::string> DecodeHeadCells();
std::vector<std::string> DecodeRowCells(const nlohmann::ordered_json& row);

// For each row of a sharing mode whose case was measured without attention too, "attention": the difference of their steps, in ms
// ("step_ms"), and, with a roofline, the serial bound ("bound_ms"): of the tokens that a mode reads once for all, and of the
// samples' own ones, the longer of reading and computing. `rows` are those of one model in a 16-bit dtype.
void AddAttention(const ModelConfig& model, int32_t max_tokens, const std::optional<Roofline>& roofline,
                  nlohmann::ordered_json* rows);
// A line for each of them.
std::string FormatAttention(const ModelConfig& model, const nlohmann::ordered_json& rows);

// A line a case, empty where memory had no room.
std::string DecodeReportCsv(const nlohmann::ordered_json& rows);
// `report` as written by --out.
std::string DecodeReportHtml(const nlohmann::ordered_json& report);

}  // namespace coppice::cli
