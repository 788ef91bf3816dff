#include "simulate/step_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "core/check.h"
#include "core/json.h"

namespace coppice::simulate {
namespace {

using nlohmann::json;

// Straight lines between points; from none to the first one constant, since weights are read whatever the rows. Beyond the last one
// the last line, where it does not fall: measurements scatter, and no step takes less than nothing.
double At(std::span<const StepTimes::Point> points, double rows) {
  if (rows <= points.front().rows || points.size() == 1) return points.front().seconds;
  size_t i = 1;
  while (i + 1 < points.size() && points[i].rows < rows) ++i;
  const StepTimes::Point &a = points[i - 1], &b = points[i];
  if (rows > b.rows && b.seconds < a.seconds) return b.seconds;
  return a.seconds + (b.seconds - a.seconds) * (rows - a.rows) / (b.rows - a.rows);
}

Status CheckPoints(const char* what, std::span<const StepTimes::Point> points) {
  if (points.empty())
    return InvalidArgument(fmt::format("the step times have no {} steps; measure with coppice bench steps", what));
  for (size_t i = 0; i < points.size(); ++i) {
    if (points[i].rows < 1 || !(points[i].seconds > 0) || !std::isfinite(points[i].seconds))
      return InvalidArgument(
          fmt::format("a {} step has {} rows and takes {} s, expected positive numbers", what, points[i].rows, points[i].seconds));
    if (i > 0 && points[i].rows <= points[i - 1].rows)
      return InvalidArgument(
          fmt::format("{} steps have {} and then {} rows, expected more rows each", what, points[i - 1].rows, points[i].rows));
  }
  return OkStatus();
}

Result<std::vector<StepTimes::Point>> ParsePoints(const json& table, const char* name) {
  const auto found = table.find(name);
  if (found == table.end() || !found->is_array())
    return InvalidArgument(fmt::format("there is no list {} of [rows, seconds]; measure with coppice bench steps", name));
  std::vector<StepTimes::Point> points;
  for (const json& point : *found) {
    if (!point.is_array() || point.size() != 2 || !point[0].is_number_unsigned() || !point[1].is_number() ||
        point[0].get<uint64_t>() > (1 << 24))
      return InvalidArgument(fmt::format("{} has {}, expected [rows, seconds]", name, PrintableJson(point, 40)));
    points.push_back({.rows = static_cast<int32_t>(point[0].get<uint64_t>()), .seconds = point[1].get<double>()});
  }
  return points;
}

}  // namespace

Result<StepTimes> StepTimes::FromTable(std::vector<Point> prompt, std::vector<Point> decode) {
  COPPICE_RETURN_IF_ERROR(CheckPoints("prompt", prompt));
  COPPICE_RETURN_IF_ERROR(CheckPoints("decode", decode));
  StepTimes times;
  for (const Point& point : decode)
    times.draws_.push_back({.rows = point.rows, .seconds = std::max(0.0, point.seconds - At(prompt, point.rows))});
  times.prompt_ = std::move(prompt);
  return times;
}

StepTimes StepTimes::FromRoofline(const Products& products) {
  COPPICE_CHECK(products.bytes_per_s > 0 && products.flops_per_s > 0);
  StepTimes times;
  for (int32_t rows = 1; rows <= (1 << 16); rows *= 2) {
    const auto time = [&](double bytes, double flops, double row_s) {
      return std::max(bytes / products.bytes_per_s, rows * flops / products.flops_per_s) + rows * row_s;
    };
    const double fixed_s = rows <= products.few_rows ? products.few_fixed_s : products.fixed_s;
    times.prompt_.push_back(
        {.rows = rows, .seconds = fixed_s + time(products.layer_bytes, products.layer_flops, products.layer_row_s)});
    times.draws_.push_back({.rows = rows, .seconds = time(products.head_bytes, products.head_flops, products.head_row_s)});
  }
  return times;
}

Result<StepTimes> StepTimes::Parse(std::string_view text) {
  COPPICE_ASSIGN_OR_RETURN(const json table, ParseJson(text));
  if (!table.is_object()) return InvalidArgument("the step times are no object; measure with coppice bench steps");
  COPPICE_ASSIGN_OR_RETURN(std::vector<Point> prompt, ParsePoints(table, "prompt"));
  COPPICE_ASSIGN_OR_RETURN(std::vector<Point> decode, ParsePoints(table, "decode"));
  return FromTable(std::move(prompt), std::move(decode));
}

double StepTimes::Seconds(const StepRows& rows) const {
  const int32_t draws = rows.decode + rows.ended;
  return At(prompt_, rows.prompt + rows.decode) + (draws > 0 ? At(draws_, draws) : 0);
}

}  // namespace coppice::simulate
