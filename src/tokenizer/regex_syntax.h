// Patterns of tokenizers are written for Oniguruma; PCRE2 reads some classes otherwise. Layer: tokenizer.
#pragma once

#include <string>
#include <string_view>

namespace coppice {

// `pattern` with \s, \S, \w and \W spelt out as Oniguruma means them.
std::string OnigurumaPattern(std::string_view pattern);

// A pattern that matches `text` and nothing else.
std::string LiteralPattern(std::string_view text);

}  // namespace coppice
