#include "server/host_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace coppice::server {
namespace {

TEST(HostName, ThisMachine) {
  const std::vector<std::string> names = {"models.example.org"};
  for (const char* host : {"", "localhost", "LOCALHOST:8000", "localhost.", "a.localhost:1", "127.0.0.1", "127.0.0.1:8000",
                           "127.9.9.9", "[::1]", "[::1]:8000", "models.example.org", "Models.Example.org:443"})
    EXPECT_TRUE(IsLocalHost(host, names)) << host;
}

TEST(HostName, OtherNames) {
  for (const char* host : {"example.org", "example.org:8000", "127.example.org", "127.0.0.1.example.org", "localhost.example.org",
                           "notlocalhost", ".localhost", "[::2]", "[::1", "::1", "10.0.0.1", "0.0.0.0", ":8000", " localhost"})
    EXPECT_FALSE(IsLocalHost(host, {})) << host;
}

TEST(HostName, Authorities) {
  for (const char* text : {"", "a", "a.b-c:80", "127.0.0.1:65535", "[::1]", "[fe80::1]:8000", "a:", "a_b", "x%20y"})
    EXPECT_TRUE(IsAuthority(text)) << text;
  for (const char* text : {"a@b", "127.0.0.1:80@evil.com", "a/b", "a b", "a:b", "a:123456", "[::1", "[::1]x", "[]", "[a@b]", "::1",
                           "a:80:80", "http://a", "a?", "a#", "\xc3\xa9", "a\"b", "a\\b"})
    EXPECT_FALSE(IsAuthority(text)) << text;
}

TEST(HostName, PagesOfTheSiteAndOfOthers) {
  const std::vector<std::string> names = {"models.example.org"};
  for (const char* origin : {"", "http://localhost:8000", "https://localhost:8000", "http://LOCALHOST:8000",
                             "https://models.example.org", "https://models.example.org:8443"})
    EXPECT_FALSE(IsOfAnotherSite(origin, "localhost:8000", names)) << origin;
  for (const char* origin : {"null", "http://localhost:8001", "http://localhost", "https://example.org", "http://",
                             "localhost:8000", "chrome-extension://localhost:8000", "https://models.example.org.example.com"})
    EXPECT_TRUE(IsOfAnotherSite(origin, "localhost:8000", names)) << origin;
}

}  // namespace
}  // namespace coppice::server
