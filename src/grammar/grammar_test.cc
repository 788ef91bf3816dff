// Grammars over the tokens of a small vocabulary: what a constraint lets through is what its source says.
#include "grammar/grammar_compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/testing/fake_tokenizer.h"
#include "runner/step_batch.h"

namespace coppice {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// All of ASCII, words of several characters, and two control tokens without text.
std::vector<std::string> Texts() {
  std::vector<std::string> texts{"", ""};
  for (char c = ' '; c <= '~'; ++c) texts.emplace_back(1, c);
  texts.emplace_back("\n");
  for (const char* word :
       {"{\"", "\":", "\": ", "true", "false", "null", "abc", "12", "name", "age", "yes", "no", "}}", "\\u00", "ab1"}) {
    texts.emplace_back(word);
  }
  return texts;
}

class GrammarTest : public testing::Test {
 protected:
  // Larger than the tokenizer's, as models that pad theirs.
  int32_t vocab() const { return static_cast<int32_t>(texts_.size()) + 37; }
  std::shared_ptr<const TokenConstraint> Compile(GrammarKind kind, const std::string& text) {
    Result<std::shared_ptr<const TokenConstraint>> compiled = compiler_->Compile({kind, text});
    EXPECT_TRUE(compiled.ok()) << compiled.status().message();
    return *compiled;
  }
  std::string ErrorOf(GrammarKind kind, const std::string& text) {
    const auto begin = std::chrono::steady_clock::now();
    const Status status = compiler_->Compile({kind, text}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    return std::string(status.message());
  }
  // A text of random allowed tokens that ends where it may, or is cut after `most` tokens (`*cut`).
  std::string Walk(const TokenConstraint& constraint, uint32_t seed, int most, bool* cut) {
    std::mt19937 random(seed);
    const std::unique_ptr<ConstraintState> state = constraint.Begin();
    std::string text;
    std::vector<uint32_t> mask(MaskWords(vocab()));
    for (int i = 0; i < most; ++i) {
      const Result<bool> may_end = state->FillMask(mask);
      EXPECT_TRUE(may_end.ok()) << may_end.status().message();
      std::vector<int32_t> allowed;
      for (int32_t t = 0; t < vocab(); ++t) {
        if (mask[t / 32] >> t % 32 & 1) allowed.push_back(t);
      }
      *cut = false;
      if (*may_end && (allowed.empty() || random() % 3 == 0)) return text;
      EXPECT_FALSE(allowed.empty());
      const int32_t token = allowed[random() % allowed.size()];
      EXPECT_GE(token, 2);
      EXPECT_LT(token, static_cast<int32_t>(texts_.size()));
      text += texts_[token];
      EXPECT_TRUE(state->Accept(token).ok());
    }
    *cut = true;
    return text;
  }

  std::vector<std::string> texts_ = Texts();
  FakeTokenizer tokenizer_{texts_};
  std::unique_ptr<GrammarCompiler> compiler_ = GrammarCompiler::Create(tokenizer_, vocab()).value();
};

TEST_F(GrammarTest, EveryWalkThroughARegexMatchesIt) {
  for (const char* pattern : {"[a-z]{2,5}[0-9]+", "^(yes|no)$", "ab?c*", "(true|false|12)(, (true|false))*"}) {
    const auto constraint = Compile(GrammarKind::kRegex, pattern);
    int ended = 0;
    for (uint32_t seed = 0; seed < 200; ++seed) {
      bool cut = false;
      const std::string text = Walk(*constraint, seed, 40, &cut);

      if (cut) continue;
      ++ended;
      EXPECT_TRUE(std::regex_match(text, std::regex(pattern))) << pattern << ": " << text;
    }
    EXPECT_GT(ended, 100) << pattern;
  }
}

TEST_F(GrammarTest, EveryWalkThroughASchemaIsAnInstanceOfIt) {
  const auto constraint = Compile(GrammarKind::kJsonSchema, R"({"type":"object","properties":{"name":{"enum":["abc","name"]},
    "age":{"type":"integer"},"more":{"type":"array","items":{"type":"boolean"},"maxItems":3}},"required":["name","age"]})");
  int ended = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    bool cut = false;
    const std::string text = Walk(*constraint, seed, 200, &cut);
    if (cut) continue;
    ++ended;
    const json value = json::parse(text, nullptr, false);
    ASSERT_TRUE(value.is_object()) << text;
    EXPECT_TRUE(value["name"] == "abc" || value["name"] == "name") << text;
    EXPECT_TRUE(value["age"].is_number()) << text;  // more digits than an integer type has
    EXPECT_TRUE(std::regex_search(text, std::regex("\"age\"\\s*:\\s*-?[0-9]+\\s*[,}]"))) << text;
    EXPECT_LE(value.value("more", json::array()).size(), 3u) << text;
  }
  EXPECT_GT(ended, 50);
}

