#include "tokenizer/tokenizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <optional>
#include <unordered_map>

#include "core/check.h"
#include "core/quoted.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

using TokenKind = TokenizerData::TokenKind;

// Canonical composition of `text`; its invalid bytes stay where they are.
std::string NormalizeNfc(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, ValidUtf8Prefix(text));
    text.remove_prefix(valid.size());
    utf8proc_uint8_t* composed = nullptr;
    const auto length =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()), static_cast<utf8proc_ssize_t>(valid.size()),
                     &composed, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(composed, &std::free);
    length >= 0 ? out.append(reinterpret_cast<const char*>(composed), static_cast<size_t>(length)) : out.append(valid);
    while (!text.empty() && DecodeUtf8(text).kind != Utf8Kind::kValid) {
      out.push_back(text[0]);
      text.remove_prefix(1);
    }
  }
  return out;
}

class ByteLevelBpeTokenizer final : public Tokenizer {
 public:
  ByteLevelBpeTokenizer(TokenizerData data, PreTokenizer pre_tokenizer, BpeEncoder bpe)
      : Tokenizer(std::move(data)),
        pre_tokenizer_(std::move(pre_tokenizer)),
        bpe_(std::move(bpe)),
        all_added_(AddedTokens(true)),
        user_defined_(AddedTokens(false)) {
    bytes_.reserve(data_.tokens.size());
    for (size_t id = 0; id < data_.tokens.size(); ++id) {
      const bool literal = data_.kinds[id] == TokenKind::kControl || data_.kinds[id] == TokenKind::kUserDefined;
      bytes_.push_back(literal ? data_.tokens[id] : ByteLevelDecode(data_.tokens[id]));
    }
    if (!data_.ignore_merges) return;
    for (size_t id = 0; id < bytes_.size(); ++id) {
      if (data_.kinds[id] == TokenKind::kNormal) whole_pieces_.emplace(bytes_[id], static_cast<int32_t>(id));
    }
  }

  using Tokenizer::Encode;
  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<int32_t> ids;
    if (options.add_special && data_.add_bos) ids.push_back(data_.bos_id);
    const AddedTokenMatcher& added = options.parse_special ? all_added_ : user_defined_;
    for (size_t begin = 0; begin < text.size();) {
      const auto match = added.Find(text, begin);
      const size_t end = match ? match->begin : text.size();
      COPPICE_RETURN_IF_ERROR(EncodeText(text.substr(begin, end - begin), &ids));
      if (match) ids.push_back(match->id);
      begin = match ? end + match->length : end;
    }
    if (options.add_special && data_.add_eos) ids.push_back(data_.eos_ids.front());
    return ids;
  }

  std::string_view TokenBytes(int32_t id, bool keep_special) const override {
    if (id < 0 || static_cast<size_t>(id) >= bytes_.size()) return {};
    if (data_.kinds[id] == TokenKind::kControl && !keep_special) return {};
    return bytes_[id];
  }

 private:
  std::vector<std::pair<std::string_view, int32_t>> AddedTokens(bool with_control) const {
    std::vector<std::pair<std::string_view, int32_t>> added;
    for (size_t id = 0; id < data_.tokens.size(); ++id) {
      const bool wanted = data_.kinds[id] == TokenKind::kUserDefined || (with_control && data_.kinds[id] == TokenKind::kControl);
      if (wanted) added.emplace_back(data_.tokens[id], static_cast<int32_t>(id));
    }
    return added;
  }

  // `text` has no added token.
  Status EncodeText(std::string_view text, std::vector<int32_t>* ids) const {
    std::string normalized;
    if (data_.normalize_nfc) text = normalized = NormalizeNfc(text);
    std::vector<std::string_view> pieces;
    COPPICE_RETURN_IF_ERROR(pre_tokenizer_.Split(text, &pieces));
    for (std::string_view piece : pieces) {
      if (const auto whole = whole_pieces_.find(piece); whole != whole_pieces_.end()) {
        ids->push_back(whole->second);
      } else {
        bpe_.Encode(piece, ids);
      }
    }
    return OkStatus();
  }

  PreTokenizer pre_tokenizer_;
  BpeEncoder bpe_;
  AddedTokenMatcher all_added_, user_defined_;
  std::vector<std::string> bytes_;                              // by id
  std::unordered_map<std::string_view, int32_t> whole_pieces_;  // into bytes_; empty unless ignore_merges
};

Status Validate(const TokenizerData& data) {
  if (data.model != "bpe") {
    return Unimplemented("tokenizer model " + Quoted(data.model) + ": expected 'bpe' (byte-level BPE, 'gpt2' in GGUF files)");
  }
  const size_t size = data.tokens.size();
  if (size == 0) return InvalidArgument("the tokenizer has no tokens; expected a vocabulary");
  if (data.kinds.size() != size) {
    return InvalidArgument("the tokenizer has " + std::to_string(size) + " tokens but " + std::to_string(data.kinds.size()) +
                           " token kinds; expected one kind for each token");
  }
  const auto check_id = [size](const char* what, int32_t id, bool required) {
    if (id >= 0 ? static_cast<size_t>(id) < size : id == -1 && !required) return OkStatus();
    return InvalidArgument(std::string("the tokenizer's ") + what + " id is " + std::to_string(id) + "; expected 0 to " +
                           std::to_string(size - 1) + (required ? ", since the file asks to add it" : ", or none"));
  };
  COPPICE_RETURN_IF_ERROR(check_id("bos", data.bos_id, data.add_bos));
  COPPICE_RETURN_IF_ERROR(check_id("unk", data.unk_id, false));
  COPPICE_RETURN_IF_ERROR(check_id("pad", data.pad_id, false));
  for (int32_t id : data.eos_ids) COPPICE_RETURN_IF_ERROR(check_id("eos", id, true));
  if (data.add_eos && data.eos_ids.empty()) return check_id("eos", -1, true);
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerData data) {
  COPPICE_RETURN_IF_ERROR(Validate(data));
  if (!data.pre_tokenizer.empty()) {
    COPPICE_ASSIGN_OR_RETURN(PreTokenizerKind kind, FindPreTokenizerKind(data.pre_tokenizer));
    data.pre_tokenizer_patterns = std::move(kind.patterns);
    data.normalize_nfc |= kind.normalize_nfc;
    data.ignore_merges |= kind.ignore_merges;
  }
  COPPICE_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Create(data.pre_tokenizer_patterns));
  COPPICE_ASSIGN_OR_RETURN(BpeEncoder bpe, BpeEncoder::Create(data));
  return std::unique_ptr<Tokenizer>(new ByteLevelBpeTokenizer(std::move(data), std::move(pre_tokenizer), std::move(bpe)));
}

std::string IncrementalDecoder::Push(int32_t id) {
  pending_ += tokenizer_->TokenBytes(id, keep_special_);
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
  // What Push leaves is one unfinished character.
  std::string text(pending_.empty() ? std::string_view() : kReplacementCharacter);
  pending_.clear();
  return text;
}

}  // namespace coppice
