#include "server/trainer/trainer_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "core/check.h"
#include "core/json.h"
#include "server/query.h"

namespace coppice::server {

using nlohmann::json;

Result<TrainerFields> TrainerFields::Read(const HttpRequest& request) {
  json fields = json::object();
  if (!request.body.empty()) {
    Result<json> body = ParseJson(request.body);
    if (!body.ok()) return Status(body.status().code(), "the body: " + std::string(body.status().message()));
    if (!body->is_object() && !body->is_null())
      return InvalidArgument(fmt::format("the body is {}, expected an object", PrintableJson(*body, 80)));
    if (body->is_object()) fields = *std::move(body);
  }
  json query = json::object();
  for (auto& [name, value] : ParseQuery(request.query)) {
    json& field = query[name];
    if (field.is_null()) {
      field = std::move(value);
    } else {
      if (field.is_string()) field = json::array({std::move(field)});
      field.push_back(std::move(value));
    }
  }
  fields.update(query);
  return TrainerFields(std::move(fields));
}

const json* TrainerFields::Find(const char* name) const {
  const auto found = fields_.find(name);
  return found == fields_.end() || found->is_null() ? nullptr : &*found;
}

Status TrainerFields::Wrong(const char* name, std::string_view expected) const {
  return InvalidArgument(fmt::format("{} is {}, expected {}", name, PrintableJson(*Find(name), 80), expected));
}

Result<std::string> TrainerFields::Text(const char* name, std::string otherwise) const {
  const json* const field = Find(name);
  if (field == nullptr) return otherwise;
  if (field->is_number()) return field->dump();
  return field->is_string() ? Result<std::string>(field->get<std::string>()) : Wrong(name, "a string");
}

Result<bool> TrainerFields::Flag(const char* name, bool otherwise) const {
  const json* const field = Find(name);
  if (field == nullptr) return otherwise;
  if (field->is_boolean()) return field->get<bool>();
  for (const auto& [text, value] :
       {std::pair{"true", true}, {"True", true}, {"1", true}, {"false", false}, {"False", false}, {"0", false}}) {
    if (*field == text) return value;
  }
  return Wrong(name, "true or false");
}

Result<int64_t> TrainerFields::Whole(const char* name, int64_t otherwise) const {
  const json* const field = Find(name);
  if (field == nullptr) return otherwise;
  if (field->is_number_integer()) return field->get<int64_t>();
  if (field->is_string()) {
    const std::string& text = field->get_ref<const std::string&>();
    int64_t value = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failed == std::errc() && end == text.data() + text.size()) return value;
  }
  return Wrong(name, "an integer");
}

Result<std::vector<std::string>> TrainerFields::Texts(const char* name) const {
  const json* const field = Find(name);
  std::vector<std::string> texts;
  if (field == nullptr) return texts;
  for (const json& value : field->is_array() ? *field : json::array({*field})) {
    if (!value.is_string()) return Wrong(name, "a list of strings");
    texts.push_back(value.get<std::string>());
  }
  return texts;
}

Result<std::vector<std::string>> TrainerFields::Tags() const {
  static constexpr std::string_view kKnown[] = {"weights", "kv_cache", "scheduling", "cuda_graph"};
  COPPICE_ASSIGN_OR_RETURN(std::vector<std::string> tags, Texts("tags"));
  for (const std::string& tag : tags) {
    if (std::ranges::find(kKnown, tag) == std::end(kKnown))
      return Wrong("tags", fmt::format("a list of {}", fmt::join(kKnown, ", ")));
  }
  return tags;
}

Result<PauseMode> TrainerFields::Mode(PauseMode otherwise) const {
  COPPICE_ASSIGN_OR_RETURN(const std::string mode, Text("mode"));
  if (mode.empty()) return otherwise;
  if (mode == "wait") return PauseMode::kWait;
  if (mode == "abort") return PauseMode::kAbort;
  if (mode == "keep" || mode == "in_place" || mode == "retract") return PauseMode::kKeep;
  return Wrong("mode", "abort, wait or keep (of SGLang: abort, in_place or retract)");
}

}  // namespace coppice::server
