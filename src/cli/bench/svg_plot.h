// Line and bar plots as SVG text for an HTML page. Colours are the page's CSS variables --series-0 .. --series-3, --ink, --faint
// and
// --grid, so that a page can be light or dark. Layer: cli.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace coppice::cli {

struct PlotSeries {
  std::string name;
  int color = 0;                                  // of the CSS variables, modulo 4
  bool dashed = false;                            // lines
  std::vector<std::pair<double, double>> points;  // x ascending; bars: x is ignored
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<PlotSeries> series;
};

// Axes begin at 0 on y; on x at the smallest value. Each point has a tooltip.
std::string LinePlot(const Plot& plot);
// One bar for each series, its first point's y, with the value above it.
std::string BarPlot(const Plot& plot);

std::string EscapeHtml(const std::string& text);

}  // namespace coppice::cli
