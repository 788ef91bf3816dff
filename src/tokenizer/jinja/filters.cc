#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <set>

#include "tokenizer/jinja/builtin_support.h"
#include "tokenizer/jinja/text_format.h"
#include "tokenizer/jinja/unicode.h"
#include "tokenizer/utf8.h"

namespace coppice::jinja {
namespace {

constexpr size_t kItemUnits = 2 * sizeof(Value);  // of Meter: an element that is copied
constexpr size_t kCaseUnits = 8;                  // of Meter: a byte whose case is changed

Value Generator(List items) { return Value(Sequence::kGenerator, std::move(items)); }

// Elements that map, select and their kin run over: as in Jinja none, where the object is not true, whatever its type.
List ElementsIfTrue(Interpreter& in, const Value& object) { return object.Truthy() ? in.Elements(object) : List(); }

Value Length(Interpreter& in, const Value& object) {
  if (object.IsString()) return static_cast<int64_t>(CountCharacters(object.AsString()));
  if (object.IsList() && object.sequence() == Sequence::kGenerator) in.Fail("a generator has no length; make it a list first");
  if (object.IsList()) return static_cast<int64_t>(object.AsList().size());
  if (object.Is<Undefined>()) return int64_t{0};
  return static_cast<int64_t>(RequireDict(in, object, "the object of 'length'").size());
}

// Attributes of items

// A path like a.b.0, read once. Integers in it are indices.
class AttributePath {
 public:
  // `attribute`: a text, an integer, or none for the item itself. `otherwise`: what is taken where there is no attribute, if
  // defined.
  AttributePath(Interpreter& in, const Value& attribute, Value otherwise = Undefined())
      : in_(in), otherwise_(std::move(otherwise)) {
    if (!IsGiven(attribute)) return;
    if (attribute.IsInteger()) {
      keys_.push_back(attribute);
      return;
    }
    std::string_view rest = RequireString(in, attribute, "the attribute's name");
    for (;;) {
      const size_t dot = std::min(rest.find('.'), rest.size());
      const std::string_view name = rest.substr(0, dot);
      int64_t index = 0;
      const bool is_index = !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos &&
                            std::from_chars(name.data(), name.data() + name.size(), index).ec == std::errc();
      in.meter().Charge(kItemUnits + name.size());
      keys_.push_back(is_index ? Value(index) : Value(TracedText(name)));
      if (dot == rest.size()) return;
      rest.remove_prefix(dot + 1);
    }
  }

  Value Of(Value item) const {
    in_.meter().Charge(kItemUnits);
    for (const Value& key : keys_) {
      item = in_.GetItem(item, key);
      if (item.Is<Undefined>() && IsGiven(otherwise_)) item = otherwise_;
    }
    return item;
  }

