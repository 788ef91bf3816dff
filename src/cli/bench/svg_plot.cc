#include "cli/bench/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace coppice::cli {
namespace {

// Pixels of the drawing; it is scaled to the page.
constexpr double kWidth = 460, kHeight = 300;
constexpr double kLeft = 64, kRight = 14, kTop = 34, kBottom = 46;
constexpr double kLegendLine = 14;

// A step of 1, 2 or 5 times a power of ten that cuts `range` into about five.
double TickStep(double range) {
  const double raw = range / 5, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

struct Axis {
  double low = 0, high = 1, from = 0, to = 0;  // values; pixels
  double step = 0.2;
  double At(double value) const { return from + (value - low) / (high - low) * (to - from); }
};

Axis MakeAxis(double low, double high, double from, double to) {
  if (!(high > low)) high = low + (low == 0 ? 1 : std::abs(low));
  const double step = TickStep(high - low);
  return {.low = low, .high = high, .from = from, .to = to, .step = step};
}

std::string Text(double x, double y, std::string_view anchor, std::string_view css_class, const std::string& text) {
  return fmt::format(R"svg(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>)svg", x, y, anchor, css_class,
                     EscapeHtml(text));
}

std::string Number(double value) { return fmt::format("{:.4g}", value); }

std::string Frame(const Plot& plot, const Axis* x, const Axis& y) {
  std::string svg =
      fmt::format(R"svg(<svg viewBox="0 0 {} {}" role="img" aria-label="{}">)svg", kWidth, kHeight, EscapeHtml(plot.title));
  svg += Text(kLeft, 16, "start", "title", plot.title);
  for (double value = std::ceil(y.low / y.step) * y.step; value <= y.high * (1 + 1e-9); value += y.step) {
    svg += fmt::format(R"svg(<line x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}" class="grid"/>)svg", kLeft, kWidth - kRight, y.At(value),
                       y.At(value));
    svg += Text(kLeft - 6, y.At(value) + 4, "end", "tick", Number(value));
  }
  if (x) {  // + 0.0: no tick "-0"
    for (double value = std::ceil(x->low / x->step - 1e-9) * x->step + 0.0; value <= x->high * (1 + 1e-9); value += x->step) {
      svg += fmt::format(R"svg(<line x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}" class="axis"/>)svg", x->At(value), x->At(value),
                         kHeight - kBottom, kHeight - kBottom + 4);
      svg += Text(x->At(value), kHeight - kBottom + 17, "middle", "tick", Number(value));
    }
  }
  svg +=
      fmt::format(R"svg(<line x1="{0}" x2="{1}" y1="{2}" y2="{2}" class="axis"/>)svg", kLeft, kWidth - kRight, kHeight - kBottom);
  svg += Text((kLeft + kWidth - kRight) / 2, kHeight - 8, "middle", "label", plot.x_label);
  const double middle = (kTop + kHeight - kBottom) / 2;
  svg += fmt::format(
      R"svg(<text x="14" y="{0:.1f}" text-anchor="middle" class="label" transform="rotate(-90 14 {0:.1f})">{1}</text>)svg", middle,
      EscapeHtml(plot.y_label));
  return svg;
}

std::string Stroke(const PlotSeries& series) {
  return fmt::format("stroke:var(--series-{}){}", series.color % 4, series.dashed ? ";stroke-dasharray:5 4" : "");
}

}  // namespace

std::string EscapeHtml(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

std::string LinePlot(const Plot& plot) {
  double x_low = INFINITY, x_high = -INFINITY, y_high = 0;
  for (const PlotSeries& series : plot.series) {
    for (const auto& [x, y] : series.points) {
      x_low = std::min(x_low, x);
      x_high = std::max(x_high, x);
      y_high = std::max(y_high, y);
    }
  }
  if (x_low > x_high) x_low = 0, x_high = 1;
  const Axis x = MakeAxis(x_low, x_high, kLeft, kWidth - kRight);
  const Axis y = MakeAxis(0, y_high * 1.05, kHeight - kBottom, kTop);
  std::string svg = Frame(plot, &x, y);
  double legend = kTop + 8;
  for (const PlotSeries& series : plot.series) {
    std::string path;
    for (const auto& [px, py] : series.points)
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", x.At(px), y.At(py));
    svg += fmt::format(R"svg(<path d="{}" class="line" style="{}"/>)svg", path, Stroke(series));
    const bool few = series.points.size() <= 20;  // of more points, one in ten has a tooltip
    for (size_t i = 0; i < series.points.size(); i += few ? 1 : 10) {
      const auto& [px, py] = series.points[i];
      svg += fmt::format(
          R"svg(<circle cx="{:.1f}" cy="{:.1f}" r="{}" style="fill:var(--series-{})"><title>{}: {} at {}</title></circle>)svg",
          x.At(px), y.At(py), few ? 3 : 1.5, series.color % 4, EscapeHtml(series.name), Number(py), Number(px));
    }
    svg += fmt::format(R"svg(<line x1="{0}" x2="{1}" y1="{2}" y2="{2}" class="line" style="{3}"/>)svg", kLeft + 8, kLeft + 28,
                       legend - 4, Stroke(series));
    svg += Text(kLeft + 34, legend, "start", "tick", series.name);
    legend += kLegendLine;
  }
  return svg + "</svg>\n";
}

std::string BarPlot(const Plot& plot) {
  double y_high = 0;
  for (const PlotSeries& series : plot.series) {
    if (!series.points.empty()) y_high = std::max(y_high, series.points.front().second);
  }
  const Axis y = MakeAxis(0, y_high * 1.1, kHeight - kBottom, kTop);
  std::string svg = Frame(plot, nullptr, y);
  const double slot = (kWidth - kRight - kLeft) / static_cast<double>(std::max<size_t>(1, plot.series.size()));
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const PlotSeries& series = plot.series[i];
    if (series.points.empty()) continue;
    const double value = series.points.front().second, left = kLeft + slot * static_cast<double>(i) + slot * 0.2, top = y.At(value);
    svg += fmt::format(
        R"svg(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" style="fill:var(--series-{})"><title>{}: {}</title></rect>)svg",
        left, top, slot * 0.6, kHeight - kBottom - top, series.color % 4, EscapeHtml(series.name), Number(value));
    svg += Text(left + slot * 0.3, top - 5, "middle", "value", Number(value));
    svg += Text(left + slot * 0.3, kHeight - kBottom + 17, "middle", "tick", series.name);
  }
  return svg + "</svg>\n";
}

}  // namespace coppice::cli
