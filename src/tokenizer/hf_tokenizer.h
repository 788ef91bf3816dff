// Reads a Hugging Face tokenizer (tokenizer.json and the files beside it) into TokenizerData.
// A field that is not understood is refused by name, never ignored. Layer: tokenizer.
#pragma once

#include <string>

#include "coppice/core/status.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

// The files beside tokenizer.json or tokenizer.model. An empty text: there is no such file.
struct TokenizerConfigFiles {
  std::string tokenizer_config;    // tokenizer_config.json
  std::string added_tokens;        // added_tokens.json: {text: id}
  std::string special_tokens_map;  // special_tokens_map.json: the special tokens' texts, under the keys of tokenizer_config.json
};

// The tokenizer of tokenizer.json, with the special tokens and the chat template that the other files name; without them there are
// no eos ids and no template. As in transformers, what special_tokens_map.json says counts, and before tokenizer_config.json, where
// that one has no "added_tokens_decoder"; tokens of that list count with the properties that they have there; and those, and a bos
// or eos token, that tokenizer.json does not have get the next ids. A pad token that it does not have is ignored, and so is
// added_tokens.json, whose tokens tokenizer.json lists.
// INVALID_ARGUMENT: not the JSON expected. UNIMPLEMENTED names the feature. Special ids that stand elsewhere (config.json,
// generation_config.json) are the caller's to add.
Result<TokenizerData> ParseHuggingFaceTokenizer(const std::string& tokenizer_json, const TokenizerConfigFiles& files);

// Adds the files' added tokens, special tokens and chat template to a tokenizer read from tokenizer.model. The files are as the
// Python ("slow") tokenizers of transformers write them. As in transformers, added_tokens.json and special_tokens_map.json count
// where tokenizer_config.json has no "added_tokens_decoder".
// INVALID_ARGUMENT: not the JSON expected.
Status AddHuggingFaceConfig(const TokenizerConfigFiles& files, TokenizerData* data);

// Drops the added tokens whose ids the model does not have: `vocab_size` and above. Their text is plain text then. Gemma 3 has one
// that stands for images only. INVALID_ARGUMENT where another token has such an id, or where one is put before or after each text.
Status DropAddedTokensBeyond(int32_t vocab_size, TokenizerData* data);

}  // namespace coppice
