#include "server/api_keys.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "core/quoted.h"

namespace coppice::server {
namespace {

constexpr std::string_view kExpected =
    "expected \"name sha256\", the hash as 64 hex digits: printf %s KEY | sha256sum; then perhaps role=user, role=admin or "
    "role=trainer, "
    "tokens_per_request=N and tokens_per_minute=N";

// The next word of `*line`, which is taken off; empty: there is none.
std::string_view TakeWord(std::string_view* line) {
  line->remove_prefix(std::min(line->find_first_not_of(' '), line->size()));
  const std::string_view word = line->substr(0, line->find(' '));
  line->remove_prefix(word.size());
  return word;
}

std::optional<int> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

}  // namespace

ApiKeys::Hash ApiKeys::HashOf(std::string_view key) {
  Hash hash;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), reinterpret_cast<unsigned char*>(hash.data()));
  return hash;
}

std::string ApiKeys::LineOf(std::string_view name, std::string_view key) {
  std::string line = std::string(name) + ' ';
  for (const std::byte byte : HashOf(key)) line += fmt::format("{:02x}", std::to_integer<int>(byte));
  return line;
}

Result<ApiKeys> ApiKeys::Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound(fmt::format("cannot read the API keys {}: {}", path, std::strerror(errno)));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return Parse(text, path);
}

std::optional<ApiKeys::Key> ApiKeys::ParseLine(std::string_view line) {
  if (line.starts_with(' ')) return std::nullopt;
  Key key;
  key.name = TakeWord(&line);
  const std::string_view hex = TakeWord(&line);
  if (hex.size() != 2 * key.hash.size()) return std::nullopt;
  for (size_t i = 0; i < key.hash.size(); ++i) {
    const std::optional<int> high = HexDigit(hex[2 * i]), low = HexDigit(hex[2 * i + 1]);
    if (!high || !low) return std::nullopt;
    key.hash[i] = static_cast<std::byte>(*high * 16 + *low);
  }
  std::optional<Role> role;
  for (std::string_view word = TakeWord(&line); !word.empty(); word = TakeWord(&line)) {
    if (!TakeOption(word, &key, &role)) return std::nullopt;
  }
  key.role = role.value_or(Role::kUser);
  return key;
}

bool ApiKeys::TakeOption(std::string_view word, Key* key, std::optional<Role>* role) {
  const size_t equals = std::min(word.find('='), word.size());
  const std::string_view name = word.substr(0, equals), value = word.substr(std::min(equals + 1, word.size()));
  if (name == "role") {
    const bool first = !*role;
    *role = value == "user"      ? std::optional(Role::kUser)
            : value == "admin"   ? std::optional(Role::kAdmin)
            : value == "trainer" ? std::optional(Role::kTrainer)
                                 : std::nullopt;
    return first && *role;
  }
  std::optional<int64_t>* const limit = name == "tokens_per_request"  ? &key->tokens_per_request
                                        : name == "tokens_per_minute" ? &key->tokens_per_minute
                                                                      : nullptr;
  int64_t tokens = -1;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), tokens);
  const bool whole = error == std::errc() && end == value.data() + value.size();
  if (!limit || *limit || !whole || tokens < 0 || tokens > kMostTokens) return false;
  *limit = tokens;
  return true;
}

Result<ApiKeys> ApiKeys::Parse(std::string_view text, std::string_view path) {
  ApiKeys keys;
  for (int line_number = 1; !text.empty(); ++line_number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    std::optional<Key> key = ParseLine(line);
    if (!key) return InvalidArgument(fmt::format("{} line {}: {}", path, line_number, kExpected));  // the line may hold a key
    const auto same_name = [&](const Key& other) { return other.name == key->name; };
    if (std::ranges::any_of(keys.keys_, same_name))
      return InvalidArgument(fmt::format("{} line {}: a second key named {}", path, line_number, Quoted(key->name)));
    keys.keys_.push_back(*std::move(key));
  }
  if (keys.keys_.empty()) return InvalidArgument(fmt::format("{} holds no key; {}", path, kExpected));
  return keys;
}

std::map<std::string, TokenLimit> ApiKeys::TokenLimitsOr(const TokenLimit& others) const {
  std::map<std::string, TokenLimit> limits;
  for (const Key& key : keys_) {
    limits[key.name] = {.per_request = key.tokens_per_request.value_or(others.per_request),
                        .per_minute = key.tokens_per_minute.value_or(others.per_minute)};
  }
  return limits;
}

const ApiKey* ApiKeys::Find(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b; };
  if (authorization.size() <= kScheme.size() || !std::equal(kScheme.begin(), kScheme.end(), authorization.begin(),
                                                            [&](char expected, char given) { return same(given, expected); })) {
    return nullptr;
  }
  const Hash hash = HashOf(authorization.substr(kScheme.size()));
  const ApiKey* found = nullptr;
  for (const Key& key : keys_) {  // all of them, so that time says nothing
    if (CRYPTO_memcmp(hash.data(), key.hash.data(), hash.size()) == 0) found = &key;
  }
  return found;
}

bool ApiKeys::HasRole(Role role) const {
  return std::ranges::any_of(keys_, [&](const Key& key) { return key.role == role; });
}

Role ApiKeys::RoleOf(std::string_view name) const {
  const auto key = std::ranges::find(keys_, name, &Key::name);
  return key == keys_.end() ? Role::kUser : key->role;
}

}  // namespace coppice::server
