// Tokens that stand for one byte, as SentencePiece writes them: "<0x0A>". Layer: tokenizer.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace coppice {

// The byte that `token` stands for; nothing if it is another token.
inline std::optional<uint8_t> ByteOfToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  uint8_t byte = 0;
  const char* const begin = token.data() + 3;
  const auto [end, error] = std::from_chars(begin, begin + 2, byte, 16);
  if (error != std::errc() || end != begin + 2) return std::nullopt;
  return byte;
}

}  // namespace coppice
