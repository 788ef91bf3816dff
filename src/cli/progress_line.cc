#include "cli/progress_line.h"

#include <unistd.h>

#include <iostream>
#include <string_view>

namespace coppice::cli {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";
constexpr auto kTerminalInterval = std::chrono::milliseconds(100);
constexpr auto kPlainInterval = std::chrono::seconds(10);

}  // namespace

ProgressLine::ProgressLine(WithoutTerminal without_terminal)
    : terminal_(isatty(STDERR_FILENO)), enabled_(terminal_ || without_terminal == WithoutTerminal::kPlainLines) {
  if (!terminal_) next_ += kPlainInterval;
}

void ProgressLine::Show(const std::string& text) {
  if (!enabled_) return;
  if (terminal_) {
    std::cerr << kClearLine << text << std::flush;
    next_ = Clock::now() + kTerminalInterval;
    visible_ = true;
  } else {
    std::cerr << text << "\n";
    next_ = Clock::now() + kPlainInterval;
  }
}

void ProgressLine::Clear() {
  if (visible_) std::cerr << kClearLine << std::flush;
  visible_ = false;
}

}  // namespace coppice::cli
