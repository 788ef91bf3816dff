#include "tokenizer/sentencepiece_model.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "core/check.h"

namespace coppice {
namespace {

using TokenKind = TokenizerData::TokenKind;

Status Damaged(const std::string& what) {
  return DataLoss("tokenizer.model: " + what + "; the file is damaged or no SentencePiece model, download it again");
}

// The fields of one protocol buffer message, in the order of the file (encoding: protobuf.dev/programming-guides/encoding).
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  struct Field {
    uint32_t number = 0;
    uint64_t value = 0;      // of numbers; of a fixed field its bits
    std::string_view bytes;  // of strings and messages
    bool Bool() const { return value != 0; }
    int32_t Int() const { return static_cast<int32_t>(value); }
    float Float() const {
      const auto bits = static_cast<uint32_t>(value);
      float number = 0;
      std::memcpy(&number, &bits, sizeof number);
      return number;
    }
  };

  // False at the end.
  Result<bool> Next(Field* field) {
    if (rest_.empty()) return false;
    *field = {};
    COPPICE_ASSIGN_OR_RETURN(const uint64_t tag, Varint());
    field->number = static_cast<uint32_t>(tag >> 3);
    switch (tag & 7) {
      case 0: {
        COPPICE_ASSIGN_OR_RETURN(field->value, Varint());
        return true;
      }
      case 1: return Fixed(8, field);
      case 2: {
        COPPICE_ASSIGN_OR_RETURN(const uint64_t length, Varint());
        if (length > rest_.size()) return Damaged("a field of " + std::to_string(length) + " bytes is cut off");
        field->bytes = rest_.substr(0, length);
        rest_.remove_prefix(length);
        return true;
      }
      case 5: return Fixed(4, field);
      default: return Damaged("wire type " + std::to_string(tag & 7));
    }
  }

 private:
  Result<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return Damaged("a number is cut off");
      const auto byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    return Damaged("a number is longer than 64 bits");
  }

  Result<bool> Fixed(size_t size, Field* field) {
    if (rest_.size() < size) return Damaged("a number is cut off");
    std::memcpy(&field->value, rest_.data(), size);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
};

// Calls `read(field)`, which returns a Status, for every field.
template <class Read>
Status ForEachField(std::string_view bytes, Read read) {
  Message message(bytes);
  for (Message::Field field;;) {
    COPPICE_ASSIGN_OR_RETURN(const bool more, message.Next(&field));
    if (!more) return OkStatus();
    COPPICE_RETURN_IF_ERROR(read(field));
  }
}

Status ReadPiece(std::string_view bytes, TokenizerData* data) {
  std::string text;
  float score = 0;
  int32_t type = 1;
  COPPICE_RETURN_IF_ERROR(ForEachField(bytes, [&](const Message::Field& field) {
    if (field.number == 1) text = field.bytes;
    if (field.number == 2) score = field.Float();
    if (field.number == 3) type = field.Int();
    return OkStatus();
  }));
  const auto id = static_cast<int32_t>(data->tokens.size());
  constexpr TokenKind kKinds[] = {TokenKind::kNormal,      TokenKind::kControl, TokenKind::kControl,
                                  TokenKind::kUserDefined, TokenKind::kUnused,  TokenKind::kByte};
  if (type < 1 || type > 6)
    return Damaged("piece " + std::to_string(id) + " is of type " + std::to_string(type) + ", expected 1 to 6");
  if (type == 2) data->unk_id = id;
  data->tokens.push_back(std::move(text));
  data->kinds.push_back(kKinds[type - 1]);
  data->scores.push_back(score);
  return OkStatus();
}

Status ReadTrainerSpec(std::string_view bytes, TokenizerData* data) {
  return ForEachField(bytes, [&](const Message::Field& field) {
    switch (field.number) {
      case 3:
        if (field.value != 1 && field.value != 2) {
          return Unimplemented("tokenizer.model: model type " + std::to_string(field.value) +
                               " is not supported; unigram (1) and BPE (2) are");
        }
        data->model = field.value == 1 ? "spm-unigram" : "spm-bpe";
        break;
      case 24:
        if (field.Bool()) return Unimplemented("tokenizer.model: treat_whitespace_as_suffix is not supported");
        break;
      case 35: data->byte_fallback = field.Bool(); break;
      case 41: data->bos_id = field.Int(); break;
      case 42: data->eos_ids.assign(field.Int() >= 0 ? 1 : 0, field.Int()); break;
      case 43: data->pad_id = field.Int(); break;
      default: break;
    }
    return OkStatus();
  });
}

Status ReadNormalizerSpec(std::string_view bytes, NormalizerStep* step) {
  return ForEachField(bytes, [&](const Message::Field& field) {
    if (field.number == 2) step->text = field.bytes;
    if (field.number == 3) step->add_prefix = field.Bool();
    if (field.number == 4) step->collapse_spaces = field.Bool();
    if (field.number == 5) step->escape_spaces = field.Bool();
    return OkStatus();
  });
}

}  // namespace

Result<TokenizerData> ParseSentencePieceModel(std::string_view file) {
  // The defaults of the format.
  TokenizerData data{.model = "spm-unigram", .byte_level = false, .fuse_unk = true, .bos_id = 1, .eos_ids = {2}};
  NormalizerStep normalizer{.kind = NormalizerStep::Kind::kSentencePiece, .add_prefix = true, .collapse_spaces = true};
  COPPICE_RETURN_IF_ERROR(ForEachField(file, [&](const Message::Field& field) {
    if (field.number == 1) return ReadPiece(field.bytes, &data);
    if (field.number == 2) return ReadTrainerSpec(field.bytes, &data);
    if (field.number == 3) return ReadNormalizerSpec(field.bytes, &normalizer);
    if (field.number != 5) return OkStatus();
    return ForEachField(field.bytes, [](const Message::Field& denormalizer) {
      const bool changes = denormalizer.number == 2 && !denormalizer.bytes.empty();
      return changes ? Unimplemented("tokenizer.model: a denormalizer is not supported") : OkStatus();
    });
  }));
  if (data.tokens.empty()) return Damaged("it has no pieces");
  data.decoder = {.replacements = {{"\u2581", " "}}, .byte_fallback = true};
  data.decoder.strip_start = normalizer.collapse_spaces ? -1 : normalizer.add_prefix ? 1 : 0;
  data.normalizer.push_back(std::move(normalizer));
  return data;
}

}  // namespace coppice
