#include "server/multipart_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/quoted.h"

namespace coppice::server {
namespace {

constexpr size_t kMaxFields = 16;
constexpr size_t kMaxHeaderBytes = size_t{8} << 10;  // of one part
constexpr size_t kMaxBoundary = 70;                  // RFC 2046
constexpr std::string_view kSpace = " \t", kLineBreak = "\r\n";

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool SameIgnoringCase(std::string_view a, std::string_view lower) { return std::ranges::equal(a, lower, {}, Lower); }

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? std::string_view() : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// Takes `text` up to the next `end` that is in no quoted string, and what ends it.
std::string_view TakeUntil(char end, std::string_view* text) {
  bool quoted = false;
  size_t at = 0;
  for (; at < text->size() && (quoted || (*text)[at] != end); ++at) {
    if ((*text)[at] == '"') quoted = !quoted;
    if (quoted && (*text)[at] == '\\' && at + 1 < text->size()) ++at;
  }
  const std::string_view taken = text->substr(0, at);
  text->remove_prefix(std::min(text->size(), at + 1));
  return taken;
}

// The text of a parameter's value: a token, or a quoted string with its escapes.
std::string Unquoted(std::string_view value) {
  if (value.size() < 2 || value.front() != '"' || value.back() != '"') return std::string(value);
  std::string text;
  for (size_t at = 1; at + 1 < value.size(); ++at) {
    if (value[at] == '\\' && at + 2 < value.size()) ++at;
    text.push_back(value[at]);
  }
  return text;
}

// A parameter of a header's value, "type; name=value; ...".
std::optional<std::string> ParameterOf(std::string_view header, std::string_view name) {
  (void)TakeUntil(';', &header);
  while (!header.empty()) {
    const std::string_view parameter = TakeUntil(';', &header);
    const size_t equals = parameter.find('=');
    if (equals != parameter.npos && SameIgnoringCase(Trimmed(parameter.substr(0, equals)), name))
      return Unquoted(Trimmed(parameter.substr(equals + 1)));
  }
  return std::nullopt;
}

// A part: its headers, an empty line, its value.
Result<FormField> ParsePart(std::string_view part) {
  FormField field;
  bool named = false;
  std::string_view rest = part;
  while (true) {
    const size_t end = rest.find(kLineBreak);
    if (end == rest.npos || part.size() - rest.size() + end > kMaxHeaderBytes)
      return InvalidArgument(fmt::format("the headers of a part do not end within {} bytes", kMaxHeaderBytes));
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + kLineBreak.size());
    if (line.empty()) break;
    const size_t colon = line.find(':');
    if (colon == line.npos || !SameIgnoringCase(Trimmed(line.substr(0, colon)), "content-disposition")) continue;
    const std::string_view value = Trimmed(line.substr(colon + 1));
    if (!SameIgnoringCase(Trimmed(value.substr(0, value.find(';'))), "form-data")) continue;
    if (std::optional<std::string> name = ParameterOf(value, "name")) {
      field.name = *std::move(name);
      named = true;
    }
    field.filename = ParameterOf(value, "filename");
  }
  if (!named) return InvalidArgument("a part has no name: expected Content-Disposition: form-data; name=\"...\"");
  field.value = rest;
  return field;
}

}  // namespace

bool IsForm(std::string_view content_type) {
  return SameIgnoringCase(Trimmed(content_type.substr(0, content_type.find(';'))), "multipart/form-data");
}

Result<std::string> BoundaryOf(std::string_view content_type) {
  std::optional<std::string> boundary = ParameterOf(content_type, "boundary");
  const auto allowed = [](char c) { return c >= ' ' && c <= '~'; };
  if (!boundary || boundary->empty() || boundary->size() > kMaxBoundary || !std::ranges::all_of(*boundary, allowed)) {
    return InvalidArgument(
        fmt::format("Content-Type names no boundary, expected boundary= and 1 to {} printable characters", kMaxBoundary));
  }
  return *std::move(boundary);
}

Result<std::vector<FormField>> ParseForm(std::string_view body, std::string_view boundary) {
  const std::string dashes = "--" + std::string(boundary), delimiter = std::string(kLineBreak) + dashes;
  std::vector<FormField> fields;
  // The first boundary may be the body's beginning, else it follows text that means nothing.
  const bool at_once = body.starts_with(dashes);
  size_t at = at_once ? 0 : body.find(delimiter);
  if (at == body.npos) return InvalidArgument("the body does not hold the boundary that Content-Type names");
  at += at_once ? dashes.size() : delimiter.size();
  while (true) {
    std::string_view rest = body.substr(at);
    if (rest.starts_with("--")) return fields;
    rest.remove_prefix(std::min(rest.find_first_not_of(kSpace), rest.size()));
    if (!rest.starts_with(kLineBreak)) return InvalidArgument("a boundary is followed by text, expected a line break");
    rest.remove_prefix(kLineBreak.size());
    // A part without headers and value ends where it begins.
    const size_t end = body.substr(body.size() - rest.size() - kLineBreak.size()).find(delimiter);
    if (end == body.npos) return InvalidArgument("the body ends without the last boundary; it may have been cut off");
    if (end < kLineBreak.size()) return InvalidArgument("a part has no headers, expected Content-Disposition");
    COPPICE_ASSIGN_OR_RETURN(FormField field, ParsePart(rest.substr(0, end - kLineBreak.size())));
    const auto same_name = [&](const FormField& other) { return other.name == field.name; };
    if (std::ranges::any_of(fields, same_name)) return InvalidArgument(fmt::format("there are two fields {}", Quoted(field.name)));
    if (fields.size() == kMaxFields) return InvalidArgument(fmt::format("there are more than {} fields", kMaxFields));
    at = body.size() - rest.size() + (end - kLineBreak.size()) + delimiter.size();
    fields.push_back(std::move(field));
  }
}

}  // namespace coppice::server
