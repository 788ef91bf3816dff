// Checksums of files as they arrive. Layer: hub.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "coppice/core/status.h"

namespace coppice::hub {

// The size and hashes that a file must have. A hash is lower-case hex; at least one is given.
struct FileCheck {
  int64_t bytes = 0;
  std::string sha256;
  std::string git_sha1;  // of git's object: a header with the length, then the content
};

class Digest {
 public:
  static Digest Sha256() { return Digest(Kind::kSha256); }
  static Digest GitSha1(int64_t bytes);  // of a file of that length
  void Add(std::span<const std::byte> bytes);
  std::string Hex();  // once

 private:
  enum class Kind : uint8_t { kSha256, kSha1 };
  explicit Digest(Kind kind);
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

// DATA_LOSS with the value found and the one expected if the open file, read from its beginning, is another one.
Status CheckFile(int fd, const std::string& path, const FileCheck& check);
// Whether there is a file at `path` that passes.
bool IsFile(const std::string& path, const FileCheck& check);

}  // namespace coppice::hub
