#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "core/check.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/chars_map.h"
#include "tokenizer/regex.h"
#include "tokenizer/regex_syntax.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

using Kind = NormalizerStep::Kind;

// Of all steps together. Unicode's own forms make a character at most 11 times as long (U+FDFA under NFKC).
constexpr size_t kMostGrowth = 64, kAnyText = 64 << 10;

Status TooLong(size_t most) {
  return InvalidArgument("the tokenizer's normalizer makes this text longer than " + std::to_string(most) +
                         " bytes; expected at most " + std::to_string(kMostGrowth) + " times its length");
}

std::string UnicodeForm(std::string_view text, int form) {
  utf8proc_uint8_t* made = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &made,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | form));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  return length >= 0 ? std::string(reinterpret_cast<const char*>(made), static_cast<size_t>(length)) : std::string(text);
}

template <class Map>  // void(char32_t, std::string*)
std::string MapCharacters(std::string_view text, Map map) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char c = DecodeUtf8(text);
    map(c.code_point, &out);
    text.remove_prefix(c.length);
  }
  return out;
}

void AppendLower(char32_t c, std::string* out) {
  constexpr char32_t kCapitalIWithDot = 0x130;  // the only one that becomes two characters
  if (c == kCapitalIWithDot) {
    *out += "i\u0307";
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  }
}

void AppendUnlessMark(char32_t c, std::string* out) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  if (category != UTF8PROC_CATEGORY_MN && category != UTF8PROC_CATEGORY_MC && category != UTF8PROC_CATEGORY_ME) AppendUtf8(c, out);
}

std::string Strip(std::string_view text, bool left, bool right) {
  size_t begin = text.size(), end = 0;  // of what is not white space
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text.substr(i));
    if (!IsWhiteSpace(c.code_point)) {
      begin = std::min(begin, i);
      end = i + c.length;
    }
    i += c.length;
  }
  if (begin == text.size()) return left || right ? std::string() : std::string(text);
  if (!right) end = text.size();
  return std::string(left ? text.substr(begin, end - begin) : text.substr(0, end));
}

Result<std::string> ReplaceMatches(std::string_view text, const Regex& regex, const std::string& replacement, size_t most) {
  COPPICE_ASSIGN_OR_RETURN(Regex::Scratch scratch, Regex::Scratch::Create());
  std::string out;
  size_t copied = 0;
  for (size_t position = 0; position <= text.size();) {
    std::optional<Regex::Match> match;
    COPPICE_RETURN_IF_ERROR(regex.Find(text, position, scratch, &match));
    if (!match || match->begin < position) break;
    out.append(text, copied, match->begin - copied).append(replacement);
    if (out.size() > most) return TooLong(most);
    copied = std::max(match->begin, match->end);
    const bool empty = match->end <= match->begin;  // look again one character later
    position = copied + (!empty ? 0 : copied < text.size() ? DecodeUtf8(text.substr(copied)).length : 1);
  }
  return out.append(text, copied, text.npos);
}

// As Hugging Face applies the map: to short graphemes as a whole, by the shortest key that they begin with, else to characters.
Result<std::string> ApplyByGrapheme(std::string_view text, const CharsMap& map, size_t most) {
  constexpr size_t kMaxWhole = 6;  // bytes
  std::string out;
  const auto apply = [&](std::string_view part) {
    const auto match = map.Shortest(part);
    if (match) out += match->replacement;
    return match.has_value();
  };
  while (!text.empty()) {
    Utf8Char c = DecodeUtf8(text);
    size_t length = c.length;
    utf8proc_int32_t state = 0;
    while (length < text.size()) {
      const Utf8Char next = DecodeUtf8(text.substr(length));
      if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(c.code_point),
                                           static_cast<utf8proc_int32_t>(next.code_point), &state)) {
        break;
      }
      length += next.length;
      c = next;
    }
    std::string_view grapheme = text.substr(0, length);
    text.remove_prefix(length);
    if (out.size() > most) return TooLong(most);
    if (grapheme.size() < kMaxWhole && apply(grapheme)) continue;
    while (!grapheme.empty() && out.size() <= most) {
      const std::string_view character = grapheme.substr(0, DecodeUtf8(grapheme).length);
      if (!apply(character)) out += character;
      grapheme.remove_prefix(character.size());
    }
  }
  return out;
}

// SentencePiece's Normalizer::Normalize.
class SentencePieceNormalizer {
 public:
  SentencePieceNormalizer(const NormalizerStep& step, std::optional<CharsMap> map, std::vector<std::string> user_defined)
      : step_(step), map_(std::move(map)), user_defined_(std::move(user_defined)), matcher_(Texts(user_defined_)) {
    step_.text.clear();
  }

