#include "grammar/json_schema_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/json.h"
#include "core/quoted.h"
#include "grammar/ebnf_grammar.h"
#include "grammar/json_schema_model.h"
#include "grammar/json_text_rules.h"

namespace coppice {
namespace {

using Json = nlohmann::ordered_json;
using Alternative = JsonSchemaModel::Alternative;
using Exclusion = JsonSchemaModel::Exclusion;
using Rule = EbnfGrammar::Rule;
using RuleId = EbnfGrammar::RuleId;
using Sequence = EbnfGrammar::Sequence;
using Symbol = EbnfGrammar::Symbol;

void Append(Sequence* to, const Sequence& more) { to->insert(to->end(), more.begin(), more.end()); }

class Writer {
 public:
  explicit Writer(const Json& schema) : model_(schema), text_(&grammar_) {}

  Result<std::string> Write() {
    const RuleId root = RuleOf({model_.reader().root()});
    while (!work_.empty()) {
      const auto [id, schemas] = std::move(work_.front());
      work_.pop_front();
      COPPICE_RETURN_IF_ERROR(Define(id, schemas));
      if (grammar_.too_large()) return TooLarge();
    }
    if (!grammar_.Prune(root)) return InvalidArgument("no finite value satisfies the schema: something in it contradicts itself");
    std::string text = grammar_.Text(root);
    if (text.size() > kMaxTextBytes) return TooLarge();
    return text;
  }

 private:
  static constexpr size_t kMaxTextBytes = size_t{2} << 20, kMaxNodes = 4000, kMaxSplits = 64;
  static Status TooLarge() {
    return InvalidArgument("it makes too large a grammar: use fewer schemas, alternatives, and counts of members");
  }

  // ----------------------------------------------------------------------------------------------------------------- schemas

  // The rule of values that satisfy all the schemas. It is defined later.
  RuleId RuleOf(const SchemaIds& schemas) {
    const auto [rule, is_new] = rules_.try_emplace(schemas, RuleId{-1});
    if (is_new) {
      rule->second = grammar_.AddRule();
      work_.emplace_back(rule->second, schemas);
    }
    return rule->second;
  }

  Status Define(RuleId id, const SchemaIds& schemas) {
    if (rules_.size() > kMaxNodes) return TooLarge();
    COPPICE_ASSIGN_OR_RETURN(const std::vector<Alternative> alternatives, model_.AlternativesOf(schemas));
    Rule rule;
    std::set<RuleId> added;
    for (const Alternative& alternative : alternatives) {
      COPPICE_ASSIGN_OR_RETURN(const RuleId one, RuleOf(alternative));
      if (added.insert(one).second) rule.alternatives.push_back({one});
    }
    grammar_.Define(id, std::move(rule));
    return OkStatus();
  }

  Result<RuleId> RuleOf(const Alternative& alternative) {
    std::vector<SchemaId> excluded;
    for (const Exclusion& exclusion : alternative.excluded) excluded.push_back(exclusion.schema);
    const auto [known, is_new] = alternative_rules_.try_emplace({alternative.schemas, excluded, alternative.kinds}, RuleId{-1});
    if (!is_new) return known->second;
    Rule rule;
    COPPICE_ASSIGN_OR_RETURN(const std::optional<std::vector<const Json*>> values, ValuesOf(alternative));
    if (values) {
      for (const Json* const value : *values) rule.alternatives.push_back({DumpJson(*value)});
    } else {
      COPPICE_ASSIGN_OR_RETURN(const JsonKinds kinds, KindsOf(alternative));
      COPPICE_RETURN_IF_ERROR(AddKinds(alternative, kinds, &rule));
    }
    return known->second = grammar_.AddRule(std::move(rule));
  }

