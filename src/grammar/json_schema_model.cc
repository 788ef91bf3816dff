#include "grammar/json_schema_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "grammar/json_text_rules.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

using Json = nlohmann::ordered_json;
using Alternative = JsonSchemaModel::Alternative;

template <class T>
void AddNew(std::vector<T>* list, const T& value) {
  if (std::ranges::find(*list, value) == list->end()) list->push_back(value);
}

void Narrow(LengthRange* range, const LengthRange& other) {
  range->least = std::max(range->least, other.least);
  if (other.most) range->most = std::min(range->most.value_or(*other.most), *other.most);
}

bool IsEmpty(const LengthRange& range) { return range.most && *range.most < range.least; }
bool Contains(const LengthRange& range, size_t count) {
  return static_cast<int64_t>(count) >= range.least && (!range.most || static_cast<int64_t>(count) <= *range.most);
}

void Narrow(std::optional<NumberBound>* bound, const std::optional<NumberBound>& other, bool is_least) {
  if (!other) return;
  const auto order = *bound ? other->value <=> (*bound)->value : std::strong_ordering::equal;
  if (!*bound || (is_least ? order > 0 : order < 0) || (order == 0 && other->exclusive)) *bound = other;
}

JsonKind KindOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return JsonKind::kNull;
    case Json::value_t::boolean: return JsonKind::kBoolean;
    case Json::value_t::string: return JsonKind::kString;
    case Json::value_t::array: return JsonKind::kArray;
    case Json::value_t::object: return JsonKind::kObject;
    default: return Decimal::Of(value).fraction.empty() ? JsonKind::kInteger : JsonKind::kNumber;
  }
}

bool Matches(const TextSet& texts, const std::string& text, RegexReading reading) {
  return (reading == RegexReading::kAgreed ? texts.agreed : texts.possible).Accepts(CharactersOf(text));
}
RegexReading Other(RegexReading reading) {
  return reading == RegexReading::kAgreed ? RegexReading::kPossible : RegexReading::kAgreed;
}

// Whether some text of the automaton has a length in the range.
bool HasLength(const Automaton& texts, const LengthRange& range) {
  if (IsEmpty(range)) return false;
  const LengthRange own = texts.length();
  if ((own.most && *own.most < range.least) || (range.most && *range.most < own.least)) return false;
  if (own.least >= range.least) return true;
  if (!own.most && !range.most) return true;
  // States that texts of each length end in. Of very long ones the answer is that there may be some.
  constexpr int64_t kMaxSteps = 5000;
  if (range.least > kMaxSteps) return true;
  std::set<int32_t> here = {0};
  const int64_t last = std::min(range.most.value_or(kMaxSteps), range.least + static_cast<int64_t>(texts.states().size()));
  for (int64_t length = 0; length <= last && !here.empty(); ++length) {
    const auto accepts = [&](int32_t state) { return texts.states()[state].accepts; };
    if (length >= range.least && std::ranges::any_of(here, accepts)) return true;
    std::set<int32_t> next;
    for (const int32_t state : here) {
      for (const Automaton::Edge& edge : texts.states()[state].edges) next.insert(edge.target);
    }
    here = std::move(next);
  }
  return false;
}

}  // namespace

bool EqualJson(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return Decimal::Of(a) == Decimal::Of(b);
  if (a.type() != b.type() || a.size() != b.size()) return false;
  if (a.is_array()) return std::ranges::equal(a, b, EqualJson);
  if (!a.is_object()) return a == b;
  return std::ranges::all_of(a.items(), [&](const auto& member) {
    const auto other = b.find(member.key());
    return other != b.end() && EqualJson(member.value(), *other);
  });
}

std::u32string CharactersOf(std::string_view text) {
  std::u32string characters;
  while (!text.empty()) {
    const Utf8Char c = DecodeUtf8(text);
    characters += c.code_point;
    text.remove_prefix(c.length);
  }
  return characters;
}

// ------------------------------------------------------------------------------------------------------------------- alternatives

Result<std::vector<Alternative>> JsonSchemaModel::Combined(const std::vector<Alternative>& left,
                                                           const std::vector<Alternative>& right) {
  std::vector<Alternative> all;
  for (const Alternative& a : left) {
    for (const Alternative& b : right) {
      Alternative both = a;
      both.kinds = a.kinds & b.kinds;
      if (both.kinds.empty()) continue;
      for (const SchemaId id : b.schemas) AddNew(&both.schemas, id);
      for (const Exclusion& exclusion : b.excluded) {
        if (std::ranges::find(both.excluded, exclusion.schema, &Exclusion::schema) == both.excluded.end())
          both.excluded.push_back(exclusion);
      }
      all.push_back(std::move(both));
      if (all.size() > kMaxAlternatives)
        return InvalidArgument(
            fmt::format("the alternatives of anyOf, oneOf and dependencies make more than {} combinations: make "
                        "them fewer",
                        kMaxAlternatives));
    }
  }
  return all;
}

