// How far a long command is, on stderr: on a terminal one line that is rewritten in place, else nothing or a line now and then.
// Layer: cli.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace coppice::cli {

class ProgressLine {
 public:
  enum class WithoutTerminal { kSilent, kPlainLines };  // plain: one every ten seconds
  explicit ProgressLine(WithoutTerminal without_terminal = WithoutTerminal::kSilent);

  // Whether it is time to show something again, twice a second on a terminal; asking is cheap.
  bool due() const { return enabled_ && Clock::now() >= next_; }
  // The most important part comes first: later parts are left out where the terminal lacks room. No part has a line break.
  void Show(const std::vector<std::string>& parts);
  // Makes room for other output.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;
  const bool terminal_;
  const bool enabled_;
  bool visible_ = false;
  Clock::time_point next_ = Clock::now();
};

// The parts that fit into so many columns, with commas between them; the first one in any case, cut if need be.
std::string FitParts(const std::vector<std::string>& parts, int columns);

// "[########............]" of a job that is done to this part.
std::string FormatBar(double part);
// "0:41 left", "2:03:20 left".
std::string FormatTimeLeft(double seconds);

}  // namespace coppice::cli
