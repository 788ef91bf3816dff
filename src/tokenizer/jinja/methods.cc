#include <algorithm>

#include "tokenizer/jinja/builtin_support.h"
#include "tokenizer/jinja/text_format.h"
#include "tokenizer/jinja/unicode.h"
#include "tokenizer/utf8.h"

namespace coppice::jinja {
namespace {

const TracedText& Object(const Interpreter& in, const Value& object) {
  return RequireText(in, object, "the object of a method of strings");
}

void AddPart(Interpreter& in, const TracedText& text, std::string_view part, List* list) {
  in.meter().Charge(kNewTextUnits + part.size());
  list->emplace_back(text.Part(part));
}

// The part of a text that text[start:stop] is, and where it begins.
struct Part {
  std::string_view text = {};
  size_t begin = 0;  // characters
  bool is_empty_past_end = false;
};

Part PartOf(Interpreter& in, std::string_view text, const Value& start, const Value& stop) {
  if (!IsGiven(start) && !IsGiven(stop)) return {.text = text};
  const std::vector<std::string_view> characters = Characters(text);
  const auto size = static_cast<int64_t>(characters.size());
  const auto index = [&](const Value& value, int64_t otherwise) {
    const int64_t at = IntegerOr(in, value, otherwise, "an index");
    return at < 0 ? std::max(at + size, int64_t{0}) : at;
  };
  const int64_t begin = index(start, 0), end = std::min(index(stop, size), size);
  if (begin > size) return {.is_empty_past_end = true};
  const auto byte = [&](int64_t at) {
    return at < size ? static_cast<size_t>(characters[static_cast<size_t>(at)].data() - text.data()) : text.size();
  };
  const size_t first = byte(begin);
  return {.text = text.substr(first, end > begin ? byte(end) - first : 0),
          .begin = static_cast<size_t>(begin),
          .is_empty_past_end = end < begin};
}

// The last place where `part` begins in `text`. Linear: the search runs over both texts reversed.
size_t FindLast(std::string_view text, std::string_view part) {
  const std::string reversed(text.rbegin(), text.rend()), reversed_part(part.rbegin(), part.rend());
  const size_t found = FindText(reversed, reversed_part);
  return found == std::string::npos ? found : text.size() - found - part.size();
}

// find, rfind, index, rindex; -1 or an error where there is nothing.
template <bool kLast, bool kMustExist>
Value FindPosition(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"value", "start", "end"}, 1);
  if (kMustExist && !kLast && object.IsIndexed()) {
    const List& items = object.AsList();
    const auto found = std::find_if(items.begin(), items.end(), [&](const Value& x) { return Equal(x, bound[0], in.meter()); });
    if (found == items.end()) in.Fail("index(): the value is not in the list");
    return static_cast<int64_t>(found - items.begin());
  }
  const std::string &text = Object(in, object).bytes(), &wanted = RequireString(in, bound[0], "what to look for");
  const Part part = PartOf(in, text, bound[1], bound[2]);
  size_t found = std::string::npos;
  if (!part.is_empty_past_end) found = kLast ? FindLast(part.text, wanted) : FindText(part.text, wanted);
  if (found != std::string::npos) return static_cast<int64_t>(part.begin + CountCharacters(part.text.substr(0, found)));
  if (kMustExist) in.Fail("the text that index() looks for is not there");
  return int64_t{-1};
}

Value Count(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"value", "start", "end"}, 1);
  if (object.IsIndexed()) {
    const List& items = object.AsList();
    return static_cast<int64_t>(
        std::count_if(items.begin(), items.end(), [&](const Value& x) { return Equal(x, bound[0], in.meter()); }));
  }
  const std::string &text = Object(in, object).bytes(), &wanted = RequireString(in, bound[0], "what to count");
  const Part part = PartOf(in, text, bound[1], bound[2]);
  if (part.is_empty_past_end) return int64_t{0};
  if (wanted.empty()) return static_cast<int64_t>(CountCharacters(part.text)) + 1;
  int64_t count = 0;
  for (size_t at = 0; (at = FindText(part.text, wanted, at)) != std::string_view::npos; at += wanted.size()) ++count;
  return count;
}

template <bool kAtStart>
Value HasAffix(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"affix", "start", "end"}, 1);
  const Part part = PartOf(in, Object(in, object).bytes(), bound[1], bound[2]);
  const List affixes = bound[0].IsTuple() ? in.Elements(bound[0]) : List{bound[0]};
  return std::any_of(affixes.begin(), affixes.end(), [&](const Value& value) {
    const std::string& affix = RequireString(in, value, "what to look for");
    in.meter().Charge(std::min(affix.size(), part.text.size()));
    if (part.is_empty_past_end) return false;
    return kAtStart ? part.text.starts_with(affix) : part.text.ends_with(affix);
  });
}

