#include "grammar/json_schema_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "core/check.h"
#include "core/json.h"
#include "core/quoted.h"
#include "grammar/ecma_regex.h"
#include "grammar/grammar_source.h"
#include "grammar/json_text_rules.h"
#include "grammar/string_formats.h"

namespace coppice {
namespace {

using Json = nlohmann::ordered_json;

// Keywords that say nothing of which values there are, or that others read. A keyword that no draft has is one of these too, as the
// drafts say.
constexpr std::string_view kUnsupported[] = {"unevaluatedItems", "unevaluatedProperties", "contains", "disallow", "extends",
                                             "divisibleBy"};

std::string Shown(const Json& value) {
  constexpr size_t kLongest = 60;
  return Printable(value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace), kLongest);
}

// A name as a part of a JSON pointer (RFC 6901).
std::string Step(std::string_view name) {
  std::string out = "/";
  for (const char c : name) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return Printable(out, 200);
}

Status Wrong(const std::string& path, const Json& value, std::string_view expected) {
  return InvalidArgument(fmt::format("{} is {}, expected {}", path, Shown(value), expected));
}

std::optional<JsonKinds> KindsOf(const Json& name) {
  if (name == "null") return JsonKinds{JsonKind::kNull};
  if (name == "boolean") return JsonKinds{JsonKind::kBoolean};
  if (name == "integer") return JsonKinds{JsonKind::kInteger};
  if (name == "number") return JsonKinds::Numbers();
  if (name == "string") return JsonKinds{JsonKind::kString};
  if (name == "array") return JsonKinds{JsonKind::kArray};
  if (name == "object") return JsonKinds{JsonKind::kObject};
  return std::nullopt;
}

// Numbers that the parser had to round are not what was written.
bool IsExact(const Json& value) {
  constexpr double kBeyondIntegers = 18446744073709551616.0;
  if (value.is_number_float()) return std::abs(value.get<double>()) < kBeyondIntegers;
  if (!value.is_structured()) return true;
  return std::ranges::all_of(value, IsExact);
}

// The smallest positive integer whose multiples are the integers that are multiples of `value`.
std::optional<int64_t> IntegerMultiple(const Decimal& value) {
  constexpr size_t kMaxDigits = 17;
  if (value.whole.size() + value.fraction.size() > kMaxDigits) return std::nullopt;
  int64_t digits = 0, scale = 1;
  for (const char c : value.whole + value.fraction) digits = digits * 10 + (c - '0');
  for (size_t i = 0; i < value.fraction.size(); ++i) scale *= 10;
  return digits / std::gcd(digits, scale);
}

}  // namespace

// Reads the keywords of one schema.
class JsonSchemaReader::Keywords {
 public:
  Keywords(JsonSchemaReader& reader, const Entry& entry) : reader_(reader), entry_(entry), value_(*entry.value) {
    schema_.path = entry.path;
  }

  Result<JsonSchema> Read() {
    if (value_.is_boolean()) {
      schema_.never = !value_.get<bool>();
      schema_.only_parts = !schema_.never;
      return std::move(schema_);
    }
    if (!value_.is_object()) return Wrong(entry_.path, value_, "a JSON schema: an object, true or false");
    bool placed = false;
    for (const auto& [name, value] : value_.items()) {
      if (name == "properties") {
        placed = true;
        schema_.own_place = schema_.parts.size();
      }
      COPPICE_RETURN_IF_ERROR(ReadKeyword(name, value));
    }
    if (!placed) schema_.own_place = schema_.parts.size();
    return std::move(schema_);
  }

 private:
  std::string PathOf(std::string_view name) const { return entry_.path + Step(name); }
  const Json* Find(const char* name) const {
    const auto found = value_.find(name);
    return found == value_.end() ? nullptr : &*found;
  }

