// Costs of grammars, by their text.
#include "grammar/grammar_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "grammar/grammar_source.h"

namespace coppice {
namespace {

using ::testing::HasSubstr;

std::string Times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(GrammarCost, RepeatsOfRegexesMultiplyAndPartsAddUp) {
  EXPECT_EQ(RegexCost("abc").states, 3);
  EXPECT_EQ(RegexCost("a{1000}").states, 1000);
  EXPECT_EQ(RegexCost("a{3,}b").states, 4);
  EXPECT_EQ(RegexCost("a{2,10}").states, 10);
  EXPECT_EQ(RegexCost("a{0}").states, 1);
  EXPECT_EQ(RegexCost("a{10}{10}").states, 100);
  EXPECT_EQ(RegexCost("[a-z{9}\\]]{5}").states, 5);
  EXPECT_EQ(RegexCost(".{0,1000}a.{0,1000}").states, 2001);
  EXPECT_EQ(RegexCost("(ab|c){10}").states, 10 * 5);
  EXPECT_EQ(RegexCost("x(a{1000}){1000}").states, 1 + 1001.0 * 1000);
  EXPECT_GE(RegexCost("((((a{0,1000}){0,1000}){0,1000}){0,1000}){0,1000}").states, 1e15);
  EXPECT_GE(RegexCost(Times(100, "(") + "a" + Times(100, "{1000})")).states, 1e290);
  EXPECT_EQ(RegexCost("a\\{1000}").states, 7);  // no repeat, but text
  EXPECT_EQ(RegexCost("a{x}").states, 4);       // nor is this
  EXPECT_EQ(RegexCost("a{007}").largest_repeat, "007");
  EXPECT_EQ(RegexCost("a{12,}b{7}(c{99999999999999999999}){3}").largest_repeat, "99999999999999999999");
  for (const char* const broken : {"", "(", ")", "))((", "[", "{", "{}", "a{", "a{1", "a{1,", "\\", "|", "*"}) RegexCost(broken);
}

TEST(GrammarCost, RulesOfGrammarsCountOnce) {
  const std::string alphabet =
      "root ::= word{0,100}\nword ::= [a-z] word2 | \"yes{1000}\" # a comment {1000}\nword2 ::= ([0-9]{10} \"a\"){10}\n";
  const GrammarCost cost = EbnfCost(alphabet);
  EXPECT_LT(cost.states, 400);
  EXPECT_GT(cost.states, 200);
  EXPECT_EQ(cost.largest_repeat, "100");
  EXPECT_GE(EbnfCost("root ::= ((\"a\"{1000}){ 0 , 1000 }){1000}").states, 1e9);
  EXPECT_GE(EbnfCost("root ::= Regex(\"(a{1000}){1000}\")").states, 1e6);
  EXPECT_GE(EbnfCost("root ::= " + Times(10, "(") + "[a]" + Times(10, "{100})")).states, 1e20);
  for (const char* const broken : {"\"", "\"\\", "[", "#", "root ::= (", "{1}", "{,}"}) EbnfCost(broken);
}

Status Check(GrammarKind kind, const std::string& text) { return CheckGrammarSource({kind, text}); }

TEST(GrammarCost, WhatIsTooMuchIsRefusedByTheValueAndTheLimit) {
  EXPECT_THAT(Check(GrammarKind::kRegex, "((((a{0,1000}){0,1000}){0,1000}){0,1000}){0,1000}").message(),
              HasSubstr("the regex has about 1000000000000000 states"));
  EXPECT_THAT(Check(GrammarKind::kEbnf, "root ::= (([a]{0,999}){0,999} \"b\"){0,9}").message(), HasSubstr("the grammar has about"));
  EXPECT_THAT(Check(GrammarKind::kEbnf, "root ::= Regex(\"a{5000}\")").message(), HasSubstr("5000 times, expected at most 1000"));
}

TEST(GrammarCost, OrdinarySourcesPass) {
  EXPECT_TRUE(Check(GrammarKind::kRegex, R"([a-zA-Z0-9._%+-]{1,64}@[a-zA-Z0-9.-]{1,255}\.[a-zA-Z]{2,24})").ok());
  EXPECT_TRUE(Check(GrammarKind::kRegex, "([a-z]{1,64} ){0,1000}").ok());
  EXPECT_TRUE(Check(GrammarKind::kEbnf, "root ::= \"{5000}\" [{] [0-9]{2}").ok());
}

}  // namespace
}  // namespace coppice
