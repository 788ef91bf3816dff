#include "server/cross_origin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "core/quoted.h"
#include "server/host_name.h"

namespace coppice::server {
namespace {

// SCHEME://HOST[:PORT] in small letters, without a path: what a browser sends.
bool IsOrigin(std::string_view text) {
  const size_t colon = text.find("://");
  if (colon == text.npos || colon == 0) return false;
  const std::string_view scheme = text.substr(0, colon), authority = text.substr(colon + 3);
  const auto is_small = [](unsigned char c) { return !std::isupper(c); };
  return std::ranges::all_of(scheme, [](unsigned char c) { return std::isalnum(c) || c == '+' || c == '-' || c == '.'; }) &&
         std::ranges::all_of(text, is_small) && !authority.empty() && IsAuthority(authority);
}

// Names of headers, as a browser lists them.
bool IsListOfNames(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == ',' || c == ' '; });
}

}  // namespace

Result<CrossOrigin> CrossOrigin::Parse(std::span<const std::string> origins) {
  CrossOrigin parsed;
  for (const std::string& origin : origins) {
    parsed.any_ |= origin == "*";
    if (origin != "*" && !IsOrigin(origin)) {
      return InvalidArgument(
          fmt::format("--allow-origin is {}, expected * or an origin as browsers send it, such as "
                      "https://example.org or http://localhost:3000, without a path",
                      Quoted(origin)));
    }
  }
  parsed.origins_.assign(origins.begin(), origins.end());
  return parsed;
}

bool CrossOrigin::Allows(std::string_view origin) const {
  return !origin.empty() && (any_ || std::ranges::find(origins_, origin) != origins_.end());
}

HttpResponse::Headers CrossOrigin::AnswerHeaders(std::string_view origin) const {
  if (!Allows(origin)) return {};
  HttpResponse::Headers headers = {{"access-control-allow-origin", any_ ? "*" : std::string(origin)},
                                   {"access-control-expose-headers", "x-request-id, retry-after, x-coppice-ignored-fields"}};
  if (!any_) headers.emplace_back("vary", "origin");  // caches keep the answers to several pages apart
  return headers;
}

std::optional<HttpResponse> CrossOrigin::AnswerPreflight(const HttpRequest& head) const {
  if (head.method != "OPTIONS" || head.preflight_method.empty() || !Allows(head.origin)) return std::nullopt;
  HttpResponse answer;
  answer.headers = {{"access-control-allow-methods", "GET, POST, PUT, DELETE"}, {"access-control-max-age", "600"}};
  if (!head.preflight_headers.empty() && IsListOfNames(head.preflight_headers))  // clients send some that mean nothing here
    answer.headers.emplace_back("access-control-allow-headers", head.preflight_headers);
  return answer;
}

}  // namespace coppice::server
