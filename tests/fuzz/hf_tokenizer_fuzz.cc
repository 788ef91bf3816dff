// Input: tokenizer.json, a NUL byte, tokenizer_config.json, a NUL byte, a text to encode and decode.
#include "tokenizer/hf_tokenizer.h"

#include <utility>

#include "tests/fuzz/fuzz_target.h"
#include "tokenizer/tokenizer.h"

using namespace coppice;
using fuzz::Require;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [tokenizer_json, config_json, text] = fuzz::SplitInput<3>(data, size);
  Result<TokenizerData> parsed = ParseHuggingFaceTokenizer(tokenizer_json, config_json);
  if (!parsed.ok()) return 0;
  Require(parsed->kinds.size() == parsed->tokens.size(), "a token without a kind");
  const auto num_tokens = static_cast<int64_t>(parsed->tokens.size());
  const Result<std::unique_ptr<Tokenizer>> tokenizer = CreateTokenizer(*std::move(parsed));
  if (!tokenizer.ok()) return 0;

  const Result<std::vector<int32_t>> ids = (*tokenizer)->Encode(text);
  if (!ids.ok()) return 0;
  IncrementalDecoder decoder(**tokenizer, /*keep_special=*/true);
  for (const int32_t id : *ids) {
    Require(id >= 0 && id < num_tokens, "an id beyond the vocabulary");
    decoder.Push(id);
  }
  decoder.Finish();
  return 0;
}
