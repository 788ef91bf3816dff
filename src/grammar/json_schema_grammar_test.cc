// Texts that the grammars of JSON schemas accept, texts that they reject, and schemas that are refused. Random schemas and
// an independent validator are in tests/grammar.
#include "grammar/json_schema_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/testing/fake_tokenizer.h"
#include "grammar/grammar_compiler.h"
#include "grammar/json_text_rules.h"
#include "runner/step_batch.h"

namespace coppice {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class JsonSchemaGrammarTest : public testing::Test {
 protected:
  Result<std::shared_ptr<const TokenConstraint>> Compile(const std::string& schema) {
    return compiler_->Compile({GrammarKind::kJsonSchema, schema});
  }
  std::string ErrorOf(const std::string& schema) {
    const Status status = Compile(schema).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << schema;
    return std::string(status.message());
  }
  static bool Accepts(const TokenConstraint& constraint, std::string_view text) {
    const std::unique_ptr<ConstraintState> state = constraint.Begin();
    std::vector<uint32_t> mask(MaskWords(kBytes));
    for (const char c : text) {
      const auto token = static_cast<int32_t>(static_cast<uint8_t>(c));
      const Result<bool> filled = state->FillMask(mask);
      if (!filled.ok() || (mask[token / 32] >> token % 32 & 1) == 0 || !state->Accept(token).ok()) return false;
    }
    const Result<bool> may_end = state->FillMask(mask);
    return may_end.ok() && *may_end;
  }
  void Expect(const std::string& schema, const std::vector<std::string>& accepted, const std::vector<std::string>& refused) {
    const Result<std::shared_ptr<const TokenConstraint>> compiled = Compile(schema);
    ASSERT_TRUE(compiled.ok()) << schema << ": " << compiled.status().message();
    for (const std::string& text : accepted) EXPECT_TRUE(Accepts(**compiled, text)) << schema << ": " << text;
    for (const std::string& text : refused) EXPECT_FALSE(Accepts(**compiled, text)) << schema << ": " << text;
  }

 private:
  static constexpr int32_t kBytes = 256;
  static std::vector<std::string> Bytes() {
    std::vector<std::string> texts;
    for (int byte = 0; byte < kBytes; ++byte) texts.emplace_back(1, static_cast<char>(byte));
    return texts;
  }

  FakeTokenizer tokenizer_{Bytes()};
  std::unique_ptr<GrammarCompiler> compiler_ = GrammarCompiler::Create(tokenizer_, kBytes).value();
};

TEST_F(JsonSchemaGrammarTest, MembersComeInTheOrderOfTheSchemaAtEveryDepth) {
  Expect(R"({"type":"object","properties":{"steps":{"type":"array","items":{"type":"object","properties":{"why":{"type":"string"},
            "at":{"type":"integer"}},"required":["at","why"]}},"answer":{"type":"integer"}},"required":["answer","steps"]})",
         {R"({"steps":[{"why":"","at":1}],"answer":2})", R"({"steps": [ ], "answer": 2})"},
         {R"({"answer":2,"steps":[]})", R"({"steps":[{"at":1,"why":""}],"answer":2})"});
  // By way of a reference, of allOf before and behind `properties`, and of a required name.
  Expect(R"({"$ref":"#/$defs/z","$defs":{"z":{"properties":{"z":{"const":1},"a":{"const":2}},"required":["a","z","m"]}}})",
         {R"({"z":1,"a":2,"m":null})"}, {R"({"a":2,"z":1,"m":null})", R"({"z":1,"a":2})"});
  Expect(R"({"allOf":[{"properties":{"z":{"const":1}},"required":["z"]}],"properties":{"a":{"const":2}},"required":["a"]})",
         {R"({"z":1,"a":2})"}, {R"({"a":2,"z":1})"});
  Expect(R"({"properties":{"a":{"const":2}},"required":["a"],"allOf":[{"properties":{"z":{"const":1}},"required":["z"]}]})",
         {R"({"a":2,"z":1})"}, {R"({"z":1,"a":2})"});
}

