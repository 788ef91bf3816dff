// A control group (version 2) around a sandboxed program: memory of all its processes and of the kernel on their behalf, and their
// number. Layer: cli.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "coppice/core/status.h"
#include "core/file.h"

namespace coppice::cli {

// Where this process may make control groups whose memory and processes are bounded: the nearest group above it that passes on
// these controllers and may be written, or its own, if it is alone there (it then moves into a group below). NOT_FOUND: there is
// none; the message says why.
Result<std::string> FindControlGroupParent();

// A group that ends with its processes. Movable.
class ControlGroup {
 public:
  struct Limits {
    int64_t memory_bytes, tasks;  // tasks: processes and threads
  };
  static Result<ControlGroup> Create(const std::string& parent, const Limits& limits);
  ControlGroup(ControlGroup&& other) noexcept : path_(std::exchange(other.path_, {})), members_(std::move(other.members_)) {}
  ControlGroup& operator=(ControlGroup&&) = delete;
  ~ControlGroup();

  // A process that writes "0" here is a member.
  int members() const { return members_.get(); }
  // Kills all members and removes the group. Once.
  Status Remove();

 private:
  explicit ControlGroup(std::string path) : path_(std::move(path)) {}

  std::string path_;  // empty once removed
  FileDescriptor members_;
};

}  // namespace coppice::cli