 private:
  Interpreter& in_;
  Value otherwise_;
  List keys_;
};

// Strings are compared in small letters by default.
Value CaseKey(Interpreter& in, Value value, bool case_sensitive) {
  if (case_sensitive || !value.IsString()) return value;
  in.meter().Charge(value.AsText().cost() + 1, kCaseUnits);
  return value.AsText().Mapped(ToLower);
}

// The items in the order of their keys; those of equal keys stay as they are, in reverse too. n log n comparisons, each charged.
// Merges from the bottom up: std::stable_sort asks for an order that not-a-number does not have.
List SortedBy(Interpreter& in, const List& items, const List& keys, bool reverse) {
  in.meter().Charge(items.size(), 4 * kItemUnits);
  std::vector<size_t> order(items.size()), merged(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto goes_first = [&](size_t later, size_t earlier) {
    in.meter().Charge(kItemUnits);
    const int sign = reverse ? in.Order("<", keys[earlier], keys[later]) : in.Order("<", keys[later], keys[earlier]);
    return sign < 0;
  };
  for (size_t width = 1; width < order.size(); width *= 2) {
    for (size_t begin = 0; begin < order.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, order.size()), end = std::min(middle + width, order.size());
      size_t left = begin, right = middle;
      for (size_t i = begin; i < end; ++i) {
        const bool take_right = right < end && (left == middle || goes_first(order[right], order[left]));
        merged[i] = order[take_right ? right++ : left++];
      }
    }
    order.swap(merged);
  }
  List sorted;
  for (size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

Value FilterSort(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<AttributePath> paths;  // one for each attribute between commas
  if (bound[2].IsString()) {
    const std::string& attributes = bound[2].AsString();
    for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
      end = attributes.find(',', begin);
      paths.emplace_back(in, TracedText(attributes.substr(begin, end - begin)));
    }
  } else {
    paths.emplace_back(in, bound[2]);
  }
  const List items = in.Elements(object);
  List keys;
  for (const Value& item : items) {
    List key;
    for (const AttributePath& path : paths) key.push_back(CaseKey(in, path.Of(item), bound[1].Truthy()));
    in.meter().Charge(kNewTextUnits);
    keys.emplace_back(std::move(key));
  }
  return SortedBy(in, items, keys, bound[0].Truthy());
}

Value FilterDictSort(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = IsGiven(bound[1]) ? RequireString(in, bound[1], "dictsort's 'by'") : "key";
  if (by != "key" && by != "value") in.Fail("dictsort's 'by' is '" + by + "'; expected 'key' or 'value'");
  const List pairs = Pairs(in, RequireDict(in, object, "the object of 'dictsort'"));
  List keys;
  for (const Value& pair : pairs) keys.push_back(CaseKey(in, pair.AsList()[by == "value"], bound[0].Truthy()));
  return SortedBy(in, pairs, keys, bound[2].Truthy());
}

// Appends a text that equal values have in common and others do not. Fails on what Python cannot hash.
void AppendIdentity(Interpreter& in, const Value& value, std::string* out) {
  in.meter().Charge(kItemUnits);
  if (value.IsString()) {
    in.meter().Charge(value.AsString().size());
    *out += "s" + std::to_string(value.AsString().size()) + ":" + value.AsString();
  } else if (value.IsNumber()) {
    const double number = value.AsDouble();
    const bool is_integer = value.IsInteger() || (number == std::floor(number) && std::fabs(number) < 9.2e18);
    *out += "n" +
            (is_integer ? std::to_string(value.IsInteger() ? value.AsInteger() : static_cast<int64_t>(number)) : FloatText(number));
  } else if (value.IsTuple()) {
    *out += "(";
    for (const Value& item : value.AsList()) AppendIdentity(in, item, out);
    *out += ")";
  } else if (value.Is<None>() || value.Is<Undefined>()) {
    *out += value.Is<None>() ? "N" : "U";
  } else {
    in.Fail("'unique' cannot take " + std::string(value.TypeName()));
  }
}

Value FilterUnique(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"case_sensitive", "attribute"});
  const AttributePath path(in, bound[1]);
  std::set<std::string> seen;
  List kept;
  for (const Value& item : in.Elements(object)) {
    std::string identity;
    AppendIdentity(in, CaseKey(in, path.Of(item), bound[0].Truthy()), &identity);
    in.meter().Charge(static_cast<size_t>(std::bit_width(seen.size())) + 2, kItemUnits + identity.size());
    if (seen.insert(std::move(identity)).second) kept.push_back(item);
  }
  return Generator(std::move(kept));
}

Value FilterGroupBy(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(in, bound[0], bound[1]);
  const bool case_sensitive = bound[2].Truthy();
  const auto key_of = [&](const Value& item) { return CaseKey(in, path.Of(item), case_sensitive); };
  const List items = in.Elements(object);
  List keys;
  for (const Value& item : items) keys.push_back(key_of(item));
  const List sorted = SortedBy(in, items, keys, false);
  List groups;
  for (size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
    const Value key = key_of(sorted[begin]);
    while (end < sorted.size() && Equal(key_of(sorted[end]), key, in.meter())) ++end;
    end = std::max(end, begin + 1);  // not a number equals not even itself
    List members(sorted.begin() + static_cast<std::ptrdiff_t>(begin), sorted.begin() + static_cast<std::ptrdiff_t>(end));
    in.meter().Charge(kPairUnits);
    groups.emplace_back(Sequence::kGroup, List{case_sensitive ? key : path.Of(sorted[begin]), std::move(members)});
  }
  return groups;
}

template <bool kGreatest>
Value FilterExtreme(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"case_sensitive", "attribute"});
  const AttributePath path(in, bound[1]);
  const List items = in.Elements(object);
  if (items.empty()) return Undefined{"the least or greatest of nothing"};
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : items) {
    Value key = CaseKey(in, path.Of(item), bound[0].Truthy());
    const bool is_better = best == nullptr || (kGreatest ? in.Order(">", best_key, key) : in.Order("<", key, best_key)) < 0;
    if (!is_better) continue;
    best = &item;
    best_key = std::move(key);
  }
  return *best;
}

