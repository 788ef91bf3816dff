// API keys: the file that names them, and the clients let in.
#include "server/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace coppice::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// printf %s KEY | sha256sum
const std::string kSesame = "41ef4bb0b23661e66301aac36066912dac037827b4ae63a7b1165a5aa93ed4eb";
const std::string kSecret = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

TEST(ApiKeys, NamesOfKeys) {
  const Result<ApiKeys> keys = ApiKeys::Parse("# users\n\nalice " + kSesame + "\r\nbob   " + kSecret, "keys");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  const auto name = [&](std::string_view header) {
    const ApiKey* found = keys->Find(header);
    return found ? found->name : "none";
  };
  EXPECT_EQ(name("Bearer open sesame"), "alice");
  EXPECT_EQ(name("bEARER secret"), "bob");
  for (const char* header : {"", "Bearer", "Bearer ", "Bearer Secret", "Bearer secret ", "Basic secret", "secret", "Bearer  secret",
                             "Bearer 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"})
    EXPECT_EQ(name(header), "none") << header;
}

TEST(ApiKeys, LimitsOfKeys) {
  const Result<ApiKeys> keys = ApiKeys::Parse(
      "a " + kSesame + " tokens_per_minute=500\nb " + kSecret + "  tokens_per_minute=0 tokens_per_request=7 ", "keys");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  auto limits = keys->TokenLimitsOr({.per_request = 10, .per_minute = 100});
  EXPECT_EQ(limits["a"].per_request, 10);
  EXPECT_EQ(limits["a"].per_minute, 500);
  EXPECT_EQ(limits["b"].per_request, 7);
  EXPECT_EQ(limits["b"].per_minute, 0);
  for (const char* wrong : {"tokens_per_minute", "tokens_per_minute=", "tokens_per_minute=-1", "tokens_per_minute=1e3", "tokens=1",
                            "tokens_per_minute=1 tokens_per_minute=1", "tokens_per_minute=99999999999999999999", "=1",
                            "tokens_per_request=1000000000001"})
    EXPECT_THAT(ApiKeys::Parse("a " + kSesame + " " + wrong, "k").status().message(), HasSubstr("k line 1")) << wrong;
}

TEST(ApiKeys, LinesOfKeys) {
  EXPECT_EQ(ApiKeys::LineOf("a", "open sesame"), "a " + kSesame);
  const ApiKeys keys = ApiKeys::Parse(ApiKeys::LineOf("bob", "some key"), "k").value();
  ASSERT_NE(keys.Find("Bearer some key"), nullptr);
  EXPECT_EQ(keys.Find("Bearer some key")->name, "bob");
}

TEST(ApiKeys, RolesOfKeys) {
  const Result<ApiKeys> keys =
      ApiKeys::Parse("a " + kSesame + " tokens_per_minute=5 role=admin\nb " + kSecret + " role=user", "keys");
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_EQ(keys->Find("Bearer open sesame")->role, Role::kAdmin);
  EXPECT_EQ(keys->RoleOf("a"), Role::kAdmin);
  EXPECT_EQ(keys->RoleOf("b"), Role::kUser);
  EXPECT_EQ(keys->RoleOf("c"), Role::kUser);
  EXPECT_EQ(ApiKeys::Parse("a " + kSesame, "keys")->RoleOf("a"), Role::kUser);
  EXPECT_FALSE(keys->HasRole(Role::kTrainer));
  EXPECT_TRUE(ApiKeys::Parse("a " + kSesame + " role=trainer", "keys")->HasRole(Role::kTrainer));
  for (const char* wrong : {"role", "role=", "role=Admin", "role=root", "role=admin role=user", "role=user role=user", "admin"})
    EXPECT_THAT(ApiKeys::Parse("a " + kSesame + " " + wrong, "k").status().message(), HasSubstr("role=admin")) << wrong;
}

TEST(ApiKeys, WhatIsWrongIsNamedByLineAndNeverShown) {
  const std::vector<std::string> lines = {"alice secret-in-clear",       "alice", "alice " + kSesame + "0", " " + kSesame,
                                          "alice g" + kSesame.substr(1), kSesame};
  for (const std::string& text : lines) {
    const Status status = ApiKeys::Parse("# keys\n" + text, "my.keys").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr("my.keys line 2"));
    EXPECT_THAT(status.message(), Not(HasSubstr("secret-in-clear")));
  }
  EXPECT_THAT(ApiKeys::Parse("a " + kSesame + "\na " + kSecret, "k").status().message(), HasSubstr("second key"));
  EXPECT_THAT(ApiKeys::Parse("# none\n", "k").status().message(), HasSubstr("holds no key"));
  EXPECT_EQ(ApiKeys::Read("/no/such/file").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace coppice::server