  // Those that enum and const leave, if there is such a keyword.
  Result<std::optional<std::vector<const Json*>>> ValuesOf(const Alternative& alternative) {
    for (const SchemaId id : alternative.schemas) {
      COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, model_.reader().Read(id));
      if (schema->values.empty()) continue;
      std::vector<const Json*> values;
      for (const Json* const value : schema->values.front()) {
        COPPICE_ASSIGN_OR_RETURN(const bool holds, model_.Holds(alternative, *value, RegexReading::kAgreed));
        const bool is_new = std::ranges::none_of(values, [&](const Json* other) { return EqualJson(*other, *value); });
        if (holds && is_new) values.push_back(value);
      }
      return std::optional(std::move(values));
    }
    return std::optional<std::vector<const Json*>>();
  }

  // Kinds of what is written. A schema that names none, but asks something of some, is about those.
  Result<JsonKinds> KindsOf(const Alternative& alternative) {
    if (alternative.kinds != JsonKinds::All()) return alternative.kinds;
    JsonKinds mentioned;
    for (const SchemaId id : alternative.schemas) {
      COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, model_.reader().Read(id));
      mentioned = mentioned | schema->mentioned;
    }
    return mentioned.empty() ? alternative.kinds : mentioned;
  }

  Status AddKinds(const Alternative& alternative, JsonKinds kinds, Rule* rule) {
    for (const auto& [kind, values] :
         {std::pair(JsonKind::kNull, Json::array({nullptr})), {JsonKind::kBoolean, Json::array({true, false})}}) {
      for (const Json& value : values) {
        if (!kinds.Contains(kind)) continue;
        COPPICE_ASSIGN_OR_RETURN(const bool holds, model_.Holds(alternative, value, RegexReading::kAgreed));
        if (holds) rule->alternatives.push_back({value.dump()});
      }
    }
    const JsonKinds numbers = kinds & JsonKinds::Numbers();
    if (!numbers.empty()) COPPICE_RETURN_IF_ERROR(AddDisjoint(alternative, numbers, rule, &Writer::AddNumber));
    if (kinds.Contains(JsonKind::kString)) COPPICE_RETURN_IF_ERROR(AddString(alternative, rule));
    if (kinds.Contains(JsonKind::kArray))
      COPPICE_RETURN_IF_ERROR(AddDisjoint(alternative, {JsonKind::kArray}, rule, &Writer::AddArray));
    if (kinds.Contains(JsonKind::kObject))
      COPPICE_RETURN_IF_ERROR(AddDisjoint(alternative, {JsonKind::kObject}, rule, &Writer::AddObject));
    return OkStatus();
  }

  // The path that an error of the alternative names.
  std::string PathOf(const Alternative& alternative) {
    if (alternative.schemas.empty()) return "#";
    const Result<const JsonSchema*> schema = model_.reader().Read(alternative.schemas.back());
    return schema.ok() ? (*schema)->path : "#";
  }
  Status At(const Alternative& alternative, const Status& status) {
    return InvalidArgument(fmt::format("{}: {}", PathOf(alternative), status.message()));
  }

  // ----------------------------------------------------------------------------------------------------------------- exclusions

  // Calls `add` for values of `kinds` that no exclusion has: as they are where no value can be of both, else in parts of which that
  // is so.
  Status AddDisjoint(Alternative alternative, JsonKinds kinds, Rule* rule, Status (Writer::*add)(const Alternative&, Rule*)) {
    alternative.kinds = alternative.kinds & kinds;
    std::vector<Alternative> rest = {std::move(alternative)};
    for (size_t done = 0; done < rest.size(); ++done) {
      if (rest.size() > kMaxSplits) return TooLarge();
      Alternative& part = rest[done];
      bool split = false;
      COPPICE_ASSIGN_OR_RETURN(const Alternative written, Written(part));
      while (!part.excluded.empty() && !split) {
        const Exclusion exclusion = part.excluded.back();
        COPPICE_ASSIGN_OR_RETURN(const bool disjoint, AreDisjoint(written, exclusion.schema));
        part.excluded.pop_back();
        if (disjoint) continue;
        COPPICE_ASSIGN_OR_RETURN(const std::vector<Alternative> terms, ComplementOf(exclusion, part.kinds));
        COPPICE_ASSIGN_OR_RETURN(std::vector<Alternative> parts, model_.Combined({part}, terms));
        std::ranges::move(parts, std::back_inserter(rest));
        split = true;
        break;
      }
      if (!split) COPPICE_RETURN_IF_ERROR((this->*add)(Alternative(rest[done]), rule));
    }
    return OkStatus();
  }

