#include "server/peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace coppice::server {
namespace {

using ::testing::HasSubstr;

TrustedProxies Proxies(std::vector<std::string> networks) { return TrustedProxies::Parse(networks).value(); }

TEST(Peer, OneIsAnAddressOrASite) {
  EXPECT_EQ(PeerOf("192.0.2.1"), "192.0.2.1");
  EXPECT_EQ(PeerOf("::ffff:192.0.2.1"), "192.0.2.1");  // as a socket for both gives it
  EXPECT_EQ(PeerOf("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  EXPECT_EQ(PeerOf("2001:db8:1:2::1"), PeerOf("2001:db8:1:2:ffff::"));
  EXPECT_NE(PeerOf("2001:db8:1:2::1"), PeerOf("2001:db8:1:3::1"));
  EXPECT_EQ(PeerOf("fe80::1%eth0"), "fe80::/64");
  EXPECT_EQ(PeerOf(""), "");
}

TEST(TrustedProxies, Networks) {
  const TrustedProxies proxies = Proxies({"127.0.0.1", "10.0.0.0/9", "fd00::/8", "2001:db8::1", "::ffff:192.0.2.0/120"});
  for (const char* address : {"127.0.0.1", "10.0.0.1", "10.127.255.255", "::ffff:10.0.0.1", "fd12::1", "2001:db8::1", "192.0.2.77"})
    EXPECT_TRUE(proxies.Contains(address)) << address;
  for (const char* address : {"127.0.0.2", "10.128.0.0", "fe00::1", "2001:db8::2", "192.0.3.0", "", "a"})
    EXPECT_FALSE(proxies.Contains(address)) << address;
  EXPECT_TRUE(Proxies({"0.0.0.0/0"}).Contains("203.0.113.9"));
  EXPECT_FALSE(Proxies({"0.0.0.0/0"}).Contains("2001:db8::1"));
  EXPECT_FALSE(Proxies({}).Contains("127.0.0.1"));
}

TEST(TrustedProxies, WhatIsNoNetworkIsNamed) {
  for (const char* text : {"", "localhost", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/8x", "10.0.0.0/-1", "fd00::/129", "/8"}) {
    const Result<TrustedProxies> parsed = TrustedProxies::Parse(std::vector<std::string>{"127.0.0.1", text});
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(parsed.status().message(), HasSubstr('"' + std::string(text) + '"'));
  }
}

TEST(TrustedProxies, TheClientIsTheOneThatAskedTheFirstOfThem) {
  const TrustedProxies proxies = Proxies({"127.0.0.1", "10.0.0.0/8"});
  EXPECT_EQ(proxies.ClientOf("127.0.0.1", "203.0.113.9"), "203.0.113.9");
  EXPECT_EQ(proxies.ClientOf("127.0.0.1", "203.0.113.9, 10.1.1.1"), "203.0.113.9");
  EXPECT_EQ(proxies.ClientOf("127.0.0.1", "198.51.100.7, 203.0.113.9,10.1.1.1"), "203.0.113.9");  // the first is the client's claim
  EXPECT_EQ(proxies.ClientOf("127.0.0.1", "203.0.113.9:50000"), "203.0.113.9");
  EXPECT_EQ(proxies.ClientOf("127.0.0.1", " [2001:db8::1]:443 "), "2001:db8::1");
  EXPECT_EQ(proxies.ClientOf("127.0.0.1", "2001:db8::1"), "2001:db8::1");
  EXPECT_EQ(proxies.ClientOf("127.0.0.1", "203.0.113.9, unknown, 10.1.1.1"), "10.1.1.1");
  EXPECT_EQ(proxies.ClientOf("127.0.0.1", ""), "127.0.0.1");
  EXPECT_EQ(proxies.ClientOf("127.0.0.1", ",,"), "127.0.0.1");
  EXPECT_EQ(proxies.ClientOf("192.0.2.1", "203.0.113.9"), "192.0.2.1");  // no proxy: what it says is its own invention
}

}  // namespace
}  // namespace coppice::server
