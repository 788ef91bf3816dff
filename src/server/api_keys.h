// Clients that may use the server: named keys, kept as hashes, and their limits. Layer: server.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "server/token_limits.h"

namespace coppice::server {

enum class Role : uint8_t {
  kUser,     // sees what is its own
  kAdmin,    // sees what all keys have, and may make prefixes public
  kTrainer,  // may use the routes of trainers, beside what is its own
};

struct ApiKey {
  std::string name;
  Role role = Role::kUser;
};

// Immutable once created: thread-safe.
class ApiKeys {
 public:
  // A file of lines "name sha256", where sha256 is 64 hex digits, the hash of the key's bytes: `printf %s KEY | sha256sum`. Behind
  // it there may be role=user (as without), role=admin or role=trainer, and tokens_per_request=N and tokens_per_minute=N, 0 for no
  // limit. Empty lines and those that begin with # are skipped. INVALID_ARGUMENT names the line; an empty file is one too.
  static Result<ApiKeys> Read(const std::string& path);
  static Result<ApiKeys> Parse(std::string_view text, std::string_view path);

  // The line of such a file for a key, without the line break.
  static std::string LineOf(std::string_view name, std::string_view key);

  // The key in an Authorization header, "Bearer KEY"; null if there is none or it is none of these. Takes the same time whichever
  // key it is and however much of one it has right.
  const ApiKey* Find(std::string_view authorization) const;
  bool HasRole(Role role) const;  // any key
  // The role of the key of that name; kUser where there is none.
  Role RoleOf(std::string_view name) const;

  // By name: the limits that the file gives, and of `others` those that it leaves out.
  std::map<std::string, TokenLimit> TokenLimitsOr(const TokenLimit& others) const;

 private:
  using Hash = std::array<std::byte, 32>;
  struct Key : ApiKey {
    Hash hash;
    std::optional<int64_t> tokens_per_request, tokens_per_minute;
  };
  static Hash HashOf(std::string_view key);
  // The key of a line; nothing if it is none.
  static std::optional<Key> ParseLine(std::string_view line);
  // "name=value" behind a hash; false if it is none, or the second one of its name.
  static bool TakeOption(std::string_view word, Key* key, std::optional<Role>* role);

  std::vector<Key> keys_;
};

}  // namespace coppice::server
