#include "server/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/quoted.h"
#include "server/body_decoder.h"
#include "server/errors.h"
#include "server/multipart_form.h"
#include "server/query.h"

namespace coppice::server {
namespace {

// The parts of a route's path before and behind its {variable}; without one, all of it comes before.
struct PathParts {
  std::string_view before, behind;
  bool variable = false;
};

PathParts PartsOf(std::string_view path) {
  const size_t open = path.find('{');
  if (open == path.npos) return {.before = path};
  return {.before = path.substr(0, open), .behind = path.substr(path.find('}') + 1), .variable = true};
}

// The part of `path` that stands for the variable of a route's path, empty where it has none; nothing: they do not match.
std::optional<std::string_view> Match(const PathParts& parts, std::string_view path) {
  if (!parts.variable) return path == parts.before ? std::optional(std::string_view()) : std::nullopt;
  const size_t fixed = parts.before.size() + parts.behind.size();
  if (path.size() <= fixed || !path.starts_with(parts.before) || !path.ends_with(parts.behind)) return std::nullopt;
  return path.substr(parts.before.size(), path.size() - fixed);
}

bool IsJson(std::string_view content_type) {
  const std::string_view type = content_type.substr(0, content_type.find(';'));
  constexpr std::string_view kJson = "application/json";
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  const std::string_view trimmed = type.substr(0, type.find_last_not_of(" \t") + 1);
  return trimmed.size() == kJson.size() && std::equal(trimmed.begin(), trimmed.end(), kJson.begin(), same);
}

}  // namespace

Router::Found Router::Find(const HttpRequest& head) const {
  std::string_view best, variable, path = head.path;
  if (path.size() > 1 && path.ends_with('/') && !path.ends_with("//")) path.remove_suffix(1);  // as clients join paths
  for (const Route& route : routes_) {
    if (route.path.size() <= best.size()) continue;
    const std::optional<std::string_view> matched = Match(PartsOf(route.path), path);
    if (!matched) continue;
    best = route.path;
    variable = *matched;
  }
  const auto nothing = [&]() -> Found {
    return {.refusal =
                ErrorResponse(404, fmt::format("there is no {}; /openapi.json says what there is", Printable(head.path, 200)))};
  };
  if (best.empty()) return nothing();
  Found found = {.path = best, .variable = DecodedPath(variable)};  // clients write the slash of a model's name as %2F
  std::string allowed;
  for (const Route& route : routes_) {
    if (route.path != best) continue;
    if (route.method == head.method) found.route = &route;
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
  }
  if (!found.route) {
    if (variable.find('/') != variable.npos) return nothing();  // rather a path that is not there than a name with slashes
    found.refusal = ErrorResponse(405, fmt::format("{} does not take {}, expected {}", best, Printable(head.method, 20), allowed));
    found.refusal->headers.emplace_back("allow", allowed);
  }
  return found;
}

std::optional<HttpResponse> RefuseBodyType(const Route& route, const HttpRequest& head) {
  if (route.body == BodyKind::kNone) return std::nullopt;
  if (!IsIdentity(head.content_encoding) && (route.body == BodyKind::kForm || !BodyDecoder::Takes(head.content_encoding))) {
    const std::string_view expected = route.body == BodyKind::kForm ? "none" : "gzip or none";
    HttpResponse refused =
        ErrorResponse(415, fmt::format("Content-Encoding is {}, expected {}", Quoted(head.content_encoding), expected));
    refused.headers.emplace_back("accept-encoding", route.body == BodyKind::kForm ? "identity" : "gzip");
    return refused;
  }
  const std::string& type = head.content_type;
  // The latter is what aiohttp says of a request without a body.
  if (route.body == BodyKind::kOptionalJson && (type.empty() || type == "application/octet-stream")) return std::nullopt;
  if (route.body == BodyKind::kForm ? IsForm(type) : IsJson(type)) return std::nullopt;
  return ErrorResponse(415, fmt::format("Content-Type is {}, expected {}", type.empty() ? "missing" : Quoted(type),
                                        route.body == BodyKind::kForm ? "multipart/form-data" : "application/json"));
}

}  // namespace coppice::server
