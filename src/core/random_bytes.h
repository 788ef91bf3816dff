// Unpredictable numbers. Layer: core.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace coppice {

// Fills `bytes` from the system's generator. Thread-safe.
void DrawRandom(std::span<std::byte> bytes);
// As 2 x `bytes` hex digits: 16 bytes are a unique name that cannot be guessed, 32 are a key.
std::string RandomHex(size_t bytes);

}  // namespace coppice
