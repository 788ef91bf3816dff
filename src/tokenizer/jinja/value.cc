#include "tokenizer/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "tokenizer/utf8.h"

namespace coppice::jinja {
namespace {

int CheckedDepth(int depth) {
  if (depth <= Value::kMaxNesting) return depth;
  throw Error{
      InvalidArgument("lists and dicts nest deeper than " + std::to_string(Value::kMaxNesting) + "; simplify the template")};
}

// Python's repr of a float: the shortest digits that read back the same.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[32];
  const double magnitude = std::fabs(value);
  const bool scientific = value != 0 && (magnitude < 1e-4 || magnitude >= 1e16);
  const auto format = scientific ? std::chars_format::scientific : std::chars_format::fixed;
  std::string text(buffer, std::to_chars(buffer, buffer + sizeof buffer, value, format).ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// The escapes that JSON and Python's repr have in common, or empty.
std::string_view ShortEscape(char c) {
  switch (c) {
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    case '\\': return "\\\\";
    default: return {};
  }
}

std::string HexEscape(const char* format, char c) {
  char buffer[8];
  std::snprintf(buffer, sizeof buffer, format, static_cast<unsigned>(static_cast<uint8_t>(c)));
  return buffer;
}

bool IsControl(char c) { return static_cast<uint8_t>(c) < 0x20; }

std::string QuotedForPython(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (char c : text) {
    if (const std::string_view escape = ShortEscape(c); !escape.empty()) {
      out += escape;
    } else if (IsControl(c) || c == 0x7F) {
      out += HexEscape("\\x%02x", c);
    } else {
      if (c == quote) out += '\\';
      out += c;
    }
  }
  return out += quote;
}

std::string QuotedForJson(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (const std::string_view escape = ShortEscape(c); !escape.empty()) {
      out += escape;
    } else if (c == '"') {
      out += "\\\"";
    } else if (c == '\b' || c == '\f') {
      out += c == '\b' ? "\\b" : "\\f";
    } else if (IsControl(c)) {
      out += HexEscape("\\u%04x", c);
    } else {
      out += c;
    }
  }
  return out += '"';
}

}  // namespace

Value::Value(List items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.Depth());
  data_ = std::make_shared<const Nested<List>>(Nested<List>{std::move(items), CheckedDepth(depth + 1)});
}

Value::Value(Dict fields) {
  int depth = 0;
  for (const auto& [key, value] : fields) depth = std::max(depth, value.Depth());
  data_ = std::make_shared<const Nested<Dict>>(Nested<Dict>{std::move(fields), CheckedDepth(depth + 1)});
}

int Value::Depth() const {
  if (IsList()) return As<std::shared_ptr<const Nested<List>>>()->depth;
  if (IsDict()) return As<std::shared_ptr<const Nested<Dict>>>()->depth;
  return 0;
}

bool Value::Truthy() const {
  if (Is<Undefined>() || Is<None>()) return false;
  if (IsNumber()) return AsDouble() != 0;
  if (IsString()) return !AsString().empty();
  if (IsList()) return !AsList().empty();
  if (IsDict()) return !AsDict().empty();
  return true;
}

std::string_view Value::TypeName() const {
  if (Is<Undefined>()) return "undefined";
  if (Is<None>()) return "none";
  if (Is<Function>()) return "function";
  if (Is<Namespace*>()) return "namespace";
  if (Is<bool>()) return "boolean";
  if (Is<int64_t>()) return "integer";
  if (Is<double>()) return "float";
  if (IsString()) return "string";
  return IsList() ? "list" : "dict";
}

std::string Value::ToText() const {
  if (Is<Undefined>()) return "";
  return IsString() ? AsString() : ToRepr();
}

std::string Value::ToRepr() const {
  if (Is<Undefined>()) return "Undefined";
  if (Is<None>()) return "None";
  if (Is<Function>()) return "<function>";
  if (Is<Namespace*>()) return "<Namespace>";
  if (Is<bool>()) return As<bool>() ? "True" : "False";
  if (Is<int64_t>()) return std::to_string(As<int64_t>());
  if (Is<double>()) return FloatText(As<double>());
  if (IsString()) return QuotedForPython(AsString());

  std::string out;
  const auto separate = [&out] { out.append(out.empty() ? "" : ", "); };
  if (IsList()) {
    for (const Value& item : AsList()) separate(), out += item.ToRepr();
    return "[" + out + "]";
  }
  for (const auto& [key, value] : AsDict()) separate(), out += QuotedForPython(key) + ": " + value.ToRepr();
  return "{" + out + "}";
}

std::string Value::ToJson(int indent) const {
  std::string out;
  WriteJson(indent, 0, &out);
  return out;
}

void Value::WriteJson(int indent, int level, std::string* out) const {
  const auto line = [=](int at) { *out += '\n' + std::string(static_cast<size_t>(indent) * at, ' '); };
  // Writes the elements between brackets; `write` writes one.
  const auto sequence = [&](char open, char close, const auto& elements, const auto& write) {
    *out += open;
    for (size_t i = 0; i < elements.size(); ++i) {
      if (i > 0) *out += indent < 0 ? ", " : ",";
      if (indent >= 0) line(level + 1);
      write(elements[i]);
    }
    if (indent >= 0 && !elements.empty()) line(level);
    *out += close;
  };

  if (IsList()) {
    sequence('[', ']', AsList(), [&](const Value& item) { item.WriteJson(indent, level + 1, out); });
  } else if (IsDict()) {
    sequence('{', '}', AsDict(), [&](const auto& field) {
      *out += QuotedForJson(field.first) + ": ";
      field.second.WriteJson(indent, level + 1, out);
    });
  } else if (IsString()) {
    *out += QuotedForJson(AsString());
  } else if (Is<None>()) {
    *out += "null";
  } else if (Is<bool>()) {
    *out += As<bool>() ? "true" : "false";
  } else if (IsNumber()) {
    *out += ToRepr();
  } else {
    throw Error{InvalidArgument("tojson: a value of type " + std::string(TypeName()) + " has no JSON form")};
  }
}

bool operator==(const Value& a, const Value& b) {
  if (a.IsInteger() && b.IsInteger()) return a.AsInteger() == b.AsInteger();
  if (a.IsNumber() && b.IsNumber()) return a.AsDouble() == b.AsDouble();
  if (a.IsString() && b.IsString()) return a.AsString() == b.AsString();
  if (a.IsList() && b.IsList()) return a.AsList() == b.AsList();
  if (a.IsDict() && b.IsDict()) {
    const auto in_b = [&b](const auto& field) {
      const Value* other = FindField(b.AsDict(), field.first);
      return other != nullptr && *other == field.second;
    };
    return a.AsDict().size() == b.AsDict().size() && std::all_of(a.AsDict().begin(), a.AsDict().end(), in_b);
  }
  if (a.Is<Namespace*>() && b.Is<Namespace*>()) return a.As<Namespace*>() == b.As<Namespace*>();
  return (a.Is<None>() && b.Is<None>()) || (a.Is<Undefined>() && b.Is<Undefined>());
}

const Value* FindField(const Dict& dict, std::string_view key) {
  const auto found = std::find_if(dict.begin(), dict.end(), [key](const auto& field) { return field.first == key; });
  return found == dict.end() ? nullptr : &found->second;
}

void SetField(Dict* dict, std::string_view key, Value value) {
  const auto found = std::find_if(dict->begin(), dict->end(), [key](const auto& field) { return field.first == key; });
  if (found == dict->end()) {
    dict->emplace_back(std::string(key), std::move(value));
  } else {
    found->second = std::move(value);
  }
}

}  // namespace coppice::jinja
