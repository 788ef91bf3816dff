#include "core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/work_growth.h"

namespace coppice {
namespace {

using ::testing::HasSubstr;

std::string Message(const std::string& text) {
  const Result<nlohmann::json> json = ParseJson(text);
  EXPECT_FALSE(json.ok()) << text.substr(0, 100);
  return json.status().message();
}

TEST(ParseJson, GivesTheValueThatTheLibraryGives) {
  for (const char* text : {R"({"a": [1, -2, 2.5, 18446744073709551615, true, null, "x\u00e9\n"], "": {}, "b": {"c": [[], {}]}})",
                           "[]", "3", "\"s\"", " null "}) {
    const Result<nlohmann::json> json = ParseJson(text);
    ASSERT_TRUE(json.ok()) << json.status().ToString();
    EXPECT_EQ(*json, nlohmann::json::parse(text));
  }
}

TEST(ParseJson, SaysWhereTheSyntaxBreaksInPrintableText) {
  EXPECT_THAT(Message(""), HasSubstr("not valid JSON: parse error at column 1: "));
  EXPECT_THAT(Message("{\n 1}"), HasSubstr("parse error at line 2, column 2: "));
  EXPECT_THAT(Message("{\"a\": 1,}"), HasSubstr("column 9"));
  EXPECT_THAT(Message("[1] 2"), HasSubstr("expected end of input"));
  EXPECT_THAT(Message("[\"\xff\"]"), HasSubstr("\\xff"));
  EXPECT_THAT(Message("[1e999]"), HasSubstr("not valid JSON"));
}

TEST(ParseJson, RefusesAKeyThatStandsTwiceInOneObject) {
  EXPECT_EQ(Message(R"({"a": {"b": 1}, "c": [{"b\n": 1, "b\n": 2}]})"), "key \"b\\x0a\" appears twice in one JSON object");
  EXPECT_TRUE(ParseJson(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})").ok());
}

TEST(ParseJson, RefusesDeepNesting) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(ParseJson(nested(kMaxJsonDepth)).ok());
  EXPECT_EQ(Message(nested(kMaxJsonDepth + 1)), "JSON nested deeper than 64 levels");
  EXPECT_EQ(Message(nested(1000000)), "JSON nested deeper than 64 levels");
}

TEST(ParseJson, WorkIsProportionalToTheText) {
  const auto objects = [](int count) {
    std::string text = "[{}";
    for (int i = 1; i < count; ++i) text += ",{\"a\":{}}";
    return text + "]";
  };
  const auto parse = [](const std::string& text) { EXPECT_TRUE(ParseJson(text).ok()); };
  EXPECT_LT(testing::WorkGrowth(2000, objects, parse), testing::kMaxProportionalGrowth);
}

TEST(ParseOrderedJson, KeepsTheOrderOfMembers) {
  EXPECT_EQ(ParseOrderedJson(R"({"b": {"z": 1, "a": [{"y": 0, "x": 0}]}, "a": 2})")->dump(),
            R"({"b":{"z":1,"a":[{"y":0,"x":0}]},"a":2})");
  EXPECT_EQ(ParseOrderedJson(R"({"a": 1, "a": 2})").status().code(), StatusCode::kInvalidArgument);
}

TEST(ParseOrderedJson, PicksTheValueAtTheEndOfAPath) {
  const std::string_view path[] = {"body", "tools"};
  const auto picked = [&](std::string_view text) { return ParseOrderedJson(text, path)->dump(); };
  EXPECT_EQ(picked(R"({"tools": 1, "body": {"x": {"tools": 2}, "tools": [{"b": {"tools": 3}, "a": 4}], "y": 5}, "z": 6})"),
            R"([{"b":{"tools":3},"a":4}])");
  for (const char* none : {R"({})", R"([])", R"(5)", R"({"body": 5, "x": {"tools": 1}})", R"({"body": [{"tools": 1}]})",
                           R"({"body": {"x": 1}, "y": {"tools": 1}})", R"([{"body": {"tools": 1}}])"})
    EXPECT_EQ(picked(none), "null") << none;
  EXPECT_EQ(picked(R"({"body": {"tools": "a"}})"), R"("a")");
  EXPECT_EQ(ParseOrderedJson("{\"body\": {\"tools\": [1}}", path).status().code(), StatusCode::kDataLoss);
}

TEST(ParseOrderedJson, ObjectsAreBounded) {
  const auto object = [](size_t members) {
    std::string text = "{";
    for (size_t i = 0; i < members; ++i) text += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
    return text + "}";
  };
  EXPECT_TRUE(ParseOrderedJson(object(kMaxOrderedMembers)).ok());
  EXPECT_EQ(ParseOrderedJson(object(kMaxOrderedMembers + 1)).status().code(), StatusCode::kInvalidArgument);
  const std::string_view path[] = {"tools"};
  EXPECT_TRUE(ParseOrderedJson(object(kMaxOrderedMembers + 1), path).ok());  // what is beside the path is not kept
}

TEST(DumpJson, BytesThatAreNoTextAreReplaced) {
  EXPECT_EQ(DumpJson({{"b", {1, 2.5, nullptr}}, {"a", "x\xff\ny"}}), R"({"b":[1,2.5,null],"a":"x�\ny"})");
}

TEST(ParseJson, ANulByteIsNoEnd) {
  using namespace std::string_view_literals;
  for (const std::string_view text : {"{}\0"sv, "{}\0{}"sv, "[1,\0]"sv, "\0"sv})
    EXPECT_EQ(ParseJson(text).status().code(), StatusCode::kDataLoss) << text.size();
}

}  // namespace
}  // namespace coppice
