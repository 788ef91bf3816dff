#include "tokenizer/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "tokenizer/utf8.h"

namespace coppice::jinja {
namespace {

// Costs of a value besides its text, and of a field that is only looked at.
constexpr size_t kNodeUnits = 16, kFieldUnits = 2;
constexpr size_t kQuotedUnits = 32;  // of a string in JSON, beside its bytes: it is escaped in a copy

// In the order of Sequence: the type in messages, and what is around the elements in text.
struct SequenceText {
  std::string_view name, begin, end;
};
constexpr SequenceText kSequences[] = {
    {"list", "[", "]"},
    {"tuple", "(", ")"},
    {"tuple", "(", ")"},
    {"dict_items", "dict_items([", "])"},
    {"dict_keys", "dict_keys([", "])"},
    {"dict_values", "dict_values([", "])"},
    {"generator", "", ""},
};

int CheckedDepth(int depth) {
  if (depth <= Value::kMaxNesting) return depth;
  throw Error{
      InvalidArgument("lists and dicts nest deeper than " + std::to_string(Value::kMaxNesting) + "; simplify the template")};
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

void WriteQuotedForPython(const TracedText& text, Meter& meter, TracedText* out) {
  meter.Charge(text.cost(), 2);
  const std::string& bytes = text.bytes();
  const char quote = bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos ? '"' : '\'';
  out->AppendOwn({&quote, 1});
  out->Append(text.Mapped([quote](std::string_view run) {
    std::string escaped;
    for (char c : run) {
      if (const std::string_view escape = ShortEscape(c); !escape.empty()) {
        escaped += escape;
      } else if (IsControl(c) || c == 0x7F) {
        escaped += HexEscape("\\x%02x", c);
      } else {
        if (c == quote) escaped += '\\';
        escaped += c;
      }
    }
    return escaped;
  }));
  out->AppendOwn({&quote, 1});
}

// The escape of a character beyond printable ASCII: that of its UTF-16 code units.
void WriteAsciiForJson(char32_t code_point, std::string* out) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto unit = [&](char32_t value) {
    out->append({'\\', 'u', kDigits[value >> 12], kDigits[(value >> 8) & 15], kDigits[(value >> 4) & 15], kDigits[value & 15]});
  };
  if (code_point < 0x10000) return unit(code_point);
  unit(0xD800 + ((code_point - 0x10000) >> 10));
  unit(0xDC00 + ((code_point - 0x10000) & 0x3FF));
}

std::string EscapedForJson(std::string_view text, bool ensure_ascii) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (ensure_ascii && static_cast<uint8_t>(c) >= 0x7F) {
      const Utf8Char character = DecodeUtf8(text.substr(i));
      WriteAsciiForJson(character.kind == Utf8Kind::kValid ? character.code_point : U'\uFFFD', &out);
      i += character.length - 1;
    } else if (const std::string_view escape = ShortEscape(c); !escape.empty()) {
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
  return out;
}

void WriteQuotedForJson(const TracedText& text, bool ensure_ascii, Meter& meter, TracedText* out) {
  meter.Charge(kQuotedUnits);
  meter.Charge(text.cost(), ensure_ascii ? 12 : 2);
  out->AppendOwn("\"");
  out->Append(text.Mapped([ensure_ascii](std::string_view run) { return EscapedForJson(run, ensure_ascii); }));
  out->AppendOwn("\"");
}

}  // namespace

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

Value::Value(List items) : Value(Sequence::kList, std::move(items)) {}

Value::Value(Sequence sequence, List items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.Depth());
  data_ = std::make_shared<const Nested<List>>(
      Nested<List>{.items = std::move(items), .depth = CheckedDepth(depth + 1), .sequence = sequence});
}

Value::Value(Dict fields) {
  int depth = 0;
  for (const auto& [key, value] : fields) depth = std::max(depth, value.Depth());
  data_ = std::make_shared<const Nested<Dict>>(Nested<Dict>{.items = std::move(fields), .depth = CheckedDepth(depth + 1)});
}

int Value::Depth() const {
  if (IsList()) return As<std::shared_ptr<const Nested<List>>>()->depth;
  if (IsDict()) return As<std::shared_ptr<const Nested<Dict>>>()->depth;
  return 0;
}

std::span<const Value> Value::Unread() const {
  const auto& nested = *As<std::shared_ptr<const Nested<List>>>();
  return std::span<const Value>(nested.items).subspan(nested.num_read);
}

void Value::MarkRead(size_t count) const {
  if (sequence() == Sequence::kGenerator) As<std::shared_ptr<const Nested<List>>>()->num_read += count;
}

bool Value::Truthy() const {
  if (Is<Undefined>() || Is<None>()) return false;
  if (IsNumber()) return AsDouble() != 0;
  if (IsString()) return !AsString().empty();
  if (IsList()) return sequence() == Sequence::kGenerator || !AsList().empty();
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
  if (IsDict()) return "dict";
  return kSequences[static_cast<size_t>(sequence())].name;
}

TracedText Value::ToText(Meter& meter) const {
  if (Is<Undefined>()) return "";
  if (!IsString()) return ToRepr(meter);
  meter.Charge(AsText().cost());
  return AsText();
}

TracedText Value::ToRepr(Meter& meter) const {
  TracedText out;
  WriteRepr(meter, &out);
  return out;
}

