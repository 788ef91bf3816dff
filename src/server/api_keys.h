// Who may use the server: named keys, kept as hashes. Layer: server.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::server {

// Immutable once created: thread-safe.
class ApiKeys {
 public:
  // A file of lines "name sha256", where sha256 is 64 hex digits, the hash of the key's bytes: `printf %s KEY | sha256sum`. Empty
  // lines and those that begin with # are skipped. INVALID_ARGUMENT names the line; an empty file is one too.
  static Result<ApiKeys> Read(const std::string& path);
  static Result<ApiKeys> Parse(std::string_view text, std::string_view path);

  // The name of the key in an Authorization header, "Bearer KEY"; null if there is none or it is none of these. Takes the same time
  // whichever key it is and however much of one it has right.
  const std::string* Find(std::string_view authorization) const;

 private:
  using Hash = std::array<std::byte, 32>;
  struct Key {
    std::string name;
    Hash hash;
  };
  static Hash HashOf(std::string_view key);

  std::vector<Key> keys_;
};

}  // namespace coppice::server
