#include "openai/field_reader.h"

#include "core/json.h"

namespace coppice::openai {

using nlohmann::json;

std::string Shown(const json& value) {
  constexpr size_t kLongest = 60;
  return PrintableJson(value, kLongest);
}

std::nullopt_t RefuseBody(const json& body, BodyError* error) {
  *error = {InvalidArgument(fmt::format("body is {}, expected an object", Shown(body))), "body"};
  return std::nullopt;
}

}  // namespace coppice::openai