TEST_F(GrammarTest, JsonAndGrammars) {
  for (const GrammarKind kind : {GrammarKind::kJson, GrammarKind::kJsonObject}) {
    const auto constraint = Compile(kind, "");
    int ended = 0;
    for (uint32_t seed = 0; seed < 200; ++seed) {
      bool cut = false;
      const std::string text = Walk(*constraint, seed, 300, &cut);
      if (cut) continue;
      ++ended;
      json value;
      try {
        value = json::parse(text);
      } catch (const json::out_of_range&) {  // a number beyond double is JSON too
        continue;
      } catch (const json::parse_error& error) {  // as is half a surrogate pair, for RFC 8259
        EXPECT_THAT(error.what(), HasSubstr("surrogate")) << text;
        continue;
      }
      EXPECT_TRUE(kind == GrammarKind::kJson || value.is_object()) << text;
    }
    EXPECT_GT(ended, 20);
  }
  const auto balanced = Compile(GrammarKind::kEbnf, "root ::= \"(\" root \")\" | \"abc\"");
  bool cut = false;
  const std::string text = Walk(*balanced, 5, 100, &cut);
  EXPECT_EQ(std::count(text.begin(), text.end(), '('), std::count(text.begin(), text.end(), ')'));
  EXPECT_THAT(text, HasSubstr("abc"));
}

TEST_F(GrammarTest, NamesOfPropertiesAreNoKeywords) {
  Compile(GrammarKind::kJsonSchema, R"({"type":"object","properties":{"not":{"type":"string"},"maxItems":{"const":5000},
    "pattern":{"enum":["a{5000}", {"if": 1}]}}})");
}

TEST_F(GrammarTest, ValuesThatAskForNothingAndLongTextsAreTaken) {
  for (const char* const schema :
       {R"({"type":"array","uniqueItems":false,"minItems":0})", R"({"type":"string","maxLength":100000})",
        R"({"maxProperties":100000})", R"({"title":"t","$comment":"c","examples":[1],"x-own":2,"readOnly":true})"})
    Compile(GrammarKind::kJsonSchema, schema);
}

