// The bound of an output whose calls are valid: a grammar over the whole output, in which each call's arguments follow
// its function's JSON schema.
// Layer: openai.
#pragma once

#include <optional>
#include <string>

#include "grammar/grammar_source.h"
#include "openai/body_error.h"
#include "openai/tool_call_format.h"
#include "openai/tool_fields.h"

namespace coppice::openai {

// The grammar of the output where `tools` or `content` bound it; nothing where the model is free. `content`: what an answer without
// calls looks like (response_format, regex, grammar), or null. `*begun`: the mark that the prompt is to end with, since it is a
// control token, which no grammar knows; else empty.
// On an error, `error->param` names the field, response_format or whichever gave `content`: a schema that the grammar cannot
// follow, or a style of calls in which they cannot be distinguished from text while they are written.
std::optional<GrammarSource> ToolGrammar(const ToolFields& tools, const ToolCallFormat& format, const GrammarSource* content,
                                         std::string* begun, BodyError* error);

}  // namespace coppice::openai