Value FilterSum(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"attribute", "start"});
  const AttributePath path(in, bound[0]);
  Value sum = bound[1].Is<Undefined>() ? Value(int64_t{0}) : bound[1];
  if (sum.IsString()) in.Fail("'sum' cannot take strings; use join");
  for (const Value& item : in.Elements(object)) sum = in.Add(sum, path.Of(item));
  return sum;
}

// select, reject, selectattr, rejectattr: [attribute,] [test, its arguments...]
template <bool kByAttribute, bool kWanted>
Value Select(Interpreter& in, const Value& object, const Arguments& arguments) {
  List rest = arguments.positional;
  const auto take_first = [&](const char* what) {
    if (rest.empty()) in.Fail(std::string(what) + " is missing");
    Value first = rest[0];
    rest.erase(rest.begin());
    return first;
  };
  const AttributePath path(in, kByAttribute ? take_first("the attribute's name") : Value());
  Builtin test = nullptr;
  if (!rest.empty()) {
    const std::string name = RequireString(in, take_first("the test's name"), "the test's name");
    test = FindTest(name);
    if (test == nullptr) FailUnimplemented(in.position(), "test '" + name + "' is not supported");
  }
  List kept;
  for (const Value& item : ElementsIfTrue(in, object)) {
    in.meter().Charge(rest.size() + 1, sizeof(Value));
    const Value subject = path.Of(item);
    const Value result = test == nullptr ? subject : in.Invoke(test, subject, {rest, arguments.named});
    if (result.Truthy() == kWanted) kept.push_back(item);
  }
  return Generator(std::move(kept));
}

Value FilterMap(Interpreter& in, const Value& object, const Arguments& arguments) {
  List mapped;
  if (arguments.positional.empty()) {
    const List bound = Bind(in, arguments, {"attribute", "default"});
    if (bound[0].Is<Undefined>()) in.Fail("map needs a filter's name or an attribute");
    const AttributePath path(in, bound[0], bound[1]);
    for (const Value& item : ElementsIfTrue(in, object)) mapped.push_back(path.Of(item));
    return Generator(std::move(mapped));
  }
  const std::string& name = RequireString(in, arguments.positional[0], "the filter's name");
  const Builtin filter = FindFilter(name);
  if (filter == nullptr) FailUnimplemented(in.position(), "filter '" + name + "' is not supported");
  const List rest(arguments.positional.begin() + 1, arguments.positional.end());
  for (const Value& item : ElementsIfTrue(in, object)) {
    in.meter().Charge(rest.size(), sizeof(Value));
    mapped.push_back(in.Invoke(filter, item, {rest, arguments.named}));
  }
  return Generator(std::move(mapped));
}

// Lists

Value FilterFirst(Interpreter& in, const Value& object, const Arguments&) {
  if (object.IsList() && !object.Unread().empty()) {
    Value first = object.Unread().front();
    object.MarkRead(1);
    return first;
  }
  const List items = in.Elements(object);
  return items.empty() ? Value(Undefined{"the first of nothing"}) : items.front();
}

Value FilterLast(Interpreter& in, const Value& object, const Arguments&) {
  if (object.IsList() && object.sequence() == Sequence::kGenerator)
    in.Fail("a generator has no last element; make it a list first");
  const List items = in.Elements(object);
  return items.empty() ? Value(Undefined{"the last of nothing"}) : items.back();
}

Value FilterReverse(Interpreter& in, const Value& object, const Arguments&) {
  List items = in.Elements(object);
  std::reverse(items.begin(), items.end());
  if (object.IsString()) {
    TracedText text;
    for (const Value& item : items) text.Append(item.AsText());
    return text;
  }
  const bool is_reversed_whole = object.Is<Undefined>() || (object.IsList() && object.sequence() == Sequence::kGenerator);
  return Value(is_reversed_whole ? Sequence::kList : Sequence::kGenerator, std::move(items));
}

