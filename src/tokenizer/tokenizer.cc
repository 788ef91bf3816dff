#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "core/quoted.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/byte_token.h"
#include "tokenizer/chat_renderer.h"
#include "tokenizer/fim.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/regex.h"
#include "tokenizer/unigram.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

using TokenKind = TokenizerData::TokenKind;

// Length of the white space at the start or at the end of `text`.
size_t LeadingSpace(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const Utf8Char c = DecodeUtf8(text.substr(length));
    if (c.kind != Utf8Kind::kValid || !IsWhiteSpace(c.code_point)) break;
    length += c.length;
  }
  return length;
}
size_t TrailingSpace(std::string_view text) {
  size_t length = 0;
  for (size_t back = 1; back <= 4 && length + back <= text.size(); ++back) {
    const Utf8Char c = DecodeUtf8(text.substr(text.size() - length - back, back));
    if (c.kind != Utf8Kind::kValid || c.length != back) continue;
    if (!IsWhiteSpace(c.code_point)) break;
    length += back;
    back = 0;
  }
  return length;
}

// Where special tokens are text: ranges of a text, asked for from its beginning to its end.
class ValueRanges {
 public:
  explicit ValueRanges(std::span<const ByteRange> ranges) : ranges_(ranges) {}
  // REQUIRES: `begin` is not below those asked for before.
  bool Overlap(size_t begin, size_t end) {
    while (next_ < ranges_.size() && ranges_[next_].end <= begin) ++next_;
    return next_ < ranges_.size() && ranges_[next_].begin < end;
  }

 private:
  std::span<const ByteRange> ranges_;
  size_t next_ = 0;
};

// The parts of `ranges` within [begin, end), counted from there.
std::vector<ByteRange> Within(std::span<const ByteRange> ranges, size_t begin, size_t end) {
  std::vector<ByteRange> within;
  auto range = std::ranges::partition_point(ranges, [begin](const ByteRange& r) { return r.end <= begin; });
  for (; range != ranges.end() && range->begin < end; ++range)
    within.push_back({std::max(range->begin, begin) - begin, std::min(range->end, end) - begin});
  return within;
}

// The added tokens that one search looks for, by their index.
class AddedTokens {
 public:
  using TextOf = std::vector<std::pair<std::string, int32_t>>;

  AddedTokens(TextOf texts, const std::vector<AddedToken>& tokens) : texts_(std::move(texts)), tokens_(tokens), matcher_(Views()) {
    has_own_ = std::ranges::any_of(texts_, [this](const auto& text) { return IsOwn(text.second); });
  }
  // Whether it looks for tokens that are none in values.
  bool has_own() const { return has_own_; }

  // Calls `on_text(begin, end)` and `on_token(id)` in the order of the text. Special tokens and marks are found where they do not
  // overlap `values`.
  template <class OnText, class OnToken>
  Status Split(std::string_view text, std::span<const ByteRange> values, const Regex* word, OnText on_text,
               OnToken on_token) const {
    if (values.empty() || !has_own_) {
      return SplitAt(text, word, on_text, on_token, [this, &text](size_t from) { return matcher_.Find(text, from); });
    }
    ValueRanges ranges(values);
    const auto is_found = [&](const AddedTokenMatcher::Match& match) {
      return !IsOwn(match.id) || !ranges.Overlap(match.begin, match.begin + match.length);
    };
    return SplitAt(text, word, on_text, on_token, [&](size_t from) { return matcher_.Find(text, from, is_found); });
  }

 private:
  // A token in the template's own words alone.
  bool IsOwn(int32_t index) const { return tokens_[index].special || tokens_[index].is_mark; }

