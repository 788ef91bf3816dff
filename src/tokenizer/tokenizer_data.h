// Data of a model file's tokenizer: read from GGUF, tokenizer.json or a SentencePiece model, used by CreateTokenizer.
// Layer: tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "coppice/tokenizer/tokenizer.h"

namespace coppice {

// One change to the text before it is split. Steps run in order.
struct NormalizerStep {
  enum class Kind : uint8_t {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kStripAccents,   // combining marks go
    kStrip,          // white space at the ends goes
    kPrepend,        // `text`, unless the text is empty
    kReplace,        // matches of `pattern` become `text`
    kCharsMap,       // `text`: a precompiled map of SentencePiece, applied as Hugging Face does, by grapheme
    kSentencePiece,  // SentencePiece's own: the map, then spaces; user-defined tokens stay as they are
  };
  Kind kind = Kind::kNfc;
  std::string pattern, text;
  bool left = true, right = true;  // kStrip
  // kSentencePiece
  bool add_prefix = false;       // a space before the text
  bool prefix_at_start = false;  // only where the whole text begins, not after an added token
  bool collapse_spaces = false;  // none at the ends, runs become one
  bool escape_spaces = true;     // U+2581 for each space
};

// One way to split. Steps run in order, each on the pieces of the one before.
struct PreTokenizerStep {
  enum class Kind : uint8_t {
    kSplit,        // at the matches of `pattern`
    kMetaspace,    // spaces become `replacement`; see `prepend` and `split`
    kPrefixSpace,  // a space before each piece that has none
  };
  // Treatment of the matches; the gaps between them are pieces.
  enum class Behavior : uint8_t { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend : uint8_t { kAlways, kFirst, kNever };  // kFirst: only where the whole text begins

  Kind kind = Kind::kSplit;
  std::string pattern;
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;  // matches are gaps and gaps are matches
  std::string replacement = "\u2581";
  Prepend prepend = Prepend::kAlways;
  bool split = true;  // before each replacement
};

// A token that is found in the text itself, before anything else.
struct AddedToken {
  std::string text;
  int32_t id = -1;
  bool special = false;                 // a control token: matched only where the caller trusts the text, and hidden in output
  bool single_word = false;             // only between characters that are no part of a word
  bool lstrip = false, rstrip = false;  // takes the white space beside it along
  bool normalized = false;              // looked for after normalization
  bool is_mark = false;  // an end of turn or of fill-in-the-middle: as a special one it is text in values (set by CreateTokenizer)
};

// How ids become text again.
struct DecoderRules {
  std::vector<std::pair<std::string, std::string>> replacements;  // in each token's text, in order
  bool byte_fallback = false;                                     // a token "<0x41>" is the byte
  std::string strip = " ";  // a character taken away at the start of the text, up to so many times; -1: all
  int32_t strip_start = 0;
};

struct TokenizerData {
  enum class TokenKind : uint8_t { kNormal, kControl, kUserDefined, kByte, kUnused };

  // "bpe": merges by rank; "spm-bpe": SentencePiece's, any two symbols that make a token merge, best score first; "unigram" and
  // "spm-unigram": the tokens with the highest sum of scores, as Hugging Face and as SentencePiece count it.
  std::string model;
  bool byte_level = true;     // bpe: tokens and merges are written in the byte-level alphabet, and symbols are bytes
  std::string pre_tokenizer;  // a name that GGUF files use ("llama-bpe"); or empty with the steps given
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer_steps;
  std::vector<std::string> tokens;                          // by id, as stored in the file
  std::vector<TokenKind> kinds;                             // by id; special tokens are kControl
  std::vector<double> scores;                               // by id; all but "bpe"; NaN: the token is none of the model
  std::vector<std::pair<std::string, std::string>> merges;  // by rank; bpe
  std::vector<AddedToken> added_tokens;
  DecoderRules decoder;
  bool ignore_merges = false;  // bpe: a piece that is a token stays whole, whatever the merges say
  bool byte_fallback = false;  // a character without a token becomes its bytes, where they have tokens "<0x00>" to "<0xFF>"
  bool fuse_unk = false;       // a run of characters without tokens is one unk
  int32_t bos_id = -1, pad_id = -1;
  int32_t unk_id = -1;  // for what has no token; -1: it is left out
  std::vector<int32_t> eos_ids;
  bool add_bos = false, add_eos = false;
  FimTokens fim;                   // prefix, suffix and middle where the file names them; CreateTokenizer completes it
  std::string chat_template;       // Jinja source; empty: none
  std::string tool_chat_template;  // Tokenizer::Info
};

}  // namespace coppice
