#include "core/exhaustion.h"

#include <string>

namespace coppice {
namespace {

constexpr const char* kShort = "out of memory";  // so short that a string holds it without memory of its own
static_assert(std::char_traits<char>::length(kShort) < 16);

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

}  // namespace coppice