// Rows of `linecount` items.
Value FilterBatch(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"linecount", "fill_with"}, 1);
  const int64_t size = RequireInteger(in, bound[0], "the length of a batch");
  if (size < 1) in.Fail("the length of a batch is " + std::to_string(size) + "; expected 1 or more");
  List rows, row;
  for (const Value& item : in.Elements(object)) {
    row.push_back(item);
    in.meter().Charge(kItemUnits);
    if (static_cast<int64_t>(row.size()) < size) continue;
    in.meter().Charge(kNewTextUnits);
    rows.emplace_back(std::exchange(row, {}));
  }
  if (!row.empty()) {
    if (IsGiven(bound[1])) {
      in.meter().Charge(static_cast<size_t>(size), kItemUnits);
      row.resize(static_cast<size_t>(size), bound[1]);
    }
    rows.emplace_back(std::move(row));
  }
  return Generator(std::move(rows));
}

// `slices` columns; the first ones have an item more where the number does not divide.
Value FilterSlice(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"slices", "fill_with"}, 1);
  const int64_t wanted = RequireInteger(in, bound[0], "the number of slices");
  if (wanted < 1) in.Fail("the number of slices is " + std::to_string(wanted) + "; expected 1 or more");
  const auto count = static_cast<size_t>(wanted);
  const List items = in.Elements(object);
  in.meter().Charge(count, kPairUnits);
  in.meter().Charge(items.size(), kItemUnits);
  const size_t each = items.size() / count, longer = items.size() % count;
  List slices;
  for (size_t i = 0, begin = 0; i < count; ++i) {
    const size_t end = begin + each + (i < longer ? 1 : 0);
    List slice(items.begin() + static_cast<std::ptrdiff_t>(begin), items.begin() + static_cast<std::ptrdiff_t>(end));
    if (IsGiven(bound[1]) && i >= longer) slice.push_back(bound[1]);
    slices.emplace_back(std::move(slice));
    begin = end;
  }
  return Generator(std::move(slices));
}

Value FilterItems(Interpreter& in, const Value& object, const Arguments&) {
  return Generator(object.Is<Undefined>() ? List() : Pairs(in, RequireDict(in, object, "the object of 'items'")));
}

Value FilterJoin(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"d", "attribute"});
  const TracedText separator = bound[0].ToText(in.meter());
  const AttributePath path(in, bound[1]);
  TracedText out;
  bool first = true;
  for (const Value& item : in.Elements(object)) {
    const TracedText text = path.Of(item).ToText(in.meter());
    in.meter().Charge(separator.cost() + text.cost());
    if (!std::exchange(first, false)) out.Append(separator);
    out.Append(text);
  }
  return out;
}

// Numbers

Value FilterAbs(Interpreter& in, const Value& object, const Arguments&) {
  const double value = RequireNumber(in, object, "the object of 'abs'");
  if (object.Is<double>()) return std::fabs(value);
  if (object.AsInteger() == INT64_MIN) in.Fail("the result of 'abs' does not fit 64 bits");
  return std::abs(object.AsInteger());
}

// The integer of `text` in `base`, as Python's int() reads it; false: none. Fails where it does not fit 64 bits.
bool ParseInteger(Interpreter& in, std::string_view text, int64_t base, int64_t* value) {
  text = Strip(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const char letter = text.size() > 1 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : '\0';
  const int64_t prefix_base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  const bool has_prefix = prefix_base != 0 && (base == prefix_base || base == 0);
  if (has_prefix) text.remove_prefix(2);
  if (base == 0) base = has_prefix ? prefix_base : 10;
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_between = (i > 0 || has_prefix) && i + 1 < text.size() && text[i + 1] != '_';
    if (text[i] != '_') digits += text[i];
    if (text[i] == '_' && !is_between) return false;
  }
  if (digits.empty() || digits[0] == '-') return false;
  uint64_t magnitude = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, static_cast<int>(base));
  if (end != digits.data() + digits.size()) return false;
  if (error != std::errc() || magnitude > static_cast<uint64_t>(INT64_MAX)) in.Fail("an integer does not fit 64 bits");
  *value = negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
  return true;
}

