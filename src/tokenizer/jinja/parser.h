// Parses a chat template into its syntax tree. Layer: tokenizer.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "tokenizer/jinja/ast.h"

namespace coppice::jinja {

using Names = std::set<std::string, std::less<>>;

struct Template {
  Body body;
  Names words;                 // names and strings in its tags: the name of each variable and field that it reads is among them
  Names roles;                 // strings that it compares a role with
  bool asks_for_none = false;  // whether a message's content is none
};

// Throws Error: INVALID_ARGUMENT for bad syntax, UNIMPLEMENTED for Jinja that is not in the subset; both name line and column.
Template ParseTemplate(std::string_view source);

}  // namespace coppice::jinja
