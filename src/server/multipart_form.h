// The fields of a form that a client sent as multipart/form-data (RFC 7578, over RFC 2046 section 5.1). Knows no files: a field is
// a part of the body's text. Layer: server.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::server {

struct FormField {
  std::string name;
  std::optional<std::string> filename;
  std::string_view value;  // of the body
};

// Whether a Content-Type is multipart/form-data, whatever its parameters.
bool IsForm(std::string_view content_type);
// The boundary that it names. INVALID_ARGUMENT where there is none, or one that may not be.
Result<std::string> BoundaryOf(std::string_view content_type);
// In their order. INVALID_ARGUMENT says what is wrong: no boundary, no end, a part without a name, two of a name, too many. Work is
// in proportion to the body.
Result<std::vector<FormField>> ParseForm(std::string_view body, std::string_view boundary);

}  // namespace coppice::server
