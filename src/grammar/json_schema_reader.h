// JSON schemas of drafts 4 to 2020-12 as they are written: each schema of a document with its keywords, references resolved. A
// keyword is read, or refused by its place (such as "#/properties/a/uniqueItems"), or says nothing of which values there are.
// Layer: grammar.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "grammar/automaton.h"
#include "grammar/decimal.h"

namespace coppice {

// Kinds of JSON values. A number is an integer, or one that need not be.
enum class JsonKind : uint8_t { kNull, kBoolean, kInteger, kNumber, kString, kArray, kObject };
inline constexpr int kNumJsonKinds = 7;

class JsonKinds {
 public:
  constexpr JsonKinds() = default;
  constexpr JsonKinds(std::initializer_list<JsonKind> kinds) {
    for (const JsonKind kind : kinds) bits_ |= Bit(kind);
  }
  static constexpr JsonKinds All() { return FromBits((1u << kNumJsonKinds) - 1); }
  // Both kinds of number, one of which the other is of.
  static constexpr JsonKinds Numbers() { return {JsonKind::kInteger, JsonKind::kNumber}; }

  constexpr bool Contains(JsonKind kind) const { return (bits_ & Bit(kind)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr JsonKinds operator&(JsonKinds other) const { return FromBits(bits_ & other.bits_); }
  constexpr JsonKinds operator|(JsonKinds other) const { return FromBits(bits_ | other.bits_); }
  friend constexpr bool operator==(JsonKinds, JsonKinds) = default;
  friend constexpr auto operator<=>(JsonKinds, JsonKinds) = default;

 private:
  static constexpr uint32_t Bit(JsonKind kind) { return 1u << static_cast<int>(kind); }
  static constexpr JsonKinds FromBits(uint32_t bits) {
    JsonKinds kinds;
    kinds.bits_ = bits;
    return kinds;
  }
  uint32_t bits_ = 0;
};

// Of a document's schemas, and of those that were added.
using SchemaId = int32_t;

// Texts that a pattern or format stands for, in both readings (ecma_regex.h).
struct TextSet {
  Automaton agreed, possible;
};

// A schema's own keywords.
struct JsonSchema {
  std::string path;    // as an error names it
  bool never = false;  // the schema `false`
  std::optional<JsonKinds> kinds;
  JsonKinds mentioned;                                             // kinds that keywords say something of
  std::vector<std::vector<const nlohmann::ordered_json*>> values;  // enum and const: a value is in each list

  std::optional<NumberBound> least, most;
  std::optional<int64_t> multiple;  // an integer of it

  LengthRange length;
  std::vector<std::shared_ptr<const TextSet>> texts;

  // Bounds on written values, from a format or from a bound beyond all numbers that are read; other values may hold too.
  LengthRange written_length;
  std::optional<NumberBound> written_least, written_most;

  std::vector<SchemaId> prefix;   // of the first items
  std::optional<SchemaId> items;  // of the others
  LengthRange item_count;

  std::vector<std::pair<std::string, SchemaId>> properties;
  bool lists_members = false;  // `properties` is there
  std::vector<std::pair<std::shared_ptr<const TextSet>, SchemaId>> pattern_properties;
  std::optional<SchemaId> additional, names;
  std::vector<std::string> required;
  LengthRange member_count;

  // A condition on the same value beside its own keywords: one of `schemas` holds, or with `all` each of them; with `exclusive`
  // one alone. `none`: none of them.
  struct Part {
    std::string path;
    std::vector<SchemaId> schemas;
    bool all = false, exclusive = false, none = false;
  };
  std::vector<Part> parts;
  size_t own_place = 0;  // `properties` stand before the part of this index: members come in the order of the text

  bool only_parts = true;  // it has no keywords of its own
};

class JsonSchemaReader {
 public:
  // `document` outlives the reader.
  explicit JsonSchemaReader(const nlohmann::ordered_json& document);

  SchemaId root() const { return 0; }
  // INVALID_ARGUMENT names the keyword by its place, and says what is wrong with it, or that it is not supported.
  Result<const JsonSchema*> Read(SchemaId id);
  SchemaId Add(JsonSchema schema);

 private:
  using Json = nlohmann::ordered_json;
  // A schema with an address of its own, such as the document: what references within it are relative to.
  struct Resource {
    const Json* value;
    std::string path;
  };
  struct Entry {
    const Json* value = nullptr;
    std::string path;
    size_t resource = 0;
    std::optional<JsonSchema> schema;
  };
  class Keywords;

  // `resource`: of what the value is in.
  SchemaId IdOf(const Json& value, std::string path, size_t resource);
  Result<SchemaId> Resolve(const std::string& reference, size_t resource, const std::string& path);
  // Resources, and schemas that are known by a name.
  void FindNames(const Json& value, const std::string& path, size_t resource, int depth);

  std::deque<Entry> entries_;
  std::map<const Json*, SchemaId> ids_;
  std::vector<Resource> resources_;  // the document comes first
  std::map<const Json*, size_t> resource_of_;
  std::map<std::string, size_t, std::less<>> addresses_;
  std::map<std::pair<size_t, std::string>, Resource> anchors_;  // of a resource
  std::map<std::string, std::shared_ptr<const TextSet>, std::less<>> patterns_, formats_;
};

}  // namespace coppice
