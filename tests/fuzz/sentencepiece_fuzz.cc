// Input: a text to encode and decode, a NUL byte, a SentencePiece model (tokenizer.model).
#include <utility>

#include "tests/fuzz/fuzz_target.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/tokenizer.h"

using namespace coppice;
using fuzz::Require;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [text, model] = fuzz::SplitInput<2>(data, size);
  Result<TokenizerData> parsed = ParseSentencePieceModel(model);
  if (!parsed.ok()) {
    fuzz::RequireOneLine(parsed.status());
    return 0;
  }
  const auto num_tokens = static_cast<int64_t>(parsed->tokens.size());
  const Result<std::unique_ptr<Tokenizer>> tokenizer = CreateTokenizer(*std::move(parsed));
  if (!tokenizer.ok()) {
    fuzz::RequireOneLine(tokenizer.status());
    return 0;
  }
  const Result<std::vector<int32_t>> ids = (*tokenizer)->Encode(text);
  if (!ids.ok()) return 0;
  for (const int32_t id : *ids) Require(id >= 0 && id < num_tokens, "an id beyond the vocabulary");
  (void)(*tokenizer)->Decode(*ids, /*keep_special=*/true);
  return 0;
}