template <bool kPrefix>
Value RemoveAffix(Interpreter& in, const Value& object, const Arguments& arguments) {
  const TracedText& whole = Object(in, object);
  std::string_view text = whole.bytes();
  const List bound = Bind(in, arguments, {"affix"}, 1);
  const std::string& affix = RequireString(in, bound[0], "what to remove");
  if (kPrefix && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!kPrefix && text.ends_with(affix)) text.remove_suffix(affix.size());
  return whole.Part(text);
}

Value Split(Interpreter& in, const Value& object, const Arguments& arguments) {
  const TracedText& whole = RequireText(in, object, "the object of split()");
  const std::string_view text = whole.bytes();
  const List bound = Bind(in, arguments, {"sep", "maxsplit"});
  int64_t splits_left = bound[1].Is<Undefined>() ? -1 : RequireInteger(in, bound[1], "maxsplit");
  List parts;
  const auto add = [&](std::string_view part) { AddPart(in, whole, part, &parts); };
  if (!IsGiven(bound[0])) {  // at runs of white space; no part is empty
    for (std::string_view rest = Strip(text, {}, {true, false}); !rest.empty(); --splits_left) {
      size_t length = 0;
      while (length < rest.size() && (splits_left == 0 || !IsSpaceCharacter(rest.substr(length)))) {
        length += DecodeUtf8(rest.substr(length)).length;
      }
      add(rest.substr(0, length));
      rest = Strip(rest.substr(length), {}, {true, false});
    }
    return parts;
  }
  const std::string& separator = RequireString(in, bound[0], "the separator");
  if (separator.empty()) in.Fail("the separator of split() is empty");
  size_t begin = 0;
  for (size_t found; splits_left != 0 && (found = FindText(text, separator, begin)) != std::string_view::npos; --splits_left) {
    add(text.substr(begin, found - begin));
    begin = found + separator.size();
  }
  add(text.substr(begin));
  return parts;
}

// The parts in the order of the text; splits from its end.
Value SplitFromEnd(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"sep", "maxsplit"});
  const int64_t splits = IntegerOr(in, bound[1], -1, "maxsplit");
  if (splits < 0) return Split(in, object, arguments);
  const TracedText& whole = Object(in, object);
  std::string_view rest = whole.bytes();
  List parts;
  const auto add = [&](std::string_view part) { AddPart(in, whole, part, &parts); };
  if (!IsGiven(bound[0])) {
    rest = Strip(rest, {}, {false, true});
    for (int64_t left = splits; left > 0 && !rest.empty(); --left) {
      const std::vector<std::string_view> characters = Characters(rest);
      in.meter().Charge(rest.size(), 8);
      size_t length = 0;
      for (auto c = characters.rbegin(); c != characters.rend() && !IsSpaceCharacter(*c); ++c) length += c->size();
      add(rest.substr(rest.size() - length));
      rest = Strip(rest.substr(0, rest.size() - length), {}, {false, true});
    }
    if (!rest.empty()) add(rest);
  } else {
    const std::string& separator = RequireString(in, bound[0], "the separator");
    if (separator.empty()) in.Fail("the separator of rsplit() is empty");
    const std::string reversed(rest.rbegin(), rest.rend()), wanted(separator.rbegin(), separator.rend());
    size_t begin = 0, found = 0;
    for (int64_t left = splits; left > 0 && (found = FindText(reversed, wanted, begin)) != std::string::npos; --left) {
      add(rest.substr(rest.size() - found, found - begin));
      begin = found + wanted.size();
    }
    add(rest.substr(0, rest.size() - begin));
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

template <bool kLast>
Value Partition(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"sep"}, 1);
  const TracedText &whole = Object(in, object), &separator = RequireText(in, bound[0], "the separator");
  const std::string_view text = whole.bytes();
  if (separator.empty()) in.Fail("the separator of partition() is empty");
  in.meter().Charge(3 * kNewTextUnits + text.size());
  const size_t found = kLast ? FindLast(text, separator.bytes()) : FindText(text, separator.bytes());
  if (found == std::string::npos) return Value(Sequence::kTuple, kLast ? List{"", "", whole} : List{whole, "", ""});
  return Value(Sequence::kTuple,
               List{whole.Part(text.substr(0, found)), separator, whole.Part(text.substr(found + separator.size()))});
}

Value Lines(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"keepends"});
  List lines;
  const TracedText& text = Object(in, object);
  for (std::string_view line : SplitLines(text.bytes(), bound[0].Truthy())) AddPart(in, text, line, &lines);
  return lines;
}

