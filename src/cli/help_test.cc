#include "cli/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "cli/terminal.h"

namespace coppice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

CommandInfo Program() {
  const OptionInfo help = {.names = {"-h", "--help"}, .help = "Print this help", .group = "Options"};
  CommandInfo run = {
      .path = "run",
      .help = "Sample n continuations of one prompt, whose KV is stored and read once for all of them, whatever they are",
      .arguments = {{.names = {"input"}, .value = "TEXT", .help = "a | \\$b", .required = true}},
      .options = {help,
                  {.names = {"-n", "--samples"}, .value = "N", .help = "Samples (default 1)", .group = kSamplingGroup},
                  {.names = {"--device"}, .value = "TEXT", .choices = {"cpu", "cuda"}, .help = "Where", .group = kModelGroup},
                  {.names = {"--page-size"}, .value = "N", .help = "Tokens", .group = kBatchingGroup}}};
  return {.help = "Coppice: shares", .options = {help}, .commands = {run}};
}

TEST(Help, EverydayGroupsFirstAndOthersOnlyIfAllIsAskedFor) {
  const CommandInfo run = Program().commands.front();
  EXPECT_THAT(GroupsOf(run), ElementsAre(kSamplingGroup, kModelGroup, "Options", kBatchingGroup));
  const std::string everyday = FormatHelp(run, 80, false), all = FormatHelp(run, 80, true);
  EXPECT_THAT(everyday, HasSubstr("\nUsage: coppice run [OPTIONS] input\n"));
  EXPECT_THAT(everyday, HasSubstr("\nSampling:\n  -n, --samples N         Samples (default 1)\n"));
  EXPECT_THAT(everyday, HasSubstr("  --device cpu|cuda       Where\n"));
  EXPECT_THAT(everyday, Not(HasSubstr("--page-size")));
  EXPECT_THAT(everyday, HasSubstr("More with --help-all: Sharing, memory and batching."));
  EXPECT_THAT(all, HasSubstr("--page-size N"));
}

TEST(Help, NoLineIsLongerThanTheTerminal) {
  for (const int columns : {50, 80}) {
    std::istringstream lines(FormatHelp(Program().commands.front(), columns, true));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(DisplayColumns(line), columns) << line;
  }
}

TEST(Wrap, WordsThatAreTooLongStayWhole) {
  EXPECT_THAT(Wrap("one two  three", 7), ElementsAre("one two", "three"));
  EXPECT_THAT(Wrap("a-very-long-word b", 5), ElementsAre("a-very-long-word", "b"));
  EXPECT_THAT(Wrap("one\ntwo", 20), ElementsAre("one", "two"));
  EXPECT_THAT(Wrap("", 5), ElementsAre(""));
}

TEST(FoldRow, AHeadAndItsRowsBreakAtTheSameCells) {
  const std::vector<std::string> head = {"prompt", "   n", "sharing"}, row = {"   512", "   8", "tree   "};
  EXPECT_EQ(FoldRow(head, 19), "prompt    n sharing\n");
  EXPECT_EQ(FoldRow(head, 18), "prompt    n\n    sharing\n");
  EXPECT_EQ(FoldRow(row, 18), "   512    8\n    tree   \n");
  EXPECT_EQ(FoldRow(row, 5), "   512\n       8\n    tree   \n");
}

TEST(Nearest, SlipsOfTheFingerAndBeginnings) {
  const std::vector<std::string> commands = {"run", "serve", "batch", "--temperature", "--top-p"};
  EXPECT_EQ(Nearest("serv", commands), "serve");
  EXPECT_EQ(Nearest("bacth", commands), "batch");
  EXPECT_EQ(Nearest("--temprature", commands), "--temperature");
  EXPECT_EQ(Nearest("--temp", commands), "--temperature");
  EXPECT_EQ(Nearest("xyz", commands), "");
  EXPECT_EQ(Nearest("", commands), "");
}

TEST(Generated, TablesAndTroffEscapeWhatMeansSomethingThere) {
  EXPECT_THAT(MarkdownReference(Program()), HasSubstr("| `input` | a \\| \\\\$b |"));
  EXPECT_THAT(MarkdownReference(Program()), HasSubstr("| `--device cpu\\|cuda` | Where |"));
  EXPECT_THAT(ManPage(Program(), "1.0"), HasSubstr(".B \\-n, \\-\\-samples N\n"));
}

TEST(Completion, EachShellKnowsCommandsOptionsAndChoices) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Result<std::string> script = CompletionScript(Program(), shell);
    ASSERT_TRUE(script.ok());
    for (const char* word : {"run", "samples", "page-size"}) EXPECT_THAT(*script, HasSubstr(word)) << shell;
  }
  EXPECT_THAT(*CompletionScript(Program(), "bash"), HasSubstr("\"run --device\") candidates=\"cpu cuda\" ;;"));
  EXPECT_FALSE(CompletionScript(Program(), "tcsh").ok());
}

}  // namespace
}  // namespace coppice::cli
