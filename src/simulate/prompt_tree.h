// Prompts as token ids made pieces of a trace: cut where they part, so that what they share is shared to the token.
// Layer: simulate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "simulate/trace.h"

namespace coppice::simulate {

// Where each of `count` prompts ends in `trace`, by prompt. `prompt(i)` is the i-th, not empty; they are sorted by their tokens.
// Linear in the tokens, and in the pieces of all prompts.
std::vector<int32_t> AddSortedPrompts(size_t count, const std::function<std::span<const int32_t>(size_t)>& prompt, Trace* trace);

}  // namespace coppice::simulate
