// Reads a SentencePiece model file (tokenizer.model): the pieces, their scores and how text is normalized. The file is one protocol
// buffer, sentencepiece_model.proto's ModelProto. Layer: tokenizer.
//
// libsentencepiece is not used: it reads no tokenizer.json, keeps ModelProto to itself and trusts the trie in the file.
#pragma once

#include <string_view>

#include "coppice/core/status.h"
#include "tokenizer/tokenizer_data.h"

namespace coppice {

// DATA_LOSS: truncated or no protocol buffer. UNIMPLEMENTED names the kind of model or the option.
Result<TokenizerData> ParseSentencePieceModel(std::string_view file);

}  // namespace coppice
