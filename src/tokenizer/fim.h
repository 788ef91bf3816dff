// Fill-in-the-middle: the tokens by which models are shown the text before and behind a gap, and prompts made of them.
// Layer: tokenizer. Bavarian et al., "Efficient Training of Language Models to Fill in the Middle", arXiv 2207.14255, section 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

// Those of `data.fim`, which the file names by their ids; where it names none, the tokens of the first family of models whose
// prefix, suffix and middle are all in the vocabulary, by their texts. The family's other tokens come along.
FimTokens FindFimTokens(const TokenizerData& data);

struct FimFile {
  std::string name, text;
};

// The context beside the text before the gap.
struct FimContext {
  std::string suffix;          // what stands behind the gap
  std::vector<FimFile> files;  // others that the model is shown first

  size_t bytes() const;
};

// INVALID_ARGUMENT where the model has no tokens to fill in the middle with.
Status CheckFim(const Tokenizer& tokenizer);
// The prompt whose continuation stands between `prefix` and the suffix: bos where the model takes one, the files, prefix, suffix
// and middle, or in the order that the model was trained with. The texts of control tokens are text in all that is given. Errors as
// of CheckFim and Tokenizer::Encode.
Result<std::vector<int32_t>> EncodeFim(const Tokenizer& tokenizer, std::string_view prefix, const FimContext& context);

}  // namespace coppice