  // At the matches that `find` finds from a place on.
  template <class OnText, class OnToken, class Find>
  Status SplitAt(std::string_view text, const Regex* word, OnText on_text, OnToken on_token, Find find) const {
    size_t done = 0, space_end = 0;  // the last: of a run of white space that was looked through, so that none is twice
    for (auto match = find(0); match; match = find(match->begin + match->length)) {
      const AddedToken& token = tokens_[match->id];
      size_t begin = match->begin, end = begin + match->length;
      if (token.single_word) {
        COPPICE_ASSIGN_OR_RETURN(const bool alone, StandsAlone(text, begin, end, *word));
        if (!alone) continue;
      }
      if (token.lstrip) begin = begin > done ? begin - TrailingSpace(text.substr(done, begin - done)) : done;
      if (token.rstrip) {
        if (end > space_end) space_end = end + LeadingSpace(text.substr(end));
        end = space_end;
      }
      if (begin > done) COPPICE_RETURN_IF_ERROR(on_text(done, begin));
      on_token(token.id);
      done = end;
    }
    return done < text.size() ? on_text(done, text.size()) : OkStatus();
  }

  std::vector<std::pair<std::string_view, int32_t>> Views() const { return {texts_.begin(), texts_.end()}; }

  // Whether no character of a word stands beside [begin, end).
  static Result<bool> StandsAlone(std::string_view text, size_t begin, size_t end, const Regex& word) {
    COPPICE_ASSIGN_OR_RETURN(Regex::Scratch scratch, Regex::Scratch::Create());
    const auto is_word = [&](size_t from, size_t length) -> Result<bool> {
      const std::string_view character = text.substr(from, length);
      if (character.empty() || ValidUtf8Prefix(character) != character.size()) return false;
      std::optional<Regex::Match> match;
      COPPICE_RETURN_IF_ERROR(word.Find(character, 0, scratch, &match));
      return match.has_value();
    };
    size_t before = begin;
    while (before > 0 && begin - before < 4 && (static_cast<uint8_t>(text[--before]) & 0xC0) == 0x80) {
    }
    COPPICE_ASSIGN_OR_RETURN(const bool word_before, is_word(before, begin - before));
    const size_t after = end < text.size() ? DecodeUtf8(text.substr(end)).length : 0;
    COPPICE_ASSIGN_OR_RETURN(const bool word_after, is_word(end, after));
    return !word_before && !word_after;
  }

  TextOf texts_;
  const std::vector<AddedToken>& tokens_;
  AddedTokenMatcher matcher_;  // into texts_; its ids are indices of tokens_
  bool has_own_ = false;
};

// Bytes that a decoder may make of a token: those in use make it shorter (U+2581 becomes a space).
constexpr size_t kMostTokenGrowth = 2, kAnyToken = 64;

// `text` with every `from` made `to`. INVALID_ARGUMENT where that takes more than `most` bytes.
Result<std::string> ReplaceAll(std::string_view text, const std::string& from, const std::string& to, size_t most) {
  std::string out;
  size_t copied = 0;
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, copied)) {
    out.append(text, copied, at - copied).append(to);
    copied = at + from.size();
    if (out.size() > most) {
      return InvalidArgument("the tokenizer's decoder makes a token " + std::to_string(out.size()) + " bytes long, " + Quoted(out) +
                             "; expected at most " + std::to_string(most));
    }
  }
  return out.append(text, copied, text.npos);
}

// Every byte that is no UTF-8 as U+FFFD. `ranges` of the text become those of the result.
std::string WithoutInvalidBytes(std::string_view text, std::vector<ByteRange>* ranges) {
  std::string out;
  auto begin = ranges->begin(), end = ranges->begin();  // the next one to begin, to end
  for (size_t at = 0; at < text.size();) {
    for (; begin != ranges->end() && begin->begin <= at; ++begin) begin->begin = out.size();
    const Utf8Char c = DecodeUtf8(text.substr(at));
    const size_t length = c.kind == Utf8Kind::kValid ? c.length : 1;
    out += c.kind == Utf8Kind::kValid ? text.substr(at, length) : kReplacementCharacter;
    at += length;
    for (; end != ranges->end() && end->end <= at; ++end) end->end = out.size();
  }
  return out;
}

Tokenizer::Info InfoOf(const TokenizerData& data) {
  return {.bos_id = data.bos_id,
          .eos_ids = data.eos_ids,
          .add_bos = data.add_bos,
          .add_eos = data.add_eos,
          .strip = data.decoder.strip,
          .strip_start = data.decoder.strip_start,
          .chat_template = data.chat_template,
          .tool_chat_template = data.tool_chat_template,
          .fim = data.fim};
}

