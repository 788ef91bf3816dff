// Reads the fields of a JSON object that a client sent: each checked for its type, a field without a reader refused by name,
// or noted as ignored. Layer: openai.
#pragma once

#include <fmt/format.h>

#include <cmath>
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
#include "openai/unknown_fields.h"

namespace coppice::openai {

// 8 or 8.0: clients of languages with one type of numbers send either.
inline bool IsWhole(const nlohmann::json& value) {
  return value.is_number_integer() || (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>());
}

// A value as an error shows it, cut to a readable length.
std::string Shown(const nlohmann::json& value);

// The field `param` of what lies at `place`; either may be empty.
inline std::string Within(const std::string& place, const std::string& param) {
  return param.empty() || place.empty() ? place + param : place + "." + param;
}

// Takes the fields of an object one by one and remembers the first thing that is wrong. null is as good as absent.
class FieldReader {
 public:
  // `unknown`: what becomes of fields that are not asked for; null: they are refused. `place`: where the object lies in the body.
  explicit FieldReader(const nlohmann::json& body, UnknownFieldsOf* unknown = nullptr, std::string place = "")
      : body_(body), unknown_(unknown), place_(std::move(place)) {}

  const nlohmann::json& body() const { return body_; }
  // It was asked for.
  bool IsKnown(const std::string& name) const { return known_.contains(name); }
  // Of an object that lies in this one, at `place`.
  FieldReader Inner(const nlohmann::json& object, const std::string& place) const {
    return FieldReader(object, unknown_, Within(place_, place));
  }

  const nlohmann::json* Find(const char* name) {
    known_.insert(name);
    const auto found = body_.find(name);
    return found == body_.end() || found->is_null() ? nullptr : &*found;
  }
  void Fail(const std::string& name, Status status) {
    if (error_.status.ok()) error_ = {std::move(status), name};
  }
  // An error of an object that lies at `place` in this one.
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
    if (!IsWhole(*value)) return Expect(name, *value, "an integer");
    constexpr Integer kLeast = std::numeric_limits<Integer>::min(), kMost = std::numeric_limits<Integer>::max();
    // Each kind of number apart: the library converts without a check.
    bool fits = false;
    if (value->is_number_float()) {
      const double number = value->get<double>();
      fits = number >= static_cast<double>(kLeast) && number < std::ldexp(1.0, std::numeric_limits<Integer>::digits);
    } else {
      fits = value->is_number_unsigned() ? std::in_range<Integer>(value->get<uint64_t>())
                                         : std::in_range<Integer>(value->get<int64_t>());
    }
    if (!fits) return Expect(name, *value, fmt::format("an integer in {}..{}", kLeast, kMost));
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

  // A client's name of its request, which answers and each event of a stream repeat.
  void TakeClientId(const char* name, std::string* target) {
    constexpr size_t kMostBytes = 1024;
    Take(name, target);
    if (target->size() > kMostBytes)
      Fail(name, InvalidArgument(fmt::format("{} has {} bytes, expected at most {}", name, target->size(), kMostBytes)));
  }

  template <class T>
  void Take(const char* name, std::optional<T>* target) {
    if (!Find(name)) return;
    T value{};
    Take(name, &value);
    *target = value;
  }

  // A field that changes nothing here: refused or noted as the rule says.
  void Unknown(const std::string& name, const nlohmann::json& value);
  // The first error; if there was none, a field without a reader is one where such are refused. `others_are_shown`: to the
  // model, with the object, so that none is ignored.
  BodyError Finish(bool others_are_shown = false);
  bool ok() const { return error_.status.ok(); }
  // The first error, whatever has not been asked for.
  BodyError TakeError() { return std::move(error_); }

 private:
  const nlohmann::json& body_;
  UnknownFieldsOf* unknown_;
  std::string place_;
  std::set<std::string, std::less<>> known_;
  BodyError error_;
};

// `*error` says that `body` is no object; nullopt.
std::nullopt_t RefuseBody(const nlohmann::json& body, BodyError* error);

}  // namespace coppice::openai