TEST_F(JsonSchemaGrammarTest, PatternsFormatsAndLengthsAreOfTheValue) {
  Expect(R"({"type":"string","pattern":"^say \"[a-z]\\\\$"})", {R"("say \"x\\")"}, {R"("say "x\")", R"("say \"x")"});
  Expect(R"({"type":"string","pattern":"^\\t[\\x00-\\x1f]$"})", {R"("\t\u0001")", R"("\t\n")"}, {"\"\t\n\"", R"("\t ")"});
  Expect(R"({"type":"string","maxLength":2})", {R"("\n\"")", R"("\u00e9\uD83D\uDE00")", "\"é😀\""},
         {R"("\n\"a")", "\"a\n\"", "\"ééé\"", R"("\uD83D")"});
  Expect(R"({"type":"string","minLength":2})", {R"("\n\n")", "\"日本\""}, {R"("\n")", "\"日\""});
  Expect(R"({"type":"string","pattern":"^a+$","minLength":2,"maxLength":3})", {R"("aa")", R"("aaa")"},
         {R"("a")", R"("aaaa")", R"("ab")"});
  Expect(R"({"additionalProperties":false,"patternProperties":{"^\"":{"type":"null"}}})", {R"({"\"":null})", "{}"},
         {R"({"a":null})", R"({"\"":1})"});
  Expect(R"({"type":"string","format":"date","maxLength":10})", {R"("2024-02-29")"}, {R"("2023-02-29")", R"("2024-13-01")"});
  Expect(R"({"type":"string","format":"uuid","minLength":36,"maxLength":36})", {R"("123e4567-e89b-12d3-a456-426614174000")"},
         {R"("123e4567")"});
  Expect(R"({"type":"string","format":"e164","pattern":"^\\+[1-9]\\d{6,14}$"})", {R"("+4930123456")"}, {R"("4930")"});
  Expect(R"({"properties":{"é\n\"":{"const":"\u00fc\u0000\"😀"}},"required":["é\n\""]})", {R"({"é\n\"":"ü\u0000\"😀"})"},
         {R"({"é":"ü\u0000\"😀"})"});
}

