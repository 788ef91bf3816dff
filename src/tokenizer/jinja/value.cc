#include "tokenizer/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "tokenizer/utf8.h"

namespace coppice::jinja {
namespace {

// What a value costs besides its text, and a field that is only looked at.
constexpr size_t kNodeUnits = 16, kFieldUnits = 2;

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

void WriteQuotedForPython(const std::string& text, Meter& meter, std::string* out) {
  meter.Charge(text.size(), 2);
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  *out += quote;
  for (char c : text) {
    if (const std::string_view escape = ShortEscape(c); !escape.empty()) {
      *out += escape;
    } else if (IsControl(c) || c == 0x7F) {
      *out += HexEscape("\\x%02x", c);
    } else {
      if (c == quote) *out += '\\';
      *out += c;
    }
  }
  *out += quote;
}

void WriteQuotedForJson(const std::string& text, Meter& meter, std::string* out) {
  meter.Charge(text.size(), 2);
  *out += '"';
  for (char c : text) {
    if (const std::string_view escape = ShortEscape(c); !escape.empty()) {
      *out += escape;
    } else if (c == '"') {
      *out += "\\\"";
    } else if (c == '\b' || c == '\f') {
      *out += c == '\b' ? "\\b" : "\\f";
    } else if (IsControl(c)) {
      *out += HexEscape("\\u%04x", c);
    } else {
      *out += c;
    }
  }
  *out += '"';
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

std::string Value::ToText(Meter& meter) const {
  if (Is<Undefined>()) return "";
  if (!IsString()) return ToRepr(meter);
  meter.Charge(AsString().size());
  return AsString();
}

std::string Value::ToRepr(Meter& meter) const {
  std::string out;
  WriteRepr(meter, &out);
  return out;
}

void Value::WriteRepr(Meter& meter, std::string* out) const {
  meter.Charge(kNodeUnits);
  if (Is<Undefined>()) *out += "Undefined";
  if (Is<None>()) *out += "None";
  if (Is<Function>()) *out += "<function>";
  if (Is<Namespace*>()) *out += "<Namespace>";
  if (Is<bool>()) *out += As<bool>() ? "True" : "False";
  if (Is<int64_t>()) *out += std::to_string(As<int64_t>());
  if (Is<double>()) *out += FloatText(As<double>());
  if (IsString()) WriteQuotedForPython(AsString(), meter, out);
  const char* separator = "";
  if (IsList()) {
    *out += '[';
    for (const Value& item : AsList()) {
      *out += std::exchange(separator, ", ");
      item.WriteRepr(meter, out);
    }
    *out += ']';
  }
  if (IsDict()) {
    *out += '{';
    for (const auto& [key, value] : AsDict()) {
      *out += std::exchange(separator, ", ");
      WriteQuotedForPython(key, meter, out);
      *out += ": ";
      value.WriteRepr(meter, out);
    }
    *out += '}';
  }
}

std::string Value::ToJson(const JsonStyle& style, Meter& meter) const {
  std::string out;
  WriteJson(style, 0, meter, &out);
  return out;
}

void Value::WriteJson(const JsonStyle& style, int level, Meter& meter, std::string* out) const {
  const int indent = style.indent;
  meter.Charge(kNodeUnits);
  const auto line = [&](int at) {
    const size_t spaces = static_cast<size_t>(indent) * static_cast<size_t>(at);
    meter.Charge(spaces);
    out->append(1, '\n').append(spaces, ' ');
  };
  // Writes the elements between brackets; `write` writes one.
  const auto sequence = [&](char open, char close, const auto& elements, const auto& write) {
    *out += open;
    for (size_t i = 0; i < elements.size(); ++i) {
      if (i > 0) {
        meter.Charge(style.item_separator.size());
        *out += style.item_separator;
      }
      if (indent >= 0) line(level + 1);
      write(elements[i]);
    }
    if (indent >= 0 && !elements.empty()) line(level);
    *out += close;
  };

  if (IsList()) {
    sequence('[', ']', AsList(), [&](const Value& item) { item.WriteJson(style, level + 1, meter, out); });
  } else if (IsDict()) {
    const auto write_field = [&](const Dict::value_type& field) {
      WriteQuotedForJson(field.first, meter, out);
      meter.Charge(style.key_separator.size());
      *out += style.key_separator;
      field.second.WriteJson(style, level + 1, meter, out);
    };
    if (!style.sort_keys) return sequence('{', '}', AsDict(), write_field);
    meter.Charge(AsDict().size(), 20 * kNodeUnits);  // a logarithm's worth of comparisons each
    Dict sorted = AsDict();
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    sequence('{', '}', sorted, write_field);
  } else if (IsString()) {
    WriteQuotedForJson(AsString(), meter, out);
  } else if (Is<None>()) {
    *out += "null";
  } else if (Is<bool>()) {
    *out += As<bool>() ? "true" : "false";
  } else if (IsNumber()) {
    WriteRepr(meter, out);
  } else {
    throw Error{InvalidArgument("tojson: a value of type " + std::string(TypeName()) + " has no JSON form")};
  }
}

bool Equal(const Value& a, const Value& b, Meter& meter) {
  meter.Charge(kNodeUnits);
  if (a.IsInteger() && b.IsInteger()) return a.AsInteger() == b.AsInteger();
  if (a.IsNumber() && b.IsNumber()) return a.AsDouble() == b.AsDouble();
  if (a.IsString() && b.IsString()) {
    meter.Charge(std::min(a.AsString().size(), b.AsString().size()));
    return a.AsString() == b.AsString();
  }
  if (a.IsList() && b.IsList()) {
    const List &left = a.AsList(), &right = b.AsList();
    return left.size() == right.size() &&
           std::equal(left.begin(), left.end(), right.begin(), [&](const Value& x, const Value& y) { return Equal(x, y, meter); });
  }
  if (a.IsDict() && b.IsDict()) {
    const auto in_b = [&](const auto& field) {
      const Value* other = FindField(b.AsDict(), field.first, meter);
      return other != nullptr && Equal(*other, field.second, meter);
    };
    return a.AsDict().size() == b.AsDict().size() && std::all_of(a.AsDict().begin(), a.AsDict().end(), in_b);
  }
  if (a.Is<Namespace*>() && b.Is<Namespace*>()) return a.As<Namespace*>() == b.As<Namespace*>();
  return (a.Is<None>() && b.Is<None>()) || (a.Is<Undefined>() && b.Is<Undefined>());
}

const Value* FindField(const Dict& dict, std::string_view key, Meter& meter) {
  meter.Charge(dict.size(), kFieldUnits + key.size() / 16);
  const auto found = std::find_if(dict.begin(), dict.end(), [key](const auto& field) { return field.first == key; });
  return found == dict.end() ? nullptr : &found->second;
}

void SetField(Dict* dict, std::string_view key, Value value, Meter& meter) {
  meter.Charge(key.size() + kNodeUnits);
  meter.Charge(dict->size(), kFieldUnits + key.size() / 16);
  const auto found = std::find_if(dict->begin(), dict->end(), [key](const auto& field) { return field.first == key; });
  if (found == dict->end()) {
    dict->emplace_back(std::string(key), std::move(value));
  } else {
    found->second = std::move(value);
  }
}

}  // namespace coppice::jinja