  Result<std::string> Normalize(std::string_view text, size_t most, bool at_start) const {
    const std::string_view space = step_.escape_spaces ? std::string_view("\u2581") : std::string_view(" ");
    std::string out;
    if (step_.collapse_spaces) {
      while (!text.empty()) {
        const auto [part, length] = Next(text);
        if (part != " ") break;
        text.remove_prefix(length);
      }
    }
    if (text.empty()) return out;
    if (step_.add_prefix && (at_start || !step_.prefix_at_start)) out += space;
    bool after_space = step_.collapse_spaces;
    while (!text.empty()) {
      if (out.size() > most) return TooLong(most);
      auto [part, length] = Next(text);
      text.remove_prefix(length);
      while (after_space && part.starts_with(' ')) part.remove_prefix(1);
      if (part.empty()) continue;
      for (char c : part) c == ' ' ? out.append(space) : out.append(1, c);
      after_space = step_.collapse_spaces && part.ends_with(' ');
    }
    while (step_.collapse_spaces && out.ends_with(space)) out.resize(out.size() - space.size());
    return out;
  }

 private:
  static std::vector<std::pair<std::string_view, int32_t>> Texts(const std::vector<std::string>& tokens) {
    std::vector<std::pair<std::string_view, int32_t>> texts;
    for (const std::string& token : tokens) texts.emplace_back(token, 0);
    return texts;
  }

  // What the start of `text` becomes, and how many bytes of it that is.
  std::pair<std::string_view, size_t> Next(std::string_view text) const {
    if (const auto user = matcher_.MatchAt(text, 0)) return {text.substr(0, user->length), user->length};
    if (map_) {
      if (const auto match = map_->Longest(text)) return {match->replacement, match->length};
    }
    const Utf8Char c = DecodeUtf8(text);
    if (c.kind != Utf8Kind::kValid) return {kReplacementCharacter, 1};  // the map does not see it
    return {text.substr(0, c.length), c.length};
  }

  NormalizerStep step_;
  std::optional<CharsMap> map_;
  std::vector<std::string> user_defined_;
  AddedTokenMatcher matcher_;  // into user_defined_
};

}  // namespace

Result<Normalizer> Normalizer::Create(const std::vector<NormalizerStep>& steps, std::vector<std::string> user_defined) {
  Normalizer normalizer;
  const auto add = [&](auto function) {
    normalizer.steps_.push_back([function](std::string_view text, size_t, bool) -> Result<std::string> { return function(text); });
  };
  const auto add_form = [&](int form) { add([form](std::string_view text) { return UnicodeForm(text, form); }); };
  for (const NormalizerStep& step : steps) {
    switch (step.kind) {
      case Kind::kNfc: add_form(UTF8PROC_COMPOSE); break;
      case Kind::kNfd: add_form(UTF8PROC_DECOMPOSE); break;
      case Kind::kNfkc: add_form(UTF8PROC_COMPOSE | UTF8PROC_COMPAT); break;
      case Kind::kNfkd: add_form(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT); break;
      case Kind::kLowercase: add([](std::string_view text) { return MapCharacters(text, AppendLower); }); break;
      case Kind::kStripAccents: add([](std::string_view text) { return MapCharacters(text, AppendUnlessMark); }); break;
      case Kind::kStrip:
        add([left = step.left, right = step.right](std::string_view text) { return Strip(text, left, right); });
        break;
      case Kind::kPrepend:
        add([prefix = step.text](std::string_view text) { return text.empty() ? std::string() : prefix + std::string(text); });
        break;
      case Kind::kReplace: {
        COPPICE_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(OnigurumaPattern(step.pattern)));
        normalizer.steps_.push_back(
            [regex = std::make_shared<const Regex>(std::move(regex)), to = step.text](std::string_view text, size_t most, bool) {
              return ReplaceMatches(text, *regex, to, most);
            });
        break;
      }
      case Kind::kCharsMap: {
        COPPICE_ASSIGN_OR_RETURN(CharsMap map, CharsMap::Create(step.text));
        normalizer.steps_.push_back([map = std::make_shared<const CharsMap>(std::move(map))](
                                        std::string_view text, size_t most, bool) { return ApplyByGrapheme(text, *map, most); });
        break;
      }
      case Kind::kSentencePiece: {
        std::optional<CharsMap> map;
        if (!step.text.empty()) {
          COPPICE_ASSIGN_OR_RETURN(map, CharsMap::Create(step.text));
        }
        normalizer.steps_.push_back(
            [spm = std::make_shared<const SentencePieceNormalizer>(step, std::move(map), user_defined)](
                std::string_view text, size_t most, bool at_start) { return spm->Normalize(text, most, at_start); });
        break;
      }
    }
  }
  return normalizer;
}

Result<std::string> Normalizer::Normalize(std::string_view text, bool at_start) const {
  const size_t most = kAnyText + kMostGrowth * text.size();
  std::string normalized(text);
  for (const Step& step : steps_) {
    COPPICE_ASSIGN_OR_RETURN(normalized, step(normalized, most, at_start));
    if (normalized.size() > most) return TooLong(most);
  }
  return normalized;
}

}  // namespace coppice