TEST_F(JsonSchemaGrammarTest, KeywordsBesideOthersAreKept) {
  struct Case {
    const char* schema;
    std::vector<std::string> accepted, refused;
  };
  const std::vector<Case> cases = {
      {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"additionalProperties":false,
           "anyOf":[{"required":["a"]},{"required":["b"]}]})",
       {R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"},
       {"{}", R"({"c":null})"}},
      {R"({"type":"object","properties":{"a":{"type":"null"}},"required":["b"]})",
       {R"({"a":null,"b":[1]})", R"({"b":0})"},
       {R"({"a":null})"}},
      {R"({"required":["b"],"additionalProperties":{"type":"integer"}})", {R"({"b":1})"}, {R"({"b":"x"})", R"({"c":1})"}},
      {R"({"$defs":{"n":{"type":"integer"}},"$ref":"#/$defs/n","maximum":2,"minimum":0})", {"0", "2"}, {"3", "-1", "\"0\""}},
      {R"({"allOf":[{"minimum":2},{"type":"integer"}],"maximum":4})", {"2", "4"}, {"1", "5", "2.5"}},
      {R"({"anyOf":[{"type":"string"},{"type":"integer"}],"maxLength":1,"minimum":5})", {"\"a\"", "5"}, {"\"ab\"", "4"}},
      {R"({"enum":["a","bb",3,null,[1],{"x":1.5}],"minLength":2})", {"\"bb\"", "3", "null", "[1]", R"({"x":1.5})"}, {"\"a\"", "4"}},
      {R"({"const":[1,"a"],"type":"array"})", {"[1,\"a\"]"}, {"[1]", "1"}},
      {R"({"enum":[1,2,3],"not":{"const":2}})", {"1", "3"}, {"2"}},
      {R"({"properties":{"a":{"const":1},"b":{"const":2}},"additionalProperties":false,"dependencies":{"a":["b"]}})",
       {"{}", R"({"b":2})", R"({"a":1,"b":2})"},
       {R"({"a":1})"}},
      {R"({"properties":{"a":{"const":1},"b":{"const":2}},"additionalProperties":false,"dependentRequired":{"a":["b"]}})",
       {R"({"a":1,"b":2})"},
       {R"({"a":1})"}},
      {R"({"properties":{"a":{"const":1},"b":{"type":"integer"}},"additionalProperties":false,
           "dependentSchemas":{"a":{"properties":{"b":{"minimum":3}}}}})",
       {R"({"b":1})", R"({"a":1,"b":3})", R"({"a":1})"},
       {R"({"a":1,"b":1})"}},
      {R"({"type":"array","items":[{"const":1},{"type":"string"}],"additionalItems":{"const":3},"minItems":1,"maxItems":3})",
       {"[1]", R"([1,"a"])", R"([1,"a",3])"},
       {"[]", "[2]", R"([1,"a",4])", R"([1,"a",3,3])"}},
      {R"({"type":"array","prefixItems":[{"const":1}],"items":false})", {"[]", "[1]"}, {"[1,1]"}},
      {R"({"type":"object","properties":{"n":{"const":1}},"patternProperties":{"^s_":{"type":"string"}},"additionalProperties":{"type":"null"}})",
       {R"({"n":1,"s_a":"x","t":null})", "{}"},
       {R"({"s_a":1})", R"({"t":1})", R"({"n":2})"}},
      {R"({"type":"object","properties":{},"propertyNames":{"maxLength":2},"additionalProperties":{"const":1}})",
       {R"({"ab":1})"},
       {R"({"abc":1})"}},
      {R"({"type":"integer","minimum":1,"exclusiveMinimum":true,"maximum":3})", {"2", "3"}, {"1", "4"}},
      {R"({"type":"number","minimum":-3.4028234663852886e38,"maximum":3.4028234663852886e38})",
       {"0", "-1.5", "123456789"},
       {"1e39", "\"1\""}},
      {R"({"type":["integer","null"],"multipleOf":3,"exclusiveMaximum":7})", {"0", "6", "-3", "null"}, {"1", "9"}},
      {R"({"if":{"properties":{"k":{"const":"a"}},"required":["k"]},"then":{"required":["x"]},"else":{"required":["y"]},
           "type":"object","properties":{"k":{"enum":["a","b"]},"x":{"const":1},"y":{"const":2}},"required":["k"],"additionalProperties":false})",
       {R"({"k":"a","x":1})", R"({"k":"b","y":2})"},
       {R"({"k":"a","y":2})", R"({"k":"b","x":1})"}},
  };
  for (const Case& one : cases) Expect(one.schema, one.accepted, one.refused);
}

