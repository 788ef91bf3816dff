// Text as Python sees it: characters are code points, and white space is Unicode's. Layer: tokenizer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace coppice::jinja {

// Views into `text`; an invalid byte sequence counts as one character.
std::vector<std::string_view> Characters(std::string_view text);
size_t CountCharacters(std::string_view text);

// Where `part` begins in `text`, at byte `from` or later; npos: nowhere. Linear time, whatever the two are.
size_t FindText(std::string_view text, std::string_view part, size_t from = 0);

// str.strip: white space, or any of `characters` where that is not empty.
struct StripSides {
  bool left = true, right = true;
};
std::string_view Strip(std::string_view text, std::string_view characters = {}, StripSides sides = {});

// Simple case mapping, one character to one (Python also maps a few to several: ß to SS).
std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);

bool IsSpaceCharacter(std::string_view character);

}  // namespace coppice::jinja
