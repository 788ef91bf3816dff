#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

namespace coppice::cli {
namespace {

// A signal handler reaches nothing but globals.
std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "written by a signal handler");

}  // namespace

void CatchFirst(std::initializer_list<int> signals) {
  struct sigaction action = {};
  action.sa_handler = [](int) { g_interrupted.store(true, std::memory_order_relaxed); };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int signal : signals) sigaction(signal, &action, nullptr);
}

void CatchFirstInterrupt() { CatchFirst({SIGINT}); }

void ForgetInterrupt() {
  std::signal(SIGINT, SIG_DFL);
  g_interrupted.store(false, std::memory_order_relaxed);
}

bool Interrupted() { return g_interrupted.load(std::memory_order_relaxed); }

}  // namespace coppice::cli
