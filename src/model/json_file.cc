#include "model/json_file.h"

#include <fmt/format.h>

#include <unordered_set>
#include <vector>

#include "model/error_text.h"

namespace coppice {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 64;  // model files use four or five levels

}  // namespace

Result<Json> ParseJsonObject(std::string_view text, const std::string& path) {
  std::vector<std::unordered_set<std::string>> keys;  // of each object that is open
  std::string duplicate;
  bool too_deep = false;
  // Returning false drops the value: what lies below a fault is parsed but not kept.
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start: keys.emplace_back(); [[fallthrough]];
      case Json::parse_event_t::array_start: too_deep |= depth >= kMaxDepth; return !too_deep;
      case Json::parse_event_t::object_end: keys.pop_back(); return true;
      case Json::parse_event_t::key: {
        const std::string& key = parsed.get_ref<const std::string&>();
        if (!keys.back().insert(key).second && duplicate.empty()) duplicate = Quoted(key);
        return true;
      }
      default: return true;
    }
  };
  Json json;
  try {
    json = Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& error) {
    std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const size_t end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    return DataLoss(fmt::format("{}: not valid JSON: {}", path, what.substr(0, 200)));
  }
  if (too_deep) return InvalidArgument(fmt::format("{}: JSON nested deeper than {} levels", path, kMaxDepth));
  if (!duplicate.empty()) return InvalidArgument(fmt::format("{}: key {} appears twice in one JSON object", path, duplicate));
  if (!json.is_object()) return InvalidArgument(fmt::format("{}: expected a JSON object, found {}", path, json.type_name()));
  return json;
}

}  // namespace coppice
