#include "tokenizer/byte_level.h"

#include <array>

#include "tokenizer/utf8.h"

namespace coppice {
namespace {

struct Alphabet {
  std::array<char32_t, 256> character;
  std::array<int16_t, 0x144> byte;  // by character; -1: not in the alphabet
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet{};
  alphabet.byte.fill(-1);
  char32_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const char32_t c = printable ? static_cast<char32_t>(b) : next++;
    alphabet.character[b] = c;
    alphabet.byte[c] = static_cast<int16_t>(b);
  }
  return alphabet;
}
constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::string ByteLevelCharacter(uint8_t byte) {
  std::string out;
  AppendUtf8(kAlphabet.character[byte], &out);
  return out;
}

std::string ByteLevelDecode(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const Utf8Char c = DecodeUtf8(token.substr(i));
    const bool known = c.kind == Utf8Kind::kValid && c.code_point < kAlphabet.byte.size() && kAlphabet.byte[c.code_point] >= 0;
    if (!known) return std::string(token);
    bytes.push_back(static_cast<char>(kAlphabet.byte[c.code_point]));
    i += c.length;
  }
  return bytes;
}

}  // namespace coppice
