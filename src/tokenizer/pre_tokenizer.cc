#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "core/check.h"
#include "core/quoted.h"
#include "tokenizer/regex.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

constexpr char kGpt2Pattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kOneDigitPattern[] = R"(\p{N})";
constexpr char kLlama3Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// PCRE2's \s counts U+180E as a space; Unicode (since 6.3) and so the tokenizers that trained with these patterns do not.
std::string WithUnicodeSpaces(std::string_view pattern) {
  constexpr std::string_view kSpaces = R"(\t-\r\x{85}\p{Z})";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\' || i + 1 == pattern.size()) {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      out += c;
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's') {
      out.append(in_class ? "" : "[").append(kSpaces).append(in_class ? "" : "]");
    } else if (escaped == 'S' && !in_class) {
      out.append("[^").append(kSpaces).append("]");
    } else {
      out.append({'\\', escaped});
    }
  }
  return out;
}

}  // namespace

Result<PreTokenizerKind> FindPreTokenizerKind(std::string_view name) {
  struct Entry {
    std::vector<std::string_view> names;
    PreTokenizerKind kind;
  };
  // The aliases are GGUF names of tokenizers that split alike. Hugging Face's own Qwen2 files ask for NFC, so the kind does.
  static const std::vector<Entry> kKinds = {
      {{"gpt2", "gpt-2", "phi-2", "olmo", "mpt", "jais"}, {{kGpt2Pattern}}},
      {{"llama-3", "llama3", "llama-v3", "llama-bpe"}, {{kLlama3Pattern}, false, true}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell"}, {{kOneDigitPattern, kGpt2Pattern}}},
      {{"qwen2"}, {{kQwen2Pattern}, true}},
      {{"deepseek-r1-qwen"}, {{kQwen2Pattern}}},
  };
  std::string known;
  for (const Entry& entry : kKinds) {
    for (std::string_view candidate : entry.names) {
      if (candidate == name) return entry.kind;
      known.append(known.empty() ? "" : ", ").append(candidate);
    }
  }
  return Unimplemented("pre-tokenizer " + Quoted(name) + ": expected one of " + known);
}

struct PreTokenizer::Splitter {
  Regex regex;
  std::string pattern;

  // Appends the matches and gaps of `text`, which is valid UTF-8.
  Status Split(std::string_view text, Regex::Scratch& scratch, std::vector<std::string_view>* pieces) const {
    size_t piece_begin = 0;  // everything before it is in `pieces`
    const auto cut = [&](size_t end) {
      if (end > piece_begin) pieces->push_back(text.substr(piece_begin, end - piece_begin));
      piece_begin = end;
    };
    for (size_t position = 0; position < text.size();) {
      std::optional<Regex::Match> match;
      if (const Status status = regex.Find(text, position, scratch, &match); !status.ok()) {
        return InvalidArgument("the pre-tokenizer pattern cannot split this text: " + status.message() + ", pattern " +
                               Quoted(pattern));
      }
      if (!match) break;
      if (match->end <= match->begin || match->end <= position) {  // empty (\K can even make it end early): look again one later
        position = std::max(position, match->end);
        if (position < text.size()) position += DecodeUtf8(text.substr(position)).length;
        continue;
      }
      cut(std::max(match->begin, piece_begin));
      cut(match->end);
      position = match->end;
    }
    cut(text.size());
    return OkStatus();
  }
};

Result<PreTokenizer> PreTokenizer::Create(const std::vector<std::string>& patterns) {
  PreTokenizer pre_tokenizer;
  for (const std::string& pattern : patterns) {
    Result<Regex> regex = Regex::Compile(WithUnicodeSpaces(pattern));
    if (!regex.ok()) return InvalidArgument("pre-tokenizer pattern " + Quoted(pattern) + ": " + regex.status().message());
    pre_tokenizer.splitters_.push_back(std::make_shared<Splitter>(Splitter{*std::move(regex), pattern}));
  }
  return pre_tokenizer;
}

Status PreTokenizer::Split(std::string_view text, std::vector<std::string_view>* pieces) const {
  COPPICE_ASSIGN_OR_RETURN(Regex::Scratch scratch, Regex::Scratch::Create());
  std::vector<std::string_view> stage, next;
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    if (valid > 0) {
      stage.assign(1, text.substr(0, valid));
      for (const auto& splitter : splitters_) {
        next.clear();
        for (std::string_view piece : stage) COPPICE_RETURN_IF_ERROR(splitter->Split(piece, scratch, &next));
        stage.swap(next);
      }
      pieces->insert(pieces->end(), stage.begin(), stage.end());
      text.remove_prefix(valid);
    }
    size_t invalid = 0;
    while (invalid < text.size()) {
      const Utf8Char c = DecodeUtf8(text.substr(invalid));
      if (c.kind == Utf8Kind::kValid) break;
      invalid += c.length;
    }
    if (invalid > 0) pieces->push_back(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
  return OkStatus();
}

}  // namespace coppice