Value FilterInt(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"default", "base"});
  if (object.Is<Undefined>()) RequireNumber(in, object, "the object of 'int'");
  Value otherwise = bound[0].Is<Undefined>() ? Value(int64_t{0}) : bound[0];
  const int64_t base = IntegerOr(in, bound[1], 10, "the base");
  if (object.IsInteger()) return object.AsInteger();
  double number = 0;
  if (object.Is<double>()) {
    number = object.As<double>();
    if (std::isnan(number)) return otherwise;
    if (std::isinf(number)) in.Fail("infinity is no integer");
  } else {
    if (!object.IsString()) return otherwise;
    int64_t value = 0;
    const bool is_base = base == 0 || (base >= 2 && base <= 36);
    if (is_base && ParseInteger(in, object.AsString(), base, &value)) return value;
    if (!ParseFloat(object.AsString(), &number) || !std::isfinite(number)) return otherwise;
  }
  if (std::fabs(number) >= 0x1p63) in.Fail("an integer does not fit 64 bits");
  return static_cast<int64_t>(number);
}

Value FilterFloat(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"default"});
  if (object.Is<Undefined>()) RequireNumber(in, object, "the object of 'float'");
  if (object.IsNumber()) return object.AsDouble();
  double value = 0;
  if (object.IsString() && ParseFloat(object.AsString(), &value)) return value;
  return bound[0].Is<Undefined>() ? Value(0.0) : bound[0];
}

// 10 to the power, rounded correctly.
double PowerOfTen(int64_t exponent) { return std::strtod(("1e" + std::to_string(exponent)).c_str(), nullptr); }

// Python's round of a float, half to even, by the exact decimal digits of `value`.
double RoundedFloat(double value, int64_t precision) {
  if (!std::isfinite(value) || value == 0 || precision > 323) return value;
  char buffer[800];
  if (precision >= 0) {
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), value);
    return std::strtod(buffer, nullptr);
  }
  std::snprintf(buffer, sizeof buffer, "%.17e", value);
  const int64_t digits = std::strtol(std::strchr(buffer, 'e') + 1, nullptr, 10) + 1 + precision;  // that stay
  if (digits > 0) {
    std::snprintf(buffer, sizeof buffer, "%.*e", static_cast<int>(digits - 1), value);
    return std::strtod(buffer, nullptr);
  }
  const bool up = digits == 0 && std::fabs(value) > 5 * PowerOfTen(-precision - 1);
  return std::copysign(up ? PowerOfTen(-precision) : 0.0, value);
}

// The multiple of 10^places that is nearest, half to even.
int64_t RoundedInteger(Interpreter& in, int64_t value, int64_t places) {
  if (places > 19) return 0;
  uint64_t unit = 1;
  for (; places > 0; --places) unit *= 10;
  const uint64_t magnitude = value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  uint64_t quotient = magnitude / unit, rounded = 0;
  const uint64_t below = magnitude % unit, above = unit - below;
  if (below > above || (below == above && quotient % 2 != 0)) ++quotient;
  if (__builtin_mul_overflow(quotient, unit, &rounded) || rounded > static_cast<uint64_t>(INT64_MAX))
    in.Fail("the result of 'round' does not fit 64 bits");
  return value < 0 ? -static_cast<int64_t>(rounded) : static_cast<int64_t>(rounded);
}

Value FilterRound(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"precision", "method"});
  const int64_t precision = IntegerOr(in, bound[0], 0, "the precision of 'round'");
  const std::string method = bound[1].Is<Undefined>() ? "common" : RequireString(in, bound[1], "the method of 'round'");
  const double value = RequireNumber(in, object, "the object of 'round'");
  if (method == "common") {
    if (!object.IsInteger()) return RoundedFloat(value, precision);
    return precision >= 0 ? object.AsInteger() : RoundedInteger(in, object.AsInteger(), -std::max(precision, int64_t{-100}));
  }
  if (method != "ceil" && method != "floor") in.Fail("the method of 'round' is '" + method + "'; expected common, ceil or floor");
  if (std::abs(std::clamp(precision, int64_t{-1000}, int64_t{1000})) > 308)
    in.Fail("the precision of 'round' is not within 308 digits");
  const double unit = PowerOfTen(precision), scaled = value * unit;
  if (!std::isfinite(scaled)) in.Fail("'round' of what is not finite");
  const double rounded = (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit;
  return rounded == 0 ? 0.0 : rounded;  // of integers in Python, which have no -0
}

// Text

