#include "openai/field_reader.h"

namespace coppice::openai {

using nlohmann::json;

std::string Shown(const json& value) {
  constexpr size_t kLongest = 60;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

std::nullopt_t RefuseBody(const json& body, BodyError* error) {
  *error = {InvalidArgument(fmt::format("body is {}, expected an object", Shown(body))), "body"};
  return std::nullopt;
}

}  // namespace coppice::openai
