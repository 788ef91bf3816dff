#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coppice {
namespace {

using ::testing::HasSubstr;

const std::string kModels = COPPICE_TEST_DATA "/models/";

TEST(SafetensorsTest, ReadsExpectedValuesOfAFixture) {
  const Result<SafetensorsFile> file = SafetensorsFile::Open(kModels + "llama-gqa/expected.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const std::vector<int32_t> prompt = file->Read<int32_t>("prompt").value();
  const std::vector<float> logits = file->Read<float>("logits").value();
  ASSERT_EQ(prompt.size(), 57u);
  EXPECT_EQ(logits.size(), 57u * 320u);
  EXPECT_EQ(file->tensors().at("logits").shape, (std::vector<int64_t>{57, 320}));
  for (const int32_t id : prompt) EXPECT_TRUE(id >= 0 && id < 320);

  EXPECT_EQ(file->Read<float>("logitz").status().code(), StatusCode::kNotFound);
  const Status wrong_type = file->Read<int64_t>("prompt").status();
  EXPECT_EQ(wrong_type.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(wrong_type.message(), HasSubstr("has element type I32, but I64 was asked for"));
}

}  // namespace
}  // namespace coppice