// Each word begins with a capital; words are between white space, hyphens and opening brackets.
TracedText TitleText(const TracedText& text) {
  TracedText out;
  bool begins = true;
  for (std::string_view character : Characters(text.bytes())) {
    if (IsSpaceCharacter(character) || std::string_view("-({[<").find(character) != std::string_view::npos) {
      out.Append(text, character);
      begins = true;
    } else {
      out.AppendFor(std::exchange(begins, false) ? ToUpper(character) : ToLower(character), text, character);
    }
  }
  return out;
}

std::string EscapedHtml(Interpreter& in, std::string_view text) {
  std::string out;
  for (char c : text) {
    const std::string_view escape = c == '&'    ? "&amp;"
                                    : c == '<'  ? "&lt;"
                                    : c == '>'  ? "&gt;"
                                    : c == '\'' ? "&#39;"
                                    : c == '"'  ? "&#34;"
                                                : "";
    in.meter().Charge(escape.size());
    escape.empty() ? out += c : out += escape;
  }
  return out;
}

Value FilterIndent(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"width", "first", "blank"});
  TracedText indention;
  if (bound[0].IsString()) {
    indention = bound[0].AsText();
  } else {
    const auto width = static_cast<size_t>(std::max(IntegerOr(in, bound[0], 4, "the width"), int64_t{0}));
    in.meter().Charge(width);
    indention.AppendOwn(std::string(width, ' '));
  }
  TracedText ended = RequireText(in, object, "the object of 'indent'");
  ended.AppendOwn("\n");  // as Jinja: a text that ends a line has an empty one after it
  const std::vector<std::string_view> lines = SplitLines(ended.bytes());
  TracedText out = bound[1].Truthy() ? indention : TracedText();
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.AppendOwn("\n");
      if (bound[2].Truthy() || !lines[i].empty()) {
        in.meter().Charge(indention.cost());
        out.Append(indention);
      }
    }
    out.Append(ended, lines[i]);
  }
  return out;
}

Value FilterTruncate(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"length", "killwords", "end", "leeway"});
  const TracedText& text = RequireText(in, object, "the object of 'truncate'");
  const int64_t length = IntegerOr(in, bound[0], 255, "the length"), leeway = IntegerOr(in, bound[3], 5, "the leeway");
  const TracedText end = bound[2].Is<Undefined>() ? "..." : RequireText(in, bound[2], "the end");
  const auto end_length = static_cast<int64_t>(CountCharacters(end.bytes()));
  if (length < end_length) in.Fail("the length of 'truncate' is below that of its end");
  if (leeway < 0) in.Fail("the leeway of 'truncate' is below 0");
  const std::vector<std::string_view> characters = Characters(text.bytes());
  const auto size = static_cast<int64_t>(characters.size());
  if (size - leeway <= length) return text;
  size_t kept = 0;  // bytes
  for (size_t i = 0; i < std::min(static_cast<size_t>(length - end_length), characters.size()); ++i) kept += characters[i].size();
  std::string_view begin = std::string_view(text.bytes()).substr(0, kept);
  if (!bound[1].Truthy()) begin = begin.substr(0, begin.rfind(' '));
  TracedText out = text.Part(begin);
  out.Append(end);
  return out;
}

Value FilterWordCount(Interpreter& in, const Value& object, const Arguments&) {
  int64_t words = 0;
  bool in_word = false;
  const TracedText text = object.ToText(in.meter());
  for (std::string_view character : Characters(text.bytes())) {
    const bool is_word = IsWordCharacter(character);
    words += is_word && !in_word;
    in_word = is_word;
  }
  return words;
}

Value FilterCenter(Interpreter& in, const Value& object, const Arguments& arguments) {
  return Centered(in, object.ToText(in.meter()), IntegerOr(in, Bind(in, arguments, {"width"})[0], 80, "the width"), " ");
}

Value FilterFormat(Interpreter& in, const Value& object, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) in.Fail("'format' takes values or named values, not both");
  const TracedText text = object.ToText(in.meter());
  return FormatPercent(in, text, arguments.named.empty() ? Value(Sequence::kTuple, arguments.positional) : Value(arguments.named));
}

