// Reads the fixtures of tests/data/tokenizer (made by make_fixtures.py there). Tests of this layer only.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tokenizer/hf_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace coppice {

inline std::string ReadFixture(const std::string& name) {
  const std::string path = std::string(COPPICE_TEST_DATA) + "/tokenizer/" + name;
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << "cannot read " << path;
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

inline TokenizerData FixtureData() { return ParseHuggingFaceTokenizer(ReadFixture("tokenizer.json"), {}).value(); }

// The fixture's vocabulary with another kind of pre-tokenizer, as a GGUF file would name it.
inline std::unique_ptr<Tokenizer> FixtureTokenizer(const std::string& kind) {
  TokenizerData data = FixtureData();
  data.pre_tokenizer = kind;
  data.pre_tokenizer_steps.clear();
  data.normalizer.clear();
  return CreateTokenizer(std::move(data)).value();
}

}  // namespace coppice