Result<std::vector<Alternative>> JsonSchemaModel::PartAlternatives(const JsonSchema::Part& part) {
  if (part.none) {
    Alternative others;
    for (const SchemaId schema : part.schemas) others.excluded.push_back({schema, part.path});
    return std::vector<Alternative>{std::move(others)};
  }
  std::vector<Alternative> all;
  if (part.all) all.emplace_back();
  for (const SchemaId schema : part.schemas) {
    COPPICE_ASSIGN_OR_RETURN(const std::vector<Alternative>* const own, OwnAlternatives(schema));
    if (part.all) {
      COPPICE_ASSIGN_OR_RETURN(all, Combined(all, *own));
      continue;
    }
    Alternative others;
    for (const SchemaId other : part.schemas) {
      if (part.exclusive && other != schema) others.excluded.push_back({other, part.path});
    }
    COPPICE_ASSIGN_OR_RETURN(std::vector<Alternative> exclusive, Combined({std::move(others)}, *own));
    std::ranges::move(exclusive, std::back_inserter(all));
  }
  return all;
}

Result<const std::vector<Alternative>*> JsonSchemaModel::OwnAlternatives(SchemaId id) {
  if (const auto known = alternatives_.find(id); known != alternatives_.end()) return &known->second;
  COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, reader_.Read(id));
  std::vector<Alternative> all;
  if (!schema->never) {
    if (!in_progress_.insert(id).second)
      return InvalidArgument(fmt::format("{} refers to itself without an end: it holds for no value", schema->path));
    all.emplace_back();
    for (size_t i = 0; i <= schema->parts.size(); ++i) {
      if (i == schema->own_place && !schema->only_parts) {
        COPPICE_ASSIGN_OR_RETURN(all, Combined(all, {{.schemas = {id}, .kinds = schema->kinds.value_or(JsonKinds::All())}}));
      }
      if (i == schema->parts.size()) break;
      COPPICE_ASSIGN_OR_RETURN(const std::vector<Alternative> part, PartAlternatives(schema->parts[i]));
      COPPICE_ASSIGN_OR_RETURN(all, Combined(all, part));
    }
    in_progress_.erase(id);
  }
  return &alternatives_.emplace(id, std::move(all)).first->second;
}

Result<std::vector<Alternative>> JsonSchemaModel::AlternativesOf(const SchemaIds& schemas) {
  std::vector<Alternative> all(1);
  for (const SchemaId id : schemas) {
    COPPICE_ASSIGN_OR_RETURN(const std::vector<Alternative>* const own, OwnAlternatives(id));
    COPPICE_ASSIGN_OR_RETURN(all, Combined(all, *own));
  }
  return all;
}

// ------------------------------------------------------------------------------------------------------------------- kinds

Result<NumberSet> JsonSchemaModel::NumbersOf(const Alternative& alternative, RegexReading reading) {
  NumberSet set;
  set.whole = !alternative.kinds.Contains(JsonKind::kNumber);
  for (const SchemaId id : alternative.schemas) {
    COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, reader_.Read(id));
    Narrow(&set.least, schema->least, /*is_least=*/true);
    Narrow(&set.most, schema->most, /*is_least=*/false);
    if (reading == RegexReading::kAgreed) {
      Narrow(&set.least, schema->written_least, /*is_least=*/true);
      Narrow(&set.most, schema->written_most, /*is_least=*/false);
    }
    if (!schema->multiple) continue;
    constexpr int64_t kMaxMultiple = 100000;
    set.whole = true;
    set.multiple = std::lcm(set.multiple, *schema->multiple);
    if (set.multiple > kMaxMultiple)
      return InvalidArgument(fmt::format("{}/multipleOf and others together ask for multiples of {}, expected at most {}",
                                         schema->path, set.multiple, kMaxMultiple));
  }
  return set;
}