  Status ReadKeyword(const std::string& name, const Json& value) {
    using Reader = Status (Keywords::*)(const std::string&, const Json&);
    // A draft's keyword that is neither in this table nor in kUnsupported annotates, or is read along with one of this table.
    static const std::map<std::string, Reader, std::less<>> readers = {
        {"type", &Keywords::ReadType},
        {"enum", &Keywords::ReadEnum},
        {"const", &Keywords::ReadConst},
        {"minimum", &Keywords::ReadMinimum},
        {"exclusiveMinimum", &Keywords::ReadMinimum},
        {"maximum", &Keywords::ReadMaximum},
        {"exclusiveMaximum", &Keywords::ReadMaximum},
        {"multipleOf", &Keywords::ReadMultipleOf},
        {"minLength", &Keywords::ReadLength},
        {"maxLength", &Keywords::ReadLength},
        {"pattern", &Keywords::ReadPattern},
        {"format", &Keywords::ReadFormat},
        {"prefixItems", &Keywords::ReadPrefixItems},
        {"items", &Keywords::ReadItems},
        {"additionalItems", &Keywords::ReadAdditionalItems},
        {"minItems", &Keywords::ReadItemCount},
        {"maxItems", &Keywords::ReadItemCount},
        {"uniqueItems", &Keywords::ReadUniqueItems},
        {"properties", &Keywords::ReadProperties},
        {"patternProperties", &Keywords::ReadPatternProperties},
        {"additionalProperties", &Keywords::ReadAdditionalProperties},
        {"propertyNames", &Keywords::ReadPropertyNames},
        {"required", &Keywords::ReadRequired},
        {"minProperties", &Keywords::ReadMemberCount},
        {"maxProperties", &Keywords::ReadMemberCount},
        {"dependencies", &Keywords::ReadDependencies},
        {"dependentRequired", &Keywords::ReadDependencies},
        {"dependentSchemas", &Keywords::ReadDependencies},
        {"$ref", &Keywords::ReadReference},
        {"$dynamicRef", &Keywords::ReadReference},
        {"$recursiveRef", &Keywords::ReadReference},
        {"allOf", &Keywords::ReadAllOf},
        {"anyOf", &Keywords::ReadAnyOf},
        {"oneOf", &Keywords::ReadOneOf},
        {"not", &Keywords::ReadNot},
        {"if", &Keywords::ReadIf},
    };
    const std::string path = PathOf(name);
    if (std::ranges::find(kUnsupported, name) != std::end(kUnsupported)) return ReadUnsupported(name, path, value);
    const auto reader = readers.find(name);
    return reader == readers.end() ? OkStatus() : (this->*reader->second)(path, value);
  }

  static Status Unsupported(const std::string& path) {
    return InvalidArgument(fmt::format("{} is not supported: leave it out, and check the answer", path));
  }

  // Some values ask for nothing.
  Status ReadUnsupported(const std::string& name, const std::string& path, const Json& value) {
    const bool any = value == true || (value.is_object() && value.empty());
    if (name.starts_with("unevaluated") && any) return OkStatus();
    // Where no other schema of the value is at work, what was not evaluated is what the schema itself does not list.
    if (name == "unevaluatedProperties" && IsAlone()) {
      if (!Find("additionalProperties")) return ReadAdditionalProperties(path, value);
      return OkStatus();
    }
    if (name == "unevaluatedItems" && IsAlone()) {
      if (!Find("items") && !Find("additionalItems")) return SetItems(path, value);
      return OkStatus();
    }
    if (name == "contains" && Find("minContains") && *Find("minContains") == 0 && !Find("maxContains")) return OkStatus();
    return Unsupported(path);
  }
  bool IsAlone() const {
    constexpr const char* kInPlace[] = {"$ref", "$dynamicRef", "$recursiveRef",    "allOf",        "anyOf",   "oneOf",
                                        "not",  "if",          "dependentSchemas", "dependencies", "contains"};
    return std::ranges::none_of(kInPlace, [&](const char* name) { return Find(name) != nullptr; });
  }

  void Mention(JsonKinds kinds) {
    schema_.mentioned = schema_.mentioned | kinds;
    schema_.only_parts = false;
  }

  Status ReadType(const std::string& path, const Json& value) {
    constexpr std::string_view kExpected = "null, boolean, integer, number, string, array, object or a list of these";
    JsonKinds kinds;
    for (const Json& name : value.is_array() ? value : Json::array({value})) {
      const std::optional<JsonKinds> of_name = KindsOf(name);
      if (!of_name) return Wrong(path, value, kExpected);
      kinds = kinds | *of_name;
    }
    if (kinds.empty()) return Wrong(path, value, kExpected);
    schema_.kinds = kinds;
    schema_.only_parts = false;
    return OkStatus();
  }

