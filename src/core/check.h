// Checks for our own bugs: they abort with file, line and message. Input errors use Status instead.
// Layer: core.
#pragma once

#include "coppice/core/status.h"

namespace coppice::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace coppice::internal

#define COPPICE_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::coppice::internal::CheckFailed(__FILE__, __LINE__, #condition))
#ifdef NDEBUG
#define COPPICE_DCHECK(condition) (true ? void(0) : void(condition))
#else
#define COPPICE_DCHECK(condition) COPPICE_CHECK(condition)
#endif

// Early return on an error. Macros, because only a macro can return from the caller.
#define COPPICE_RETURN_IF_ERROR(expression)                                                              \
  do {                                                                                                   \
    if (::coppice::Status coppice_status_ = (expression); !coppice_status_.ok()) return coppice_status_; \
  } while (false)
#define COPPICE_CONCAT_(a, b) a##b
#define COPPICE_CONCAT(a, b) COPPICE_CONCAT_(a, b)
// COPPICE_ASSIGN_OR_RETURN(auto x, F()): x = *F(), or return its status.
#define COPPICE_ASSIGN_OR_RETURN(declaration, expression)                                                         \
  auto COPPICE_CONCAT(coppice_result_, __LINE__) = (expression);                                                  \
  if (!COPPICE_CONCAT(coppice_result_, __LINE__).ok()) return COPPICE_CONCAT(coppice_result_, __LINE__).status(); \
  declaration = std::move(COPPICE_CONCAT(coppice_result_, __LINE__)).value()