Result<JsonSchemaModel::Texts> JsonSchemaModel::TextsOf(const Alternative& alternative, RegexReading reading) {
  if (const auto known = texts_.find({alternative.schemas, reading}); known != texts_.end()) return known->second;
  Texts all;
  for (const SchemaId id : alternative.schemas) {
    COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, reader_.Read(id));
    Narrow(&all.length, schema->length);
    if (reading == RegexReading::kAgreed) Narrow(&all.length, schema->written_length);
    for (const auto& texts : schema->texts) {
      const Automaton& own = reading == RegexReading::kAgreed ? texts->agreed : texts->possible;
      std::optional<Automaton> both = all.texts ? all.texts->Intersect(own) : own;
      if (!both) return InvalidArgument(fmt::format("{}: its patterns need too large an automaton together", schema->path));
      all.texts = std::move(both);
    }
  }
  return texts_.emplace(std::pair(alternative.schemas, reading), std::move(all)).first->second;
}

Result<JsonSchemaModel::Items> JsonSchemaModel::ItemsOf(const Alternative& alternative) {
  Items items;
  std::vector<const JsonSchema*> schemas;
  for (const SchemaId id : alternative.schemas) {
    COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, reader_.Read(id));
    schemas.push_back(schema);
    Narrow(&items.count, schema->item_count);
    items.prefix.resize(std::max(items.prefix.size(), schema->prefix.size()));
    if (!schema->items) continue;
    items.others_said = true;
    AddNew(&items.others, *schema->items);
  }
  for (size_t i = 0; i < items.prefix.size(); ++i) {
    for (const JsonSchema* const schema : schemas) {
      if (i < schema->prefix.size()) {
        AddNew(&items.prefix[i], schema->prefix[i]);
      } else if (schema->items) {
        AddNew(&items.prefix[i], *schema->items);
      }
    }
  }
  return items;
}

Result<JsonSchemaModel::Members> JsonSchemaModel::MembersOf(const Alternative& alternative) {
  Members members;
  std::vector<std::string> required;
  std::set<std::string> listed;
  for (const SchemaId id : alternative.schemas) {
    COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, reader_.Read(id));
    Narrow(&members.count, schema->member_count);
    members.listed |= schema->lists_members;
    for (const auto& [name, member] : schema->properties) {
      if (listed.insert(name).second) members.names.push_back(name);
    }
    required.insert(required.end(), schema->required.begin(), schema->required.end());
  }
  for (std::string& name : required) {
    if (listed.insert(name).second) members.names.push_back(name);
    members.required.insert(std::move(name));
  }
  return members;
}

Result<SchemaIds> JsonSchemaModel::MemberOf(const Alternative& alternative, const std::string& name, RegexReading reading) {
  SchemaIds ids;
  for (const SchemaId id : alternative.schemas) {
    COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, reader_.Read(id));
    // A pattern's schema applies where it matches; the additional one, where none does. Where readings differ, both apply under
    // kAgreed, whose schemas are to hold in every reading, and neither under kPossible, whose schemas may hold in some.
    const auto own = std::ranges::find(schema->properties, name, &std::pair<std::string, SchemaId>::first);
    bool additional = own == schema->properties.end();
    if (!additional) AddNew(&ids, own->second);
    for (const auto& [texts, member] : schema->pattern_properties) {
      if (Matches(*texts, name, Other(reading))) AddNew(&ids, member);
      if (Matches(*texts, name, reading)) additional = false;
    }
    if (additional && schema->additional) AddNew(&ids, *schema->additional);
  }
  return ids;
}

Result<SchemaIds> JsonSchemaModel::NamesOf(const Alternative& alternative) {
  SchemaIds ids;
  for (const SchemaId id : alternative.schemas) {
    COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, reader_.Read(id));
    if (schema->names) AddNew(&ids, *schema->names);
  }
  return ids;
}

// ------------------------------------------------------------------------------------------------------------------- values

Result<bool> JsonSchemaModel::Holds(const SchemaIds& schemas, const Json& value, RegexReading reading) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<Alternative> alternatives, AlternativesOf(schemas));
  for (const Alternative& alternative : alternatives) {
    COPPICE_ASSIGN_OR_RETURN(const bool holds, Holds(alternative, value, reading));
    if (holds) return true;
  }
  return false;
}

Result<bool> JsonSchemaModel::Holds(const Alternative& alternative, const Json& value, RegexReading reading) {
  if (!alternative.kinds.Contains(KindOf(value))) return false;
  for (const SchemaId id : alternative.schemas) {
    COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, reader_.Read(id));
    for (const std::vector<const Json*>& list : schema->values) {
      if (std::ranges::none_of(list, [&](const Json* one) { return EqualJson(*one, value); })) return false;
    }
  }
  COPPICE_ASSIGN_OR_RETURN(const bool holds, HoldsForKind(alternative, value, reading));
  if (!holds) return false;
  for (const Exclusion& exclusion : alternative.excluded) {
    COPPICE_ASSIGN_OR_RETURN(const bool excluded, Holds(SchemaIds{exclusion.schema}, value, Other(reading)));
    if (excluded) return false;
  }
  return true;
}