  Status ReadEnum(const std::string& path, const Json& value) {
    if (!value.is_array() || value.empty()) return Wrong(path, value, "a list of one value or more");
    return AddValues(path, value, {&*value.begin(), value.size()});
  }
  Status ReadConst(const std::string& path, const Json& value) { return AddValues(path, value, {&value, 1}); }
  Status AddValues(const std::string& path, const Json& value, std::span<const Json> list) {
    if (!IsExact(value)) return Wrong(path, value, "numbers of less than 20 digits before the point");
    std::vector<const Json*>& values = schema_.values.emplace_back();
    for (const Json& one : list) values.push_back(&one);
    schema_.only_parts = false;
    return OkStatus();
  }

  // ----------------------------------------------------------------------------------------------------------------- numbers

  // As a number of its own, and in draft 4 as true beside minimum or maximum.
  Status ReadBound(const std::string& path, const Json& value, const char* flag, std::optional<NumberBound>* bound, bool is_least) {
    const bool is_flag = path.ends_with(flag);
    if (is_flag && value.is_boolean()) return OkStatus();                   // read with the number
    if (value.is_number() && !IsExact(value) && (value < 0) == is_least) {  // all numbers that are read are within it
      std::optional<NumberBound>& written = is_least ? schema_.written_least : schema_.written_most;
      const Decimal limit =
          is_least ? Decimal::Of(std::numeric_limits<int64_t>::min()) : Decimal::Of(std::numeric_limits<uint64_t>::max());
      if (!written) written = NumberBound{limit};
      Mention(JsonKinds::Numbers());
      return OkStatus();
    }
    if (!value.is_number() || !IsExact(value)) return Wrong(path, value, "a number of less than 20 digits before the point");
    const Json* const beside = Find(flag);
    const NumberBound read = {Decimal::Of(value), is_flag || (beside && *beside == true)};
    Mention(JsonKinds::Numbers());
    const auto order = *bound ? read.value <=> (*bound)->value : std::strong_ordering::equal;
    const bool tighter = !*bound || (is_least ? order > 0 : order < 0) || (order == 0 && read.exclusive);
    if (tighter) *bound = read;
    return OkStatus();
  }
  Status ReadMinimum(const std::string& path, const Json& value) {
    return ReadBound(path, value, "exclusiveMinimum", &schema_.least, /*is_least=*/true);
  }
  Status ReadMaximum(const std::string& path, const Json& value) {
    return ReadBound(path, value, "exclusiveMaximum", &schema_.most, /*is_least=*/false);
  }

  Status ReadMultipleOf(const std::string& path, const Json& value) {
    if (!value.is_number() || value <= 0) return Wrong(path, value, "a number above 0");
    const Decimal multiple = Decimal::Of(value);
    const std::optional<int64_t> whole = IntegerMultiple(multiple);
    const Json* const type = Find("type");
    const bool integers = type && *type == "integer";
    if (!whole || *whole > kMaxMultiple || (!multiple.fraction.empty() && !integers))
      return Wrong(path, value, fmt::format("an integer up to {}, or beside \"type\": \"integer\" a number", kMaxMultiple));
    Mention(JsonKinds::Numbers());
    schema_.multiple = *whole;
    return OkStatus();
  }

  // ----------------------------------------------------------------------------------------------------------------- counts

  Status ReadCount(const std::string& path, const Json& value, LengthRange* range) {
    // 3.0 is an integer for JSON schemas.
    const bool whole = value.is_number_unsigned() || (value.is_number() && value >= 0 && Decimal::Of(value).fraction.empty());
    if (!whole) return Wrong(path, value, "an integer of 0 or more");
    const double count = value.get<double>();
    const bool is_least = path.substr(path.rfind('/') + 1).starts_with("min");
    if (is_least && count > kMaxSchemaCount) return Wrong(path, value, fmt::format("at most {}", kMaxSchemaCount));
    // A maximum beyond what can be counted is as good as one that can: an answer has no room for either.
    const auto exact = static_cast<int64_t>(std::min(count, static_cast<double>(kMaxSchemaCount)));
    if (is_least) {
      range->least = exact;
    } else {
      range->most = exact;
    }
    return OkStatus();
  }

  // ----------------------------------------------------------------------------------------------------------------- strings

