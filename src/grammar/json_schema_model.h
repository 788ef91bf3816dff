// Which values the schemas of a document hold for: each schema as alternatives without anyOf, oneOf, allOf or references, what
// several schemas of one value ask together, and whether there may be a value. Layer: grammar.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "grammar/ecma_regex.h"
#include "grammar/json_schema_reader.h"

namespace coppice {

// Schemas that one value is to satisfy, in the order of their members.
using SchemaIds = std::vector<SchemaId>;

class JsonSchemaModel {
 public:
  using Json = nlohmann::ordered_json;

  struct Exclusion {
    SchemaId schema;   // that the value is not to satisfy
    std::string path;  // of the keyword that says so
  };
  // Conditions on a value: the keywords of each of `schemas` but for those that hold other schemas of the same value.
  struct Alternative {
    SchemaIds schemas;
    std::vector<Exclusion> excluded;
    JsonKinds kinds = JsonKinds::All();
  };

  struct Texts {
    std::optional<Automaton> texts;  // nothing: any
    LengthRange length;
  };
  struct Items {
    std::vector<SchemaIds> prefix;
    SchemaIds others;
    bool others_said = false;  // some schema has a keyword for them
    LengthRange count;
  };
  struct Members {
    std::vector<std::string> names;  // those that schemas list, then those that they require
    std::set<std::string> required;
    bool listed = false;  // some schema has a list, be it empty
    LengthRange count;
  };

  // `document` outlives the model.
  explicit JsonSchemaModel(const Json& document) : reader_(document) {}

  JsonSchemaReader& reader() { return reader_; }

  // All functions answer INVALID_ARGUMENT for schemas that are wrong or not supported, or need too much.
  Result<std::vector<Alternative>> AlternativesOf(const SchemaIds& schemas);
  // Values of one alternative of each list.
  Result<std::vector<Alternative>> Combined(const std::vector<Alternative>& left, const std::vector<Alternative>& right);

  // An alternative's conditions on values of one kind.
  Result<NumberSet> NumbersOf(const Alternative& alternative, RegexReading reading);
  Result<Texts> TextsOf(const Alternative& alternative, RegexReading reading);
  Result<Items> ItemsOf(const Alternative& alternative);
  Result<Members> MembersOf(const Alternative& alternative);
  // Schemas that the member of this name is to satisfy. With kAgreed, in every reading of the patterns of names; else, in any.
  Result<SchemaIds> MemberOf(const Alternative& alternative, const std::string& name, RegexReading reading);
  // Schemas that names of members are to satisfy.
  Result<SchemaIds> NamesOf(const Alternative& alternative);

  // Whether the value satisfies it: for certain (kAgreed), or perhaps.
  Result<bool> Holds(const Alternative& alternative, const Json& value, RegexReading reading);
  Result<bool> Holds(const SchemaIds& schemas, const Json& value, RegexReading reading);
  // False: no value satisfies any of them, exclusions apart.
  Result<bool> MayHold(const std::vector<Alternative>& alternatives);
  // Every text that may satisfy it, and perhaps others.
  Result<Automaton> PossibleTexts(SchemaId schema);

 private:
  static constexpr size_t kMaxAlternatives = 512, kMaxNodes = 4000;

  Result<const std::vector<Alternative>*> OwnAlternatives(SchemaId id);
  Result<std::vector<Alternative>> PartAlternatives(const JsonSchema::Part& part);
  Result<bool> HoldsForKind(const Alternative& alternative, const Json& value, RegexReading reading);

  // Whether there may be a value, as far as is known; what else is to be known is noted in `nodes`.
  struct Search;
  Result<bool> MayHold(const Alternative& alternative, Search* search);
  Result<bool> MayHoldText(const Alternative& alternative);
  Result<bool> MayHoldItems(const Alternative& alternative, Search* search);
  Result<bool> MayHoldMembers(const Alternative& alternative, Search* search);

  JsonSchemaReader reader_;
  std::map<SchemaId, std::vector<Alternative>> alternatives_;
  std::set<SchemaId> in_progress_;
  std::map<SchemaIds, bool> may_hold_;
  std::map<std::pair<SchemaIds, RegexReading>, Texts> texts_;
};

// Equal as JSON schemas take it: numbers by value, objects whatever the order of their members.
bool EqualJson(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b);
// Characters of UTF-8.
std::u32string CharactersOf(std::string_view text);

}  // namespace coppice