Result<bool> JsonSchemaModel::HoldsForKind(const Alternative& alternative, const Json& value, RegexReading reading) {
  if (value.is_number()) {
    COPPICE_ASSIGN_OR_RETURN(const NumberSet numbers, NumbersOf(alternative, reading));
    return numbers.Contains(Decimal::Of(value));
  }
  if (value.is_string()) {
    COPPICE_ASSIGN_OR_RETURN(const Texts texts, TextsOf(alternative, reading));
    const std::u32string characters = CharactersOf(value.get_ref<const std::string&>());
    return Contains(texts.length, characters.size()) && (!texts.texts || texts.texts->Accepts(characters));
  }
  if (value.is_array()) {
    COPPICE_ASSIGN_OR_RETURN(const Items items, ItemsOf(alternative));
    if (!Contains(items.count, value.size())) return false;
    for (size_t i = 0; i < value.size(); ++i) {
      COPPICE_ASSIGN_OR_RETURN(const bool holds,
                               Holds(i < items.prefix.size() ? items.prefix[i] : items.others, value[i], reading));
      if (!holds) return false;
    }
  }
  if (value.is_object()) {
    COPPICE_ASSIGN_OR_RETURN(const Members members, MembersOf(alternative));
    COPPICE_ASSIGN_OR_RETURN(const SchemaIds names, NamesOf(alternative));
    if (!Contains(members.count, value.size())) return false;
    if (std::ranges::any_of(members.required, [&](const std::string& name) { return !value.contains(name); })) return false;
    for (const auto& [name, member] : value.items()) {
      COPPICE_ASSIGN_OR_RETURN(const SchemaIds ids, MemberOf(alternative, name, reading));
      COPPICE_ASSIGN_OR_RETURN(const bool holds, Holds(ids, member, reading));
      COPPICE_ASSIGN_OR_RETURN(const bool may_be_named, Holds(names, Json(name), reading));
      if (!holds || !may_be_named) return false;
    }
  }
  return true;
}

// ------------------------------------------------------------------------------------------------------------------- existence

// The least fixed point: a value exists where the values that it needs do.
struct JsonSchemaModel::Search {
  std::map<SchemaIds, bool>& known;
  std::vector<SchemaIds> nodes;  // not known yet
  std::map<SchemaIds, bool> found;

  bool MayHold(const SchemaIds& ids) {
    if (const auto node = known.find(ids); node != known.end()) return node->second;
    const auto [node, is_new] = found.emplace(ids, false);
    if (is_new) nodes.push_back(ids);
    return node->second;
  }
};

Result<bool> JsonSchemaModel::MayHold(const std::vector<Alternative>& alternatives) {
  Search search{.known = may_hold_};
  const auto any_may_hold = [&](const std::vector<Alternative>& list) -> Result<bool> {
    for (const Alternative& alternative : list) {
      COPPICE_ASSIGN_OR_RETURN(const bool may_hold, MayHold(alternative, &search));
      if (may_hold) return true;
    }
    return false;
  };
  COPPICE_ASSIGN_OR_RETURN(bool result, any_may_hold(alternatives));
  for (bool changed = true; changed && !result;) {
    changed = false;
    for (size_t i = 0; i < search.nodes.size(); ++i) {
      const SchemaIds node = search.nodes[i];
      if (search.found[node]) continue;
      COPPICE_ASSIGN_OR_RETURN(const std::vector<Alternative> own, AlternativesOf(node));
      COPPICE_ASSIGN_OR_RETURN(const bool may_hold, any_may_hold(own));
      search.found[node] = may_hold;
      changed |= may_hold;
      if (search.nodes.size() > kMaxNodes) return InvalidArgument("its schemas make too many combinations: make them fewer");
    }
    COPPICE_ASSIGN_OR_RETURN(result, any_may_hold(alternatives));
    changed |= result;
  }
  // Where the search ended early, what it has not found may be there.
  for (const auto& [node, may_hold] : search.found) {
    if (may_hold || !result) may_hold_[node] = may_hold;
  }
  return result;
}