  // The alternative as it is written, exclusions left aside.
  Result<Alternative> Written(const Alternative& alternative) {
    Alternative written{.schemas = alternative.schemas, .kinds = alternative.kinds};
    if (!alternative.excluded.empty() && alternative.kinds == JsonKinds{JsonKind::kObject}) {
      COPPICE_ASSIGN_OR_RETURN(const std::optional<SchemaId> closed, ClosedTo(alternative));
      if (closed) written.schemas.push_back(*closed);
    }
    return written;
  }

  // Whether it is never a value of the schema.
  Result<bool> AreDisjoint(const Alternative& written, SchemaId other) {
    COPPICE_ASSIGN_OR_RETURN(const std::vector<Alternative> others, model_.AlternativesOf({other}));
    COPPICE_ASSIGN_OR_RETURN(const std::vector<Alternative> both, model_.Combined({written}, others));
    COPPICE_ASSIGN_OR_RETURN(const bool may_hold, model_.MayHold(both));
    return !may_hold;
  }

  // Where no other members are written than those that are listed: a schema that says so.
  Result<std::optional<SchemaId>> ClosedTo(const Alternative& alternative) {
    COPPICE_ASSIGN_OR_RETURN(const JsonSchemaModel::Members members, model_.MembersOf(alternative));
    COPPICE_ASSIGN_OR_RETURN(const bool open, IsOpen(alternative, members));
    if (open) return std::optional<SchemaId>();
    const std::string path = PathOf(alternative);
    JsonSchema closed{.path = path, .only_parts = false};
    for (const std::string& name : members.names) closed.properties.emplace_back(name, model_.reader().Add({.path = path}));
    closed.additional = model_.reader().Add({.path = path, .never = true, .only_parts = false});
    return std::optional(model_.reader().Add(std::move(closed)));
  }