void Value::WriteRepr(Meter& meter, TracedText* out) const {
  meter.Charge(kNodeUnits);
  if (Is<Undefined>()) out->AppendOwn("Undefined");
  if (Is<None>()) out->AppendOwn("None");
  if (Is<Function>()) out->AppendOwn("<function>");
  if (Is<Namespace*>()) out->AppendOwn("<Namespace>");
  if (Is<bool>()) out->AppendOwn(As<bool>() ? "True" : "False");
  if (Is<int64_t>()) out->AppendOwn(std::to_string(As<int64_t>()));
  if (Is<double>()) out->AppendOwn(FloatText(As<double>()));
  if (IsString()) WriteQuotedForPython(AsText(), meter, out);
  const char* separator = "";
  if (IsList() && sequence() == Sequence::kGenerator) {
    out->AppendOwn("<generator>");
  } else if (IsList()) {
    out->AppendOwn(kSequences[static_cast<size_t>(sequence())].begin);
    for (const Value& item : AsList()) {
      out->AppendOwn(std::exchange(separator, ", "));
      item.WriteRepr(meter, out);
    }
    if (IsTuple() && AsList().size() == 1) out->AppendOwn(",");
    out->AppendOwn(kSequences[static_cast<size_t>(sequence())].end);
  }
  if (IsDict()) {
    out->AppendOwn("{");
    for (const auto& [key, value] : AsDict()) {
      out->AppendOwn(std::exchange(separator, ", "));
      WriteQuotedForPython(key, meter, out);
      out->AppendOwn(": ");
      value.WriteRepr(meter, out);
    }
    out->AppendOwn("}");
  }
}

TracedText Value::ToJson(const JsonStyle& style, Meter& meter) const {
  TracedText out;
  WriteJson(style, 0, meter, &out);
  return out;
}

void Value::WriteJson(const JsonStyle& style, int level, Meter& meter, TracedText* out) const {
  const int indent = style.indent;
  meter.Charge(kNodeUnits);
  const auto line = [&](int at) {
    const size_t spaces = static_cast<size_t>(indent) * static_cast<size_t>(at);
    meter.Charge(spaces);
    out->AppendOwn('\n' + std::string(spaces, ' '));
  };
  // Writes the elements between brackets; `write` writes one.
  const auto bracketed = [&](char open, char close, const auto& elements, const auto& write) {
    out->AppendOwn({&open, 1});
    for (size_t i = 0; i < elements.size(); ++i) {
      if (i > 0) {
        meter.Charge(style.item_separator.cost());
        out->Append(style.item_separator);
      }
      if (indent >= 0) line(level + 1);
      write(elements[i]);
    }
    if (indent >= 0 && !elements.empty()) line(level);
    out->AppendOwn({&close, 1});
  };

  if (IsIndexed()) {
    bracketed('[', ']', AsList(), [&](const Value& item) { item.WriteJson(style, level + 1, meter, out); });
  } else if (IsDict()) {
    const auto write_field = [&](const Dict::value_type& field) {
      WriteQuotedForJson(field.first, style.ensure_ascii, meter, out);
      meter.Charge(style.key_separator.cost());
      out->Append(style.key_separator);
      field.second.WriteJson(style, level + 1, meter, out);
    };
    if (!style.sort_keys) return bracketed('{', '}', AsDict(), write_field);
    meter.Charge(AsDict().size(), 20 * kNodeUnits);  // a logarithm's worth of comparisons each
    Dict sorted = AsDict();
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first.bytes() < b.first.bytes(); });
    bracketed('{', '}', sorted, write_field);
  } else if (IsString()) {
    WriteQuotedForJson(AsText(), style.ensure_ascii, meter, out);
  } else if (Is<None>()) {
    out->AppendOwn("null");
  } else if (Is<bool>()) {
    out->AppendOwn(As<bool>() ? "true" : "false");
  } else if (Is<double>() && !std::isfinite(As<double>())) {
    out->AppendOwn(std::isnan(As<double>()) ? "NaN" : As<double>() < 0 ? "-Infinity" : "Infinity");
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
    if (a.sequence() == Sequence::kGenerator || b.sequence() == Sequence::kGenerator) return &a.AsList() == &b.AsList();
    if (a.IsTuple() != b.IsTuple() || (!a.IsTuple() && a.sequence() != b.sequence())) return false;
    const List &left = a.AsList(), &right = b.AsList();
    return left.size() == right.size() &&
           std::equal(left.begin(), left.end(), right.begin(), [&](const Value& x, const Value& y) { return Equal(x, y, meter); });
  }
  if (a.IsDict() && b.IsDict()) {
    const auto in_b = [&](const auto& field) {
      const Value* other = FindField(b.AsDict(), field.first.bytes(), meter);
      return other != nullptr && Equal(*other, field.second, meter);
    };
    return a.AsDict().size() == b.AsDict().size() && std::all_of(a.AsDict().begin(), a.AsDict().end(), in_b);
  }
  if (a.Is<Namespace*>() && b.Is<Namespace*>()) return a.As<Namespace*>() == b.As<Namespace*>();
  return (a.Is<None>() && b.Is<None>()) || (a.Is<Undefined>() && b.Is<Undefined>());
}

const Value* FindField(const Dict& dict, std::string_view key, Meter& meter) {
  meter.Charge(dict.size(), kFieldUnits + key.size() / 16);
  const auto found = std::find_if(dict.begin(), dict.end(), [key](const auto& field) { return field.first.bytes() == key; });
  return found == dict.end() ? nullptr : &found->second;
}

void SetField(Dict* dict, const TracedText& key, Value value, Meter& meter) {
  meter.Charge(key.cost() + kNodeUnits);
  meter.Charge(dict->size(), kFieldUnits + key.size() / 16);
  const auto found =
      std::find_if(dict->begin(), dict->end(), [&key](const auto& field) { return field.first.bytes() == key.bytes(); });
  if (found == dict->end()) {
    dict->emplace_back(key, std::move(value));
  } else {
    found->second = std::move(value);
  }
}

}  // namespace coppice::jinja