TEST_F(GrammarTest, WhatIsWrongIsSaid) {
  EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, "{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, "[1]"), HasSubstr("# is [1], expected a JSON schema"));
  EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, R"({"type":"nonsense"})"), HasSubstr("#/type is \"nonsense\", expected"));
  EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, R"({"$ref":"#/definitions/none"})"), HasSubstr("cannot be used"));
  for (int i = 0; i < 2; ++i) {  // whether it was seen before or not
    EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, R"({"properties":{"a":{"type":"array","uniqueItems":true}}})"),
                HasSubstr("#/properties/a/uniqueItems is not supported"));
    EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, R"({"type":"array","contains":{"const":1}})"), HasSubstr("#/contains"));
    EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, R"({"oneOf":[{"type":"number"},{"type":"integer"}]})"), HasSubstr("#/oneOf"));
    EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, R"({"type":"string","format":"colour"})"), HasSubstr("#/format: \"colour\""));
  }
  for (const char* const schema :
       {R"({"$ref":"#/$defs/n","$defs":{"n":{"$ref":"#/$defs/n"}}})", R"({"type":"integer","minimum":3,"maximum":2})", "false",
        R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"n":{"$ref":"#/$defs/n"}},"required":["n"]}}})",
        R"({"type":"object","required":["a"],"properties":{},"additionalProperties":false})", R"({"enum":["a"],"type":"null"})",
        R"({"allOf":[{"pattern":"^a"},{"pattern":"^b"}],"type":"string"})", R"({"type":"array","items":false,"minItems":1})"})
    ErrorOf(GrammarKind::kJsonSchema, schema);  // no value satisfies it
  EXPECT_THAT(ErrorOf(GrammarKind::kRegex, "(?=a)b"), HasSubstr("ookahead"));
  EXPECT_THAT(ErrorOf(GrammarKind::kRegex, "(a"), HasSubstr("the regex cannot be used"));
  EXPECT_THAT(ErrorOf(GrammarKind::kRegex, ""), HasSubstr("the regex is empty"));
  EXPECT_THAT(ErrorOf(GrammarKind::kRegex, "a{1001}"), HasSubstr("repeats a part 1001 times, expected at most 1000"));
  EXPECT_THAT(ErrorOf(GrammarKind::kRegex, "a{1,99999999999999999999}"), HasSubstr("repeats a part"));
  EXPECT_THAT(ErrorOf(GrammarKind::kRegex, std::string(600, 'a')), HasSubstr("600 bytes, expected at most 512"));
  EXPECT_THAT(ErrorOf(GrammarKind::kEbnf, "root ::= \"a"), HasSubstr("the grammar cannot be used"));
  std::string deep = "{}";
  for (int i = 0; i < 20000; ++i) deep = R"({"anyOf":[)" + deep + "]}";
  EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, deep), HasSubstr("bytes, expected at most"));
  std::string nested = "{}";
  for (int i = 0; i < 70; ++i) nested = R"({"anyOf":[)" + nested + "]}";
  EXPECT_THAT(ErrorOf(GrammarKind::kJsonSchema, nested), HasSubstr("nested deeper than 64 levels"));
}

// ------------------------------------------------------------------------------------------------------------- in a process

class GrammarProcessTest : public GrammarTest {
 protected:
  std::unique_ptr<GrammarCompiler> forked_ = GrammarCompiler::Create(tokenizer_, vocab(), StartGrammarProcess().value()).value();
};

// Constraints from the process equal those compiled here, mask by mask.
TEST_F(GrammarProcessTest, ConstraintsAreThoseOfThisProcess) {
  const std::vector<GrammarSource> sources{
      {GrammarKind::kJson, ""},
      {GrammarKind::kJsonObject, ""},
      {GrammarKind::kRegex, "[a-z]{2,300}(12|3[0-9]*)"},
      {GrammarKind::kJsonSchema,
       R"({"type":"object","properties":{"name":{"type":"string","maxLength":200},"age":{"type":"integer"},
        "more":{"type":"array","items":{"enum":["abc",true,null]},"maxItems":200}},"required":["name"]})"},
      {GrammarKind::kEbnf, "root ::= (\"(\" root \")\" | [a-z]{1,200} | \"yes\"*) \"no\"?"},
      {GrammarKind::kStructuralTag,
       R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<a>"],"tags":[{"begin":
        "<a>","content":{"type":"json_schema","json_schema":{"type":"object"}},"end":"</a>"}]}})"}};
  for (const GrammarSource& source : sources) {
    SCOPED_TRACE(source.text.substr(0, 40));
    const auto here = Compile(source.kind, source.text);
    const Result<std::shared_ptr<const TokenConstraint>> there = forked_->Compile(source);
    ASSERT_TRUE(there.ok()) << there.status().message();
    EXPECT_EQ(forked_->BytesOf(**there), compiler_->BytesOf(*here));
    for (uint32_t seed = 0; seed < 20; ++seed) {
      std::mt19937 random(seed);
      const std::unique_ptr<ConstraintState> a = here->Begin(), b = (*there)->Begin();
      std::vector<uint32_t> mask(MaskWords(vocab())), other(mask.size());
      for (int step = 0; step < 100; ++step) {
        ASSERT_EQ(a->FillMask(mask).value(), b->FillMask(other).value());
        ASSERT_EQ(mask, other);
        std::vector<int32_t> allowed;
        for (int32_t t = 0; t < vocab(); ++t) {
          if (mask[t / 32] >> t % 32 & 1) allowed.push_back(t);
        }
        if (allowed.empty()) break;
        const int32_t token = allowed[random() % allowed.size()];
        ASSERT_TRUE(a->Accept(token).ok());
        ASSERT_TRUE(b->Accept(token).ok());
      }
    }
  }
}

