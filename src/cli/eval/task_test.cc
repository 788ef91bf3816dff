// Inputs of evaluations: files of questions and programs.
#include "cli/eval/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace coppice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EvalFiles, Questions) {
  const auto questions = ParseQuestions(
      "{\"question\": \"1+1?\", \"choices\": [\" 2\", \" 3\"], \"answer\": 0}\n\n"
      "{\"question\": \"\", \"choices\": [\"a\", \"b\", \"c\"], \"answer\": 2}");
  ASSERT_TRUE(questions.ok()) << questions.status().ToString();
  ASSERT_EQ(questions->size(), 2u);
  EXPECT_THAT(questions->front().choices, ElementsAre(" 2", " 3"));
  EXPECT_EQ(questions->back().answer, 2);
}

TEST(EvalFiles, WhatIsWrongIsNamedWithItsLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "has no lines"},
      {"\n\n", "has no lines"},
      {"[]", "line 1: is no JSON object"},
      {"\n{\"question\": 3}", "line 2: \"question\" is missing or no text"},
      {R"({"question": "q"})", "\"choices\" is missing"},
      {R"({"question": "q", "choices": ["a", 1]})", "\"choices\" is missing or no list of texts"},
      {R"({"question": "q", "choices": ["a"], "answer": 0})", "at least two"},
      {R"({"question": "q", "choices": ["a", ""], "answer": 0})", "none of them empty"},
      {R"({"question": "q", "choices": ["a", "b"], "answer": 2})", "no index of the 2 choices"},
      {R"({"question": "q", "choices": ["a", "b"], "answer": -1})", "no index"},
      {R"({"question": "q", "choices": ["a", "b"], "answer": "a"})", "no index"},
  };
  for (const auto& [text, part] : cases) EXPECT_THAT(ParseQuestions(text).status().message(), HasSubstr(part)) << text;
  EXPECT_THAT(ParseProblems(R"({"prompt": "p"})").status().message(), HasSubstr("\"tests\""));
  EXPECT_THAT(ParseProblems(R"({"prompt": "p", "tests": "t", "stop": "s"})").status().message(), HasSubstr("\"stop\""));
  EXPECT_THAT(ParseProblems(R"({"prompt": "p", "tests": "t", "stop": ["s"]})")->front().stop, ElementsAre("s"));
  EXPECT_THAT(ParseVoteProblems(R"({"prompt": "p", "answer": 3})").status().message(), HasSubstr("\"answer\""));
  EXPECT_EQ(ParseVoteProblems(R"({"prompt": "p", "answer": "1,000"})")->front().answer, "1,000");
}

}  // namespace
}  // namespace coppice::cli