class PipelineTokenizer final : public Tokenizer {
 public:
  explicit PipelineTokenizer(TokenizerData data) : Tokenizer(InfoOf(data)), data_(std::move(data)) {}

  Status Prepare() {
    std::vector<std::string> user_defined;
    for (size_t id = 0; id < data_.tokens.size(); ++id) {
      if (data_.kinds[id] == TokenKind::kUserDefined) user_defined.push_back(data_.tokens[id]);
    }
    COPPICE_ASSIGN_OR_RETURN(normalizer_, Normalizer::Create(data_.normalizer, std::move(user_defined)));
    COPPICE_ASSIGN_OR_RETURN(pre_tokenizer_, PreTokenizer::Create(data_.pre_tokenizer_steps));
    if (data_.model == "bpe" || data_.model == "spm-bpe") {
      COPPICE_ASSIGN_OR_RETURN(encoder_, BpeEncoder::Create(data_));
    } else {
      COPPICE_ASSIGN_OR_RETURN(encoder_, UnigramEncoder::Create(data_));
    }
    COPPICE_ASSIGN_OR_RETURN(Regex word, Regex::Compile(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])"));
    word_ = std::make_unique<Regex>(std::move(word));
    COPPICE_RETURN_IF_ERROR(PrepareAddedTokens());
    return PrepareBytes();
  }

