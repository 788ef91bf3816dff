// Reads the fields of a JSON object that a client sent: each checked for its type, a field that nobody asked for refused by name.
// Layer: openai.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "coppice/core/status.h"
#include "openai/body_error.h"

namespace coppice::openai {

// A value as an error shows it, cut to a readable length.
std::string Shown(const nlohmann::json& value);

// The field `param`, which may be empty, of what lies at `place`.
inline std::string Within(const std::string& place, const std::string& param) {
  return param.empty() ? place : place + "." + param;
}

// Takes the fields of an object one by one and remembers the first thing that is wrong. null is as good as absent.
class FieldReader {
 public:
  explicit FieldReader(const nlohmann::json& body) : body_(body) {}

  const nlohmann::json* Find(const char* name) {
    known_.insert(name);
    const auto found = body_.find(name);
    return found == body_.end() || found->is_null() ? nullptr : &*found;
  }
  void Fail(const std::string& name, Status status) {
    if (error_.status.ok()) error_ = {std::move(status), name};
  }
  // What is wrong with something that lies at `place` in this object.
  void FailWithin(const std::string& place, const BodyError& error) {
    Fail(Within(place, error.param), InvalidArgument(fmt::format("{}: {}", place, error.status.message())));
  }
  void Expect(const char* name, const nlohmann::json& value, std::string_view expected) {
    Fail(name, InvalidArgument(fmt::format("{} is {}, expected {}", name, Shown(value), expected)));
  }

  template <std::integral Integer>
  void Take(const char* name, Integer* target) {
    const nlohmann::json* value = Find(name);
    if (!value) return;
    if (!value->is_number_integer()) return Expect(name, *value, "an integer");
    // Signed and unsigned apart: the library converts without a check.
    const bool fits = value->is_number_unsigned() ? std::in_range<Integer>(value->get<uint64_t>())
                                                  : std::in_range<Integer>(value->get<int64_t>());
    if (!fits)
      return Expect(name, *value,
                    fmt::format("an integer in {}..{}", std::numeric_limits<Integer>::min(), std::numeric_limits<Integer>::max()));
    *target = value->get<Integer>();
  }
  template <std::floating_point Number>
  void Take(const char* name, Number* target) {
    const nlohmann::json* value = Find(name);
    if (!value) return;
    if (!value->is_number()) return Expect(name, *value, "a number");
    *target = value->get<Number>();
  }
  void Take(const char* name, bool* target) {
    const nlohmann::json* value = Find(name);
    if (!value) return;
    if (!value->is_boolean()) return Expect(name, *value, "true or false");
    *target = value->get<bool>();
  }
  void Take(const char* name, std::string* target) {
    const nlohmann::json* value = Find(name);
    if (!value) return;
    if (!value->is_string()) return Expect(name, *value, "a string");
    *target = value->get<std::string>();
  }

  template <class T>
  void Take(const char* name, std::optional<T>* target) {
    if (!Find(name)) return;
    T value{};
    Take(name, &value);
    *target = value;
  }

  // The first error; if there was none, a field that nobody asked for is one.
  BodyError Finish() {
    for (const auto& [name, value] : body_.items()) {
      if (value.is_null() || known_.contains(name)) continue;
      const std::string shown = name.empty() ? "a field without a name" : Shown(name);
      Fail(name, InvalidArgument(fmt::format("{} is not supported; leave it out", shown)));
    }
    return std::move(error_);
  }
  bool ok() const { return error_.status.ok(); }

 private:
  const nlohmann::json& body_;
  std::set<std::string, std::less<>> known_;
  BodyError error_;
};

// `*error` says that `body` is no object; nullopt.
std::nullopt_t RefuseBody(const nlohmann::json& body, BodyError* error);

}  // namespace coppice::openai
