// How the HTML pages of benchmarks begin: one file each without references, light or dark. Layer: cli.
#pragma once

#include <string>
#include <string_view>

namespace coppice::cli {

inline constexpr std::string_view kReportHtmlBegin =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"generator\" content=\"coppice bench\">";

// Up to the heading, which is text. The page ends with </body></html>.
std::string BeginReportPage(const std::string& heading);

}  // namespace coppice::cli
