// Encoders of one piece of text into ids: byte-pair encoding or a unigram model. Layer: tokenizer.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace coppice {

// Immutable: safe to use from several threads.
class ModelEncoder {
 public:
  virtual ~ModelEncoder() = default;
  // Appends the ids of `piece`. Without `with_control` its text is none of a control token, whatever the vocabulary has: such a
  // token is cut into others.
  virtual void Encode(std::string_view piece, bool with_control, std::vector<int32_t>* ids) const = 0;
};

}  // namespace coppice
