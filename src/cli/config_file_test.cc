// Which of command line and file wins, and what a file may hold.
#include "cli/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "cli/parsed_option.h"

namespace coppice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ConfigFileTest : public ::testing::Test {
 protected:
  ConfigFileTest() {
    app_.add_option("--port", port_)->envname("COPPICE_CONFIG_FILE_TEST_PORT");
    app_.add_option("-s,--size", size_)->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
    app_.add_option("--name", names_)->delimiter(',');
    app_.add_flag("--loud", loud_);
    app_.add_option("--keys", keys_)->check(NotEmpty());
  }
  ~ConfigFileTest() override { std::remove(path_.c_str()); }

  Status Apply(const std::string& arguments, const std::string& text) {
    std::ofstream(path_) << text;
    app_.parse(arguments);
    return ApplyConfigFile(app_, path_);
  }
  std::string Message(const std::string& text) { return Apply("", text).message(); }

  const std::string path_ = ::testing::TempDir() + "config_file_test." + std::to_string(getpid());
  CLI::App app_{"", "serve"};
  int port_ = 1;
  uint64_t size_ = 0;
  std::vector<std::string> names_;
  bool loud_ = false;
  std::string keys_;
};

TEST_F(ConfigFileTest, GivesWhatTheCommandLineDoesNot) {
  const Status status = Apply("--port 7", "# ours\nport = 8\nsize = \"2KiB\"\nname = [\"a b\", \"c\"]\nloud = true\n");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(port_, 7);
  EXPECT_EQ(size_, 2048u);
  EXPECT_THAT(names_, ElementsAre("a b", "c"));
  EXPECT_TRUE(loud_);
}

TEST_F(ConfigFileTest, TheEnvironmentComesBeforeTheFile) {
  setenv("COPPICE_CONFIG_FILE_TEST_PORT", "9", 1);
  const Status status = Apply("", "port = 8\nloud = false");
  unsetenv("COPPICE_CONFIG_FILE_TEST_PORT");
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(port_, 9);
  EXPECT_FALSE(loud_);
}

TEST_F(ConfigFileTest, ErrorsNameFileAndOption) {
  EXPECT_THAT(Message("prot = 8"), HasSubstr(path_ + ": prot is no option of coppice serve"));
  EXPECT_THAT(Message("port = many"), HasSubstr(path_ + ": port: "));
  EXPECT_THAT(Message("[other]\nport = 8"), HasSubstr("no option"));
  EXPECT_THAT(Message("config = \"x\""), HasSubstr("no option"));
  EXPECT_THAT(Message("s = 8"), HasSubstr("no option"));
  EXPECT_THAT(Message("keys = \"\""), HasSubstr("keys"));
  EXPECT_THAT(ApplyConfigFile(app_, path_ + ".none").message(), HasSubstr(".none"));
}

TEST_F(ConfigFileTest, NothingStandsThereTwice) {
  EXPECT_THAT(Message("port = 8\nloud = true\nport = 9"), HasSubstr("port stands there twice"));
  EXPECT_THAT(Message("size = 1\nsize = 2"), HasSubstr("size"));
}

}  // namespace
}  // namespace coppice::cli
