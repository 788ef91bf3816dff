#include "core/gguf_part.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <string_view>

namespace coppice {

std::string GgufPart::NameOf(int32_t other) const {
  std::array<char, 64> suffix;
  std::snprintf(suffix.data(), suffix.size(), "-%05d-of-%05d.gguf", other, count);
  return stem + suffix.data();
}

std::optional<GgufPart> ParseGgufPart(const std::string& file) {
  constexpr size_t kDigits = 5, kSuffix = std::string_view("-00001-of-00001.gguf").size();
  if (file.size() < kSuffix) return std::nullopt;
  GgufPart part = {.stem = file.substr(0, file.size() - kSuffix)};
  const char* const number = file.data() + part.stem.size() + 1;
  const char* const count = number + kDigits + std::string_view("-of-").size();
  std::from_chars(number, number + kDigits, part.number);
  std::from_chars(count, count + kDigits, part.count);
  const bool is_part = part.number >= 1 && part.number <= part.count && part.NameOf(part.number) == file;
  return is_part ? std::optional(part) : std::nullopt;
}

bool IsGgufModel(const std::string& file) {
  const std::optional<GgufPart> part = ParseGgufPart(file);
  return file.ends_with(".gguf") && (!part || part->number == 1);
}

}  // namespace coppice
