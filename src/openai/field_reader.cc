#include "openai/field_reader.h"

#include "core/json.h"

namespace coppice::openai {

using nlohmann::json;

std::string Shown(const json& value) {
  constexpr size_t kLongest = 60;
  return PrintableJson(value, kLongest);
}

void FieldReader::Unknown(const std::string& name, const json& value) {
  if (place_.empty() && unknown_) {
    if (std::optional<Status> effect = CheckEffect(name, value)) return effect->ok() ? void() : Fail(name, *std::move(effect));
  }
  if (unknown_ && unknown_->rule == UnknownFields::kIgnore)
    return unknown_->ignored.push_back(Within(place_, name.empty() ? R"("")" : name));
  const std::string shown = name.empty() ? "a field without a name" : Shown(name);
  Fail(name, InvalidArgument(fmt::format("{} is not supported; leave it out", shown)));
}

BodyError FieldReader::Finish(bool others_are_shown) {
  const bool none_is_unknown = others_are_shown && unknown_ && unknown_->rule == UnknownFields::kIgnore;
  for (const auto& [name, value] : body_.items()) {
    if (!value.is_null() && !known_.contains(name) && !none_is_unknown) Unknown(name, value);
  }
  return std::move(error_);
}

std::nullopt_t RefuseBody(const json& body, BodyError* error) {
  *error = {InvalidArgument(fmt::format("body is {}, expected an object", Shown(body))), "body"};
  return std::nullopt;
}

}  // namespace coppice::openai
