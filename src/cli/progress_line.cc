#include "cli/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <string_view>

#include "cli/terminal.h"

namespace coppice::cli {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";
constexpr auto kTerminalInterval = std::chrono::milliseconds(500);
constexpr auto kPlainInterval = std::chrono::seconds(10);
constexpr int kAllColumns = 1 << 20;
constexpr double kLongestTime = 100 * 3600.0;  // a longer time left is a guess from too little

}  // namespace

ProgressLine::ProgressLine(WithoutTerminal without_terminal)
    : terminal_(isatty(STDERR_FILENO)), enabled_(terminal_ || without_terminal == WithoutTerminal::kPlainLines) {
  if (!terminal_) next_ += kPlainInterval;
}

void ProgressLine::Show(const std::vector<std::string>& parts) {
  if (!enabled_) return;
  if (terminal_) {
    // In the last column the cursor of some terminals is in the next line.
    std::cerr << kClearLine << FitParts(parts, TerminalColumns(STDERR_FILENO) - 1) << std::flush;
    next_ = Clock::now() + kTerminalInterval;
    visible_ = true;
  } else {
    std::cerr << FitParts(parts, kAllColumns) << "\n";
    next_ = Clock::now() + kPlainInterval;
  }
}

void ProgressLine::Clear() {
  if (visible_) std::cerr << kClearLine << std::flush;
  visible_ = false;
}

std::string FitParts(const std::vector<std::string>& parts, int columns) {
  std::string text;
  for (const std::string& part : parts) {
    const std::string longer = text.empty() ? part : text + ", " + part;
    if (!text.empty() && DisplayColumns(longer) > columns) break;
    text = longer;
  }
  return std::string(CutToColumns(text, columns));
}

std::string FormatBar(double part) {
  constexpr int kWidth = 20;
  const int filled = static_cast<int>(kWidth * std::clamp(part, 0.0, 1.0));
  return fmt::format("[{:#>{}}{:.>{}}]", "", filled, "", kWidth - filled);
}

std::string FormatTimeLeft(double seconds) {
  const auto left = static_cast<int64_t>(std::ceil(std::clamp(seconds, 0.0, kLongestTime)));
  if (left < 3600) return fmt::format("{}:{:02} left", left / 60, left % 60);
  return fmt::format("{}:{:02}:{:02} left", left / 3600, left / 60 % 60, left % 60);
}

}  // namespace coppice::cli
