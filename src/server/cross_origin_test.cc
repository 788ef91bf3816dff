#include "server/cross_origin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace coppice::server {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

CrossOrigin Of(const std::vector<std::string>& origins) { return CrossOrigin::Parse(origins).value(); }

TEST(CrossOrigin, OriginsThatAreNone) {
  for (const char* origin : {"", "example.org", "https://example.org/", "https://Example.org", "https://", "://a", "https://a b",
                             "null", "https://example.org/path", "https://a@b"}) {
    const auto parsed = CrossOrigin::Parse(std::vector<std::string>{"https://good.example", origin});
    EXPECT_THAT(parsed.status().message(), HasSubstr("--allow-origin is ")) << origin;
  }
  EXPECT_TRUE(CrossOrigin::Parse(std::vector<std::string>{"http://[::1]:3000", "app://x", "*"}).ok());
}

TEST(CrossOrigin, AnswersToPages) {
  EXPECT_THAT(CrossOrigin().AnswerHeaders("https://a.example"), IsEmpty());
  const CrossOrigin two = Of({"https://a.example", "http://localhost:3000"});
  EXPECT_THAT(two.AnswerHeaders("https://a.example"), Contains(Pair("access-control-allow-origin", "https://a.example")));
  EXPECT_THAT(two.AnswerHeaders("https://a.example"), Contains(Pair("vary", "origin")));
  for (const char* other : {"", "https://b.example", "http://a.example", "https://a.example:8443", "http://localhost:3001", "null"})
    EXPECT_THAT(two.AnswerHeaders(other), IsEmpty()) << other;
  EXPECT_THAT(Of({"*"}).AnswerHeaders("https://b.example"), Contains(Pair("access-control-allow-origin", "*")));
  EXPECT_THAT(Of({"*"}).AnswerHeaders(""), IsEmpty());
}

TEST(CrossOrigin, QuestionsBeforeRequests) {
  const CrossOrigin one = Of({"https://a.example"});
  HttpRequest head = {.method = "OPTIONS", .origin = "https://a.example", .preflight_method = "POST"};
  head.preflight_headers = "authorization, content-type,x-stainless-os";
  ASSERT_TRUE(one.AnswerPreflight(head));
  EXPECT_THAT(one.AnswerPreflight(head)->headers, Contains(Pair("access-control-allow-headers", head.preflight_headers)));
  head.preflight_headers = "a\r\nset-cookie: b";
  EXPECT_THAT(one.AnswerPreflight(head)->headers, Not(Contains(Pair("access-control-allow-headers", testing::_))));
  head.origin = "https://b.example";
  EXPECT_FALSE(one.AnswerPreflight(head));
  head = {.method = "OPTIONS", .origin = "https://a.example"};
  EXPECT_FALSE(one.AnswerPreflight(head)) << "it asks for no method";
  head = {.method = "POST", .origin = "https://a.example", .preflight_method = "POST"};
  EXPECT_FALSE(one.AnswerPreflight(head));
}

}  // namespace
}  // namespace coppice::server
