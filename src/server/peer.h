// The other end of a connection: its address, proxies that speak for others (X-Forwarded-For), and the peer whose share of the
// server a request takes where there are no API keys. Knows no sockets. Layer: server.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::server {

// An IPv6 address; of IPv4 the mapped one (::ffff:a.b.c.d, RFC 4291 section 2.5.5.2), so that both are compared alike.
using IpAddress = std::array<uint8_t, 16>;

// As written in a header or a configuration, without a port. Nothing where it is none.
std::optional<IpAddress> ParseAddress(std::string_view text);

// The peer that an address belongs to, as text: the IPv4 address, or the /64 of IPv6, which is what one site has (RFC 6177).
// `address` itself where it is none.
std::string PeerOf(const std::string& address);

// The reverse proxies that are believed about the addresses of their clients. Immutable.
class TrustedProxies {
 public:
  TrustedProxies() = default;
  // Addresses and networks: "127.0.0.1", "10.0.0.0/8", "fd00::/8". INVALID_ARGUMENT names the one that is neither.
  static Result<TrustedProxies> Parse(std::span<const std::string> networks);

  bool Contains(const std::string& address) const;
  // The address of the client that a connection from `address` speaks for: of those in `forwarded_for`, an X-Forwarded-For header,
  // the last one that is no proxy's, since each proxy adds the address it was asked from and the client writes what it likes
  // before. Without proxies on the way, `address`.
  std::string ClientOf(const std::string& address, std::string_view forwarded_for) const;

 private:
  struct Network {
    IpAddress address;
    int bits;  // of the address that count
  };
  bool Contains(const IpAddress& address) const;

  std::vector<Network> networks_;
};

}  // namespace coppice::server