Result<bool> JsonSchemaModel::MayHold(const Alternative& alternative, Search* search) {
  for (const SchemaId id : alternative.schemas) {
    COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, reader_.Read(id));
    if (schema->values.empty()) continue;
    for (const Json* const value : schema->values.front()) {
      COPPICE_ASSIGN_OR_RETURN(const bool holds, Holds(alternative, *value, RegexReading::kPossible));
      if (holds) return true;
    }
    return false;
  }
  const JsonKinds kinds = alternative.kinds;
  if (kinds.Contains(JsonKind::kNull) || kinds.Contains(JsonKind::kBoolean)) return true;
  if (!(kinds & JsonKinds::Numbers()).empty()) {
    COPPICE_ASSIGN_OR_RETURN(const NumberSet numbers, NumbersOf(alternative, RegexReading::kPossible));
    const Result<Automaton> texts = NumberTexts(numbers);
    if (!texts.ok() || !texts->empty()) return true;
  }
  if (kinds.Contains(JsonKind::kString)) {
    COPPICE_ASSIGN_OR_RETURN(const bool may_hold, MayHoldText(alternative));
    if (may_hold) return true;
  }
  if (kinds.Contains(JsonKind::kArray)) {
    COPPICE_ASSIGN_OR_RETURN(const bool may_hold, MayHoldItems(alternative, search));
    if (may_hold) return true;
  }
  return kinds.Contains(JsonKind::kObject) ? MayHoldMembers(alternative, search) : false;
}

Result<bool> JsonSchemaModel::MayHoldText(const Alternative& alternative) {
  COPPICE_ASSIGN_OR_RETURN(const Texts texts, TextsOf(alternative, RegexReading::kPossible));
  if (!texts.texts) return !IsEmpty(texts.length);
  return !texts.texts->empty() && HasLength(*texts.texts, texts.length);
}

Result<bool> JsonSchemaModel::MayHoldItems(const Alternative& alternative, Search* search) {
  COPPICE_ASSIGN_OR_RETURN(const Items items, ItemsOf(alternative));
  if (IsEmpty(items.count)) return false;
  const auto least = static_cast<size_t>(items.count.least);
  for (size_t i = 0; i < std::min(least, items.prefix.size()); ++i) {
    if (!search->MayHold(items.prefix[i])) return false;
  }
  return least <= items.prefix.size() || search->MayHold(items.others);
}

Result<bool> JsonSchemaModel::MayHoldMembers(const Alternative& alternative, Search* search) {
  COPPICE_ASSIGN_OR_RETURN(const Members members, MembersOf(alternative));
  if (IsEmpty(members.count) || (members.count.most && std::ssize(members.required) > *members.count.most)) return false;
  COPPICE_ASSIGN_OR_RETURN(const SchemaIds names, NamesOf(alternative));
  for (const std::string& name : members.required) {
    COPPICE_ASSIGN_OR_RETURN(const SchemaIds ids, MemberOf(alternative, name, RegexReading::kPossible));
    COPPICE_ASSIGN_OR_RETURN(const bool may_be_named, Holds(names, Json(name), RegexReading::kPossible));
    if (!may_be_named || !search->MayHold(ids)) return false;
  }
  return true;
}

Result<Automaton> JsonSchemaModel::PossibleTexts(SchemaId schema) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<Alternative> alternatives, AlternativesOf({schema}));
  // Of all of them together: what none of the others has, taken away from all.
  Automaton none = Automaton::AllTexts();
  for (const Alternative& alternative : alternatives) {
    if (!alternative.kinds.Contains(JsonKind::kString)) continue;
    COPPICE_ASSIGN_OR_RETURN(const Texts texts, TextsOf(alternative, RegexReading::kPossible));
    std::optional<Automaton> own = Automaton::Repeat(CharSet::All(), texts.length);
    // Where there are too many characters to count, any number of them is possible.
    if (!own) own = Automaton::AllTexts();
    if (texts.texts) own = own->Intersect(*texts.texts);
    for (const SchemaId id : alternative.schemas) {
      COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const read, reader_.Read(id));
      for (const std::vector<const Json*>& list : read->values) {
        std::vector<std::u32string> values;
        for (const Json* const value : list) {
          if (value->is_string()) values.push_back(CharactersOf(value->get_ref<const std::string&>()));
        }
        const std::optional<Automaton> listed = Automaton::OfTexts(values);
        own = own && listed ? own->Intersect(*listed) : std::nullopt;
      }
    }
    const std::optional<Automaton> rest = own ? none.Intersect(own->Complement()) : std::nullopt;
    if (!rest) return InvalidArgument("the texts that are excluded need too large an automaton");
    none = *rest;
  }
  return none.Complement();
}

}  // namespace coppice
