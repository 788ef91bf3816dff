// The identity of a line of input, by which the run after a kill knows what was answered. Layer: openai.
#pragma once

#include <string>
#include <string_view>

namespace coppice::openai {

// Without white space at its ends.
std::string_view Trimmed(std::string_view text);
// 32 hex digits; equal texts have equal ones, in this run and in the next.
std::string HashOf(std::string_view text);
// Of a line, whatever white space is around it.
inline std::string LineId(std::string_view line) { return HashOf(Trimmed(line)); }

}  // namespace coppice::openai
