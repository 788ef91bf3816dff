// Strict JSON for text that comes from elsewhere: no duplicate keys, bounded nesting, work in proportion to the text.
// Layer: core, private; its users hide the library in their .cc files.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "coppice/core/status.h"

namespace coppice {

// A value nested deeper than this is refused: what walks a value later, the library's own functions too, may recurse.
inline constexpr int kMaxJsonDepth = 64;  // real files use four or five levels

// Parses `text`, one JSON value in UTF-8. DATA_LOSS says where the syntax breaks; INVALID_ARGUMENT names a key that an object
// holds twice, or says that the nesting is too deep. The message begins with the problem: the caller puts the file before it.
Result<nlohmann::json> ParseJson(std::string_view text);

// Of an object that keeps the order of its members: each is looked for among all before it.
inline constexpr size_t kMaxOrderedMembers = 512;

// The value at the end of `path`, names of members from the root on, its members in the order of the text; null if there is none.
// Text beside the path is read for its syntax alone. Errors as ParseJson, and INVALID_ARGUMENT for an object of more than
// kMaxOrderedMembers.
Result<nlohmann::ordered_json> ParseOrderedJson(std::string_view text, std::span<const std::string_view> path = {});

// The text of a value, without line breaks; bytes that are no UTF-8 become U+FFFD, since tokens need not end on a character. Where
// there is no memory for it, what it throws leaves nothing that takes memory to destroy: give the value away, do not copy it.
std::string DumpJson(nlohmann::ordered_json value);

// At most `max_bytes` of a value's text, for a message: as Printable of core/quoted.h.
std::string PrintableJson(const nlohmann::json& value, size_t max_bytes);

}  // namespace coppice
