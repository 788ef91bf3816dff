#include "coppice/core/status.h"

#include <cstdio>
#include <cstdlib>

#include "core/check.h"

namespace coppice {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "OK";
    case StatusCode::kInvalidArgument: return "INVALID_ARGUMENT";
    case StatusCode::kNotFound: return "NOT_FOUND";
    case StatusCode::kOutOfRange: return "OUT_OF_RANGE";
    case StatusCode::kFailedPrecondition: return "FAILED_PRECONDITION";
    case StatusCode::kResourceExhausted: return "RESOURCE_EXHAUSTED";
    case StatusCode::kUnimplemented: return "UNIMPLEMENTED";
    case StatusCode::kUnavailable: return "UNAVAILABLE";
    case StatusCode::kDataLoss: return "DATA_LOSS";
    case StatusCode::kCancelled: return "CANCELLED";
    case StatusCode::kInternal: return "INTERNAL";
    case StatusCode::kDeadlineExceeded: return "DEADLINE_EXCEEDED";
  }
  return "UNKNOWN";
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(StatusCodeName(code_)) + ": " + message_;
}

namespace internal {

void DieBecauseNotOk(const Status& status) {
  std::fprintf(stderr, "coppice: value() of a failed Result: %s\n", status.ToString().c_str());
  std::abort();
}

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "coppice: %s:%d: check failed: %s. This is a bug in Coppice; please report it.\n", file, line, condition);
  std::abort();
}

}  // namespace internal
}  // namespace coppice