// With the arguments that Hugging Face transformers gives it.
Value FilterToJson(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style = {.ensure_ascii = bound[0].Truthy(), .sort_keys = bound[3].Truthy()};
  if (IsGiven(bound[1])) {
    const int64_t indent = RequireInteger(in, bound[1], "tojson's indent");
    if (indent < -1 || indent > 16) in.Fail("tojson's indent is " + std::to_string(indent) + "; expected 0 to 16");
    style.indent = static_cast<int>(indent);
    if (indent >= 0) style.item_separator = ",";
  }
  if (bound[2].IsList()) {
    const List& separators = bound[2].AsList();
    if (separators.size() != 2) in.Fail("tojson has " + std::to_string(separators.size()) + " separators; expected 2");
    style.item_separator = RequireText(in, separators[0], "tojson's separator of items");
    style.key_separator = RequireText(in, separators[1], "tojson's separator of keys");
  }
  return object.ToJson(style, in.meter());
}

Value FilterDefault(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"default_value", "boolean"});
  const bool absent = object.Is<Undefined>() || (bound[1].Truthy() && !object.Truthy());
  if (!absent) return object;
  return bound[0].Is<Undefined>() ? Value("") : bound[0];
}

Value FilterAttr(Interpreter& in, const Value& object, const Arguments& arguments) {
  return in.GetOwnAttribute(object, RequireString(in, Bind(in, arguments, {"name"}, 1)[0], "the attribute's name"));
}

TracedText Lower(const TracedText& text) { return text.Mapped(ToLower); }
TracedText Upper(const TracedText& text) { return text.Mapped(ToUpper); }

// A filter of the text that its object prints.
template <TracedText (*kMap)(const TracedText&)>
Value OfText(Interpreter& in, const Value& object, const Arguments& arguments) {
  Bind(in, arguments, {});
  return kMap(object.ToText(in.meter()));
}

Value FilterEscape(Interpreter& in, const Value& object, const Arguments&) {
  return object.ToText(in.meter()).Mapped([&in](std::string_view run) { return EscapedHtml(in, run); });
}

constexpr Entry kFilters[] = {
    {"abs", FilterAbs},
    {"attr", FilterAttr},
    {"batch", FilterBatch},
    {"capitalize", OfText<Capitalized>},
    {"center", FilterCenter},
    {"count", [](Interpreter& in, const Value& x, const Arguments&) { return Length(in, x); }},
    {"d", FilterDefault},
    {"default", FilterDefault},
    {"dictsort", FilterDictSort},
    {"e", FilterEscape},
    {"escape", FilterEscape},
    {"first", FilterFirst},
    {"float", FilterFloat},
    {"forceescape", FilterEscape},
    {"format", FilterFormat},
    {"groupby", FilterGroupBy},
    {"indent", FilterIndent},
    {"int", FilterInt},
    {"items", FilterItems},
    {"join", FilterJoin},
    {"last", FilterLast},
    {"length", [](Interpreter& in, const Value& x, const Arguments&) { return Length(in, x); }},
    {"list", [](Interpreter& in, const Value& x, const Arguments&) { return Value(in.Elements(x)); }},
    {"lower", OfText<Lower>},
    {"map", FilterMap},
    {"max", FilterExtreme<true>},
    {"min", FilterExtreme<false>},
    {"reject", Select<false, false>},
    {"rejectattr", Select<true, false>},
    {"replace", [](Interpreter& in, const Value& x, const Arguments& a) { return Value(Replaced(in, x.ToText(in.meter()), a)); }},
    {"reverse", FilterReverse},
    {"round", FilterRound},
    {"safe", [](Interpreter& in, const Value& x, const Arguments&) { return Value(x.ToText(in.meter())); }},
    {"select", Select<false, true>},
    {"selectattr", Select<true, true>},
    {"slice", FilterSlice},
    {"sort", FilterSort},
    {"string", [](Interpreter& in, const Value& x, const Arguments&) { return Value(x.ToText(in.meter())); }},
    {"sum", FilterSum},
    {"title", OfText<TitleText>},
    {"tojson", FilterToJson},
    {"trim", [](Interpreter& in, const Value& x, const Arguments& a) { return Value(Stripped(in, x.ToText(in.meter()), a, {})); }},
    {"truncate", FilterTruncate},
    {"unique", FilterUnique},
    {"upper", OfText<Upper>},
    {"wordcount", FilterWordCount},
};

}  // namespace

Builtin FindFilter(std::string_view name) { return Find(kFilters, name); }

}  // namespace coppice::jinja
