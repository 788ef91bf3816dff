// A server's JSON, read without trust: a field that is missing or of another type is empty. Layer: hub.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "coppice/core/status.h"

namespace coppice::hub {

// UNAVAILABLE for what is no JSON object; `source` is for the message.
inline Result<nlohmann::json> ParseJson(const std::string& text, const std::string& source) {
  nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return Unavailable(source + " answers with something else than a JSON object");
  return value;
}

inline std::string TextIn(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}
inline int64_t NumberIn(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}
inline nlohmann::json ListIn(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_array() ? *found : nlohmann::json::array();
}

}  // namespace coppice::hub
