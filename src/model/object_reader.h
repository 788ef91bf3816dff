// Typed reads of one JSON object of a model's config.
// Layer: model.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "core/check.h"
#include "model/error_text.h"

namespace coppice {

// Null counts as absent. Errors name the file and the key.
class ObjectReader {
 public:
  using Json = nlohmann::json;

  ObjectReader(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const Json* Find(std::string_view key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  bool IsNull(std::string_view key) const { return json_.contains(key) && json_.at(std::string(key)).is_null(); }
  const Json& json() const { return json_; }

  Status Wrong(std::string_view key, std::string_view expected) const {
    const Json* value = Find(key);
    if (value == nullptr) return InvalidArgument(fmt::format("{}: {} is missing, expected {}", path_, Quoted(key), expected));
    return InvalidArgument(fmt::format("{}: {} is {}, expected {}", path_, Quoted(key), Shown(*value), expected));
  }

  // UNIMPLEMENTED: the key changes the result in a way that this build does not compute.
  Status Unsupported(std::string_view key, std::string_view expected) const {
    const Json* value = Find(key);
    return Unimplemented(fmt::format("{}: {} {} is not supported, expected {}", path_, Quoted(key),
                                     value == nullptr ? "null" : Shown(*value), expected));
  }
  Status RequireFalse(std::string_view key) const {
    bool value = false;
    COPPICE_RETURN_IF_ERROR(OptionalBool(key, &value));
    return value ? Unsupported(key, "false") : OkStatus();
  }

  Status Int(std::string_view key, int32_t min, int32_t* value) const {
    const Json* json = Find(key);
    const std::optional<int32_t> number = json == nullptr ? std::nullopt : AsInt(*json, min);
    if (!number) return Wrong(key, fmt::format("an integer in {}..{}", min, INT32_MAX));
    *value = *number;
    return OkStatus();
  }
  Status OptionalInt(std::string_view key, int32_t min, int32_t* value) const {
    return Has(key) ? Int(key, min, value) : OkStatus();
  }

  Status Float(std::string_view key, float* value) const {
    const Json* json = Find(key);
    const double number = json != nullptr && json->is_number() ? json->get<double>() : std::numeric_limits<double>::infinity();
    if (!(std::abs(number) <= std::numeric_limits<float>::max())) return Wrong(key, "a number");
    *value = static_cast<float>(number);
    return OkStatus();
  }
  Status OptionalFloat(std::string_view key, float* value) const { return Has(key) ? Float(key, value) : OkStatus(); }

  // As many numbers as there are; nothing if absent.
  Status OptionalFloats(std::string_view key, std::vector<float>* values) const {
    const Json* json = Find(key);
    if (json == nullptr) return OkStatus();
    if (!json->is_array()) return Wrong(key, "a list of numbers");
    for (const Json& entry : *json) {
      if (!entry.is_number()) return Wrong(key, "a list of numbers");
      values->push_back(entry.get<float>());
    }
    return OkStatus();
  }

  Status OptionalBool(std::string_view key, bool* value) const {
    const Json* json = Find(key);
    if (json == nullptr) return OkStatus();
    if (!json->is_boolean()) return Wrong(key, "true or false");
    *value = json->get<bool>();
    return OkStatus();
  }

  // A string, or `fallback` if absent.
  Result<std::string> String(std::string_view key, std::string_view fallback) const {
    const Json* json = Find(key);
    if (json == nullptr) return std::string(fallback);
    if (!json->is_string()) return Wrong(key, "a string");
    return json->get<std::string>();
  }

  // An object to read from; nothing if absent.
  Result<std::optional<ObjectReader>> Object(std::string_view key) const {
    const Json* json = Find(key);
    if (json == nullptr) return std::optional<ObjectReader>();
    if (!json->is_object()) return Wrong(key, "an object");
    return std::optional(ObjectReader(*json, fmt::format("{}: {}", path_, Quoted(key))));
  }

  // One token id or a list of them. Ids that no token has are left out: files state -1 for none, or ids beyond the vocabulary.
  Status TokenIds(std::string_view key, int32_t vocab_size, std::vector<int32_t>* ids) const {
    const Json* json = Find(key);
    if (json == nullptr) return OkStatus();
    const Json list = json->is_array() ? *json : Json::array({*json});
    for (const Json& entry : list) {
      if (!entry.is_number_integer()) return Wrong(key, "a token id or a list of them");
      const std::optional<int32_t> id = AsInt(entry, 0);
      if (id && *id < vocab_size) ids->push_back(*id);
    }
    return OkStatus();
  }

 private:
  static std::optional<int32_t> AsInt(const Json& json, int32_t min) {
    if (!json.is_number_integer()) return std::nullopt;
    if (json.is_number_unsigned() && json.get<uint64_t>() > INT32_MAX) return std::nullopt;
    const int64_t number = json.get<int64_t>();
    return number >= min && number <= INT32_MAX ? std::optional(static_cast<int32_t>(number)) : std::nullopt;
  }
  static std::string Shown(const Json& json) {
    return json.is_primitive() ? Quoted(json.is_string() ? json.get_ref<const std::string&>() : json.dump())
                               : std::string(json.type_name());
  }

  const Json& json_;
  std::string path_;
};

}  // namespace coppice
