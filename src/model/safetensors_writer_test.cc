#include "model/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "model/safetensors.h"

namespace coppice {
namespace {

class SafetensorsWriterTest : public ::testing::Test {
 protected:
  SafetensorsWriterTest() { std::filesystem::create_directory(folder_); }
  ~SafetensorsWriterTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ / name; }
  size_t NumFiles() const { return std::distance(std::filesystem::directory_iterator(folder_), {}); }

  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(SafetensorsWriterTest, WhatIsWrittenIsRead) {
  std::vector<float> values(6);
  std::iota(values.begin(), values.end(), 0.5f);
  const std::vector<uint8_t> bytes = {1, 2, 3};
  ASSERT_TRUE(WriteSafetensors(Path("a"),
                               std::vector<TensorToWrite>{{"w", StoredType::kF32, {2, 3}, std::as_bytes(std::span(values))},
                                                          {"none", StoredType::kU8, {0}, {}},
                                                          {"b", StoredType::kU8, {3}, std::as_bytes(std::span(bytes))}},
                               {{"key", "val\"ue"}})
                  .ok());
  const auto file = SafetensorsFile::Open(Path("a"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(*file->Read<float>("w"), values);
  EXPECT_EQ(file->tensors().at("w").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(*file->Read<uint8_t>("b"), bytes);
  EXPECT_TRUE(file->Read<uint8_t>("none")->empty());
  EXPECT_EQ(file->Metadata()->at("key"), "val\"ue");
  EXPECT_EQ(NumFiles(), 1u);
}

TEST_F(SafetensorsWriterTest, AFailureLeavesTheOldFileAndNothingElse) {
  ASSERT_TRUE(WriteSafetensors(Path("a"), {}, {{"old", "1"}}).ok());
  const Status no_folder = WriteSafetensors(Path("no/such/folder"), {}, {});
  EXPECT_EQ(no_folder.code(), StatusCode::kNotFound);
  EXPECT_THAT(no_folder.message(), ::testing::HasSubstr("No such file"));
  std::filesystem::create_directory(Path("d"));
  EXPECT_FALSE(WriteSafetensors(Path("d"), {}, {{"new", "1"}}).ok());  // a folder is in the way: found at the rename
  EXPECT_EQ(NumFiles(), 2u);
  EXPECT_EQ(SafetensorsFile::Open(Path("a"))->Metadata()->at("old"), "1");
}

}  // namespace
}  // namespace coppice
