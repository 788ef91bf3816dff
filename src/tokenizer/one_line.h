// Text of others on one line of a terminal or a log. Layer: tokenizer.
#pragma once

#include <string>
#include <string_view>

namespace coppice {

// `text` as valid UTF-8 without control characters: bytes of neither become \xNN.
std::string OneLine(std::string_view text);

}  // namespace coppice