TEST_F(JsonSchemaGrammarTest, WhatIsNotKeptIsRefusedByItsPlace) {
  for (const auto& [schema, place] :
       {std::pair(R"({"properties":{"a/b":{"uniqueItems":true}}})", "#/properties/a~1b/uniqueItems"),
        {R"({"items":{"contains":{"const":1}}})", "#/items/contains"},
        {R"({"$defs":{"x":{"disallow":"string"}},"anyOf":[{"$ref":"#/$defs/x"}]})", "#/$defs/x/disallow"},
        {R"({"allOf":[{"required":["a"]}],"unevaluatedProperties":false})", "#/unevaluatedProperties"},
        {R"({"$ref":"https://example.com/other.json"})", "#/$ref"},
        {R"({"pattern":"(a)\\1"})", "#/pattern"},
        {R"({"format":"colour"})", "#/format"},
        {R"({"type":"number","multipleOf":0.1})", "#/multipleOf"},
        {R"({"properties":{"a":{"oneOf":[{"minimum":1},{"maximum":5}]}}})", "#/properties/a/oneOf"},
        {R"({"minLength":-1})", "#/minLength"},
        {R"({"required":"a"})", "#/required"}})
    EXPECT_THAT(ErrorOf(schema), AllOf(HasSubstr("the JSON schema cannot be used: "), HasSubstr(place)));
}

TEST_F(JsonSchemaGrammarTest, KeywordsThatAskForNothingAreTaken) {
  for (const char* const keyword : {R"("uniqueItems":false)",
                                    R"("minItems":0)",
                                    R"("minLength":0)",
                                    R"("minProperties":0)",
                                    R"("required":[])",
                                    R"("$comment":"c")",
                                    R"("additionalItems":{})",
                                    R"("dependencies":{})",
                                    R"("dependentRequired":{})",
                                    R"("examples":[1])",
                                    R"("deprecated":true)",
                                    R"("allOf":[{}])",
                                    R"("anyOf":[true])",
                                    R"("not":false)",
                                    R"("propertyNames":true)",
                                    R"("contains":{},"minContains":0)",
                                    R"("unevaluatedProperties":true)",
                                    R"("unevaluatedItems":{})",
                                    R"("patternProperties":{})",
                                    R"("then":{},"else":false)",
                                    R"("contentMediaType":"text/plain")",
                                    R"("x-order":1,"nullable":true,"discriminator":{"propertyName":"a"})"}) {
    Expect(fmt::format(R"({{"type":["array","object","string"],{}}})", keyword), {"[]", "[1,1]", "{}", "\"\"", "\"ab\""},
           {"1", "null"});
  }
}

TEST_F(JsonSchemaGrammarTest, SchemasWithoutAFiniteValueAreRefused) {
  for (const char* const schema :
       {"false", R"({"not":{}})", R"({"enum":[1],"type":"string"})", R"({"type":"integer","minimum":3,"maximum":2})",
        R"({"type":"integer","exclusiveMinimum":2,"exclusiveMaximum":3})", R"({"type":"string","minLength":2,"maxLength":1})",
        R"({"type":"string","pattern":"^a$","minLength":2})", R"({"allOf":[{"type":"string"},{"type":"null"}]})",
        R"({"type":"array","items":false,"minItems":1})", R"({"type":"array","minItems":2,"maxItems":1})",
        R"({"type":"object","required":["a"],"properties":{"a":false}})",

        R"({"type":"object","minProperties":1,"maxProperties":0})", R"({"type":"object","required":["a","b"],"maxProperties":1})",
        R"({"type":"object","required":["a"],"properties":{},"additionalProperties":false})",
        R"({"type":"object","required":["next"],"properties":{"next":{"$ref":"#"}}})",
        R"({"type":"array","minItems":1,"items":{"$ref":"#"}})",
        R"({"$defs":{"a":{"type":"array","minItems":1,"items":{"$ref":"#/$defs/b"}},
            "b":{"type":"object","required":["a"],"properties":{"a":{"$ref":"#/$defs/a"}}}},"$ref":"#/$defs/a"})",
        R"({"type":"integer","multipleOf":10,"minimum":1,"maximum":9})", R"({"const":"a","pattern":"b"})"})
    EXPECT_THAT(ErrorOf(schema), HasSubstr("no finite value satisfies the schema")) << schema;
  EXPECT_THAT(ErrorOf(R"({"$ref":"#"})"), HasSubstr("refers to itself without an end"));
  // With a way out there is one.
  Expect(R"({"type":"object","properties":{"next":{"$ref":"#"}},"additionalProperties":false})", {"{}", R"({"next":{"next":{}}})"},
         {"[]"});
  Expect(
      R"({"$defs":{"a":{"anyOf":[{"type":"null"},{"type":"array","minItems":1,"items":{"$ref":"#/$defs/a"}}]}},"$ref":"#/$defs/a"})",
      {"null", "[null,[null]]"}, {"[]"});
}

TEST_F(JsonSchemaGrammarTest, AlternativesThatExcludeEachOtherMayBeOfOneOf) {
  // A model class each, as pydantic writes them for a discriminated union.
  const std::string tagged = R"({"$defs":{
      "Cat":{"properties":{"kind":{"const":"cat","default":"cat","title":"Kind","type":"string"},"lives":{"type":"integer"}},
             "required":["lives"],"title":"Cat","type":"object"},
      "Dog":{"properties":{"kind":{"const":"dog","title":"Kind","type":"string"},"name":{"type":"string"}},
             "required":["kind","name"],"title":"Dog","type":"object"}},
    "properties":{"pet":{"discriminator":{"mapping":{"cat":"#/$defs/Cat","dog":"#/$defs/Dog"},"propertyName":"kind"},
                         "oneOf":[{"$ref":"#/$defs/Cat"},{"$ref":"#/$defs/Dog"}]}},"required":["pet"],"type":"object"})";
  Expect(tagged, {R"({"pet":{"kind":"cat","lives":9}})", R"({"pet":{"kind":"dog","name":"Rex"}})"},
         {R"({"pet":{"kind":"dog","lives":9}})", R"({"pet":{"kind":"cow","name":"Rex"}})"});
  Expect(R"({"oneOf":[{"type":"integer"},{"type":"string"},{"type":"null"}]})", {"1", "\"1\"", "null"}, {"1.5"});
  Expect(R"({"oneOf":[{"required":["a"]},{"required":["b"]}],"type":"object","properties":{"a":{"const":1},"b":{"const":2}},
             "additionalProperties":false})",
         {R"({"a":1})", R"({"b":2})"}, {"{}", R"({"a":1,"b":2})"});
  Expect(R"({"oneOf":[{"type":"string","pattern":"^a"},{"type":"string","pattern":"b$"}]})", {"\"a\"", "\"b\""},
         {"\"ab\"", "\"c\""});
}

