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

}  // namespace
}  // namespace coppice::server
