// Waiting for another thread's next word: spinning while it is likely to come at once, asleep afterwards.
// Layer: core.
#pragma once

#include <atomic>
#include <thread>

namespace coppice {

// Spins, then sleeps, until `value` differs from `seen`; returns the new value. The writer calls notify_all or notify_one.
template <class T>
T AwaitChange(const std::atomic<T>& value, T seen) {
  // About 20 us on current cores: longer than the gap between two loops of a decode step, far shorter than a scheduler tick.
  constexpr int kSpins = 4000;
  for (int i = 0; i < kSpins; ++i) {
    if (const T now = value.load(std::memory_order_acquire); now != seen) return now;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
  }
  value.wait(seen, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace coppice
