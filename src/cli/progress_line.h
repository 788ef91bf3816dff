// How far a long command is, on stderr: on a terminal one line that is rewritten in place, else nothing or a line now and then.
// Layer: cli.
#pragma once

#include <chrono>
#include <string>

namespace coppice::cli {

class ProgressLine {
 public:
  enum class WithoutTerminal { kSilent, kPlainLines };  // plain: one every ten seconds
  explicit ProgressLine(WithoutTerminal without_terminal = WithoutTerminal::kSilent);

  // Whether it is time to show something again; asking is cheap.
  bool due() const { return enabled_ && Clock::now() >= next_; }
  // `text` has no line break.
  void Show(const std::string& text);
  // Makes room for other output.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;
  const bool terminal_;
  const bool enabled_;
  bool visible_ = false;
  Clock::time_point next_ = Clock::now();
};

}  // namespace coppice::cli