TEST_F(JsonSchemaGrammarTest, WhiteSpaceBetweenTokensIsBounded) {
  const auto padded = [](int spaces) {
    const std::string space(spaces, ' ');
    return fmt::format(R"({{{0}"a"{0}:{0}[{0}1{0},{0}2{0}]{0}}})", space);
  };
  for (const char* const schema :
       {R"({"properties":{"a":{"type":"array","items":{"type":"integer"}}}})", "true", R"({"type":"object"})"})
    Expect(schema, {padded(0), padded(1), padded(kMaxWhiteSpace)}, {padded(kMaxWhiteSpace + 1), padded(1) + " ", " " + padded(1)});
}

TEST_F(JsonSchemaGrammarTest, LengthsAndCountsCompileInTime) {
  for (const char* const schema :
       {R"({"type":"string","maxLength":100000})", R"({"type":"string","minLength":100000})",
        R"({"type":"string","minLength":50000,"maxLength":100000})", R"({"type":"string","maxLength":2083,"format":"uri"})",
        R"({"type":"string","pattern":"^[a-z]+$","maxLength":100000})",
        R"({"type":"array","maxItems":100000,"items":{"type":"string"}})",
        R"({"type":"array","minItems":1000,"maxItems":100000,"items":{"type":"integer"}})", R"({"maxProperties":100000})",
        R"({"type":"array","maxItems":1000,"items":{"type":"array","maxItems":1000,"items":{"type":"array","maxItems":1000}}})"}) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(Compile(schema).ok()) << schema;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << schema;
  }
}

TEST_F(JsonSchemaGrammarTest, SchemasThatNeedTooMuchAreRefusedInTime) {
  const auto patterns = [](const std::string& pattern) {
    json schema = {{"anyOf", json::array()}};
    for (int i = 0; i < 200; ++i)
      schema["anyOf"].push_back({{"type", "string"}, {"pattern", fmt::format("{}[a]{{0,{}}}$", pattern, 1000 - i)}});
    return schema.dump();
  };
  json square = {{"type", "object"}, {"minProperties", 200}};
  for (int i = 0; i < 400; ++i) square["properties"][fmt::format("p{}", i)] = {{"type", "null"}};
  json doubled = {{"$defs", json::object()}, {"$ref", "#/$defs/d0"}};
  for (int i = 0; i < 40; ++i) {
    const json next = {{"$ref", fmt::format("#/$defs/d{}", i + 1)}};
    doubled["$defs"][fmt::format("d{}", i)] = {
        {"allOf", {{{"anyOf", {next, {{"minimum", i}}}}}, {{"anyOf", {next, {{"maximum", -i}}}}}}}};
  }
  doubled["$defs"]["d40"] = {{"type", "integer"}};
  for (const std::string& schema : {patterns(".{0,1000}a"), patterns("^(a|b)*a(a|b){12}"), square.dump(), doubled.dump(),
                                    std::string(R"({"pattern":"((a{1000}){1000}){1000}"})")}) {
    const auto begin = std::chrono::steady_clock::now();
    ErrorOf(schema);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << schema.substr(0, 100);
  }
}

}  // namespace
}  // namespace coppice
