#include "cli/eval/json_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/check.h"

namespace coppice::cli {

Status ForEachJsonLine(const std::string& text, const std::function<Status(const nlohmann::json&)>& use) {
  int64_t number = 0, objects = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const Status status = object.is_object() ? use(object) : InvalidArgument("is no JSON object");
    if (!status.ok()) return Status(status.code(), fmt::format("line {}: {}", number, status.message()));
    ++objects;
  }
  return objects > 0 ? OkStatus() : InvalidArgument("the file has no lines; expected a JSON object in each");
}

Status TakeText(const nlohmann::json& object, const char* key, std::string* value) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return InvalidArgument(fmt::format("\"{}\" is missing or no text", key));
  *value = found->get<std::string>();
  return OkStatus();
}

Status TakeTexts(const nlohmann::json& object, const char* key, std::vector<std::string>* values) {
  const auto found = object.find(key);
  const auto is_text = [](const nlohmann::json& item) { return item.is_string(); };
  if (found == object.end() || !found->is_array() || !std::ranges::all_of(*found, is_text))
    return InvalidArgument(fmt::format("\"{}\" is missing or no list of texts", key));
  *values = found->get<std::vector<std::string>>();
  return OkStatus();
}

}  // namespace coppice::cli