  using Tokenizer::Encode;
  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<int32_t> ids;
    if (options.add_special && data_.add_bos) ids.push_back(data_.bos_id);
    const Search search = {
        .parse_special = options.parse_special, .values = options.values, .with_control = options.values.empty()};
    const auto encode = [&](size_t begin, size_t end) {
      return EncodeText({text.substr(begin, end - begin), begin}, search, &ids);
    };
    COPPICE_RETURN_IF_ERROR(Added(false, options.parse_special).Split(text, options.values, word_.get(), encode, [&](int32_t id) {
      ids.push_back(id);
    }));
    if (options.add_special && data_.add_eos) ids.push_back(data_.eos_ids.front());
    return ids;
  }

  std::string_view TokenBytes(int32_t id, bool keep_special) const override {
    if (id < 0 || static_cast<size_t>(id) >= bytes_.size()) return {};
    if (data_.kinds[id] == TokenKind::kControl && !keep_special) return {};
    return bytes_[id];
  }

 private:
  const AddedTokens& Added(bool normalized, bool with_special) const { return *added_[normalized][with_special]; }

  Status PrepareAddedTokens() {
    for (const bool normalized : {false, true}) {
      for (const bool with_special : {false, true}) {
        AddedTokens::TextOf texts;
        for (size_t i = 0; i < data_.added_tokens.size(); ++i) {
          const AddedToken& token = data_.added_tokens[i];
          if (token.normalized != normalized || (token.special && !with_special)) continue;
          std::string text = token.text;
          if (normalized) {
            COPPICE_ASSIGN_OR_RETURN(text, normalizer_.Normalize(text));
          }
          texts.emplace_back(std::move(text), static_cast<int32_t>(i));
        }
        added_[normalized][with_special] = std::make_unique<AddedTokens>(std::move(texts), data_.added_tokens);
      }
    }
    return OkStatus();
  }

  Status PrepareBytes() {
    bytes_.reserve(data_.tokens.size());
    std::vector<const std::string*> texts;
    for (const std::string& token : data_.tokens) texts.push_back(&token);
    std::vector<std::string> normalized(data_.added_tokens.size());
    for (size_t i = 0; i < normalized.size(); ++i) {  // one that is looked for in normalized text stands for that
      if (!data_.added_tokens[i].normalized || normalizer_.empty()) continue;
      COPPICE_ASSIGN_OR_RETURN(normalized[i], normalizer_.Normalize(data_.added_tokens[i].text));
      texts[data_.added_tokens[i].id] = &normalized[i];
    }
    for (size_t id = 0; id < data_.tokens.size(); ++id) {
      const bool literal = data_.kinds[id] == TokenKind::kControl || data_.kinds[id] == TokenKind::kUserDefined;
      std::string bytes = data_.byte_level && !literal ? ByteLevelDecode(*texts[id]) : *texts[id];
      const size_t most = kMostTokenGrowth * bytes.size() + kAnyToken;
      for (const auto& [from, to] : data_.decoder.replacements) {
        COPPICE_ASSIGN_OR_RETURN(bytes, ReplaceAll(bytes, from, to, most));
      }
      if (data_.decoder.byte_fallback) {
        if (const auto byte = ByteOfToken(bytes)) bytes.assign(1, static_cast<char>(*byte));
      }
      bytes_.push_back(std::move(bytes));
    }
    return OkStatus();
  }

  // Options of the search for tokens in a text.
  struct Search {
    bool parse_special;
    std::span<const ByteRange> values;  // of the whole text
    bool with_control;                  // ModelEncoder::Encode
  };
  // A part of a whole text, and where it begins there.
  struct TextPart {
    std::string_view text;
    size_t begin;
  };

  // `part` has no added token that is looked for before normalization.
  Status EncodeText(TextPart part, const Search& search, std::vector<int32_t>* ids) const {
    std::string_view& text = part.text;
    if (!data_.byte_level) {
      // Only an encoder of bytes takes invalid ones. Values that they lie before would be elsewhere in the text made of them.
      if (data_.model.starts_with("spm-") || ValidUtf8Prefix(text) == text.size()) return EncodeValid(part, search, ids);
      std::vector<ByteRange> values = Within(search.values, part.begin, part.begin + text.size());
      const std::string valid = WithoutInvalidBytes(text, &values);
      return EncodeValid({valid, part.begin}, search, values, ids);
    }
    while (!text.empty()) {
      const TextPart valid = {text.substr(0, ValidUtf8Prefix(text)), part.begin};
      if (!valid.text.empty()) COPPICE_RETURN_IF_ERROR(EncodeValid(valid, search, ids));
      size_t end = valid.text.size();  // a run of bytes that are no UTF-8 is a piece of its own
      while (end < text.size()) {
        const Utf8Char c = DecodeUtf8(text.substr(end));
        if (c.kind == Utf8Kind::kValid) break;
        end += c.length;
      }
      const std::string_view invalid = text.substr(valid.text.size(), end - valid.text.size());
      if (!invalid.empty()) encoder_->Encode(invalid, search.with_control, ids);
      text.remove_prefix(end);
      part.begin += end;
    }
    return OkStatus();
  }

  Status EncodeValid(TextPart part, const Search& search, std::vector<int32_t>* ids) const {
    const bool asks = !search.values.empty() && Added(true, search.parse_special).has_own();
    return EncodeValid(part, search,
                       asks ? Within(search.values, part.begin, part.begin + part.text.size()) : std::vector<ByteRange>(), ids);
  }

  // `values`: those of the part.
  Status EncodeValid(TextPart part, const Search& search, std::vector<ByteRange> values, std::vector<int32_t>* ids) const {
    const bool at_start = part.begin == 0;
    std::string_view text = part.text;
    std::string normalized;
    if (!normalizer_.empty()) {
      COPPICE_ASSIGN_OR_RETURN(normalized, normalizer_.Normalize(text, at_start, values.empty() ? nullptr : &values));
      text = normalized;
    }
    const auto encode = [&](size_t begin, size_t end) -> Status {
      Pieces pieces{.text = text.substr(begin, end - begin)};
      COPPICE_RETURN_IF_ERROR(pre_tokenizer_.Split(&pieces, at_start && begin == 0));
      for (size_t i = 0; i < pieces.ranges.size(); ++i) encoder_->Encode(pieces.piece(i), search.with_control, ids);
      return OkStatus();
    };
    return Added(true, search.parse_special).Split(text, values, word_.get(), encode, [ids](int32_t id) { ids->push_back(id); });
  }

  const TokenizerData data_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<ModelEncoder> encoder_;
  std::unique_ptr<Regex> word_;               // one character of a word
  std::unique_ptr<AddedTokens> added_[2][2];  // normalized, with special ones
  std::vector<std::string> bytes_;            // by id
};

