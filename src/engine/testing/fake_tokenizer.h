// A tokenizer for tests. Layer: engine, tests only.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace coppice {

// Token i is the text given for it.
class FakeTokenizer final : public Tokenizer {
 public:
  explicit FakeTokenizer(std::vector<std::string> texts) : Tokenizer(Info{}), texts_(std::move(texts)) {}
  using Tokenizer::Encode;
  Result<std::vector<int32_t>> Encode(std::string_view, const EncodeOptions&) const override {
    return Unimplemented("the fake tokenizer only decodes");
  }
  std::string_view TokenBytes(int32_t id, bool) const override {
    return static_cast<size_t>(id) < texts_.size() ? std::string_view(texts_[id]) : std::string_view();
  }

 private:
  std::vector<std::string> texts_;
};

}  // namespace coppice