  Status ReadLength(const std::string& path, const Json& value) {
    Mention({JsonKind::kString});
    return ReadCount(path, value, &schema_.length);
  }

  Result<std::shared_ptr<const TextSet>> Pattern(const std::string& path, const std::string& pattern) {
    std::shared_ptr<const TextSet>& known = reader_.patterns_[pattern];
    if (known) return known;
    constexpr size_t kMaxPatternBytes = 1024;
    if (pattern.size() > kMaxPatternBytes)
      return InvalidArgument(fmt::format("{} has {} bytes, expected at most {}", path, pattern.size(), kMaxPatternBytes));
    TextSet texts;
    for (auto& [reading, target] :
         {std::pair(RegexReading::kAgreed, &texts.agreed), std::pair(RegexReading::kPossible, &texts.possible)}) {
      Result<Automaton> read = ParseEcmaRegex(pattern, reading);
      if (!read.ok()) return InvalidArgument(fmt::format("{}: {}", path, read.status().message()));
      *target = *std::move(read);
    }
    known = std::make_shared<const TextSet>(std::move(texts));
    return known;
  }
  Status ReadPattern(const std::string& path, const Json& value) {
    if (!value.is_string()) return Wrong(path, value, "a regular expression");
    Mention({JsonKind::kString});
    COPPICE_ASSIGN_OR_RETURN(schema_.texts.emplace_back(), Pattern(path, value.get<std::string>()));
    return OkStatus();
  }

  Status ReadFormat(const std::string& path, const Json& value) {
    if (!value.is_string()) return Wrong(path, value, "the name of a format");
    const std::string name = value.get<std::string>();
    Result<std::optional<StringFormat>> format = FindStringFormat(name);
    if (!format.ok()) {
      // Beside keywords that say what the text looks like, it is a name for that.
      if (Find("pattern") || Find("enum") || Find("const")) return OkStatus();
      return InvalidArgument(fmt::format("{}: {}", path, format.status().message()));
    }
    if (!*format) return ReadNumberFormat(name);
    Mention({JsonKind::kString});
    // Other texts may be of the format too.
    std::shared_ptr<const TextSet>& known = reader_.formats_[name];
    if (!known) known = std::make_shared<const TextSet>(TextSet{(*format)->texts, Automaton::AllTexts()});
    schema_.texts.push_back(known);
    schema_.written_length = (*format)->length;
    return OkStatus();
  }
  // OpenAPI's integers of so many bits. Other formats are names of how a value is shown or used.
  Status ReadNumberFormat(const std::string& name) {
    constexpr int kBits[] = {8, 16, 32, 64};
    for (const int bits : kBits) {
      if (name == fmt::format("int{}", bits)) {
        schema_.written_least = NumberBound{Decimal::Of(std::numeric_limits<int64_t>::min() >> (64 - bits))};
        schema_.written_most = NumberBound{Decimal::Of(std::numeric_limits<int64_t>::max() >> (64 - bits))};
      } else if (name == fmt::format("uint{}", bits)) {
        schema_.written_least = NumberBound{Decimal::Of(0)};
        schema_.written_most = NumberBound{Decimal::Of(std::numeric_limits<uint64_t>::max() >> (64 - bits))};
      } else {
        continue;
      }
      Mention(JsonKinds::Numbers());
    }
    return OkStatus();
  }

  // ----------------------------------------------------------------------------------------------------------------- arrays

  SchemaId Child(const std::string& path, const Json& value) { return reader_.IdOf(value, path, entry_.resource); }

  Result<std::vector<SchemaId>> List(const std::string& path, const Json& value, bool may_be_empty) {
    if (!value.is_array() || (value.empty() && !may_be_empty)) return Wrong(path, value, "a list of JSON schemas");
    std::vector<SchemaId> list;
    for (size_t i = 0; i < value.size(); ++i) list.push_back(Child(fmt::format("{}/{}", path, i), value[i]));
    return list;
  }
  Status SetItems(const std::string& path, const Json& value) {
    Mention({JsonKind::kArray});
    schema_.items = Child(path, value);
    return OkStatus();
  }

