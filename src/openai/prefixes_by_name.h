// The prefixes that the requests of one job may name, read from a file at once.
// Layer: openai.
#pragma once

#include <string>
#include <string_view>

#include "coppice/core/status.h"
#include "openai/named_prefix.h"
#include "openai/request.h"

namespace coppice::openai {

// `text` is an object of names and bodies as ParseNamedPrefix takes them: {"garden": {"messages": [...]}, ...}. INVALID_ARGUMENT
// names `path`, the prefix and the field.
Result<FindNamedPrefix> ParsePrefixesByName(std::string_view text, const std::string& path, const OpenAiRequestParser& parser);

}  // namespace coppice::openai
