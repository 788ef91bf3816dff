#include "tokenizer/jinja/text_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/unicode.h"
#include "tokenizer/utf8.h"

namespace coppice::jinja {
namespace {

constexpr int64_t kMaxPrecision = 1000;   // digits; a double has at most 1074 after the point that are not 0
constexpr int64_t kMaxWidth = 1 << 30;    // characters; the meter allows far fewer
constexpr size_t kConversionUnits = 200;  // of Meter: one conversion

// How one value is written.
struct Spec {
  TracedText fill = " ";
  char align = '\0';  // < > ^ =; '\0': what the type has
  char sign = '-';    // - + or space
  bool alternate = false, zero = false;
  size_t width = 0;
  int precision = -1;
  char grouping = '\0';  // , or _
  char type = '\0';
};

// A number's parts: what zeros go between.
struct NumberText {
  std::string sign;  // with a prefix like 0x
  TracedText digits;
};

std::string SignText(bool negative, const Spec& spec) {
  if (negative) return "-";
  return spec.sign == '-' ? std::string() : std::string(1, spec.sign);
}

NumberText IntegerText(int64_t value, const Spec& spec) {
  const char type = spec.type;
  const int base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  const uint64_t magnitude = value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  char buffer[64];
  std::string digits(buffer, std::to_chars(buffer, buffer + sizeof buffer, magnitude, base).ptr);
  if (type == 'X') digits = ToUpper(digits);
  std::string sign = SignText(value < 0, spec);
  if (spec.alternate && base != 10) sign.append({'0', type});
  return {.sign = std::move(sign), .digits = TracedText(std::move(digits))};
}

// Of the types e f g and their capitals.
NumberText FloatDigits(Interpreter& in, double value, const Spec& spec) {
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  const std::string form = std::string("%") + (spec.alternate ? "#" : "") + ".*" + spec.type;
  in.meter().Charge(static_cast<size_t>(precision) + 400, 2);
  char buffer[kMaxPrecision + 400];  // 309 digits before the point
  const int length = std::snprintf(buffer, sizeof buffer, form.c_str(), precision, std::fabs(value));
  return {.sign = SignText(std::signbit(value) && !std::isnan(value), spec),
          .digits = TracedText(std::string(buffer, buffer + length))};
}

// Puts the separator between every `every` digits of the integer part.
std::string Grouped(const std::string& digits, char separator, size_t every) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % every == 0) out += separator;
    out += digits[i];
  }
  return out + digits.substr(whole);
}

TracedText Padded(Interpreter& in, const NumberText& text, const Spec& spec, char default_align) {
  const size_t length = CountCharacters(text.sign) + CountCharacters(text.digits.bytes());
  const size_t missing = spec.width > length ? spec.width - length : 0;
  in.meter().Charge(missing, spec.fill.cost());
  in.meter().Charge(text.digits.cost());
  const char align = spec.align != '\0' ? spec.align : default_align;
  const size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  TracedText out;
  if (align == '=') out.AppendOwn(text.sign);
  out.Append(TracedText::Repeated(spec.fill, left));
  if (align != '=') out.AppendOwn(text.sign);
  out.Append(text.digits);
  out.Append(TracedText::Repeated(spec.fill, missing - left));
  return out;
}

// The first `count` characters.
std::string_view Prefix(std::string_view text, size_t count) {
  size_t length = 0;
  for (; count > 0 && length < text.size(); --count) length += DecodeUtf8(text.substr(length)).length;
  return text.substr(0, length);
}

TracedText Prefix(const TracedText& text, size_t count) { return text.Part(Prefix(std::string_view(text.bytes()), count)); }

int64_t ToInteger(Interpreter& in, const Value& value, char type) {
  if (value.IsInteger()) return value.AsInteger();
  if (value.Is<double>() && type == 'd') {
    const double whole = std::trunc(value.As<double>());
    if (std::fabs(whole) < 9.2e18) return static_cast<int64_t>(whole);
    in.Fail("a float that is formatted as an integer does not fit 64 bits");
  }
  in.Fail(std::string("format '") + type + "' cannot take " + std::string(value.TypeName()));
}

