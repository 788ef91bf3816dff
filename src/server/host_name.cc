#include "server/host_name.h"

#include <algorithm>
#include <cctype>

namespace coppice::server {
namespace {

std::string_view WithoutPort(std::string_view authority) {
  if (authority.starts_with('[')) return authority.substr(0, authority.find(']') + 1);
  return authority.substr(0, authority.find(':'));
}

bool Same(std::string_view a, std::string_view b) {
  const auto same = [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); };
  return std::ranges::equal(a, b, same);
}

// 127.0.0.0/8 as browsers write it; "127.example.org" is a name.
bool IsLoopbackV4(std::string_view host) { return host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos; }

bool IsPort(std::string_view port) { return port.size() <= 5 && port.find_first_not_of("0123456789") == port.npos; }

bool IsOneOf(std::string_view host, std::span<const std::string> names) {
  return std::ranges::any_of(names, [&](const std::string& name) { return Same(host, name); });
}

}  // namespace

bool IsAuthority(std::string_view text) {
  std::string_view host = WithoutPort(text);
  const std::string_view port = text.substr(host.size());
  if (!port.empty() && (port.front() != ':' || !IsPort(port.substr(1)))) return false;
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return false;
    host = host.substr(1, host.size() - 2);
    return !host.empty() && host.find_first_not_of("0123456789abcdefABCDEF:.") == host.npos;
  }
  return std::ranges::all_of(host, [](unsigned char c) {
    constexpr std::string_view kOthers = "-._~%!$&'()*+,;=";  // of a name, by RFC 3986
    return std::isalnum(c) != 0 || kOthers.find(static_cast<char>(c)) != kOthers.npos;
  });
}

bool IsLocalHost(std::string_view authority, std::span<const std::string> names) {
  if (authority.empty()) return true;
  std::string_view host = WithoutPort(authority);
  if (IsLoopbackV4(host) || host == "[::1]") return true;
  constexpr std::string_view kLocalhost = "localhost", kBelow = ".localhost";
  if (host.ends_with('.')) host.remove_suffix(1);  // "localhost." is the same name
  if (Same(host, kLocalhost) || (host.size() > kBelow.size() && Same(host.substr(host.size() - kBelow.size()), kBelow)))
    return true;
  return IsOneOf(host, names);
}

bool IsOfAnotherSite(std::string_view origin, std::string_view host, std::span<const std::string> names) {
  if (origin.empty()) return false;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!origin.starts_with(scheme)) continue;
    const std::string_view site = origin.substr(scheme.size());
    return !Same(site, host) && !IsOneOf(WithoutPort(site), names);
  }
  return true;  // "null", and pages that are no site's
}

}  // namespace coppice::server
