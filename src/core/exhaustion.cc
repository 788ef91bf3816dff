#include "core/exhaustion.h"

#include <string>
#include <thread>

namespace coppice {
namespace {

constexpr const char* kShort = "out of memory";  // so short that a string holds it without memory of its own
static_assert(std::char_traits<char>::length(kShort) < 16);

using Clock = std::chrono::steady_clock;
constexpr auto kNap = std::chrono::milliseconds(1);

thread_local std::chrono::milliseconds patience{0};
thread_local Clock::time_point waits_since, last_nap;

void WaitForMemory();

// Makes WaitForMemory the process's new_handler; returns the one before.
std::new_handler Install() {
  static const std::new_handler before = std::set_new_handler(WaitForMemory);
  return before;
}

// operator new calls it again and again while it finds no memory.
void WaitForMemory() {
  if (patience == std::chrono::milliseconds(0)) {
    if (Install() == nullptr) throw std::bad_alloc();
    return Install()();
  }
  if (Clock::now() - last_nap > 10 * kNap) waits_since = Clock::now();  // another allocation, or a busy machine
  if (Clock::now() - waits_since >= patience) {
    last_nap = {};
    throw std::bad_alloc();
  }
  std::this_thread::sleep_for(kNap);
  last_nap = Clock::now();
}

}  // namespace

Status OutOfMemory(std::string_view doing) noexcept {
  try {
    return ResourceExhausted("out of memory while " + std::string(doing) + ": use less of it, or a machine with more");
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(kShort);
  }
}

Status RefusedBySystem(std::string_view doing, const std::error_code& why) noexcept {
  try {
    return ResourceExhausted("the system refused a thread or a lock while " + std::string(doing) + ": " + why.message());
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(kShort);
  }
}

MemoryPatience::MemoryPatience(std::chrono::milliseconds longest) : outer_(patience) {
  Install();
  patience = longest;
}

MemoryPatience::~MemoryPatience() { patience = outer_; }

}  // namespace coppice