  Status ReadPrefixItems(const std::string& path, const Json& value) {
    Mention({JsonKind::kArray});
    COPPICE_ASSIGN_OR_RETURN(schema_.prefix, List(path, value, /*may_be_empty=*/true));
    return OkStatus();
  }
  Status ReadItems(const std::string& path, const Json& value) {
    if (!value.is_array()) return SetItems(path, value);
    if (Find("prefixItems")) return Wrong(path, value, "a JSON schema, since prefixItems has the list");
    return ReadPrefixItems(path, value);  // of drafts up to 2019-09
  }
  Status ReadAdditionalItems(const std::string& path, const Json& value) {
    const Json* const items = Find("items");
    return items && items->is_array() ? SetItems(path, value) : OkStatus();
  }
  Status ReadItemCount(const std::string& path, const Json& value) {
    Mention({JsonKind::kArray});
    return ReadCount(path, value, &schema_.item_count);
  }
  Status ReadUniqueItems(const std::string& path, const Json& value) {
    if (!value.is_boolean()) return Wrong(path, value, "true or false");
    const Json* const most = Find("maxItems");
    const bool is_free = most && most->is_number() && *most <= 1;
    return value == false || is_free ? OkStatus() : Unsupported(path);
  }

  // ----------------------------------------------------------------------------------------------------------------- objects

  Status ReadProperties(const std::string& path, const Json& value) {
    if (!value.is_object()) return Wrong(path, value, "an object of JSON schemas");
    Mention({JsonKind::kObject});
    schema_.lists_members = true;
    for (const auto& [name, schema] : value.items()) schema_.properties.emplace_back(name, Child(path + Step(name), schema));
    return OkStatus();
  }
  Status ReadPatternProperties(const std::string& path, const Json& value) {
    if (!value.is_object()) return Wrong(path, value, "an object of JSON schemas");
    Mention({JsonKind::kObject});
    for (const auto& [pattern, schema] : value.items()) {
      const std::string place = path + Step(pattern);
      COPPICE_ASSIGN_OR_RETURN(std::shared_ptr<const TextSet> texts, Pattern(place, pattern));
      schema_.pattern_properties.emplace_back(std::move(texts), Child(place, schema));
    }
    return OkStatus();
  }
  Status ReadAdditionalProperties(const std::string& path, const Json& value) {
    Mention({JsonKind::kObject});
    schema_.additional = Child(path, value);
    return OkStatus();
  }
  Status ReadPropertyNames(const std::string& path, const Json& value) {
    Mention({JsonKind::kObject});
    schema_.names = Child(path, value);
    return OkStatus();
  }
  Status ReadMemberCount(const std::string& path, const Json& value) {
    Mention({JsonKind::kObject});
    return ReadCount(path, value, &schema_.member_count);
  }

  Result<std::vector<std::string>> Names(const std::string& path, const Json& value) {
    if (!value.is_array()) return Wrong(path, value, "a list of names");
    std::vector<std::string> names;
    for (const Json& name : value) {
      if (!name.is_string()) return Wrong(path, value, "a list of names");
      if (std::ranges::find(names, name.get_ref<const std::string&>()) == names.end()) names.push_back(name.get<std::string>());
    }
    return names;
  }
  Status ReadRequired(const std::string& path, const Json& value) {
    Mention({JsonKind::kObject});
    COPPICE_ASSIGN_OR_RETURN(schema_.required, Names(path, value));
    return OkStatus();
  }

