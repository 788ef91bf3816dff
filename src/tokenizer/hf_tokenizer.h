// Reads a Hugging Face tokenizer (tokenizer.json and tokenizer_config.json) into TokenizerData.
// What a file asks that is not understood is refused by name, never ignored. Layer: tokenizer.
#pragma once

#include <string>

#include "coppice/core/status.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

// The contents of the two files; `tokenizer_config_json` may be empty: then there are no eos ids and no chat template.
// INVALID_ARGUMENT: not the JSON expected. UNIMPLEMENTED names the feature. Special ids that stand elsewhere (config.json,
// generation_config.json) are the caller's to add.
Result<TokenizerData> ParseHuggingFaceTokenizer(const std::string& tokenizer_json, const std::string& tokenizer_config_json);

// What tokenizer_config.json adds to a tokenizer read from another file (tokenizer.model): special tokens and the chat template.
Status AddHuggingFaceConfig(const std::string& tokenizer_config_json, TokenizerData* data);

}  // namespace coppice
