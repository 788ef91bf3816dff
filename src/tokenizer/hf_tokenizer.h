// Reads a Hugging Face tokenizer (tokenizer.json and tokenizer_config.json) into TokenizerData.
// Byte-level BPE only; what a file asks beyond that is refused by name, never ignored. Layer: tokenizer.
#pragma once

#include <string>

#include "coppice/core/status.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

// The contents of the two files; `tokenizer_config_json` may be empty: then there are no eos ids and no chat template.
// INVALID_ARGUMENT: not the JSON expected. UNIMPLEMENTED names the feature. Special ids that stand elsewhere (config.json,
// generation_config.json) are the caller's to add.
Result<TokenizerData> ParseHuggingFaceTokenizer(const std::string& tokenizer_json, const std::string& tokenizer_config_json);

}  // namespace coppice
