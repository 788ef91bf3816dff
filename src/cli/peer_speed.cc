#include "cli/peer_speed.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/read_file.h"
#include "core/check.h"
#include "core/json.h"
#include "core/quoted.h"

namespace coppice::cli {
namespace {

constexpr size_t kLongestName = 16;

Status TakeSpeed(const nlohmann::json& object, const char* key, double* speed) {
  const auto found = object.find(key);
  if (found == object.end()) return OkStatus();
  if (!found->is_number() || !(found->get<double>() >= 0) || !std::isfinite(found->get<double>()))
    return InvalidArgument(fmt::format("{} is {}, expected tokens a second", key, PrintableJson(*found, 40)));
  *speed = found->get<double>();
  return OkStatus();
}

Result<PeerSpeed> ParsePeerSpeed(const std::string& text) {
  COPPICE_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(text));
  if (!object.is_object()) return InvalidArgument("it holds " + PrintableJson(object, 40) + ", expected an object");
  PeerSpeed speed;
  const auto name = object.find("name");
  if (name == object.end() || !name->is_string() || name->get_ref<const std::string&>().empty() ||
      name->get_ref<const std::string&>().size() > kLongestName) {
    return InvalidArgument(fmt::format("name is {}, expected that of an engine, {} bytes at most",
                                       name == object.end() ? "missing" : PrintableJson(*name, 40), kLongestName));
  }
  speed.name = Printable(name->get_ref<const std::string&>(), kLongestName);
  COPPICE_RETURN_IF_ERROR(TakeSpeed(object, "prefill_tokens_per_second", &speed.prefill_tokens_per_second));
  COPPICE_RETURN_IF_ERROR(TakeSpeed(object, "decode_tokens_per_second", &speed.decode_tokens_per_second));
  return speed;
}

}  // namespace

Result<PeerSpeed> ReadPeerSpeed(const std::string& path) {
  COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, "--beside"));
  Result<PeerSpeed> speed = ParsePeerSpeed(text);
  if (!speed.ok()) return InvalidArgument(fmt::format("--beside {}: {}", path, speed.status().message()));
  return speed;
}

}  // namespace coppice::cli
