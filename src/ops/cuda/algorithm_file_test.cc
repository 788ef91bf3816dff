// The file of measured algorithms, without a device. Layer: ops/cuda.
#include "ops/cuda/algorithm_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

namespace coppice::ops::cuda {
namespace {

using Kind = MeasuredAlgorithm::Kind;

constexpr AlgorithmKey kKey = {.n = 6144, .k = 4096};

class AlgorithmFileTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }
  const std::string folder_ = ::testing::TempDir() + "/algorithms-" + std::to_string(std::random_device()());
  const std::string path_ = AlgorithmFile::DefaultPath(folder_, "NVIDIA H200", 130100);
};

TEST_F(AlgorithmFileTest, WhatIsSavedIsReadAgain) {
  AlgorithmFile file(path_, "header");
  const MeasuredAlgorithm few = {.kind = Kind::kLibrary, .code = {1, 0xffffffffffffffffu, 3}};
  const MeasuredAlgorithm many = {.kind = Kind::kOurs};
  file.Set(kKey, 16, few);
  file.Set(kKey, 64, many);
  ASSERT_TRUE(file.Save().ok());
  const AlgorithmFile again(path_, "header");
  for (const int64_t rows : {9, 16}) {
    const MeasuredAlgorithm* found = again.Find(kKey, rows);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->code, few.code);
    EXPECT_EQ(found->kind, Kind::kLibrary);
  }
  EXPECT_EQ(again.Find(kKey, 8), nullptr) << "measured for twice as many rows";
  EXPECT_EQ(again.Find(kKey, 17), nullptr);
  ASSERT_NE(again.Find(kKey, 33), nullptr);
  EXPECT_EQ(again.Find(kKey, 33)->kind, Kind::kOurs);
  EXPECT_EQ(again.Find(kKey, 65), nullptr);
  EXPECT_EQ(again.FindExact(kKey, 17), nullptr);
  AlgorithmKey other = kKey;
  other.accumulates = true;
  EXPECT_EQ(again.Find(other, 1), nullptr);
}

TEST_F(AlgorithmFileTest, WhatAnotherProcessSavedStays) {
  AlgorithmFile one(path_, "header"), other(path_, "header");
  one.Set(kKey, 32, {.kind = Kind::kOurs});
  other.Set(kKey, 64, {.kind = Kind::kOurs});
  ASSERT_TRUE(one.Save().ok());
  ASSERT_TRUE(other.Save().ok());
  const AlgorithmFile again(path_, "header");
  EXPECT_NE(again.FindExact(kKey, 32), nullptr);
  EXPECT_NE(again.FindExact(kKey, 64), nullptr);
}

TEST_F(AlgorithmFileTest, AnotherVersionsFileIsAsNone) {
  AlgorithmFile file(path_, "version 1");
  file.Set(kKey, 1, {});
  ASSERT_TRUE(file.Save().ok());
  EXPECT_EQ(AlgorithmFile(path_, "version 2").Find(kKey, 1), nullptr);
}

TEST_F(AlgorithmFileTest, LinesThatCannotBeReadAreLeftOut) {
  AlgorithmFile file(path_, "header");
  file.Set(kKey, 8, {});
  ASSERT_TRUE(file.Save().ok());
  std::ofstream(path_, std::ios::app) << "bf16 f32 0 6144 4096 1 1 0 1 2\nnonsense\nbf16 f99 0 1 1 1 0 0 0 0 0 0 0 0 0 0\n"
                                      << "bf16 f32 0 6144 4096 2 3 0 0 0 0 0 0 0 0\n";
  const AlgorithmFile again(path_, "header");
  EXPECT_EQ(again.FindExact(kKey, 1), nullptr);
  EXPECT_EQ(again.FindExact(kKey, 2), nullptr) << "of a kind that there is not";
  EXPECT_NE(again.FindExact(kKey, 8), nullptr);
}

TEST_F(AlgorithmFileTest, AFolderThatCannotBeWrittenIsNamed) {
  std::ofstream(folder_) << "a file where the folder should be";
  const AlgorithmFile file(path_, "header");
  const Status status = file.Save();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find(path_), std::string::npos);
}

}  // namespace
}  // namespace coppice::ops::cuda
