#include "openai/line_id.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL  // header only
#include <xxhash.h>

namespace coppice::openai {

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? std::string_view() : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::string HashOf(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace coppice::openai
