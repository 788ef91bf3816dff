// A compiled grammar as bytes, from the process that compiled it to the one that uses it: both are the same program. The library's
// own form is JSON that repeats all automata for each rule: some hundred times the size, and seconds. Layer: grammar.
#pragma once

#include <xgrammar/xgrammar.h>

#include <string>
#include <string_view>

namespace coppice {

std::string ToBytes(const xgrammar::CompiledGrammar& compiled);
// `tokens` as they were when it was compiled. Throws std::runtime_error for bytes that ToBytes did not make of it.
xgrammar::CompiledGrammar CompiledFromBytes(std::string_view bytes, const xgrammar::TokenizerInfo& tokens);

}  // namespace coppice
