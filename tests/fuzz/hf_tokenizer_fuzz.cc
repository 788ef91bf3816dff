// Input: tokenizer.json, tokenizer_config.json, added_tokens.json, special_tokens_map.json and a text to encode and decode, a NUL
// byte between each two. The files beside tokenizer.json are read beside a small tokenizer.model, too.
#include "tokenizer/hf_tokenizer.h"

#include <utility>

#include "tests/fuzz/fuzz_target.h"
#include "tokenizer/tokenizer.h"

using namespace coppice;
using fuzz::Require;

namespace {

// The tokenizer that ParseSentencePieceModel makes of a model of ten tokens.
TokenizerData SentencePieceTokenizer() {
  using TokenKind = TokenizerData::TokenKind;
  TokenizerData data{.model = "spm-bpe", .byte_level = false};
  const auto add = [&](const char* text, TokenKind kind) {
    data.tokens.emplace_back(text);
    data.kinds.push_back(kind);
    data.scores.push_back(-static_cast<double>(data.tokens.size()));
  };
  for (const char* text : {"<unk>", "<s>", "</s>"}) add(text, TokenKind::kControl);
  for (const char* text : {"\u2581a", "ab", "\u2581", "a", "b", "<", ">"}) add(text, TokenKind::kNormal);
  data.normalizer = {{.kind = NormalizerStep::Kind::kSentencePiece, .add_prefix = true}};
  data.decoder = {.replacements = {{"\u2581", " "}}, .byte_fallback = true, .strip_start = 1};
  data.unk_id = 0, data.bos_id = 1, data.eos_ids = {2};
  return data;
}

void EncodeAndDecode(Result<TokenizerData> parsed, const std::string& text) {
  if (!parsed.ok()) return fuzz::RequireOneLine(parsed.status());
  Require(parsed->kinds.size() == parsed->tokens.size(), "a token without a kind");
  const auto num_tokens = static_cast<int64_t>(parsed->tokens.size());
  const Result<std::unique_ptr<Tokenizer>> tokenizer = CreateTokenizer(*std::move(parsed));
  if (!tokenizer.ok()) return fuzz::RequireOneLine(tokenizer.status());

  const Result<std::vector<int32_t>> ids = (*tokenizer)->Encode(text);
  if (!ids.ok()) return;
  IncrementalDecoder decoder(**tokenizer, /*keep_special=*/true);
  for (const int32_t id : *ids) {
    Require(id >= 0 && id < num_tokens, "an id beyond the vocabulary");
    decoder.Push(id);
  }
  decoder.Finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [tokenizer_json, config, added_tokens, special_tokens_map, text] = fuzz::SplitInput<5>(data, size);
  const TokenizerConfigFiles files = {
      .tokenizer_config = config, .added_tokens = added_tokens, .special_tokens_map = special_tokens_map};
  EncodeAndDecode(ParseHuggingFaceTokenizer(tokenizer_json, files), text);

  TokenizerData sentence_piece = SentencePieceTokenizer();
  const Status added = AddHuggingFaceConfig(files, &sentence_piece);
  EncodeAndDecode(added.ok() ? Result<TokenizerData>(std::move(sentence_piece)) : Result<TokenizerData>(added), text);
  return 0;
}