TEST_F(GrammarProcessTest, ErrorsAreThoseOfThisProcess) {
  for (const GrammarSource& source :
       {GrammarSource{GrammarKind::kRegex, "(a"}, GrammarSource{GrammarKind::kEbnf, "root ::= \"a"},
        GrammarSource{GrammarKind::kJsonSchema, R"({"allOf":[{"type":"object"},{"minProperties":2}]})"},
        GrammarSource{GrammarKind::kRegex, "a{1001}"}}) {
    const Status status = forked_->Compile(source).status();
    EXPECT_EQ(status.ToString(), compiler_->Compile(source).status().ToString());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(GrammarProcessTest, AStopEndsIt) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(forked_->Compile({GrammarKind::kJsonObject, ""}, stop.get_token()).status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(forked_->Compile({GrammarKind::kJsonObject, ""}).ok());
}

// ------------------------------------------------------------------------------------------------------------- hostile grammars

// Texts that match in many ways: the parser follows all of them. It gives up after some work, the same on every machine.
TEST_F(GrammarTest, AMaskThatTakesTooLongIsRefused) {
  const auto constraint = Compile(GrammarKind::kEbnf, "root ::= \"no\" a\na ::= b{0,1000}\nb ::= c{0,1000}\nc ::= [a-z]{0,1000}\n");
  const std::unique_ptr<ConstraintState> state = constraint->Begin();
  std::vector<uint32_t> mask(MaskWords(vocab()));
  Status status;
  const auto begin = std::chrono::steady_clock::now();
  const auto token = static_cast<int32_t>(std::ranges::find(texts_, "no") - texts_.begin());
  for (int32_t next = token; status.ok() && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20);
       next = static_cast<int32_t>(std::ranges::find(texts_, "abc") - texts_.begin())) {
    status = state->FillMask(mask).status();
    if (status.ok()) status = state->Accept(next);
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
}

// A parser remembers all that it followed: what the samples of a key's requests hold together is bounded.
TEST_F(GrammarTest, WhatSamplesHoldIsBounded) {
  const auto compiled = Compile(GrammarKind::kRegex, "([a-z]{0,100}[a-z]{0,100}){0,100}");
  const auto held = std::make_shared<LiveParserStates>(0);
  const auto constraint = compiler_->CountIn(*compiled, held);
  const auto token = static_cast<int32_t>(std::ranges::find(texts_, "abc") - texts_.begin());
  const std::unique_ptr<ConstraintState> state = constraint->Begin();
  while (*held < 5000) ASSERT_TRUE(state->Accept(token).ok());
  const int64_t of_one = *held;
  {
    const std::unique_ptr<ConstraintState> clone = state->Clone();
    EXPECT_EQ(*held, 2 * of_one);
    EXPECT_TRUE(clone->Accept(token).ok());
  }
  EXPECT_EQ(*held, of_one);  // the clone has given its back

  const int64_t of_others = kMostLiveParserStates - 2 * of_one + 1;
  *held += of_others;
  std::vector<uint32_t> mask(MaskWords(vocab()));
  const std::unique_ptr<ConstraintState> late = state->Clone();  // there is no room for a copy of what it would hold
  EXPECT_EQ(*held, kMostLiveParserStates - of_one + 1);
  for (const Status& status : {late->FillMask(mask).status(), late->Accept(token)}) {
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), HasSubstr("hold more than 4000000 states"));
  }
  *held += of_one - 1;
  EXPECT_THAT(state->Accept(token).message(), HasSubstr("hold more than 4000000 states"));
  *held -= of_others;
  EXPECT_TRUE(constraint->Begin()->Accept(token).ok());
}