Value Join(Interpreter& in, const Value& object, const Arguments& arguments) {
  const TracedText& separator = Object(in, object);
  const List bound = Bind(in, arguments, {"iterable"}, 1);
  TracedText out;
  bool first = true;
  for (const Value& item : in.Elements(bound[0])) {
    const TracedText& text = RequireText(in, item, "an element of join()");
    in.meter().Charge(separator.cost() + text.cost());
    if (!std::exchange(first, false)) out.Append(separator);
    out.Append(text);
  }
  return out;
}

// center, ljust, rjust: as wide as asked for.
template <bool kLeft, bool kRight>
Value Justify(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"width", "fillchar"}, 1);
  const TracedText& text = Object(in, object);
  const int64_t width = RequireInteger(in, bound[0], "the width");
  const TracedText fill = bound[1].Is<Undefined>() ? " " : RequireText(in, bound[1], "the fill character");
  if (CountCharacters(fill.bytes()) != 1) in.Fail("the fill character is no single character");
  if (kLeft && kRight) return Centered(in, text, width, fill);
  const auto length = static_cast<int64_t>(CountCharacters(text.bytes()));
  const size_t missing = width > length ? static_cast<size_t>(width - length) : 0;
  in.meter().Charge(missing, fill.cost());
  const TracedText filling = TracedText::Repeated(fill, missing);
  TracedText out = kLeft ? filling : text;
  out.Append(kLeft ? text : filling);
  return out;
}

Value FillZeros(Interpreter& in, const Value& object, const Arguments& arguments) {
  const int64_t width = RequireInteger(in, Bind(in, arguments, {"width"}, 1)[0], "the width");
  const TracedText& text = Object(in, object);
  const std::string_view bytes = text.bytes();
  const auto length = static_cast<int64_t>(CountCharacters(bytes));
  if (width <= length) return text;
  in.meter().Charge(static_cast<size_t>(width - length));
  const size_t sign = bytes.starts_with('-') || bytes.starts_with('+') ? 1 : 0;
  TracedText out = text.Part(bytes.substr(0, sign));
  out.AppendOwn(std::string(static_cast<size_t>(width - length), '0'));
  out.Append(text, bytes.substr(sign));
  return out;
}

// str.title: each run of letters begins with a capital.
Value Title(Interpreter& in, const Value& object, const Arguments&) {
  const TracedText& text = Object(in, object);
  TracedText out;
  bool after_letter = false;
  for (std::string_view c : Characters(text.bytes())) {
    out.AppendFor(after_letter ? ToLower(c) : ToUpper(c), text, c);
    after_letter = IsUpperCharacter(c) || IsLowerCharacter(c);
  }
  return out;
}

Value SwapCase(Interpreter& in, const Value& object, const Arguments&) {
  return Object(in, object).Mapped([](std::string_view run) {
    std::string out;
    for (std::string_view c : Characters(run)) out += IsUpperCharacter(c) ? ToLower(c) : ToUpper(c);
    return out;
  });
}

bool IsAlphanumericCharacter(std::string_view c) { return IsLetterCharacter(c) || IsNumericCharacter(c); }

// isdigit and the like: each character is one, and there is one.
template <bool (*kIs)(std::string_view)>
Value IsAll(Interpreter& in, const Value& object, const Arguments&) {
  const auto characters = Characters(Object(in, object).bytes());
  return !characters.empty() && std::all_of(characters.begin(), characters.end(), kIs);
}

template <bool (*kIs)(std::string_view), bool (*kIsOther)(std::string_view)>
Value IsCase(Interpreter& in, const Value& object, const Arguments&) {
  return IsAllOfCase(Object(in, object).bytes(), kIs, kIsOther);
}

template <bool kLeft, bool kRight>
Value StripMethod(Interpreter& in, const Value& object, const Arguments& arguments) {
  return Stripped(in, Object(in, object), arguments, {kLeft, kRight});
}

Value Get(Interpreter& in, const Value& object, const Arguments& arguments) {
  const List bound = Bind(in, arguments, {"key", "default"}, 1);
  const Dict& dict = RequireDict(in, object, "the object of get()");
  const Value* found = bound[0].IsString() ? FindField(dict, bound[0].AsString(), in.meter()) : nullptr;
  if (found != nullptr) return *found;
  return bound[1].Is<Undefined>() ? Value(None{}) : bound[1];
}

// items(), keys() or values()
template <Sequence kView>
Value DictView(Interpreter& in, const Value& object, const Arguments& arguments) {
  Bind(in, arguments, {});
  const Dict& dict = RequireDict(in, object, "the object of items(), keys() or values()");
  if (kView == Sequence::kItems) return Value(kView, Pairs(in, dict));
  if (kView == Sequence::kKeys) return Value(kView, in.Elements(object));
  List values;
  in.meter().Charge(dict.size(), sizeof(Value));
  for (const auto& field : dict) values.push_back(field.second);
  return Value(kView, std::move(values));
}

