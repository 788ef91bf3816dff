#include "server/peer.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <system_error>

#include "core/check.h"
#include "core/quoted.h"

namespace coppice::server {
namespace {

constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr int kMappedBits = 96, kAddressBits = 128;
constexpr size_t kSiteBytes = 8;  // of an IPv6 address: its /64

bool IsV4(const IpAddress& address) { return std::equal(kMapped.begin(), kMapped.end(), address.begin()); }

std::string ToText(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  const bool v4 = IsV4(address);
  inet_ntop(v4 ? AF_INET : AF_INET6, address.data() + (v4 ? kMapped.size() : 0), text, sizeof(text));
  return text;
}

// Without white space around it, and without the port that some proxies write: "192.0.2.1:50000", "[2001:db8::1]:50000".
std::string_view AddressPart(std::string_view entry) {
  constexpr std::string_view kSpace = " \t";
  entry.remove_prefix(std::min(entry.find_first_not_of(kSpace), entry.size()));
  entry = entry.substr(0, entry.find_last_not_of(kSpace) + 1);
  if (entry.starts_with('[')) return entry.substr(1, entry.find(']') - 1);
  const bool one_colon = std::ranges::count(entry, ':') == 1;
  return one_colon ? entry.substr(0, entry.find(':')) : entry;
}

}  // namespace

std::optional<IpAddress> ParseAddress(std::string_view text) {
  const std::string terminated(text);
  IpAddress address;
  if (inet_pton(AF_INET6, terminated.c_str(), address.data()) == 1) return address;
  std::copy(kMapped.begin(), kMapped.end(), address.begin());
  if (inet_pton(AF_INET, terminated.c_str(), address.data() + kMapped.size()) == 1) return address;
  return std::nullopt;
}

std::string PeerOf(const std::string& address) {
  std::optional<IpAddress> parsed = ParseAddress(std::string_view(address).substr(0, address.find('%')));  // of a link: %eth0
  if (!parsed) return address;
  if (IsV4(*parsed)) return ToText(*parsed);
  std::fill(parsed->begin() + kSiteBytes, parsed->end(), uint8_t{0});
  return ToText(*parsed) + "/64";
}

Result<TrustedProxies> TrustedProxies::Parse(std::span<const std::string> networks) {
  TrustedProxies proxies;
  for (const std::string& text : networks) {
    const size_t slash = std::min(text.find('/'), text.size());
    const std::optional<IpAddress> address = ParseAddress(std::string_view(text).substr(0, slash));
    const int most = address && IsV4(*address) && text.find(':') == text.npos ? kAddressBits - kMappedBits : kAddressBits;
    int bits = most;
    bool right = address.has_value();
    if (slash < text.size()) {
      const auto [end, error] = std::from_chars(text.data() + slash + 1, text.data() + text.size(), bits);
      right = right && error == std::errc() && end == text.data() + text.size() && bits >= 0 && bits <= most;
    }
    if (!right) {
      return InvalidArgument(
          fmt::format("a trusted proxy is {}, expected an address or a network, such as 10.0.0.1 or fd00::/8", Quoted(text)));
    }
    proxies.networks_.push_back({*address, kAddressBits - most + bits});
  }
  return proxies;
}

bool TrustedProxies::Contains(const IpAddress& address) const {
  return std::ranges::any_of(networks_, [&](const Network& network) {
    const int whole = network.bits / 8, rest = network.bits % 8;
    if (!std::equal(address.begin(), address.begin() + whole, network.address.begin())) return false;
    return rest == 0 || ((address[whole] ^ network.address[whole]) >> (8 - rest)) == 0;
  });
}

bool TrustedProxies::Contains(const std::string& address) const {
  const std::optional<IpAddress> parsed = ParseAddress(address);
  return parsed && Contains(*parsed);
}

std::string TrustedProxies::ClientOf(const std::string& address, std::string_view forwarded_for) const {
  if (!Contains(address)) return address;
  std::string client = address;
  while (!forwarded_for.empty()) {
    const size_t comma = forwarded_for.rfind(',');
    const bool last = comma == forwarded_for.npos;
    const std::string_view entry = AddressPart(last ? forwarded_for : forwarded_for.substr(comma + 1));
    forwarded_for = last ? std::string_view() : forwarded_for.substr(0, comma);
    const std::optional<IpAddress> parsed = ParseAddress(entry);
    if (!parsed) break;  // "unknown", say: that proxy's client has no address
    client = ToText(*parsed);
    if (!Contains(*parsed)) break;
  }
  return client;
}

}  // namespace coppice::server
