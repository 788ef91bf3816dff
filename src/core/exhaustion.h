// The system's refusal of memory or threads, as a Status instead of an exception. Public functions that may run out of
// either put their bodies into CatchExhaustion, so that a request or a command ends and the process goes on.
// Layer: core.
#pragma once

#include <chrono>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "coppice/core/status.h"

namespace coppice {

// "out of memory while `doing`", in fewer words where there is no memory for these.
Status OutOfMemory(std::string_view doing) noexcept;
// The system refused a thread or a lock.
Status RefusedBySystem(std::string_view doing, const std::error_code& why) noexcept;

// The result of `body`, a function that returns a Status or a Result. RESOURCE_EXHAUSTED where it ran out of memory or threads;
// `doing` completes "out of memory while ...". Takes no memory of its own where there is none.
template <class Body>
auto CatchExhaustion(std::string_view doing, Body&& body) -> decltype(std::forward<Body>(body)()) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    return OutOfMemory(doing);
  } catch (const std::length_error&) {  // more elements than any memory holds
    return OutOfMemory(doing);
  } catch (const std::system_error& error) {
    return RefusedBySystem(doing, error.code());
  }
}

// While one lives, operator new of its thread waits where there is no memory, `longest` at most for each allocation, until other
// threads give some back, and throws then. For threads whose libraries end the process where a small allocation fails; large ones
// belong into a MemoryPatience of 0. Replaces the process's new_handler, which it calls on other threads. One inside another holds
// as long as it lives.
class MemoryPatience {
 public:
  explicit MemoryPatience(std::chrono::milliseconds longest);
  MemoryPatience(const MemoryPatience&) = delete;
  MemoryPatience& operator=(const MemoryPatience&) = delete;
  ~MemoryPatience();

 private:
  const std::chrono::milliseconds outer_;
};

}  // namespace coppice
