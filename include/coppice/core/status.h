// Error reporting for the whole project: Status and Result<T>. No exceptions cross a public function of Coppice.
// Layer: public API. Used for what input or environment can cause; our own bugs use COPPICE_CHECK (src/core/check.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace coppice {

enum class StatusCode : uint8_t {
  kOk = 0,
  kInvalidArgument,     // the caller passed something that can never work
  kNotFound,            // a file, tensor or name does not exist
  kOutOfRange,          // an index or length is outside its documented range
  kFailedPrecondition,  // the call is legal, but not in this state
  kResourceExhausted,   // out of pages, memory or a fixed capacity: a normal result, retry later or with less
  kUnimplemented,       // a legal request that this backend or build cannot do; the message says which can
  kUnavailable,         // the backend is not built or its device is absent
  kDataLoss,            // a file is truncated or corrupt
  kCancelled,
  kInternal,
  kDeadlineExceeded,  // the time that the caller allowed is over
};

// "INVALID_ARGUMENT" and so on.
std::string_view StatusCodeName(StatusCode code);

// Success, or a code and one line that says: what, actual value, expected, what to do. Cheap to move; thread-compatible.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "OK", or "INVALID_ARGUMENT: message".
  std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return Status(); }
inline Status InvalidArgument(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }
inline Status NotFound(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
inline Status OutOfRange(std::string message) { return {StatusCode::kOutOfRange, std::move(message)}; }
inline Status FailedPrecondition(std::string message) { return {StatusCode::kFailedPrecondition, std::move(message)}; }
inline Status ResourceExhausted(std::string message) { return {StatusCode::kResourceExhausted, std::move(message)}; }
inline Status Unimplemented(std::string message) { return {StatusCode::kUnimplemented, std::move(message)}; }
inline Status Unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }
inline Status DataLoss(std::string message) { return {StatusCode::kDataLoss, std::move(message)}; }
inline Status Internal(std::string message) { return {StatusCode::kInternal, std::move(message)}; }
inline Status DeadlineExceeded(std::string message) { return {StatusCode::kDeadlineExceeded, std::move(message)}; }

namespace internal {
[[noreturn]] void DieBecauseNotOk(const Status& status);
}  // namespace internal

// A T or the Status that says why there is none. `value()` on an error is a bug of the caller and aborts with the message.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor): return value;
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor): return InvalidArgument(...);
    if (status_.ok()) status_ = Internal("Result built from an OK status without a value");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T value() && { return std::move(Checked()); }  // by value: `for (x : F().value())` keeps the range alive
  T& operator*() & { return Checked(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(Checked()); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& Checked() {
    if (!value_) internal::DieBecauseNotOk(status_);
    return *value_;
  }
  std::optional<T> value_;
  Status status_;
};

}  // namespace coppice
