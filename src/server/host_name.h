// The host that a request names. A page of another site can give its own name this machine's address (DNS rebinding) and then
// speak to a server that only this machine reaches; what its browser sends still carries the name.
// Layer: server.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace coppice::server {

// Whether it is what a Host header may hold (RFC 9110, section 7.2): a name or an address, perhaps a port, nothing before them.
// Empty is one too.
bool IsAuthority(std::string_view text);

// Whether `authority`, as a Host header has it ("localhost:8000", "[::1]"), is a loopback address, localhost, a name below it, or
// one of `names`, whatever the port. Empty is: browsers send one.
bool IsLocalHost(std::string_view authority, std::span<const std::string> names);

// Whether `origin`, as a browser's Origin header has it ("https://example.org", "null"), is neither the site that the request is
// for (`host`, as above) nor one of `names`, whatever the port. Empty is not: no page sends it.
bool IsOfAnotherSite(std::string_view origin, std::string_view host, std::span<const std::string> names);

}  // namespace coppice::server