double ToFloat(Interpreter& in, const Value& value, char type) {
  if (!value.IsNumber()) in.Fail(std::string("format '") + type + "' cannot take " + std::string(value.TypeName()));
  return value.AsDouble();
}

// Reads digits. Fails above `limit`.
int64_t TakeNumber(Interpreter& in, std::string_view text, size_t* at, int64_t limit) {
  int64_t number = 0;
  for (; *at < text.size() && IsAsciiDigit(text[*at]); ++*at) {
    number = number * 10 + (text[*at] - '0');
    if (number > limit) in.Fail("a number in a format is above " + std::to_string(limit));
  }
  return number;
}

class PercentFormatter {
 public:
  PercentFormatter(Interpreter& in, const TracedText& text, const Value& values)
      : in_(in), traced_(text), text_(text.bytes()), values_(values) {}

  TracedText Run() {
    TracedText out;
    while (at_ < text_.size()) {
      const size_t percent = std::min(text_.find('%', at_), text_.size());
      out.Append(traced_, text_.substr(at_, percent - at_));
      at_ = percent + 1;
      if (percent < text_.size()) out.Append(ReadConversion());
    }
    const bool all_used = values_.IsTuple() ? next_ == values_.AsList().size() : next_ > 0 || values_.IsDict() || values_.IsList();
    if (!all_used) in_.Fail("not all values of a format were used");
    return out;
  }

 private:
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  Value NextValue() {
    if (values_.IsTuple() && next_ < values_.AsList().size()) return values_.AsList()[next_++];
    if (values_.IsTuple() || next_ > 0) in_.Fail("a format has more conversions than values");
    ++next_;
    return values_;
  }

  int64_t ReadWidth(int64_t limit) {
    if (Peek() != '*') return TakeNumber(in_, text_, &at_, limit);
    ++at_;
    const Value value = NextValue();
    if (!value.IsInteger() || value.AsInteger() > limit || value.AsInteger() < -limit)
      in_.Fail("a format's * is no integer up to " + std::to_string(limit));
    return value.AsInteger();
  }

  TracedText ReadConversion() {
    in_.meter().Charge(kConversionUnits);
    if (Peek() == '%') return traced_.Part(text_.substr(at_++, 1));
    Value named;
    bool is_named = false;
    if (Peek() == '(') {
      const size_t close = text_.find(')', at_);
      if (close == std::string_view::npos) in_.Fail("a format's name has no ')'");
      if (!values_.IsDict()) in_.Fail("a format with names needs a dict");
      const std::string_view name = text_.substr(at_ + 1, close - at_ - 1);
      const Value* found = FindField(values_.AsDict(), name, in_.meter());
      if (found == nullptr) in_.Fail("a format names '" + std::string(name) + "', which has no value");
      named = *found;
      is_named = true;
      at_ = close + 1;
    }
    Spec spec;
    for (;; ++at_) {
      const char flag = Peek();
      if (flag == '-') {
        spec.align = '<';
      } else if (flag == '+' || (flag == ' ' && spec.sign != '+')) {
        spec.sign = flag;
      } else if (flag == '#') {
        spec.alternate = true;
      } else if (flag == '0') {
        spec.zero = true;
      } else if (flag != ' ') {
        break;
      }
    }
    const int64_t width = ReadWidth(kMaxWidth);
    if (width < 0) spec.align = '<';
    spec.width = static_cast<size_t>(std::abs(width));
    if (Peek() == '.') {
      ++at_;
      spec.precision = static_cast<int>(std::max(ReadWidth(kMaxPrecision), int64_t{0}));
    }
    while (Peek() == 'h' || Peek() == 'l' || Peek() == 'L') ++at_;
    if (at_ == text_.size()) in_.Fail("a format ends inside of a conversion");
    spec.type = text_[at_++];
    const Value value = is_named ? named : NextValue();
    return Convert(value, spec);
  }

