// A segment of POSIX shared memory for tests, as a trainer makes one. Layer: server.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <span>
#include <string>

namespace coppice::server {

class SharedSegment {
 public:
  explicit SharedSegment(std::span<const std::byte> bytes) {
    static int count = 0;
    name_ = "coppice-test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
    file_ = shm_open(("/" + name_).c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    EXPECT_GE(file_, 0);
    Write(bytes);
  }
  SharedSegment(const SharedSegment&) = delete;
  ~SharedSegment() {
    close(file_);
    shm_unlink(("/" + name_).c_str());
  }
  const std::string& name() const { return name_; }
  void Write(std::span<const std::byte> bytes) const { EXPECT_EQ(pwrite(file_, bytes.data(), bytes.size(), 0), std::ssize(bytes)); }
  void Truncate(int64_t bytes) const { EXPECT_EQ(ftruncate(file_, bytes), 0); }

 private:
  std::string name_;
  int file_ = -1;
};

}  // namespace coppice::server