// Vocabularies in use have tokens of some hundred bytes, and at most ten steps. The model looks for the longest token at every byte
// of a text, and every step goes over the text.
constexpr size_t kMaxTokenBytes = 4096, kMaxSteps = 64;

Status ValidateWork(const TokenizerData& data) {
  const auto too_long = [](const std::string& text) { return text.size() > kMaxTokenBytes; };
  auto token = std::ranges::find_if(data.tokens, too_long);
  const auto added = std::ranges::find_if(data.added_tokens, [&](const AddedToken& a) { return too_long(a.text); });
  if (token != data.tokens.end() || added != data.added_tokens.end()) {
    const std::string& text = token != data.tokens.end() ? *token : added->text;
    return InvalidArgument("the tokenizer's token " + Quoted(text) + " has " + std::to_string(text.size()) +
                           " bytes; expected at most " + std::to_string(kMaxTokenBytes));
  }
  const std::pair<const char*, size_t> lists[] = {{"normalizer", data.normalizer.size()},
                                                  {"pre-tokenizer", data.pre_tokenizer_steps.size()},
                                                  {"decoder", data.decoder.replacements.size()}};
  for (const auto& [what, steps] : lists) {
    if (steps > kMaxSteps) {
      return InvalidArgument(std::string("the tokenizer's ") + what + " has " + std::to_string(steps) +
                             " steps; expected at most " + std::to_string(kMaxSteps));
    }
  }
  return OkStatus();
}

Status ValidateIds(const TokenizerData& data) {
  const size_t size = data.tokens.size();
  const auto check_id = [size](const char* what, int32_t id, bool required) {
    if (id >= 0 ? static_cast<size_t>(id) < size : id == -1 && !required) return OkStatus();
    return InvalidArgument(std::string("the tokenizer's ") + what + " id is " + std::to_string(id) + "; expected 0 to " +
                           std::to_string(size - 1) + (required ? ", since the file asks to add it" : ", or none"));
  };
  COPPICE_RETURN_IF_ERROR(check_id("bos", data.bos_id, data.add_bos));
  COPPICE_RETURN_IF_ERROR(check_id("unk", data.unk_id, false));
  COPPICE_RETURN_IF_ERROR(check_id("pad", data.pad_id, false));
  for (int32_t id : data.eos_ids) COPPICE_RETURN_IF_ERROR(check_id("eos", id, true));
  for (int32_t id : {data.fim.prefix, data.fim.suffix, data.fim.middle, data.fim.repository, data.fim.file})
    COPPICE_RETURN_IF_ERROR(check_id("fill-in-the-middle", id, false));
  for (const AddedToken& token : data.added_tokens) COPPICE_RETURN_IF_ERROR(check_id("added token's", token.id, true));
  if (data.add_eos && data.eos_ids.empty()) return check_id("eos", -1, true);
  return OkStatus();
}

Status Validate(const TokenizerData& data) {
  constexpr std::string_view kModels[] = {"bpe", "spm-bpe", "unigram", "spm-unigram"};
  if (std::ranges::find(kModels, data.model) == std::end(kModels)) {
    return Unimplemented("tokenizer model " + Quoted(data.model) +
                         ": expected BPE or unigram ('gpt2', 'llama' or 't5' in GGUF files)");
  }
  const size_t size = data.tokens.size();
  if (size == 0) return InvalidArgument("the tokenizer has no tokens; expected a vocabulary");
  if (data.kinds.size() != size) {
    return InvalidArgument("the tokenizer has " + std::to_string(size) + " tokens but " + std::to_string(data.kinds.size()) +
                           " token kinds; expected one kind for each token");
  }
  if (data.model != "bpe") {
    if (data.scores.size() != size) {
      return InvalidArgument("the tokenizer has " + std::to_string(size) + " tokens but " + std::to_string(data.scores.size()) +
                             " scores; expected one score for each token");
    }
    for (size_t id = 0; id < size; ++id) {
      const bool in_model = data.kinds[id] == TokenKind::kNormal || data.model != "unigram";
      if (std::isinf(data.scores[id]) || (in_model && std::isnan(data.scores[id]))) {
        return InvalidArgument("the score of token " + std::to_string(id) + " is not a finite number; the file is damaged");
      }
    }
  }
  COPPICE_RETURN_IF_ERROR(ValidateWork(data));
  return ValidateIds(data);
}