// Values are immutable: the copy is the value itself.
Value Copy(Interpreter& in, const Value& object, const Arguments& arguments) {
  Bind(in, arguments, {});
  if (!object.IsIndexed() || object.IsTuple()) RequireDict(in, object, "the object of copy()");
  return object;
}

// loop.cycle(...)
Value Cycle(Interpreter& in, const Value& object, const Arguments& arguments) {
  const Value* index = FindField(RequireDict(in, object, "the object of cycle()"), "index0", in.meter());
  if (index == nullptr || !index->Is<int64_t>() || arguments.positional.empty() || index->As<int64_t>() < 0)
    in.Fail("cycle() is a method of loop and takes what to cycle through");
  return arguments.positional[static_cast<size_t>(index->As<int64_t>()) % arguments.positional.size()];
}

Value Change(Interpreter& in, const Value&, const Arguments&) {
  in.Fail("a template cannot change lists and dicts; make a new one, or set a field of a namespace()");
}

constexpr Entry kStringMethods[] = {
    {"capitalize", [](Interpreter& in, const Value& x, const Arguments&) { return Value(Capitalized(Object(in, x))); }},
    {"center", Justify<true, true>},
    {"count", Count},
    {"endswith", HasAffix<false>},
    {"find", FindPosition<false, false>},
    {"format", [](Interpreter& in, const Value& x, const Arguments& a) { return Value(FormatBraces(in, Object(in, x), a)); }},
    {"index", FindPosition<false, true>},
    {"isalnum", IsAll<IsAlphanumericCharacter>},
    {"isalpha", IsAll<IsLetterCharacter>},
    {"isdecimal", IsAll<IsDecimalCharacter>},
    {"isdigit", IsAll<IsDigitCharacter>},
    {"islower", IsCase<IsLowerCharacter, IsUpperCharacter>},
    {"isnumeric", IsAll<IsNumericCharacter>},
    {"isspace", IsAll<IsSpaceCharacter>},
    {"isupper", IsCase<IsUpperCharacter, IsLowerCharacter>},
    {"join", Join},
    {"ljust", Justify<false, true>},
    {"lower", [](Interpreter& in, const Value& x, const Arguments&) { return Value(Object(in, x).Mapped(ToLower)); }},
    {"lstrip", StripMethod<true, false>},
    {"partition", Partition<false>},
    {"removeprefix", RemoveAffix<true>},
    {"removesuffix", RemoveAffix<false>},
    {"replace", [](Interpreter& in, const Value& x, const Arguments& a) { return Value(Replaced(in, Object(in, x), a)); }},
    {"rfind", FindPosition<true, false>},
    {"rindex", FindPosition<true, true>},
    {"rjust", Justify<true, false>},
    {"rpartition", Partition<true>},
    {"rsplit", SplitFromEnd},
    {"rstrip", StripMethod<false, true>},
    {"split", Split},
    {"splitlines", Lines},
    {"startswith", HasAffix<true>},
    {"strip", StripMethod<true, true>},
    {"swapcase", SwapCase},
    {"title", Title},
    {"upper", [](Interpreter& in, const Value& x, const Arguments&) { return Value(Object(in, x).Mapped(ToUpper)); }},
    {"zfill", FillZeros},
};

constexpr Entry kDictMethods[] = {
    {"copy", Copy},
    {"get", Get},
    {"items", DictView<Sequence::kItems>},
    {"keys", DictView<Sequence::kKeys>},
    {"values", DictView<Sequence::kValues>},
};

// Those that strings have too are in kStringMethods.
constexpr std::string_view kListMethods[] = {"count", "index"};

// Of the loop, and those that change a list or a dict, which fail when they are called.
constexpr Entry kOtherMethods[] = {
    {"append", Change},  {"clear", Change},  {"cycle", Cycle},    {"extend", Change},     {"insert", Change}, {"pop", Change},
    {"popitem", Change}, {"remove", Change}, {"reverse", Change}, {"setdefault", Change}, {"sort", Change},   {"update", Change},
};

}  // namespace

Builtin FindMethod(std::string_view name) {
  if (const Builtin method = Find(kStringMethods, name); method != nullptr) return method;
  const Builtin method = Find(kDictMethods, name);
  return method != nullptr ? method : Find(kOtherMethods, name);
}

bool IsMethod(const Value& object, std::string_view name) {
  if (object.IsString()) return Find(kStringMethods, name) != nullptr;
  if (object.IsDict()) return Find(kDictMethods, name) != nullptr;
  return object.IsIndexed() && std::find(std::begin(kListMethods), std::end(kListMethods), name) != std::end(kListMethods);
}

}  // namespace coppice::jinja
