// Values of the chat template language, with the semantics of Jinja, which are those of Python. Layer: tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "coppice/core/status.h"
#include "tokenizer/jinja/meter.h"
#include "tokenizer/jinja/traced_text.h"

namespace coppice::jinja {

// Thrown inside the template engine only: a template nests deeply and fails rarely. ChatTemplate turns it into its Status.
struct Error {
  Status status;
};

class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<TracedText, Value>>;  // in insertion order; small, searched linearly

struct Undefined {
  std::string name;  // of what was looked up, for messages
};
struct None {};
struct Macro;
struct Scope;
// A function that is named and not called: a macro and the scope of its definition; without them a built-in or a method.
struct Function {
  const Macro* macro = nullptr;
  std::shared_ptr<Scope> scope;
};
struct Namespace;  // the one mutable object; owned by the interpreter, so that no cycle can leak

// The Python type that a list stands for.
enum class Sequence : uint8_t {
  kList,
  kTuple,
  kGroup,  // a tuple, of groupby: its elements are also .grouper and .list
  kItems,  // this and the next two: views of a dict, not indexed
  kKeys,
  kValues,
  kGenerator,  // of map, select and others: true even if empty, of no length, not indexed, read once
};

// As the arguments of Python's json.dumps.
struct JsonStyle {
  bool ensure_ascii = false;
  int indent = -1;  // below 0: one line
  TracedText item_separator = ", ", key_separator = ": ";
  bool sort_keys = false;
};

// Cheap to copy: strings, lists and dicts are shared and immutable.
class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(None none) : data_(none) {}
  Value(Function function) : data_(std::move(function)) {}
  Value(Namespace* object) : data_(object) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(TracedText value) : data_(std::make_shared<const TracedText>(std::move(value))) {}
  Value(const char* own) : Value(TracedText(own)) {}
  Value(List items);  // both throw Error where values nest deeper than kMaxNesting: hostile templates only
  Value(Dict fields);
  Value(Sequence sequence, List items);

  template <class T>
  bool Is() const {
    return std::holds_alternative<T>(data_);
  }
  bool IsString() const { return Is<std::shared_ptr<const TracedText>>(); }
  // Of any Sequence.
  bool IsList() const { return Is<std::shared_ptr<const Nested<List>>>(); }
  bool IsIndexed() const { return IsList() && sequence() <= Sequence::kGroup; }
  bool IsTuple() const { return IsList() && (sequence() == Sequence::kTuple || sequence() == Sequence::kGroup); }
  bool IsDict() const { return Is<std::shared_ptr<const Nested<Dict>>>(); }
  bool IsNumber() const { return Is<bool>() || Is<int64_t>() || Is<double>(); }

  // REQUIRES: the value is of that type.
  template <class T>
  const T& As() const {
    return std::get<T>(data_);
  }
  const TracedText& AsText() const { return *std::get<std::shared_ptr<const TracedText>>(data_); }
  const std::string& AsString() const { return AsText().bytes(); }  // to look at; what is made of it is made of AsText()
  const List& AsList() const { return std::get<std::shared_ptr<const Nested<List>>>(data_)->items; }
  Sequence sequence() const { return std::get<std::shared_ptr<const Nested<List>>>(data_)->sequence; }
  // The elements that are still to be read: of a generator those after the ones marked read, of other lists all.
  std::span<const Value> Unread() const;
  void MarkRead(size_t count) const;
  const Dict& AsDict() const { return std::get<std::shared_ptr<const Nested<Dict>>>(data_)->items; }
  // A bool counts as 0 or 1.
  bool IsInteger() const { return Is<bool>() || Is<int64_t>(); }
  int64_t AsInteger() const { return Is<bool>() ? As<bool>() : As<int64_t>(); }
  double AsDouble() const { return Is<double>() ? As<double>() : static_cast<double>(AsInteger()); }

  bool Truthy() const;
  // "string", "list" and so on, for messages.
  std::string_view TypeName() const;
  // As {{ value }} prints it (Python's str) and as it stands inside a printed list (repr). Shared values make texts that are
  // exponentially longer than what made them: the meter is charged as the text grows.
  TracedText ToText(Meter& meter) const;
  TracedText ToRepr(Meter& meter) const;
  // As the filter tojson writes it (json.dumps without ASCII escapes). Throws Error on what JSON lacks.
  TracedText ToJson(const JsonStyle& style, Meter& meter) const;

  static constexpr int kMaxNesting = 100;

 private:
  template <class T>
  struct Nested {
    T items;
    int depth;
    Sequence sequence = Sequence::kList;
    mutable size_t num_read = 0;  // of a generator
  };
  int Depth() const;
  void WriteRepr(Meter& meter, TracedText* out) const;
  void WriteJson(const JsonStyle& style, int level, Meter& meter, TracedText* out) const;

  std::variant<Undefined, None, Function, Namespace*, bool, int64_t, double, std::shared_ptr<const TracedText>,
               std::shared_ptr<const Nested<List>>, std::shared_ptr<const Nested<Dict>>>
      data_;
};

struct Namespace {
  Dict fields;
};

// Python's repr of a float: the shortest digits that read back the same.
std::string FloatText(double value);

// Python's ==: numbers by value, lists and dicts element by element.
bool Equal(const Value& a, const Value& b, Meter& meter);
// Null where the key is absent. Both charge for the fields they look at.
const Value* FindField(const Dict& dict, std::string_view key, Meter& meter);
void SetField(Dict* dict, const TracedText& key, Value value, Meter& meter);

}  // namespace coppice::jinja
