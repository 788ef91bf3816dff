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

// Parts of a text before and after a step, from the text's beginning.
class Normalizer::Alignment {
 public:
  void Copy(size_t bytes) { Add({bytes, bytes, true}); }
  void Replace(size_t from, size_t to) { Add({from, to, false}); }
  // `part` of the text became `made`.
  void Become(std::string_view part, std::string_view made) {
    part == made ? Copy(part.size()) : Replace(part.size(), made.size());
  }

  std::vector<ByteRange> Map(const std::vector<ByteRange>& ranges) const {
    std::vector<ByteRange> mapped;
    const auto add = [&mapped](size_t begin, size_t end) {
      if (begin == end) return;
      if (!mapped.empty() && mapped.back().end >= begin) {
        mapped.back().end = std::max(mapped.back().end, end);
      } else {
        mapped.push_back({begin, end});
      }
    };
    size_t at = 0, made = 0;  // where the part begins, before and after
    auto range = ranges.begin();
    for (const Part& part : parts_) {
      while (range != ranges.end() && range->end <= at) ++range;
      for (auto inside = range; inside != ranges.end() && inside->begin < at + part.from; ++inside) {
        const size_t begin = std::max(inside->begin, at) - at, end = std::min(inside->end, at + part.from) - at;
        part.is_copy ? add(made + begin, made + end) : add(made, made + part.to);
      }
      at += part.from;
      made += part.to;
    }
    return mapped;
  }

 private:
  struct Part {
    size_t from, to;
    bool is_copy;
  };
  void Add(Part part) {
    if (part.from == 0 && part.to == 0) return;
    if (!parts_.empty() && parts_.back().is_copy && part.is_copy) {
      parts_.back().from += part.from;
      parts_.back().to += part.to;
    } else {
      parts_.push_back(part);
    }
  }

  std::vector<Part> parts_;
};

namespace {

using Kind = NormalizerStep::Kind;

// Of all steps together. Unicode's own forms make a character at most 11 times as long (U+FDFA under NFKC).
constexpr size_t kMostGrowth = 64, kAnyText = 64 << 10;

Status TooLong(size_t most) {
  return InvalidArgument("the tokenizer's normalizer makes this text longer than " + std::to_string(most) +
                         " bytes; expected at most " + std::to_string(kMostGrowth) + " times its length");
}

std::string WholeUnicodeForm(std::string_view text, int form) {
  utf8proc_uint8_t* made = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &made,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | form));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  return length >= 0 ? std::string(reinterpret_cast<const char*>(made), static_cast<size_t>(length)) : std::string(text);
}

bool IsMark(char32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

// The form of each run that begins where `begins` says of a character, and what it was, for `alignment`.
template <class Begins, class Alignment>
std::string UnicodeFormOfRuns(std::string_view text, int form, Begins begins, Alignment* alignment) {
  std::string out;
  while (!text.empty()) {
    size_t end = DecodeUtf8(text).length;
    while (end < text.size()) {
      const Utf8Char c = DecodeUtf8(text.substr(end));
      if (begins(c.code_point)) break;
      end += c.length;
    }
    const std::string_view run = text.substr(0, end);
    const std::string made = WholeUnicodeForm(run, form);
    alignment->Become(run, made);
    out += made;
    text.remove_prefix(end);
  }
  return out;
}

template <class Alignment>
std::string UnicodeForm(std::string_view text, int form, Alignment* alignment) {
  std::string whole = WholeUnicodeForm(text, form);
  if (alignment == nullptr) return whole;
  // A character and its marks are a text of their own, but for a few scripts whose letters compose. With an ASCII character nothing
  // before it does.
  Alignment fine;
  if (UnicodeFormOfRuns(
          text, form, [](char32_t c) { return !IsMark(c); }, &fine) == whole) {
    *alignment = std::move(fine);
  } else {
    (void)UnicodeFormOfRuns(
        text, form, [](char32_t c) { return c < 0x80; }, alignment);
  }
  return whole;
}

template <class Map, class Alignment>  // void(char32_t, std::string*)
std::string MapCharacters(std::string_view text, Map map, Alignment* alignment) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char c = DecodeUtf8(text);
    const size_t begin = out.size();
    map(c.code_point, &out);
    if (alignment != nullptr) alignment->Become(text.substr(0, c.length), std::string_view(out).substr(begin));
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
  if (!IsMark(c)) AppendUtf8(c, out);
}

