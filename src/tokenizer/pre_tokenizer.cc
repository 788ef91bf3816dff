#include "tokenizer/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/check.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

// Backtracking steps of one match. The known kinds need none that grow with the text; a hostile pattern stops here, after about 0.1
// s.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 64 << 10;
constexpr size_t kJitStackStart = 32 << 10, kJitStackMax = 1 << 20;

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

std::string Pcre2Message(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

template <auto kFree>
struct Freer {
  template <class T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};

// What one thread needs to match; not shared.
struct MatchScratch {
  std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)};

  MatchScratch() {
    if (!context || !data) return;
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

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
  return Unimplemented("pre-tokenizer '" + std::string(name) + "': expected one of " + known);
}

struct PreTokenizer::Regex {
  std::unique_ptr<pcre2_code, Freer<pcre2_code_free>> code;
  std::string pattern;

  // Appends the matches and gaps of `text`, which is valid UTF-8.
  Status Split(std::string_view text, const MatchScratch& scratch, std::vector<std::string_view>* pieces) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    size_t piece_begin = 0;  // everything before it is in `pieces`
    const auto cut = [&](size_t end) {
      if (end > piece_begin) pieces->push_back(text.substr(piece_begin, end - piece_begin));
      piece_begin = end;
    };
    for (size_t position = 0; position < text.size();) {
      const int found =
          pcre2_match(code.get(), subject, text.size(), position, PCRE2_NO_UTF_CHECK, scratch.data.get(), scratch.context.get());
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0) {
        return InvalidArgument("the pre-tokenizer pattern cannot split this text: " + Pcre2Message(found) + " at byte " +
                               std::to_string(position) + " of " + std::to_string(text.size()) + ", pattern " + pattern);
      }
      const size_t* match = pcre2_get_ovector_pointer(scratch.data.get());
      const size_t begin = match[0], end = match[1];
      if (end <= begin || end <= position) {  // empty (\K can even make it end early): look again one character later
        position = std::max(position, end);
        if (position < text.size()) position += DecodeUtf8(text.substr(position)).length;
        continue;
      }
      cut(std::max(begin, piece_begin));
      cut(end);
      position = end;
    }
    cut(text.size());
    return OkStatus();
  }
};

Result<PreTokenizer> PreTokenizer::Create(const std::vector<std::string>& patterns) {
  PreTokenizer pre_tokenizer;
  for (const std::string& pattern : patterns) {
    const std::string source = WithUnicodeSpaces(pattern);
    int error = 0;
    size_t error_offset = 0;
    auto regex = std::make_shared<Regex>();
    regex->pattern = pattern;
    regex->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &error_offset, nullptr));
    if (!regex->code) {
      return InvalidArgument("pre-tokenizer pattern " + pattern + ": " + Pcre2Message(error) + " at offset " +
                             std::to_string(error_offset) + "; expected a regular expression that PCRE2 can compile");
    }
    pcre2_jit_compile(regex->code.get(), PCRE2_JIT_COMPLETE);  // no JIT on this machine: the interpreter matches the same
    pre_tokenizer.regexes_.push_back(std::move(regex));
  }
  return pre_tokenizer;
}

Status PreTokenizer::Split(std::string_view text, std::vector<std::string_view>* pieces) const {
  const MatchScratch scratch;
  if (!scratch.data || !scratch.context || !scratch.stack) return ResourceExhausted("no memory for a regex match");

  std::vector<std::string_view> stage, next;
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    if (valid > 0) {
      stage.assign(1, text.substr(0, valid));
      for (const auto& regex : regexes_) {
        next.clear();
        for (std::string_view piece : stage) COPPICE_RETURN_IF_ERROR(regex->Split(piece, scratch, &next));
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
