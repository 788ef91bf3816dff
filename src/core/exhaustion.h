// What the system refuses to give, memory or threads, as a Status instead of an exception. Public functions that may run out of
// either put their bodies into CatchExhaustion, so that a request or a command ends and the process goes on.
// Layer: core.
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "coppice/core/status.h"

namespace coppice {

// What `body`, a function that returns a Status or a Result, returns. RESOURCE_EXHAUSTED where it ran out of memory or threads;
// `doing` completes "out of memory while ...".
template <class Body>
auto CatchExhaustion(std::string_view doing, Body&& body) -> decltype(std::forward<Body>(body)()) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {  // more elements than any memory holds
  } catch (const std::system_error& error) {
    return ResourceExhausted("the system refused a thread or a lock while " + std::string(doing) + ": " + error.code().message());
  }
  return ResourceExhausted("out of memory while " + std::string(doing) + ": use less of it, or a machine with more");
}

}  // namespace coppice