  // For each name: the member is absent, or what is said holds. Values that are no objects have no members.
  Status ReadDependencies(const std::string& path, const Json& value) {
    if (!value.is_object()) return Wrong(path, value, "an object of lists of names or of JSON schemas");
    Mention({JsonKind::kObject});
    for (const auto& [name, asked] : value.items()) {
      const std::string place = path + Step(name);
      JsonSchema present{.path = place, .kinds = JsonKinds{JsonKind::kObject}, .required = {name}, .only_parts = false};
      std::vector<SchemaId> both;
      if (asked.is_array()) {
        COPPICE_ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(place, asked));
        if (names.empty()) continue;
        present.required.insert(present.required.end(), names.begin(), names.end());
        both = {reader_.Add(std::move(present))};
      } else {
        both = {reader_.Add(std::move(present)), Child(place, asked)};
      }
      JsonSchema with{.path = place};
      with.parts.push_back({.path = place, .schemas = std::move(both), .all = true});
      schema_.parts.push_back({.path = place, .schemas = {reader_.Add(Without(place, name)), reader_.Add(std::move(with))}});
    }
    return OkStatus();
  }
  JsonSchema Without(const std::string& place, const std::string& name) {
    JsonSchema never{.path = place, .never = true, .only_parts = false};
    JsonSchema absent{.path = place, .mentioned = {JsonKind::kObject}, .only_parts = false};
    absent.properties.emplace_back(name, reader_.Add(std::move(never)));
    return absent;
  }

  // ----------------------------------------------------------------------------------------------------------------- in place

  Status ReadReference(const std::string& path, const Json& value) {
    if (!value.is_string()) return Wrong(path, value, "a reference such as \"#/$defs/name\"");
    COPPICE_ASSIGN_OR_RETURN(const SchemaId target, reader_.Resolve(value.get<std::string>(), entry_.resource, path));
    schema_.parts.push_back({.path = path, .schemas = {target}, .all = true});
    return OkStatus();
  }
  Status AddPart(JsonSchema::Part part, const Json& value) {
    COPPICE_ASSIGN_OR_RETURN(part.schemas, List(part.path, value, /*may_be_empty=*/false));
    schema_.parts.push_back(std::move(part));
    return OkStatus();
  }
  Status ReadAllOf(const std::string& path, const Json& value) { return AddPart({.path = path, .all = true}, value); }
  Status ReadAnyOf(const std::string& path, const Json& value) { return AddPart({.path = path}, value); }
  Status ReadOneOf(const std::string& path, const Json& value) { return AddPart({.path = path, .exclusive = true}, value); }
  Status ReadNot(const std::string& path, const Json& value) {
    schema_.parts.push_back({.path = path, .schemas = {Child(path, value)}, .none = true});
    return OkStatus();
  }
  // `if` and `then`, or not `if` and `else`.
  Status ReadIf(const std::string& path, const Json& value) {
    const Json *const then = Find("then"), *const otherwise = Find("else");
    if (!then && !otherwise) return OkStatus();
    const SchemaId condition = Child(path, value);
    JsonSchema holds{.path = path}, fails{.path = path};
    holds.parts.push_back({.path = path, .schemas = {condition}, .all = true});
    if (then) holds.parts.front().schemas.push_back(Child(PathOf("then"), *then));
    fails.parts.push_back({.path = path, .schemas = {condition}, .none = true});
    if (otherwise) fails.parts.push_back({.path = path, .schemas = {Child(PathOf("else"), *otherwise)}, .all = true});
    schema_.parts.push_back({.path = path, .schemas = {reader_.Add(std::move(holds)), reader_.Add(std::move(fails))}});
    return OkStatus();
  }

  static constexpr int64_t kMaxMultiple = 1000;

  JsonSchemaReader& reader_;
  const Entry& entry_;
  const Json& value_;
  JsonSchema schema_;
};

// ------------------------------------------------------------------------------------------------------------------- documents

JsonSchemaReader::JsonSchemaReader(const Json& document) {
  resources_.push_back({&document, "#"});
  resource_of_.emplace(&document, 0);
  FindNames(document, "#", 0, 0);
  IdOf(document, "#", 0);
}

SchemaId JsonSchemaReader::IdOf(const Json& value, std::string path, size_t resource) {
  const auto [found, is_new] = ids_.emplace(&value, static_cast<SchemaId>(entries_.size()));
  if (is_new) {
    const auto own = resource_of_.find(&value);
    entries_.push_back({.value = &value, .path = std::move(path), .resource = own == resource_of_.end() ? resource : own->second});
  }
  return found->second;
}

SchemaId JsonSchemaReader::Add(JsonSchema schema) {
  entries_.push_back({.path = schema.path, .schema = std::move(schema)});
  return static_cast<SchemaId>(entries_.size()) - 1;
}

Result<const JsonSchema*> JsonSchemaReader::Read(SchemaId id) {
  Entry& entry = entries_[id];  // a deque's elements stay where they are
  if (!entry.schema) {
    COPPICE_ASSIGN_OR_RETURN(entry.schema, Keywords(*this, entry).Read());
  }
  return &*entry.schema;
}

