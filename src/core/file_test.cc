#include "core/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

namespace coppice {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "coppice-file-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = fs::canonical(name);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static mode_t Mode(const std::string& path) {
    struct stat facts = {};
    EXPECT_EQ(stat(path.c_str(), &facts), 0);
    return facts.st_mode & 07777;
  }

  fs::path folder_;
};

TEST_F(FileTest, ResolvesLinksToWhereTheFileIs) {
  EXPECT_EQ(ResolveOutput(Path("new")).value(), Path("new"));
  std::ofstream(Path("file")) << "x";
  fs::create_symlink("file", Path("link"));
  fs::create_symlink("absent", Path("dangling"));
  fs::create_symlink("dangling", Path("to-dangling"));
  EXPECT_EQ(ResolveOutput(Path("link")).value(), Path("file"));
  EXPECT_EQ(ResolveOutput(Path("dangling")).value(), Path("absent"));
  EXPECT_EQ(ResolveOutput(Path("to-dangling")).value(), Path("absent"));
}

TEST_F(FileTest, RefusesWhatIsNoRegularFile) {
  const auto refused = [](const std::string& path, const char* why) {
    const Status status = ResolveOutput(path).status();
    EXPECT_FALSE(status.ok()) << path;
    EXPECT_THAT(status.message(), HasSubstr(why));
  };
  refused(folder_.string(), "a folder");
  refused(Path("absent/file"), "No such file");
  refused(Path("absent/"), "No such file");
  refused("", "No such file");
  refused("-", "standard output");
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  refused(Path("pipe"), "a pipe");
  fs::create_symlink("pipe", Path("to-pipe"));
  refused(Path("to-pipe"), "a pipe");
  fs::create_symlink("loop", Path("loop"));
  refused(Path("loop"), "levels of symbolic links");
  refused("/dev/null", "a device");
  if (mknod(Path("null").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) refused(Path("null"), "a device");  // as root
}

TEST_F(FileTest, RefusesTheFileThatStandardOutputGoesTo) {
  const int saved = dup(STDOUT_FILENO);
  const int file = open(Path("log").c_str(), O_CREAT | O_WRONLY, 0600);
  dup2(file, STDOUT_FILENO);
  const Status status = ResolveOutput(Path("log")).status();
  dup2(saved, STDOUT_FILENO);
  close(saved);
  close(file);
  EXPECT_THAT(status.message(), HasSubstr("standard output"));
}

TEST_F(FileTest, AReplacementIsWholeOrNotThereAtAll) {
  ASSERT_TRUE(ReplaceFile(Path("file"), "old").ok());
  {
    FileReplacement abandoned = FileReplacement::Begin(Path("file")).value();
    ASSERT_TRUE(abandoned.Write(std::as_bytes(std::span("new"))).ok());
    EXPECT_EQ(Read(Path("file")), "old");
  }
  EXPECT_EQ(Read(Path("file")), "old");
  ASSERT_TRUE(ReplaceFile(Path("file"), "new").ok());
  EXPECT_EQ(Read(Path("file")), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);  // nothing is left behind
}

TEST_F(FileTest, PermissionsFollowTheUmaskAndTheFileBefore) {
  const mode_t before = umask(027);
  ASSERT_TRUE(ReplaceFile(Path("file"), "x").ok());
  umask(before);
  EXPECT_EQ(Mode(Path("file")), 0640u);
  fs::permissions(Path("file"), fs::perms(0604));
  ASSERT_TRUE(ReplaceFile(Path("file"), "y").ok());
  EXPECT_EQ(Mode(Path("file")), 0604u);
}

TEST_F(FileTest, ReadsRegularFilesOnly) {
  ASSERT_TRUE(ReplaceFile(Path("file"), "text").ok());
  EXPECT_EQ(ReadRegularFile(Path("file"), 4).value(), "text");
  EXPECT_EQ(OpenRegularFile(Path("file"))->size, 4u);
  EXPECT_THAT(ReadRegularFile(Path("file"), 3).status().message(), HasSubstr("4 bytes, expected at most 3"));
  fs::create_symlink("file", Path("link"));
  EXPECT_EQ(ReadRegularFile(Path("link"), 4).value(), "text");
  EXPECT_THAT(ReadRegularFile(Path("link"), 4, Links::kRefused).status().message(), HasSubstr("a symbolic link"));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);  // without a writer: nothing waits for one
  EXPECT_THAT(ReadRegularFile(Path("pipe"), 4).status().message(), HasSubstr("a pipe"));
  EXPECT_THAT(ReadRegularFile(folder_.string(), 4).status().message(), HasSubstr("a folder"));
  EXPECT_THAT(ReadRegularFile("/dev/zero", 4).status().message(), HasSubstr("a device"));
  EXPECT_EQ(ReadRegularFile(Path("none"), 4).status().code(), StatusCode::kNotFound);
}

TEST_F(FileTest, PrivateFolders) {
  const mode_t before = umask(0);
  for (const char* path : {"above/private", "above/other/"}) EXPECT_TRUE(MakePrivateFolder(Path(path)).ok()) << path;
  umask(before);
  EXPECT_EQ(Mode(Path("above")), 0777u);
  EXPECT_EQ(Mode(Path("above/private")), 0700u);
  EXPECT_EQ(Mode(Path("above/other")), 0700u);
  fs::permissions(Path("above/private"), fs::perms(0750));
  EXPECT_TRUE(MakePrivateFolder(Path("above/private")).ok());
  EXPECT_EQ(Mode(Path("above/private")), 0750u) << "a folder that is there is its owner's choice";
  fs::create_directory_symlink("private", Path("above/link"));
  EXPECT_TRUE(MakePrivateFolder(Path("above/link")).ok());
  ASSERT_TRUE(ReplaceFile(Path("file"), "x").ok());
  EXPECT_FALSE(MakePrivateFolder(Path("file")).ok());
  EXPECT_FALSE(MakePrivateFolder(Path("file/folder")).ok());
}

TEST_F(FileTest, WhatOthersMayDo) {
  ASSERT_TRUE(ReplaceFile(Path("file"), "x").ok());
  const auto others = [&](int mode) {
    fs::permissions(Path("file"), fs::perms(mode));
    const OthersAccess access = AccessOfOthers(Path("file")).value();
    return std::pair(access.read, access.write);
  };
  EXPECT_EQ(others(0600), std::pair(false, false));
  EXPECT_EQ(others(0640), std::pair(true, false));
  EXPECT_EQ(others(0604), std::pair(true, false));
  EXPECT_EQ(others(0620), std::pair(false, true));
  EXPECT_EQ(others(0666), std::pair(true, true));
  EXPECT_FALSE(AccessOfOthers(Path("none")).ok());
}

TEST_F(FileTest, AFullDiskIsAnError) {
  const FileDescriptor full(open("/dev/full", O_WRONLY));
  ASSERT_GE(full.get(), 0);
  const Status status = WriteAll(full.get(), "x", "the file");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("cannot write to the file: No space left"));
}

}  // namespace
}  // namespace coppice