template <class Alignment>
std::string Strip(std::string_view text, bool left, bool right, Alignment* alignment) {
  size_t begin = text.size(), end = 0;  // of what is not white space
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text.substr(i));
    if (!IsWhiteSpace(c.code_point)) {
      begin = std::min(begin, i);
      end = i + c.length;
    }
    i += c.length;
  }
  if (begin == text.size()) {  // white space alone
    begin = left || right ? text.size() : 0;
    end = text.size();
  } else {
    if (!right) end = text.size();
    if (!left) begin = 0;
  }
  if (alignment != nullptr) {
    alignment->Replace(begin, 0);
    alignment->Copy(end - begin);
    alignment->Replace(text.size() - end, 0);
  }
  return std::string(text.substr(begin, end - begin));
}

template <class Alignment>
Result<std::string> ReplaceMatches(std::string_view text, const Regex& regex, const std::string& replacement, size_t most,
                                   Alignment* alignment) {
  COPPICE_ASSIGN_OR_RETURN(Regex::Scratch scratch, Regex::Scratch::Create());
  std::string out;
  size_t copied = 0;
  for (size_t position = 0; position <= text.size();) {
    std::optional<Regex::Match> match;
    COPPICE_RETURN_IF_ERROR(regex.Find(text, position, scratch, &match));
    if (!match || match->begin < position) break;
    out.append(text, copied, match->begin - copied).append(replacement);
    if (out.size() > most) return TooLong(most);
    if (alignment != nullptr) {
      alignment->Copy(match->begin - copied);
      alignment->Replace(std::max(match->begin, match->end) - match->begin, replacement.size());
    }
    copied = std::max(match->begin, match->end);
    const bool empty = match->end <= match->begin;  // look again one character later
    position = copied + (!empty ? 0 : copied < text.size() ? DecodeUtf8(text.substr(copied)).length : 1);
  }
  if (alignment != nullptr) alignment->Copy(text.size() - copied);
  return out.append(text, copied, text.npos);
}

