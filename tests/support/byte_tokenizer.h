// A tokenizer of bytes with a chat template, for tests of what lies around one. Layer: tests.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coppice/tokenizer/tokenizer.h"

namespace coppice::testing {

// Token i is byte i.
class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(std::string chat_template) : ByteTokenizer(Info{.chat_template = std::move(chat_template)}) {}
  explicit ByteTokenizer(Info info) : Tokenizer(std::move(info)) {
    for (int byte = 0; byte < 256; ++byte) bytes_.push_back(static_cast<char>(byte));
  }
  using Tokenizer::Encode;
  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions&) const override {
    std::vector<int32_t> ids;
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    return ids;
  }
  std::string_view TokenBytes(int32_t id, bool) const override {
    return std::string_view(bytes_).substr(static_cast<size_t>(id), 1);
  }

 private:
  std::string bytes_;
};

}  // namespace coppice::testing
