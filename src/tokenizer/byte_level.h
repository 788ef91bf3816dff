// The byte-level BPE alphabet of GPT-2: every byte has a printable character, in which vocabularies and merges are written.
// Bytes that are printable in Latin-1 stand for themselves; the other 68 are U+0100 onwards. Layer: tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace coppice {

// The character of `byte`, as UTF-8.
std::string ByteLevelCharacter(uint8_t byte);

// The bytes that `token` stands for. A token with a character outside the alphabet is taken literally, as Hugging Face does.
std::string ByteLevelDecode(std::string_view token);

}  // namespace coppice
