// The common part of the fuzz targets. A target hands the input to one parser and everything that follows from it; a sanitizer
// and Require find what is wrong. Built with libFuzzer (preset fuzz) or with replay_main.cc, which runs the corpora. Layer: tests.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "coppice/core/status.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace coppice::fuzz {

// Ends the process, as a sanitizer does, where `fact` is false.
inline void Require(bool fact, const std::string& what) {
  if (fact) return;
  std::fprintf(stderr, "fuzz target: %s\n", what.c_str());
  std::abort();
}

// A message is for one line of a terminal, whatever bytes the input holds.
inline void RequireOneLine(const Status& status) {
  constexpr size_t kLongest = 2000;
  Require(!status.ok() && !status.message().empty(), "an error without a message");
  Require(status.message().size() <= kLongest, "a message of " + std::to_string(status.message().size()) + " bytes");
  Require(std::ranges::none_of(status.message(), [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; }),
          "a message with control characters: " + status.message());
}

// The input as several texts with a NUL byte between each two; the last one holds the rest.
template <size_t count>
std::array<std::string, count> SplitInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::array<std::string, count> parts;
  for (size_t i = 0; i < count; ++i) {
    const size_t end = i + 1 == count ? rest.size() : std::min(rest.find('\0'), rest.size());
    parts[i] = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return parts;
}

}  // namespace coppice::fuzz
