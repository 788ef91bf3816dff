// Prefixes under names: what a body may say, what requests with one become, and whose salt holds where.
#include "openai/named_prefix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "openai/request.h"

namespace coppice::openai {
namespace {

using nlohmann::json;

TEST(NamedPrefix, Names) {
  for (const char* name : {"a", "System-1.b_c", "0"}) EXPECT_TRUE(CheckPrefixName(name).ok()) << name;
  for (const std::string& name : {std::string(), std::string("a/b"), std::string("a b"), std::string("ä"), std::string(65, 'a')})
    EXPECT_FALSE(CheckPrefixName(name).ok()) << name;
}

TEST(NamedPrefix, BodiesAreReadBack) {
  for (const json& body : {json{{"prompt", "text"}}, json{{"prompt", {1, 2}}, {"cache_salt", "s"}, {"cache_private_begin", 1}},
                           json{{"messages", {{{"role", "system"}, {"content", "x"}}}}, {"public", true}, {"ttl_seconds", 1.5}}}) {
    BodyError error;
    const auto prefix = ParseNamedPrefix(body, &error);
    ASSERT_TRUE(prefix) << error.status.message();
    EXPECT_EQ(json(ToBody(*prefix)), body);
  }
}

TEST(NamedPrefix, BodiesThatAreRefused) {
  const auto param = [](const char* body) {
    BodyError error;
    EXPECT_FALSE(ParseNamedPrefix(json::parse(body), &error)) << body;
    EXPECT_FALSE(error.status.ok());
    return error.param;
  };
  EXPECT_EQ(param("[]"), "body");
  EXPECT_EQ(param("{}"), "prompt");
  EXPECT_EQ(param(R"({"prompt": "a", "messages": []})"), "prompt");
  EXPECT_EQ(param(R"({"prompt": ["a", "b"]})"), "prompt");
  EXPECT_EQ(param(R"({"messages": []})"), "messages");
  EXPECT_EQ(param(R"({"prompt": [1], "ttl_seconds": 0})"), "ttl_seconds");
  EXPECT_EQ(param(R"({"prompt": [1], "ttl_seconds": 1e300})"), "ttl_seconds");
  EXPECT_EQ(param(R"({"prompt": [1], "max_tokens": 3})"), "max_tokens");
  EXPECT_EQ(param(R"({"prompt": [1], "public": 1})"), "public");
  EXPECT_EQ(param(R"({"prompt": [1], "public": true, "cache_salt": "s"})"), "public");
}

// Requests of a model without a tokenizer, with the prefix 1 2 3 4 under the name "p".
class RequestsWithPrefixTest : public ::testing::Test {
 protected:
  std::optional<OpenAiRequest> Parse(json fields) {
    fields["prompt"] = {5, 6};
    fields["prefix"] = "p";
    const auto find = [this](const std::string& name) { return name == "p" ? prefix_ : nullptr; };
    std::optional<OpenAiRequest> parsed = parser_.Parse(Endpoint::kCompletions, fields, &error_, find);
    if (parsed) parser_.SetPrompt(parser_.Encode(*parsed).value(), &*parsed);
    return parsed;
  }

  const OpenAiRequestParser parser_{nullptr, 100};
  std::shared_ptr<NamedPrefix> prefix_ =
      std::make_shared<NamedPrefix>(NamedPrefix{.prompt_ids = {1, 2, 3, 4}, .token_ids = {1, 2, 3, 4}});
  BodyError error_;
};

TEST_F(RequestsWithPrefixTest, ThePromptFollowsThePrefix) {
  const auto parsed = Parse({});
  ASSERT_TRUE(parsed);
  EXPECT_THAT(parsed->request.prompt_ids, ::testing::ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(parsed->request.cache_private_begin, 0);
}

TEST_F(RequestsWithPrefixTest, ASaltBeginsBehindAPublicPrefix) {
  EXPECT_EQ(Parse({{"cache_salt", "s"}})->request.cache_private_begin, 4);
  EXPECT_EQ(Parse({{"cache_salt", "s"}, {"cache_private_begin", 0}})->request.cache_private_begin, 0);
  EXPECT_EQ(Parse({{"cache_salt", "s"}, {"cache_private_begin", 2}})->request.cache_private_begin, 2);
}

TEST_F(RequestsWithPrefixTest, WhatFollowsAPublicPrefixIsTheTenantsOwn) {
  EXPECT_EQ(Parse({})->request.cache_tenant.begin, 0);  // one of the tenant's own
  prefix_->is_public = true;
  EXPECT_EQ(Parse({})->request.cache_tenant.begin, 4);
  EXPECT_EQ(Parse({{"cache_salt", "s"}})->request.cache_private_begin, 4);
}

TEST_F(RequestsWithPrefixTest, APrivatePrefixGivesItsSalt) {
  prefix_->cache_salt = "owner";
  prefix_->cache_private_begin = 1;
  const auto parsed = Parse({});
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->request.cache_salt, "owner");
  EXPECT_EQ(parsed->request.cache_private_begin, 1);
  EXPECT_FALSE(Parse({{"cache_salt", "s"}}));
  EXPECT_EQ(error_.param, "cache_salt");
  EXPECT_THAT(error_.status.message(), ::testing::Not(::testing::HasSubstr("owner")));
}

TEST_F(RequestsWithPrefixTest, PrefixesThatDoNotFit) {
  prefix_->messages = {{.role = "system", .content = "x"}};
  EXPECT_FALSE(Parse({}));
  EXPECT_EQ(error_.param, "prefix");
  prefix_ = nullptr;
  EXPECT_FALSE(Parse({}));
  EXPECT_EQ(error_.param, "prefix");
}

}  // namespace
}  // namespace coppice::openai
