#include "engine/prefix_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "model/safetensors_writer.h"

namespace coppice {
namespace {

using ::testing::HasSubstr;

class PrefixFileTest : public ::testing::Test {
 protected:
  PrefixFileTest() {
    prefix_.origin = {.model = "m", .dtype = DType::kBF16, .num_layers = 2, .num_kv_heads = 1, .head_dim = 4};
    prefix_.tokens = {5, 6, 7};
    prefix_.salt = std::string("s\0\xff", 3);  // any bytes
    prefix_.private_begin = 1;
    prefix_.kv.resize(3 * prefix_.origin.bytes_per_token());
    for (size_t i = 0; i < prefix_.kv.size(); ++i) prefix_.kv[i] = static_cast<std::byte>(i);
    EXPECT_TRUE(WritePrefixFile(path_, prefix_).ok());
  }
  ~PrefixFileTest() override { std::filesystem::remove(path_); }
  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Overwrite(const std::string& bytes) const { std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes; }

  const std::string path_ = ::testing::TempDir() + ::testing::UnitTest::GetInstance()->current_test_info()->name();
  StoredPrefix prefix_;
};

TEST_F(PrefixFileTest, WhatIsWrittenIsRead) {
  const auto read = ReadPrefixFile(path_, prefix_.origin);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->tokens, prefix_.tokens);
  EXPECT_EQ(read->salt, prefix_.salt);
  EXPECT_EQ(read->private_begin, 1);
  EXPECT_EQ(read->kv, prefix_.kv);
}

TEST_F(PrefixFileTest, ReplacesPrefixFilesAndEmptyFilesAlone) {
  EXPECT_TRUE(WritePrefixFile(path_, prefix_).ok());
  Overwrite("");
  EXPECT_TRUE(WritePrefixFile(path_, prefix_).ok());
  ASSERT_TRUE(WriteSafetensors(path_, {}, {{"format", "pt"}}).ok());
  for (const std::string& bytes : {Bytes(), std::string("my notes\n")}) {
    Overwrite(bytes);
    const Status status = WritePrefixFile(path_, prefix_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("something else than a prefix"));
    EXPECT_EQ(Bytes(), bytes);
  }
}

TEST_F(PrefixFileTest, OtherModelsDtypesAndModesAreRefusedByName) {
  const auto refuse = [&](const KvOrigin& origin) {
    const auto read = ReadPrefixFile(path_, origin);
    EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
    return read.status().message();
  };
  KvOrigin other = prefix_.origin;
  other.model = "n";
  EXPECT_THAT(refuse(other), HasSubstr("model \"m\", this engine has n"));
  other = prefix_.origin;
  other.dtype = DType::kF32;
  EXPECT_THAT(refuse(other), HasSubstr("KV in \"bf16\", this engine has f32"));
  other = prefix_.origin;
  other.deterministic = true;
  EXPECT_THAT(refuse(other), HasSubstr("mode \"fast\", this engine has deterministic"));

  prefix_.origin.deterministic = true;  // the other way round nothing is promised
  ASSERT_TRUE(WritePrefixFile(path_, prefix_).ok());
  KvOrigin fast = prefix_.origin;
  fast.deterministic = false;
  EXPECT_TRUE(ReadPrefixFile(path_, fast).ok());
  EXPECT_EQ(ReadPrefixFile(path_ + ".no", fast).status().code(), StatusCode::kNotFound);
}

TEST_F(PrefixFileTest, WhatAFileSaysIsShownFitForATerminal) {
  const KvOrigin origin = prefix_.origin;
  prefix_.origin.model = "\x1b[2J\n" + std::string(5000, 'x');
  ASSERT_TRUE(WritePrefixFile(path_, prefix_).ok());
  const std::string message = ReadPrefixFile(path_, origin).status().message();
  EXPECT_THAT(message, HasSubstr("model \"\\x1b[2J\\x0axxx"));
  EXPECT_LT(message.size(), 400u);
}

TEST_F(PrefixFileTest, APrivatePartBeyondTheTokensIsRefused) {
  for (const int32_t begin : {-1, 4}) {  // of three tokens
    prefix_.private_begin = begin;
    ASSERT_TRUE(WritePrefixFile(path_, prefix_).ok());
    const auto read = ReadPrefixFile(path_, prefix_.origin);
    EXPECT_EQ(read.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(read.status().message(), HasSubstr("private_begin is \"" + std::to_string(begin) + "\", expected 0..3"));
  }
}

TEST_F(PrefixFileTest, EveryTruncationAndEveryFlippedBitIsFound) {
  const std::string bytes = Bytes();
  for (size_t length = 1; length < bytes.size(); length += 1 + length / 64) {
    Overwrite(bytes.substr(0, length));
    EXPECT_FALSE(ReadPrefixFile(path_, prefix_.origin).ok()) << length;
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    Overwrite(flipped);
    const auto read = ReadPrefixFile(path_, prefix_.origin);
    if (read.ok()) {  // a blank of the header's padding may have become a character that JSON ignores
      EXPECT_EQ(read->kv, prefix_.kv);
      EXPECT_EQ(read->tokens, prefix_.tokens);
      EXPECT_EQ(read->salt, prefix_.salt);
      EXPECT_EQ(read->private_begin, prefix_.private_begin);
    }
  }
}

}  // namespace
}  // namespace coppice
