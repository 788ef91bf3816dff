// The lines that the log has of requests.
#include "server/request_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace coppice::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Call Answered() {
  Call call;
  call.request.id = "r1";
  call.request.peer = "10.0.0.7";
  call.request.method = "POST";
  call.request.path = "/v1/chat/completions/";
  call.route = "/v1/chat/completions";
  call.key = "alice";
  call.usage = {.prompt = 31, .cached = 30, .completion = 20};
  return call;
}

TEST(RequestLog, ALineForPeople) {
  EXPECT_EQ(RequestLine(Answered(), 200, 0.1449, LogForm::kText),
            "POST /v1/chat/completions 200 0.14 s, 31+20 tokens, 30 cached, key alice");
}

TEST(RequestLog, ARefusalSaysWhy) {
  Call call = Answered();
  call.usage = {};
  call.reason = "temperature is -1,\nexpected 0 to 2";
  EXPECT_EQ(RequestLine(call, 400, 0, LogForm::kText),
            "POST /v1/chat/completions 400 0.00 s, key alice, from 10.0.0.7, request r1: temperature is -1,\\x0aexpected 0 to 2");
  EXPECT_EQ(nlohmann::json::parse(RequestLine(call, 400, 0, LogForm::kJson))["reason"], "temperature is -1,\\x0aexpected 0 to 2");
}

TEST(RequestLog, ThePathOfWhatIsNotThere) {
  Call call = Answered();
  call.route = kNoRoute;
  call.request.path = "/v1/embeddings\n" + std::string(300, 'x');
  EXPECT_THAT(RequestLine(call, 404, 0, LogForm::kText), HasSubstr("POST /v1/embeddings\\x0axxx"));
  EXPECT_THAT(nlohmann::json::parse(RequestLine(call, 404, 0, LogForm::kJson))["path"], HasSubstr("/v1/embeddings"));
  EXPECT_LT(RequestLine(call, 404, 0, LogForm::kText).size(), 400);
  EXPECT_THAT(RequestLine(Answered(), 200, 0, LogForm::kJson), Not(HasSubstr("\"path\"")));
}

TEST(RequestLog, BodiesAreOneLine) {
  Call call = Answered();
  call.logged_body = "{\n}";
  EXPECT_THAT(RequestLine(call, 200, 0, LogForm::kText), HasSubstr("; body \"{\\n}\""));
}

TEST(RequestLog, PollsThatWentWell) {
  Call call = Answered();
  EXPECT_FALSE(IsPoll(call, 200));
  call.route = "/metrics";
  EXPECT_TRUE(IsPoll(call, 200));
  EXPECT_FALSE(IsPoll(call, 401));
}

}  // namespace
}  // namespace coppice::server