void JsonSchemaReader::FindNames(const Json& value, const std::string& path, size_t resource, int depth) {
  COPPICE_CHECK(depth <= kMaxJsonDepth);  // the parser's limit
  if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) FindNames(value[i], fmt::format("{}/{}", path, i), resource, depth + 1);
  }
  if (!value.is_object()) return;
  for (const char* const name : {"$id", "id"}) {
    const auto id = value.find(name);
    if (id == value.end() || !id->is_string()) continue;
    const std::string& text = id->get_ref<const std::string&>();
    if (text.starts_with('#')) {
      anchors_.emplace(std::pair(resource, text.substr(1)), Resource{&value, path});
      continue;
    }
    if (depth > 0 && name[0] != '$') continue;  // `id` was a keyword in draft 4 alone
    if (depth > 0) {
      resource = resources_.size();
      resources_.push_back({&value, path});
      resource_of_.emplace(&value, resource);
    }
    addresses_.emplace(text.substr(0, text.find('#')), resource);
  }
  for (const char* const name : {"$anchor", "$dynamicAnchor"}) {
    const auto anchor = value.find(name);
    if (anchor != value.end() && anchor->is_string())
      anchors_.emplace(std::pair(resource, anchor->get<std::string>()), Resource{&value, path});
  }
  for (const auto& [name, member] : value.items()) {
    if (name == "enum" || name == "const" || name == "default" || name == "examples") continue;
    FindNames(member, path + Step(name), resource, depth + 1);
  }
}

namespace {

// A step of a reference's JSON pointer: the percent signs of a URI, then the pointer's own escapes.
std::string NameOf(std::string_view step) {
  std::string plain, name;
  for (size_t i = 0; i < step.size(); ++i) {
    uint32_t code = 0;
    const std::string_view digits = step.substr(i + 1, 2);
    if (step[i] == '%' && digits.size() == 2 &&
        std::from_chars(digits.data(), digits.data() + 2, code, 16).ptr == digits.data() + 2) {
      plain += static_cast<char>(code);
      i += 2;
    } else {
      plain += step[i];
    }
  }
  for (size_t i = 0; i < plain.size(); ++i) {
    const bool escaped = plain[i] == '~' && i + 1 < plain.size() && (plain[i + 1] == '0' || plain[i + 1] == '1');
    name += escaped ? (plain[++i] == '0' ? '~' : '/') : plain[i];
  }
  return name;
}

// The member or element; null where there is none.
const Json* ChildOf(const Json& value, const std::string& name) {
  if (value.is_object()) {
    const auto member = value.find(name);
    return member == value.end() ? nullptr : &*member;
  }
  size_t index = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), index);
  const bool is_index = !name.empty() && parsed.ec == std::errc() && parsed.ptr == name.data() + name.size();
  return value.is_array() && is_index && index < value.size() ? &value[index] : nullptr;
}

}  // namespace

Result<SchemaId> JsonSchemaReader::Resolve(const std::string& reference, size_t resource, const std::string& path) {
  const size_t hash = std::min(reference.find('#'), reference.size());
  const std::string_view fragment = std::string_view(reference).substr(std::min(hash + 1, reference.size()));
  if (hash > 0) {
    const auto address = addresses_.find(std::string_view(reference).substr(0, hash));
    if (address == addresses_.end()) {
      return InvalidArgument(
          fmt::format("{} is {}, a schema of another document: put it under $defs of this one", path, Quoted(reference)));
    }
    resource = address->second;
  }
  Resource at = resources_[resource];
  if (!fragment.empty() && fragment[0] != '/') {
    const auto anchor = anchors_.find({resource, std::string(fragment)});
    if (anchor == anchors_.end())
      return InvalidArgument(fmt::format("{} is {}, but no schema has this name", path, Quoted(reference)));
    return IdOf(*anchor->second.value, anchor->second.path, resource);
  }
  for (size_t begin = 0; begin < fragment.size();) {
    const size_t end = std::min(fragment.find('/', begin + 1), fragment.size());
    const std::string name = NameOf(fragment.substr(begin + 1, end - begin - 1));
    at.value = ChildOf(*at.value, name);
    if (!at.value) return InvalidArgument(fmt::format("{} is {}, but there is nothing at this place", path, Quoted(reference)));
    at.path += Step(name);
    const auto own = resource_of_.find(at.value);
    if (own != resource_of_.end()) resource = own->second;
    begin = end;
  }
  return IdOf(*at.value, at.path, resource);
}

}  // namespace coppice
