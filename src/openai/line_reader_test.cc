// Lines of files of any size, with their places, and of pipes, which may be silent.
#include "openai/line_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "core/file.h"

namespace coppice::openai {
namespace {

using std::chrono::milliseconds;

class LineReaderTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_ = testing::TempDir() + "line_reader_XXXXXX";
};

TEST_F(LineReaderTest, EachLineHasItsPlace) {
  const std::string path = folder_ + "/lines";
  std::mt19937 random(7);
  std::vector<std::string> lines;
  std::string text;
  for (int i = 0; i < 400; ++i) {  // shorter and longer than what is read at once, and than what is kept
    lines.emplace_back(random() % (i % 40 == 0 ? 200'000 : 2'000), static_cast<char>('a' + i % 26));
    text += lines.back() + "\n";
  }
  lines.emplace_back("torn");
  text += lines.back();
  std::ofstream(path) << text;

  constexpr size_t kMost = 100'000;
  LineReader reader = LineReader::Open(path, "the input", kMost).value();
  LineReader::Line line;
  int64_t offset = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    ASSERT_TRUE(reader.HasInput(milliseconds(0)));
    ASSERT_TRUE(reader.Next(&line).value());
    EXPECT_EQ(line.number, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(line.offset, offset);
    EXPECT_EQ(line.size, std::ssize(lines[i]));
    EXPECT_EQ(line.complete, i + 1 < lines.size());
    EXPECT_EQ(line.too_long, lines[i].size() > kMost);
    EXPECT_EQ(line.text, lines[i].substr(0, kMost));
    offset += line.size + 1;
  }
  EXPECT_TRUE(reader.HasInput(milliseconds(0)));  // the end
  EXPECT_FALSE(reader.Next(&line).value());
}

TEST_F(LineReaderTest, APipeThatIsSilentHasNoInput) {
  const std::string path = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  FileDescriptor writer(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_GE(writer.get(), 0);
  LineReader reader = LineReader::Open(path, "the input").value();
  EXPECT_FALSE(reader.HasInput(milliseconds(0)));
  EXPECT_FALSE(reader.HasInput(milliseconds(10)));
  ASSERT_TRUE(WriteAll(writer.get(), "one\ntwo\n", path).ok());
  LineReader::Line line;
  for (const char* const text : {"one", "two"}) {
    EXPECT_TRUE(reader.HasInput(milliseconds(0)));
    ASSERT_TRUE(reader.Next(&line).value());
    EXPECT_EQ(line.text, text);
  }
  EXPECT_FALSE(reader.HasInput(milliseconds(0)));
  writer = FileDescriptor();
  EXPECT_TRUE(reader.HasInput(milliseconds(0)));  // the end
  EXPECT_FALSE(reader.Next(&line).value());
}

TEST_F(LineReaderTest, WhatCannotBeReadIsNamed) {
  EXPECT_EQ(LineReader::Open(folder_ + "/none", "the input").status().message(),
            "cannot read the input " + folder_ + "/none: No such file or directory");
  LineReader::Line line;
  EXPECT_EQ(LineReader::Open(folder_, "the input")->Next(&line).status().message(), "cannot read " + folder_ + ": Is a directory");
}

}  // namespace
}  // namespace coppice::openai