// As Hugging Face applies the map: to short graphemes as a whole, by the shortest key that they begin with, else to characters.
template <class Alignment>
Result<std::string> ApplyByGrapheme(std::string_view text, const CharsMap& map, size_t most, Alignment* alignment) {
  constexpr size_t kMaxWhole = 6;  // bytes
  std::string out;
  const auto apply = [&](std::string_view part) {
    const auto match = map.Shortest(part);
    if (!match) return false;
    out += match->replacement;
    if (alignment != nullptr) alignment->Replace(part.size(), match->replacement.size());
    return true;
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
      if (!apply(character)) {
        out += character;
        if (alignment != nullptr) alignment->Copy(character.size());
      }
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

  template <class Alignment>
  Result<std::string> Normalize(std::string_view text, size_t most, bool at_start, Alignment* alignment) const {
    const auto note = [alignment](size_t from, size_t to) {
      if (alignment != nullptr) alignment->Replace(from, to);
    };
    const std::string_view space = step_.escape_spaces ? std::string_view("\u2581") : std::string_view(" ");
    std::string out;
    if (step_.collapse_spaces) {
      while (!text.empty()) {
        const auto [part, length] = Next(text);
        if (part != " ") break;
        text.remove_prefix(length);
        note(length, 0);
      }
    }
    if (text.empty()) return out;
    if (step_.add_prefix && (at_start || !step_.prefix_at_start)) {
      out += space;
      note(0, space.size());
    }
    bool after_space = step_.collapse_spaces;
    while (!text.empty()) {
      if (out.size() > most) return TooLong(most);
      auto [part, length] = Next(text);
      text.remove_prefix(length);
      while (after_space && part.starts_with(' ')) part.remove_prefix(1);
      const size_t begin = out.size();
      for (char c : part) c == ' ' ? out.append(space) : out.append(1, c);
      note(length, out.size() - begin);
      if (part.empty()) continue;
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

  // The replacement of the start of `text`, and the number of bytes that it replaces.
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
    normalizer.steps_.push_back(
        [function](std::string_view text, size_t, bool, Alignment* made) -> Result<std::string> { return function(text, made); });
  };
  const auto add_form = [&](int form) {
    add([form](std::string_view text, Alignment* made) { return UnicodeForm(text, form, made); });
  };
  for (const NormalizerStep& step : steps) {
    switch (step.kind) {
      case Kind::kNfc: add_form(UTF8PROC_COMPOSE); break;
      case Kind::kNfd: add_form(UTF8PROC_DECOMPOSE); break;
      case Kind::kNfkc: add_form(UTF8PROC_COMPOSE | UTF8PROC_COMPAT); break;
      case Kind::kNfkd: add_form(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT); break;
      case Kind::kLowercase:
        add([](std::string_view text, Alignment* made) { return MapCharacters(text, AppendLower, made); });
        break;
      case Kind::kStripAccents:
        add([](std::string_view text, Alignment* made) { return MapCharacters(text, AppendUnlessMark, made); });
        break;
      case Kind::kStrip:
        add([left = step.left, right = step.right](std::string_view text, Alignment* made) {
          return Strip(text, left, right, made);
        });
        break;
      case Kind::kPrepend:
        add([prefix = step.text](std::string_view text, Alignment* made) {
          if (text.empty()) return std::string();
          if (made != nullptr) made->Replace(0, prefix.size()), made->Copy(text.size());
          return prefix + std::string(text);
        });
        break;
      case Kind::kReplace: {
        COPPICE_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(OnigurumaPattern(step.pattern)));
        normalizer.steps_.push_back([regex = std::make_shared<const Regex>(std::move(regex)), to = step.text](
                                        std::string_view text, size_t most, bool, Alignment* made) {
          return ReplaceMatches(text, *regex, to, most, made);
        });
        break;
      }
      case Kind::kCharsMap: {
        COPPICE_ASSIGN_OR_RETURN(CharsMap map, CharsMap::Create(step.text));
        normalizer.steps_.push_back(
            [map = std::make_shared<const CharsMap>(std::move(map))](std::string_view text, size_t most, bool, Alignment* made) {
              return ApplyByGrapheme(text, *map, most, made);
            });
        break;
      }
      case Kind::kSentencePiece: {
        std::optional<CharsMap> map;
        if (!step.text.empty()) {
          COPPICE_ASSIGN_OR_RETURN(map, CharsMap::Create(step.text));
        }
        normalizer.steps_.push_back([spm = std::make_shared<const SentencePieceNormalizer>(step, std::move(map), user_defined)](
                                        std::string_view text, size_t most, bool at_start, Alignment* made) {
          return spm->Normalize(text, most, at_start, made);
        });
        break;
      }
    }
  }
  return normalizer;
}

Result<std::string> Normalizer::Normalize(std::string_view text, bool at_start, std::vector<ByteRange>* ranges) const {
  const size_t most = kAnyText + kMostGrowth * text.size();
  std::string normalized(text);
  for (const Step& step : steps_) {
    Alignment alignment;
    COPPICE_ASSIGN_OR_RETURN(normalized, step(normalized, most, at_start, ranges == nullptr ? nullptr : &alignment));
    if (normalized.size() > most) return TooLong(most);
    if (ranges != nullptr) *ranges = alignment.Map(*ranges);
  }
  return normalized;
}

}  // namespace coppice