// Where a text is read in few ways, no length of output is too much.
TEST_F(GrammarTest, UsualOutputHoldsNothing) {
  const auto held = std::make_shared<LiveParserStates>(0);
  const auto constraint = compiler_->CountIn(*Compile(GrammarKind::kJsonObject, ""), held);
  const std::unique_ptr<ConstraintState> state = constraint->Begin();
  for (const char* text : {"{\"", "name", "\": ", "true", "}"}) {
    ASSERT_TRUE(state->Accept(static_cast<int32_t>(std::ranges::find(texts_, text) - texts_.begin())).ok()) << text;
  }
  EXPECT_EQ(*held, 0);
}

TEST_F(GrammarTest, AClonedStateGoesOnByItself) {
  const auto constraint = Compile(GrammarKind::kRegex, "(abc|yes)no");
  const auto id = [&](const char* text) { return static_cast<int32_t>(std::ranges::find(texts_, text) - texts_.begin()); };
  const std::unique_ptr<ConstraintState> state = constraint->Begin();
  std::vector<uint32_t> mask(MaskWords(vocab())), other(mask.size());
  ASSERT_TRUE(state->Accept(id("abc")).ok());
  const std::unique_ptr<ConstraintState> clone = state->Clone();
  EXPECT_FALSE(state->FillMask(mask).value());
  EXPECT_FALSE(clone->FillMask(other).value());
  EXPECT_EQ(mask, other);
  ASSERT_TRUE(state->Accept(id("no")).ok());
  EXPECT_TRUE(state->FillMask(mask).value());
  EXPECT_FALSE(clone->FillMask(other).value());
}

// Every hostile source gets an answer in time, and the process lives.
TEST_F(GrammarTest, HostileSourcesEndInTime) {
  std::string optional, doubling = "root ::= r0\n";
  while (optional.size() + 8 <= kMaxRegexBytes) optional += "(a|b|c)?";
  for (int i = 0; i < 40; ++i)
    doubling += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " r" + std::to_string(i + 1) + " | \"a\"\n";
  doubling += "r40 ::= \"b\"\n";
  const std::vector<GrammarSource> sources{
      {GrammarKind::kRegex, optional},
      {GrammarKind::kRegex, std::string(150, '(') + "a" +
                                [] {
                                  std::string close;
                                  for (int i = 0; i < 150; ++i) close += ")*";
                                  return close;
                                }()},
      {GrammarKind::kRegex, "((a{1,900}){1,900}){1,900}"},
      {GrammarKind::kRegex, "(a|a)*b"},
      {GrammarKind::kEbnf, doubling},
      {GrammarKind::kEbnf, "root ::= root"},
      {GrammarKind::kEbnf, "root ::= root root | \"a\" | \"\""},
      {GrammarKind::kEbnf, "root ::= " + std::string(2000, '(') + "\"a\"" + std::string(2000, ')')},
      {GrammarKind::kJsonSchema, R"({"$ref":"#"})"},
      {GrammarKind::kJsonSchema, R"({"allOf":[{"$ref":"#"},{"$ref":"#"}]})"}};
  for (const GrammarSource& source : sources) {
    SCOPED_TRACE(source.text.substr(0, 40));
    const auto begin = std::chrono::steady_clock::now();
    const Result<std::shared_ptr<const TokenConstraint>> compiled = compiler_->Compile(source);
    if (compiled.ok()) {
      const std::unique_ptr<ConstraintState> state = (*compiled)->Begin();
      std::vector<uint32_t> mask(MaskWords(vocab()));
      for (int i = 0; i < 5; ++i) {
        const Result<bool> filled = state->FillMask(mask);
        int32_t token = 2;
        while (token < vocab() && (mask[token / 32] >> token % 32 & 1) == 0) ++token;
        if (!filled.ok() || token == vocab()) break;
        if (const Status accepted = state->Accept(token); !accepted.ok()) {
          EXPECT_EQ(accepted.code(), StatusCode::kResourceExhausted) << accepted.ToString();
          break;
        }
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  }
}

}  // namespace
}  // namespace coppice
