// Signals as a request to finish: the first one is noted, the second one kills as usual.
// Layer: cli.
#pragma once

#include <chrono>
#include <initializer_list>

namespace coppice::cli {

// Ctrl-C. Call it once the slow start is over: until then Ctrl-C should simply end the program.
void CatchFirstInterrupt();
// Any of these signals; which one comes first does not matter.
void CatchFirst(std::initializer_list<int> signals);
bool Interrupted();
// A wait that a first Ctrl-C does not end looks for it so often.
inline constexpr std::chrono::milliseconds kInterruptPeriod(100);
// Ctrl-C ends the program again, and none has come.
void ForgetInterrupt();

}  // namespace coppice::cli
