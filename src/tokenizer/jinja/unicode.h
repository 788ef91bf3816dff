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

// `unit`, `count` times; the caller has charged for its bytes.
std::string Repeated(std::string_view unit, size_t count);

// str.strip: white space, or any of `characters` where that is not empty.
struct StripSides {
  bool left = true, right = true;
};
std::string_view Strip(std::string_view text, std::string_view characters = {}, StripSides sides = {});

// Simple case mapping, one character to one (Python also maps a few to several: ß to SS).
std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);

// Classes of a character, by its Unicode category; false for invalid bytes. REQUIRES: `character` is not empty.
bool IsSpaceCharacter(std::string_view character);
bool IsUpperCharacter(std::string_view character);
bool IsLowerCharacter(std::string_view character);
bool IsLetterCharacter(std::string_view character);
bool IsDecimalCharacter(std::string_view character);
bool IsDigitCharacter(std::string_view character);  // decimals, and digits raised or lowered
bool IsNumericCharacter(std::string_view character);
bool IsWordCharacter(std::string_view character);  // \w of Python's regular expressions

// Some character is of the case `is`, and none of `is_other`.
bool IsAllOfCase(std::string_view text, bool (*is)(std::string_view), bool (*is_other)(std::string_view));

// str.splitlines; the line breaks are left out unless `keep_ends`.
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends = false);

}  // namespace coppice::jinja
