// What a model file says about its tokenizer; filled by model/checkpoint, read by Tokenizer::Create.
// Layer: tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace coppice {

struct TokenizerData {
  enum class TokenKind : uint8_t { kNormal, kControl, kUserDefined, kByte, kUnused };

  std::string model;          // "bpe": byte-level BPE
  std::string pre_tokenizer;  // "gpt2", "llama-3", "smollm", "qwen2" or a GGUF alias; or empty with pre_tokenizer_patterns given
  std::vector<std::string> pre_tokenizer_patterns;  // regexes of tokenizer.json, applied in order (split isolated)
  bool normalize_nfc = false;                       // text is brought to NFC first; the kind "qwen2" implies it
  bool ignore_merges = false;       // a piece that is a token stays whole, whatever the merges say; the kind "llama-3" implies it
  std::vector<std::string> tokens;  // by id; byte-level BPE alphabet as stored in the file
  std::vector<TokenKind> kinds;     // by id; special tokens are kControl
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  int32_t bos_id = -1, unk_id = -1, pad_id = -1;
  std::vector<int32_t> eos_ids;
  bool add_bos = false, add_eos = false;
  std::string chat_template;  // Jinja source; empty: none
};

}  // namespace coppice
