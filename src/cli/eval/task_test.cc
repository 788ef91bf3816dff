// What evaluations read and run: files of questions and programs, and the sandbox.
#include "cli/eval/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "cli/eval/sandbox.h"

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
}

class SandboxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = CheckSandbox("/usr/bin/python3"); !status.ok()) GTEST_SKIP() << status.message();
  }
  static ProgramResult Run(const std::string& program, const SandboxLimits& limits = {.seconds = 20}) {
    const Result<ProgramResult> result = RunProgram("/usr/bin/python3", program, limits);
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    return *result;
  }
};

TEST_F(SandboxTest, PassesWhatComesToItsEnd) {
  EXPECT_EQ(Run("def f(x):\n    return x + 1\nassert f(1) == 2"), ProgramResult::kPassed);
  EXPECT_EQ(Run("print('x' * 10_000_000)"), ProgramResult::kPassed);
  for (const char* failing : {"assert False", "raise SystemExit(0)", "import os; os._exit(0)", "exit()", "syntax error",
                              "import os; os.abort()", "import sys; sys.exit(1)"}) {
    EXPECT_EQ(Run(failing), ProgramResult::kFailed) << failing;
  }
}

TEST_F(SandboxTest, TimeAndMemoryEnd) {
  const auto begin = std::chrono::steady_clock::now();
  for (const char* endless : {"while True: pass", "import time; time.sleep(1000)",
                              "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\nwhile True: pass",
                              "import os\nwhile True:\n  if os.fork() == 0:\n    import time; time.sleep(1000)"})
    EXPECT_NE(Run(endless, {.seconds = 1}), ProgramResult::kPassed) << endless;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  EXPECT_EQ(Run("while True: pass", {.seconds = 1}), ProgramResult::kTimedOut);
  EXPECT_EQ(Run("x = bytearray(1 << 33)"), ProgramResult::kFailed);
}

TEST_F(SandboxTest, NothingOutsideIsSeenOrChanged) {
  EXPECT_EQ(
      Run("import os\nassert sorted(os.listdir('/')) == ['bin', 'dev', 'lib', 'lib64', 'proc', 'tmp', 'usr'], os.listdir('/')\n"
          "assert os.listdir('/tmp') == []\nassert os.getcwd() == '/tmp'\nopen('/tmp/x', 'w').write('y')\n"
          "assert set(os.environ) <= {'PATH', 'PWD', 'LC_CTYPE'}, os.environ"),
      ProgramResult::kPassed);
  for (const char* harm :
       {"open('/usr/x', 'w')", "open('/etc/passwd')", "open('/home')", "import os; os.kill(os.getppid() + 100000, 9)",
        "import socket; socket.create_connection(('127.0.0.1', 1), 1)",
        "import socket; socket.create_connection(('1.1.1.1', 80), 1)"}) {
    EXPECT_EQ(Run(harm), ProgramResult::kFailed) << harm;
  }
  EXPECT_EQ(Run("import os\nassert [p for p in os.listdir('/proc') if p.isdigit()].__len__() <= 3"), ProgramResult::kPassed);
  EXPECT_EQ(Run("import os\nfor fd in range(3, 50):\n  try: os.fstat(fd)\n  except OSError: continue\n  raise AssertionError(fd)"),
            ProgramResult::kPassed);
}

TEST(Sandbox, AnInterpreterThatIsNotThere) { EXPECT_EQ(CheckSandbox("/usr/bin/no-such-python").code(), StatusCode::kUnavailable); }

}  // namespace
}  // namespace coppice::cli