  // Values of `kinds` that an excluded schema does not hold for, where it asks nothing of these kinds but for members of objects:
  // one of those that it requires is not there, or one that is there is not what it asks for.
  Result<std::vector<Alternative>> ComplementOf(const Exclusion& exclusion, JsonKinds kinds) {
    constexpr size_t kMaxTerms = 16;
    COPPICE_ASSIGN_OR_RETURN(const std::vector<Alternative> alternatives, model_.AlternativesOf({exclusion.schema}));
    const Status unsupported = InvalidArgument(fmt::format(
        "{} is not supported: values may satisfy more of its schemas than they should; distinguish them by constants of "
        "required members or by type, or write anyOf, and check the answer",
        exclusion.path));
    if (alternatives.size() != 1 || !alternatives[0].excluded.empty() || (alternatives[0].kinds & kinds) != kinds)
      return unsupported;
    std::vector<Alternative> terms;
    const std::string& path = exclusion.path;
    // Of values that are no objects, a schema about members holds for all.
    const auto add = [&](JsonSchema schema) {
      terms.push_back({.schemas = {model_.reader().Add(std::move(schema))}, .kinds = {JsonKind::kObject}});
    };
    for (const SchemaId id : alternatives[0].schemas) {
      COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, model_.reader().Read(id));
      const JsonKinds asked = schema->mentioned & JsonKinds{JsonKind::kObject};
      const bool other_keywords = !schema->values.empty() || !schema->pattern_properties.empty() || schema->additional ||
                                  schema->names || schema->member_count != LengthRange();
      const bool of_others = kinds != JsonKinds{JsonKind::kObject} && !(schema->mentioned & kinds).empty();
      if (other_keywords || of_others || (asked.empty() && !schema->kinds)) return unsupported;
      for (const std::string& name : schema->required) {
        JsonSchema absent{.path = path, .mentioned = asked, .only_parts = false};
        absent.properties.emplace_back(name, model_.reader().Add({.path = path, .never = true, .only_parts = false}));
        add(std::move(absent));
      }
      for (const auto& [name, member] : schema->properties) {
        JsonSchema not_member{.path = path};
        not_member.parts.push_back({.path = path, .schemas = {member}, .none = true});
        JsonSchema present{.path = path, .mentioned = asked, .required = {name}, .only_parts = false};
        present.properties.emplace_back(name, model_.reader().Add(std::move(not_member)));
        add(std::move(present));
      }
    }
    if (terms.size() > kMaxTerms) return unsupported;
    return terms;
  }

  // ----------------------------------------------------------------------------------------------------------------- scalars

  Status AddNumber(const Alternative& alternative, Rule* rule) {
    COPPICE_ASSIGN_OR_RETURN(const NumberSet numbers, model_.NumbersOf(alternative, RegexReading::kAgreed));
    if (!numbers.least && !numbers.most && numbers.multiple == 1) {
      rule->alternatives.push_back({text_.Number(numbers.whole)});
      return OkStatus();
    }
    const Result<Automaton> texts = NumberTexts(numbers);
    if (!texts.ok()) return At(alternative, texts.status());
    rule->alternatives.push_back({text_.Plain(*texts)});
    return OkStatus();
  }

  Status AddString(const Alternative& alternative, Rule* rule) {
    COPPICE_ASSIGN_OR_RETURN(JsonSchemaModel::Texts texts, model_.TextsOf(alternative, RegexReading::kAgreed));
    for (const Exclusion& exclusion : alternative.excluded) {
      COPPICE_ASSIGN_OR_RETURN(const Automaton excluded, model_.PossibleTexts(exclusion.schema));
      if (excluded.empty()) continue;
      texts.texts = texts.texts ? texts.texts->Intersect(excluded.Complement()) : excluded.Complement();
      if (!texts.texts) return InvalidArgument(fmt::format("{}: the texts need too large an automaton", exclusion.path));
    }
    if (texts.length.most && *texts.length.most < texts.length.least) return OkStatus();
    if (!texts.texts) {
      rule->alternatives.push_back({text_.String(CharSet::All(), texts.length)});
      return OkStatus();
    }
    const Result<RuleId> string = text_.String(*texts.texts, texts.length);
    if (!string.ok()) return At(alternative, string.status());
    rule->alternatives.push_back({*string});
    return OkStatus();
  }

  // ----------------------------------------------------------------------------------------------------------------- arrays

  Sequence Separator() { return {text_.WhiteSpace(), ",", text_.WhiteSpace()}; }

  Status AddArray(const Alternative& alternative, Rule* rule) {
    COPPICE_ASSIGN_OR_RETURN(JsonSchemaModel::Items items, model_.ItemsOf(alternative));
    const auto prefix = static_cast<int64_t>(items.prefix.size());
    // Others than those of a list are written where the schema speaks of them, or needs them.
    if (prefix > 0 && !items.others_said && items.count.least <= prefix)
      items.count.most = std::min(items.count.most.value_or(prefix), prefix);
    const int64_t least = items.count.least;
    const std::optional<int64_t> most = items.count.most;
    if (most && *most < least) return OkStatus();
    // The rule for the text behind the first items, built from the last item of the list backwards.
    RuleId tail = TailOfOthers(items, prefix);
    for (int64_t i = prefix - 1; i >= 0; --i) {
      Rule at;
      if (i >= least) at.alternatives.push_back({text_.WhiteSpace(), "]"});
      if (!most || i < *most) {
        Sequence next = i > 0 ? Separator() : Sequence{text_.WhiteSpace()};
        Append(&next, {RuleOf(items.prefix[i]), tail});
        at.alternatives.push_back(std::move(next));
      }
      tail = grammar_.AddRule(std::move(at));
    }
    rule->alternatives.push_back({"[", tail});
    return OkStatus();
  }

  // Behind the items of a list: the others, and the end.
  RuleId TailOfOthers(const JsonSchemaModel::Items& items, int64_t prefix) {
    const int64_t least = std::max<int64_t>(items.count.least - prefix, 0);
    std::optional<int64_t> most;
    if (items.count.most) most = std::max<int64_t>(*items.count.most - prefix, 0);
    const Sequence end = {text_.WhiteSpace(), "]"};
    Rule rule;
    const RuleId item = RuleOf(items.others);
    Sequence following = Separator();
    following.push_back(item);
    const RuleId next = grammar_.AddRule({.alternatives = {std::move(following)}});
    if (prefix > 0) {
      rule.alternatives.push_back({Symbol(next).Repeated(least, most)});
      Append(&rule.alternatives.back(), end);
      return grammar_.AddRule(std::move(rule));
    }
    if (least == 0) rule.alternatives.push_back(end);
    if (!most || *most > 0) {
      const std::optional<int64_t> others = most ? std::optional(*most - 1) : std::nullopt;
      rule.alternatives.push_back({text_.WhiteSpace(), item, Symbol(next).Repeated(std::max<int64_t>(least - 1, 0), others)});
      Append(&rule.alternatives.back(), end);
    }
    return grammar_.AddRule(std::move(rule));
  }

  // ----------------------------------------------------------------------------------------------------------------- objects

  // Members in the order in which they are written, and those of other names behind them.
  struct Object {
    struct Member {
      Sequence text;
      bool required = false;
    };
    std::vector<Member> listed;
    std::optional<RuleId> other;  // one member of another name
    LengthRange count;
  };

  // Members of other names than those that are listed are written where a schema speaks of them, lists none, or needs more.
  Result<bool> IsOpen(const Alternative& alternative, const JsonSchemaModel::Members& members) {
    for (const SchemaId id : alternative.schemas) {
      COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, model_.reader().Read(id));
      if (!schema->pattern_properties.empty()) return true;
      if (!schema->additional) continue;
      COPPICE_ASSIGN_OR_RETURN(const bool never, IsNever({*schema->additional}));
      if (!never) return true;
    }
    return NeedsOthers(members);
  }
  static bool NeedsOthers(const JsonSchemaModel::Members& members) {
    return !members.listed || members.count.least > std::ssize(members.names);
  }
  Result<bool> IsNever(const SchemaIds& schemas) {
    for (const SchemaId id : schemas) {
      COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, model_.reader().Read(id));
      if (schema->never) return true;
    }
    return false;
  }

  Status AddObject(const Alternative& alternative, Rule* rule) {
    COPPICE_ASSIGN_OR_RETURN(const JsonSchemaModel::Members members, model_.MembersOf(alternative));
    COPPICE_ASSIGN_OR_RETURN(const SchemaIds names, model_.NamesOf(alternative));
    Object object{.count = members.count};
    for (const std::string& name : members.names) {
      const bool required = members.required.contains(name);
      COPPICE_ASSIGN_OR_RETURN(const bool may_be_named, model_.Holds(names, Json(name), RegexReading::kAgreed));
      if (!may_be_named && required) return OkStatus();  // there is no such object
      if (!may_be_named) continue;
      COPPICE_ASSIGN_OR_RETURN(const SchemaIds member, model_.MemberOf(alternative, name, RegexReading::kAgreed));
      object.listed.push_back({MemberText(DumpJson(name), RuleOf(member)), required});
    }
    COPPICE_ASSIGN_OR_RETURN(const bool open, IsOpen(alternative, members));
    if (open) {
      Result<std::optional<RuleId>> other = OtherMember(alternative, members, names);
      if (!other.ok()) return At(alternative, other.status());
      object.other = *other;
    }
    return AddMembers(alternative, object, rule);
  }

  Sequence MemberText(Symbol name, RuleId value) { return {std::move(name), text_.WhiteSpace(), ":", text_.WhiteSpace(), value}; }

  // A member of a name that is not listed. Names fall into parts by the patterns that they match, each with schemas of its own.
  Result<std::optional<RuleId>> OtherMember(const Alternative& alternative, const JsonSchemaModel::Members& members,
                                            const SchemaIds& names) {
    struct Part {
      Automaton names;
      std::set<const TextSet*> matched;
    };
    COPPICE_ASSIGN_OR_RETURN(std::optional<Automaton> all, OtherNames(members, names));
    std::vector<Part> parts;
    std::vector<const JsonSchema*> schemas;
    std::set<const TextSet*> patterns;
    if (!all) return std::optional<RuleId>();
    parts.push_back({*std::move(all), {}});
    for (const SchemaId id : alternative.schemas) {
      COPPICE_ASSIGN_OR_RETURN(const JsonSchema* const schema, model_.reader().Read(id));
      schemas.push_back(schema);
      for (const auto& [texts, member] : schema->pattern_properties) patterns.insert(texts.get());
    }
    const Status too_large = InvalidArgument("its patterns of names need too large an automaton");
    for (const TextSet* const pattern : patterns) {
      std::vector<Part> split;
      for (const Part& part : parts) {
        const std::optional<Automaton> inside = part.names.Intersect(pattern->agreed);
        const std::optional<Automaton> outside = part.names.Intersect(pattern->possible.Complement());
        if (!inside || !outside) return too_large;
        if (!outside->empty()) split.push_back({*outside, part.matched});
        if (inside->empty()) continue;
        split.push_back({*inside, part.matched});
        split.back().matched.insert(pattern);
      }
      parts = std::move(split);
      if (parts.size() > 16) return too_large;
    }
    Rule rule;
    for (const Part& part : parts) {
      SchemaIds ids;
      bool said = NeedsOthers(members) && patterns.empty();
      for (const JsonSchema* const schema : schemas) {
        bool matched = false;
        for (const auto& [texts, member] : schema->pattern_properties) {
          if (!part.matched.contains(texts.get())) continue;
          matched = true;
          if (std::ranges::find(ids, member) == ids.end()) ids.push_back(member);
        }
        if (!matched && schema->additional && std::ranges::find(ids, *schema->additional) == ids.end())
          ids.push_back(*schema->additional);
        said |= matched || schema->additional;
      }
      COPPICE_ASSIGN_OR_RETURN(const bool never, IsNever(ids));
      if (!said || never) continue;
      COPPICE_ASSIGN_OR_RETURN(const RuleId name, text_.String(part.names, {}));
      rule.alternatives.push_back(MemberText(name, RuleOf(ids)));
    }
    return std::optional(grammar_.AddRule(std::move(rule)));
  }

  // Names that are not listed and that propertyNames allows; nothing: there are none.
  Result<std::optional<Automaton>> OtherNames(const JsonSchemaModel::Members& members, const SchemaIds& names) {
    std::vector<std::u32string> listed;
    for (const std::string& name : members.names) listed.push_back(CharactersOf(name));
    const std::optional<Automaton> taken = Automaton::OfTexts(listed);
    if (!taken) return InvalidArgument("its names need too large an automaton");
    Automaton others = taken->Complement();
    if (names.empty()) return std::optional(std::move(others));
    COPPICE_ASSIGN_OR_RETURN(const std::vector<Alternative> alternatives, model_.AlternativesOf(names));
    Automaton rest = others;  // of those, what no alternative allows
    for (const Alternative& alternative : alternatives) {
      if (!alternative.kinds.Contains(JsonKind::kString)) continue;
      COPPICE_ASSIGN_OR_RETURN(const std::optional<Automaton> allowed, NamesOf(alternative));
      const std::optional<Automaton> left = allowed ? rest.Intersect(allowed->Complement()) : std::nullopt;
      if (!left) return InvalidArgument("what it asks of names needs too large an automaton");
      rest = *left;
    }
    const std::optional<Automaton> allowed = others.Intersect(rest.Complement());
    if (!allowed) return InvalidArgument("what it asks of names needs too large an automaton");
    return allowed->empty() ? std::optional<Automaton>() : allowed;
  }

  // Texts of an alternative, all of them counted out.
  Result<std::optional<Automaton>> NamesOf(const Alternative& alternative) {
    COPPICE_ASSIGN_OR_RETURN(const std::optional<std::vector<const Json*>> values, ValuesOf(alternative));
    if (values) {
      std::vector<std::u32string> texts;
      for (const Json* const value : *values) {
        if (value->is_string()) texts.push_back(CharactersOf(value->get_ref<const std::string&>()));
      }
      return Automaton::OfTexts(texts);
    }
    COPPICE_ASSIGN_OR_RETURN(const JsonSchemaModel::Texts texts, model_.TextsOf(alternative, RegexReading::kAgreed));
    std::optional<Automaton> all = Automaton::Repeat(CharSet::All(), texts.length);
    if (all && texts.texts) all = all->Intersect(*texts.texts);
    for (const Exclusion& exclusion : alternative.excluded) {
      COPPICE_ASSIGN_OR_RETURN(const Automaton excluded, model_.PossibleTexts(exclusion.schema));
      if (all) all = all->Intersect(excluded.Complement());
    }
    return all;
  }

  Status AddMembers(const Alternative& alternative, Object object, Rule* rule) {
    const int64_t required = std::ranges::count(object.listed, true, &Object::Member::required);
    const auto listed = static_cast<int64_t>(object.listed.size());
    const bool counts = object.count.least > required || (object.count.most && (object.other || *object.count.most < listed));
    if (!counts) {
      rule->alternatives.push_back({"{", text_.WhiteSpace(), UncountedMembers(object)});
      return OkStatus();
    }
    // Members of other names may have one name twice, so that no more than one of them is known to be a member.
    if (object.other && object.count.least > listed + 1)
      return At(alternative,
                InvalidArgument("minProperties asks for two members or more that properties does not list, which is not "
                                "supported: list them, or leave it out, and check the answer"));
    // Each number of members has rules of its own, so no more than some others are written.
    constexpr int64_t kMaxOthers = 500;
    if (object.other && object.count.most)
      object.count.most = std::min(*object.count.most, std::max(listed, object.count.least) + kMaxOthers);
    COPPICE_ASSIGN_OR_RETURN(const RuleId members, CountedMembers(object));
    rule->alternatives.push_back({"{", text_.WhiteSpace(), members});
    return OkStatus();
  }

  Sequence Following(const Sequence& member) {
    Sequence text = Separator();
    Append(&text, member);
    return text;
  }

  // From behind "{" and white space to the "}".
  RuleId UncountedMembers(const Object& object) {
    const auto listed = object.listed.size();
    const auto required =
        static_cast<size_t>(std::ranges::find(object.listed, true, &Object::Member::required) - object.listed.begin());
    const bool may_be_empty = required == listed;
    const auto following = [&](size_t i) {
      Sequence text = Following(object.listed[i].text);
      return object.listed[i].required ? text : Sequence{grammar_.AddRule({.alternatives = {{}, std::move(text)}})};
    };
    // Any of the members up to the first required one may come first, and each may be followed by those behind it.
    const size_t firsts = may_be_empty ? listed : required + 1;
    std::vector<RuleId> behind(firsts + 1);  // what follows a member, with members left from this one on
    Sequence end = {text_.WhiteSpace(), "}"};
    if (object.other) end.insert(end.begin(), Symbol(grammar_.AddRule({.alternatives = {Following({*object.other})}})).Repeated(0));
    Sequence last;
    for (size_t i = firsts; i < listed; ++i) Append(&last, following(i));
    Append(&last, end);
    behind[firsts] = grammar_.AddRule({.alternatives = {std::move(last)}});
    for (size_t i = firsts; i-- > 1;) {
      Sequence text = following(i);
      text.push_back(behind[i + 1]);
      behind[i] = grammar_.AddRule({.alternatives = {std::move(text)}});
    }
    Rule first;
    for (size_t i = 0; i < firsts; ++i) {
      Sequence text = object.listed[i].text;
      text.push_back(behind[i + 1]);
      first.alternatives.push_back(std::move(text));
    }
    if (may_be_empty) first.alternatives.push_back({"}"});
    if (may_be_empty && object.other) first.alternatives.push_back({*object.other, behind[firsts]});
    return grammar_.AddRule(std::move(first));
  }

  // The same, with a rule for each number of members at each place.
  Result<RuleId> CountedMembers(const Object& object) {
    const auto listed = static_cast<int64_t>(object.listed.size());
    const int64_t least = object.count.least;
    // Counts beyond it are as good as it.
    const int64_t cap = object.count.most ? *object.count.most + 1 : least;
    if ((listed + 1) * (std::min(cap, listed) + 1) > 20000 || (object.other && cap > 1000)) return TooLarge();
    const auto may_be_more = [&](int64_t count) { return !object.count.most || count < *object.count.most; };
    const auto place_of = [&](int64_t count) { return std::min(count, cap); };
    const auto present = [&](const Sequence& member, int64_t count, RuleId then) {
      Sequence text = count > 0 ? Following(member) : member;
      text.push_back(then);
      return text;
    };
    const auto close = [&](int64_t count) { return count > 0 ? Sequence{text_.WhiteSpace(), "}"} : Sequence{"}"}; };
    // rules[c]: what follows when there are c members already.
    std::vector<RuleId> rules(static_cast<size_t>(cap) + 1, -1);
    for (int64_t count = cap; count >= 0; --count) {
      Rule rule;
      const RuleId id = grammar_.AddRule();
      if (count >= least) rule.alternatives.push_back(close(count));
      if (object.other && may_be_more(count) && count + 1 >= least) {
        const RuleId then = place_of(count + 1) == count ? id : rules[place_of(count + 1)];
        rule.alternatives.push_back(present({*object.other}, count, then));
      }
      if (object.count.most && count > *object.count.most) rule.alternatives.clear();
      grammar_.Define(id, std::move(rule));
      rules[count] = id;
    }
    for (int64_t i = listed - 1; i >= 0; --i) {
      std::vector<RuleId> before(rules.size(), -1);
      for (int64_t count = 0; count <= std::min(cap, i); ++count) {
        Rule rule;
        if (may_be_more(count)) rule.alternatives.push_back(present(object.listed[i].text, count, rules[place_of(count + 1)]));
        if (!object.listed[i].required) rule.alternatives.push_back({rules[count]});
        before[count] = grammar_.AddRule(std::move(rule));
      }
      rules = std::move(before);
    }
    return rules[0];
  }

  JsonSchemaModel model_;
  EbnfGrammar grammar_;
  JsonTextRules text_;
  std::map<SchemaIds, RuleId> rules_;
  std::map<std::tuple<SchemaIds, std::vector<SchemaId>, JsonKinds>, RuleId> alternative_rules_;
  std::deque<std::pair<RuleId, SchemaIds>> work_;
};

}  // namespace

Result<std::string> JsonSchemaGrammar(const Json& schema) {
  constexpr int64_t kMaxSteps = 20'000'000;  // some seconds
  const AutomatonBudget budget(kMaxSteps);
  return Writer(schema).Write();
}

Result<std::string> JsonSchemaTextGrammar(std::string_view text) {
  Result<Json> schema = ParseOrderedJson(text);
  if (!schema.ok()) return InvalidArgument(schema.status().message());
  return JsonSchemaGrammar(*schema);
}

}  // namespace coppice