  TracedText Convert(const Value& value, Spec spec) {
    if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
    NumberText text;
    if (spec.type == 's' || spec.type == 'r') {
      text.digits = spec.type == 's' ? value.ToText(in_.meter()) : value.ToRepr(in_.meter());
      if (spec.precision >= 0) text.digits = Prefix(text.digits, static_cast<size_t>(spec.precision));
      return Padded(in_, text, spec, '>');
    }
    if (spec.type == 'c') {
      if (value.IsString()) {
        if (CountCharacters(value.AsString()) != 1) in_.Fail("format 'c' takes one character");
        text.digits = value.AsText();
      } else {
        const int64_t code = ToInteger(in_, value, 'c');
        if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) in_.Fail("format 'c' takes a character's number");
        std::string character;
        AppendUtf8(static_cast<char32_t>(code), &character);
        text.digits.AppendOwn(character);
      }
      return Padded(in_, text, spec, '>');
    }
    if (std::string_view("dxXo").find(spec.type) != std::string_view::npos) {
      text = IntegerText(ToInteger(in_, value, spec.type), spec);
      const auto digits = static_cast<size_t>(std::max(spec.precision, 0));
      if (digits > text.digits.size())
        text.digits = TracedText(std::string(digits - text.digits.size(), '0') + text.digits.bytes());
    } else if (std::string_view("eEfFgG").find(spec.type) != std::string_view::npos) {
      text = FloatDigits(in_, ToFloat(in_, value, spec.type), spec);
    } else {
      in_.Fail(std::string("format '%") + spec.type + "' is not supported");
    }
    if (spec.zero && spec.align == '\0') {
      spec.fill = "0";
      spec.align = '=';
    }
    return Padded(in_, text, spec, '>');
  }

  Interpreter& in_;
  const TracedText& traced_;
  std::string_view text_;  // its bytes
  const Value& values_;
  size_t at_ = 0, next_ = 0;
};

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& in, const Arguments& arguments) : in_(in), arguments_(arguments) {}

  // `level`: 1 inside a field's specification, where no field has another in its own.
  TracedText Run(const TracedText& traced, int level) {
    const std::string_view text = traced.bytes();
    TracedText out;
    for (size_t at = 0; at < text.size();) {
      const char c = text[at];
      if (c != '{' && c != '}') {
        const size_t next = std::min(text.find_first_of("{}", at), text.size());
        out.Append(traced, text.substr(at, next - at));
        at = next;
      } else if (at + 1 < text.size() && text[at + 1] == c && level == 0) {
        out.Append(traced, text.substr(at, 1));
        at += 2;
      } else if (c == '}') {
        in_.Fail("a format has a single '}'");
      } else {
        const size_t begin = at + 1, end = FieldEnd(text, begin);
        out.Append(Field(traced, text.substr(begin, end - begin), level));
        at = end + 1;
      }
    }
    return out;
  }

 private:
  size_t FieldEnd(std::string_view text, size_t begin) const {
    int open = 1;
    for (size_t at = begin; at < text.size(); ++at) {
      open += text[at] == '{' ? 1 : text[at] == '}' ? -1 : 0;
      if (open == 0) return at;
    }
    in_.Fail("a format has a '{' without its '}'");
  }

  // `field` is a part of `traced`.
  TracedText Field(const TracedText& traced, std::string_view field, int level) {
    in_.meter().Charge(kConversionUnits);
    if (level > 1) in_.Fail("a format nests too deeply");
    // name[!conversion][:specification]; an index may contain both signs
    size_t end = 0;
    bool in_index = false;
    for (; end < field.size() && (in_index || (field[end] != '!' && field[end] != ':')); ++end) {
      if (field[end] == '[') in_index = true;
      if (field[end] == ']') in_index = false;
    }
    Value value = Lookup(field.substr(0, end));
    if (end < field.size() && field[end] == '!') {
      const char conversion = end + 1 < field.size() ? field[end + 1] : '\0';
      if (conversion != 's' && conversion != 'r') in_.Fail("a format's conversion is neither !s nor !r");
      value = conversion == 's' ? value.ToText(in_.meter()) : value.ToRepr(in_.meter());
      end += 2;
    }
    if (end < field.size() && field[end] != ':') in_.Fail("a format expects ':' after the conversion");
    return Convert(value, end < field.size() ? Run(traced.Part(field.substr(end + 1)), level + 1) : TracedText());
  }

  Value Argument(std::string_view name) {
    const bool is_number = !name.empty() && std::all_of(name.begin(), name.end(), IsAsciiDigit);
    if (!name.empty() && !is_number) {
      const Value* found = FindField(arguments_.named, name, in_.meter());
      if (found == nullptr) in_.Fail("a format names '" + std::string(name) + "', which has no value");
      return *found;
    }
    if (numbering_ != Numbering::kNone && numbering_ != (is_number ? Numbering::kGiven : Numbering::kAutomatic))
      in_.Fail("a format has both numbered fields and fields without a number");
    numbering_ = is_number ? Numbering::kGiven : Numbering::kAutomatic;
    size_t at = 0;
    const size_t index = is_number ? static_cast<size_t>(TakeNumber(in_, name, &at, kMaxWidth)) : next_++;
    if (index >= arguments_.positional.size()) in_.Fail("a format has more fields than values");
    return arguments_.positional[index];
  }

  // name.attribute[index]
  Value Lookup(std::string_view path) {
    size_t at = std::min(path.find_first_of(".["), path.size());
    Value value = Argument(path.substr(0, at));
    while (at < path.size()) {
      const bool is_index = path[at] == '[';
      if (!is_index && path[at] != '.') in_.Fail("a format has more than '.' or '[' after ']'");
      const size_t begin = at + 1;
      const size_t end = std::min(is_index ? path.find(']', begin) : path.find_first_of(".[", begin), path.size());
      const std::string_view name = path.substr(begin, end - begin);
      if (name.empty() || (is_index && end == path.size())) in_.Fail("a format has an incomplete attribute or index");
      size_t digits = 0;
      const bool is_number = is_index && std::all_of(name.begin(), name.end(), IsAsciiDigit);
      value = is_number  ? in_.GetItem(value, TakeNumber(in_, name, &digits, kMaxWidth))
              : is_index ? in_.GetItem(value, TracedText(name))
                         : in_.GetAttribute(value, std::string(name));
      at = is_index ? end + 1 : end;
    }
    return value;
  }

  // [[fill]align][sign][#][0][width][grouping][.precision][type]
  Spec ReadSpec(const TracedText& traced) {
    const std::string_view text = traced.bytes();
    constexpr std::string_view kAligns = "<>=^";
    Spec spec;
    const std::string_view fill = Prefix(text, 1);
    size_t at = 0;
    if (text.size() > fill.size() && kAligns.find(text[fill.size()]) != std::string_view::npos) {
      spec.fill = traced.Part(fill);
      spec.align = text[fill.size()];
      at = fill.size() + 1;
    } else if (!text.empty() && kAligns.find(text[0]) != std::string_view::npos) {
      spec.align = text[at++];
    }
    const auto take = [&](std::string_view any) {
      return at < text.size() && any.find(text[at]) != std::string_view::npos ? text[at++] : '\0';
    };
    has_sign_ = false;
    if (const char sign = take("+- "); sign != '\0') {
      spec.sign = sign;
      has_sign_ = true;
    }
    spec.alternate = take("#") != '\0';
    spec.zero = take("0") != '\0';
    spec.width = static_cast<size_t>(TakeNumber(in_, text, &at, kMaxWidth));
    spec.grouping = take(",_");
    if (take(".") != '\0') {
      if (at == text.size() || !IsAsciiDigit(text[at])) in_.Fail("a format's precision is missing");
      spec.precision = static_cast<int>(TakeNumber(in_, text, &at, kMaxPrecision));
    }
    spec.type = take("sdboxXeEfFgG%");
    if (at < text.size()) in_.Fail("the format '" + std::string(Prefix(text, 50)) + "' is not supported");
    return spec;
  }

  TracedText Convert(const Value& value, const TracedText& spec_text) {
    if (spec_text.empty()) return value.ToText(in_.meter());
    if (!value.IsString() && !value.IsNumber())
      in_.Fail("a format of " + std::string(value.TypeName()) + " takes no specification");
    Spec spec = ReadSpec(spec_text);
    if (value.IsString()) {
      const bool is_wrong = (spec.type != '\0' && spec.type != 's') || spec.align == '=' || has_sign_ || spec.alternate;
      if (is_wrong || spec.grouping != '\0') in_.Fail("the format '" + spec_text.bytes() + "' is not one of strings");
      if (spec.zero && spec.align == '\0') spec.fill = "0";
      NumberText text = {.sign = "", .digits = value.AsText()};
      if (spec.precision >= 0) text.digits = Prefix(text.digits, static_cast<size_t>(spec.precision));
      return Padded(in_, text, spec, '<');
    }
    if (spec.type == 's') in_.Fail("the format 's' takes strings");
    if (spec.zero && spec.align == '\0') {
      spec.align = '=';
      spec.fill = "0";
      if (spec.grouping != '\0') FailUnimplemented(in_.position(), "a format with zeros and separators is not supported");
    }
    NumberText text;
    const bool is_integer_type = std::string_view("dboxX").find(spec.type) != std::string_view::npos;
    if (is_integer_type || (spec.type == '\0' && value.IsInteger())) {
      if (!value.IsInteger()) in_.Fail(std::string("the format '") + spec.type + "' takes integers");
      if (spec.precision >= 0) in_.Fail("a format of integers takes no precision");
      text = IntegerText(value.AsInteger(), spec);
    } else if (spec.type == '\0') {
      if (spec.precision >= 0)
        FailUnimplemented(in_.position(), "a format of a float with a precision and without a type is not supported");
      text = {.sign = SignText(std::signbit(value.AsDouble()), spec), .digits = TracedText(FloatText(std::fabs(value.AsDouble())))};
    } else if (spec.type == '%') {
      spec.type = 'f';
      text = FloatDigits(in_, value.AsDouble() * 100, spec);
      text.digits.AppendOwn("%");
    } else {
      text = FloatDigits(in_, value.AsDouble(), spec);
    }
    if (spec.grouping != '\0') {
      const bool by_four = std::string_view("boxX").find(spec.type) != std::string_view::npos;
      if (by_four && spec.grouping == ',') in_.Fail("a format's ',' goes with decimal numbers");
      text.digits = TracedText(Grouped(text.digits.bytes(), spec.grouping, by_four && spec.type != '\0' ? 4 : 3));
    }
    return Padded(in_, text, spec, '>');
  }

  enum class Numbering : uint8_t { kNone, kAutomatic, kGiven };

  Interpreter& in_;
  const Arguments& arguments_;
  Numbering numbering_ = Numbering::kNone;
  size_t next_ = 0;
  bool has_sign_ = false;  // of the specification read last
};

}  // namespace

TracedText FormatPercent(Interpreter& in, const TracedText& text, const Value& values) {
  in.meter().Charge(text.cost(), 2);
  return PercentFormatter(in, text, values).Run();
}

TracedText FormatBraces(Interpreter& in, const TracedText& text, const Arguments& arguments) {
  in.meter().Charge(text.cost(), 2);
  return BraceFormatter(in, arguments).Run(text, 0);
}

}  // namespace coppice::jinja
