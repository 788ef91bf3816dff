// Parses a chat template into its syntax tree. Layer: tokenizer.
#pragma once

#include <string_view>

#include "tokenizer/jinja/ast.h"

namespace coppice::jinja {

// Throws Error: INVALID_ARGUMENT for bad syntax, UNIMPLEMENTED for Jinja that is not in the subset; both name line and column.
Body ParseTemplate(std::string_view source);

}  // namespace coppice::jinja