// Whether a token marks a kind of text for the model, or its end.
bool IsMark(const TokenizerData& data, int32_t id) {
  const FimTokens& fim = data.fim;
  const auto has = [id](const std::vector<int32_t>& ids) { return std::ranges::find(ids, id) != ids.end(); };
  return has(data.eos_ids) || has(fim.ends) || (fim.usable() && (id == fim.prefix || id == fim.suffix || id == fim.middle));
}

// The tokens to find in the text, where a file has kinds alone.
void AddByKind(TokenizerData* data) {
  const bool user_defined = data->model == "bpe";  // SentencePiece's models find theirs themselves
  for (size_t id = 0; id < data->tokens.size(); ++id) {
    const bool special = data->kinds[id] == TokenKind::kControl;
    if (!special && !(user_defined && data->kinds[id] == TokenKind::kUserDefined)) continue;
    data->added_tokens.push_back({.text = data->tokens[id], .id = static_cast<int32_t>(id), .special = special});
  }
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> CreateTokenizer(TokenizerData data) {
  COPPICE_RETURN_IF_ERROR(Validate(data));
  if (data.model != "bpe") data.byte_level = false;
  if (data.added_tokens.empty()) AddByKind(&data);
  data.fim = FindFimTokens(data);
  for (AddedToken& token : data.added_tokens) token.is_mark = IsMark(data, token.id);
  if (!data.pre_tokenizer.empty() && data.byte_level) {
    COPPICE_ASSIGN_OR_RETURN(PreTokenizerKind kind, FindPreTokenizerKind(data.pre_tokenizer));
    data.pre_tokenizer_steps.clear();
    for (std::string& pattern : kind.patterns) data.pre_tokenizer_steps.push_back({.pattern = std::move(pattern)});
    if (kind.normalize_nfc && data.normalizer.empty()) data.normalizer.push_back({.kind = NormalizerStep::Kind::kNfc});
    data.ignore_merges |= kind.ignore_merges;
  }
  auto tokenizer = std::make_unique<PipelineTokenizer>(std::move(data));
  COPPICE_RETURN_IF_ERROR(tokenizer->Prepare());
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool keep_special) const {
  IncrementalDecoder decoder(*this, keep_special, IncrementalDecoder::Begin::kText);
  std::string text;
  for (const int32_t id : ids) text += decoder.Push(id);
  return text + decoder.Finish();
}

Result<ChatPrompt> Tokenizer::RenderChat(const std::vector<ChatMessage>& messages) const {
  if (info_.chat_template.empty()) return InvalidArgument("the model has no chat template; write the prompt as it was trained on");
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<ChatRenderer> renderer, ChatRenderer::Parse(info_.chat_template));
  COPPICE_ASSIGN_OR_RETURN(RenderedChat chat, renderer->Render(messages, *this));
  return std::move(chat.prompt);
}

std::string IncrementalDecoder::Push(int32_t id, bool keep_special) {
  std::string_view bytes = tokenizer_->TokenBytes(id, keep_special || keep_special_);
  const std::string& strip = tokenizer_->info().strip;
  while (strip_left_ != 0 && !bytes.empty()) {
    if (!bytes.starts_with(strip)) {
      strip_left_ = 0;
    } else {
      bytes.remove_prefix(strip.size());
      if (strip_left_ > 0) --strip_left_;
    }
  }
  pending_ += bytes;
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Char c = DecodeUtf8(rest);
    if (c.kind == Utf8Kind::kIncomplete) break;
    text += c.kind == Utf8Kind::kValid ? rest.substr(0, c.length) : kReplacementCharacter;
    rest.remove_prefix(c.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return text;
}

std::string IncrementalDecoder::Finish() {
  // Push leaves one unfinished character at most.
  std::string text(pending_.empty() ? std::string_view() : kReplacementCharacter);
  pending_.clear();
  return text;
}

}  // namespace coppice
