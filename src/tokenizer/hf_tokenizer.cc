#include "tokenizer/hf_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/json.h"
#include "core/quoted.h"
#include "tokenizer/pre_tokenizer.h"

namespace coppice {
namespace {

using Json = nlohmann::json;
using TokenKind = TokenizerData::TokenKind;

// Ids beyond this are a damaged file, not a vocabulary (the largest in use are below 300 thousand).
constexpr size_t kMaxVocabulary = 1 << 24;

// `object[key]`, or null where it is absent or `object` is no object.
const Json& Get(const Json& object, const char* key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

std::string GetString(const Json& object, const char* key) {
  const Json& value = Get(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

bool GetBool(const Json& object, const char* key, bool otherwise) {
  const Json& value = Get(object, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

// A value for a message: its JSON, cut where it is long.
std::string Show(const Json& value) {
  if (value.is_string()) return Quoted(value.get_ref<const std::string&>());
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

Status Wrong(const std::string& what, const Json& value, const std::string& expected) {
  return InvalidArgument("tokenizer.json: " + what + " is " + Show(value) + "; expected " + expected);
}

// `value` as an id below `limit`: nlohmann's own conversion would wrap what does not fit.
Result<int32_t> TokenId(const std::string& what, const Json& value, size_t limit) {
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() < limit;
  if (fits) return static_cast<int32_t>(value.get<uint64_t>());
  return Wrong("the id of " + what, value, "an integer from 0 to " + std::to_string(limit - 1));
}

Status CannotDo(const std::string& what) {
  return Unimplemented("tokenizer.json: " + what +
                       " is not supported; byte-level BPE tokenizers with Split, Digits and ByteLevel are");
}

// The steps of a "Sequence" (nested ones too), or the one step itself; `list` is the key of the steps.
std::vector<const Json*> Steps(const Json& component, const char* list) {
  std::vector<const Json*> steps, pending = {&component};
  while (!pending.empty()) {
    const Json& step = *pending.back();
    pending.pop_back();
    if (step.is_null()) continue;
    if (GetString(step, "type") != "Sequence") {
      steps.push_back(&step);
      continue;
    }
    const Json& inner = Get(step, list);
    for (auto it = inner.rbegin(); it != inner.rend(); ++it) pending.push_back(&*it);
  }
  return steps;
}

Status ParseNormalizer(const Json& normalizer, TokenizerData* data) {
  for (const Json* step : Steps(normalizer, "normalizers")) {
    if (GetString(*step, "type") != "NFC") return CannotDo("normalizer " + Show(Get(*step, "type")));
    data->normalize_nfc = true;
  }
  return OkStatus();
}

// A literal string as a pattern.
std::string LiteralPattern(const std::string& literal) {
  std::string pattern;
  for (char c : literal) {
    const bool plain = static_cast<uint8_t>(c) >= 0x80 || std::isalnum(static_cast<unsigned char>(c)) || c == ' ' || c == '\n';
    pattern.append(plain ? "" : "\\").push_back(c);
  }
  return pattern;
}

Status ParseSplit(const Json& step, TokenizerData* data) {
  const std::string behavior = GetString(step, "behavior");
  // Keeping only the matches is the same as isolating them where the pattern leaves no gaps; that cannot be known here.
  if (behavior != "Isolated") return CannotDo("pre_tokenizer Split with behavior " + Show(Get(step, "behavior")));
  const Json& pattern = Get(step, "pattern");
  if (Get(pattern, "Regex").is_string()) {
    data->pre_tokenizer_patterns.push_back(GetString(pattern, "Regex"));
  } else if (Get(pattern, "String").is_string()) {
    data->pre_tokenizer_patterns.push_back(LiteralPattern(GetString(pattern, "String")));
  } else {
    return Wrong("the pattern of a pre_tokenizer Split", pattern, "{\"Regex\": ...} or {\"String\": ...}");
  }
  return OkStatus();
}

Status ParsePreTokenizer(const Json& pre_tokenizer, TokenizerData* data) {
  bool byte_level = false;
  for (const Json* step : Steps(pre_tokenizer, "pretokenizers")) {
    const std::string type = GetString(*step, "type");
    if (byte_level) return CannotDo("pre_tokenizer " + type + " after ByteLevel");
    if (type == "Split") {
      COPPICE_RETURN_IF_ERROR(ParseSplit(*step, data));
    } else if (type == "Digits") {
      data->pre_tokenizer_patterns.push_back(GetBool(*step, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    } else if (type == "ByteLevel") {
      byte_level = true;
      if (GetBool(*step, "add_prefix_space", true)) return CannotDo("pre_tokenizer ByteLevel with add_prefix_space");
      if (!GetBool(*step, "use_regex", true)) continue;
      COPPICE_ASSIGN_OR_RETURN(const PreTokenizerKind gpt2, FindPreTokenizerKind("gpt2"));
      data->pre_tokenizer_patterns.insert(data->pre_tokenizer_patterns.end(), gpt2.patterns.begin(), gpt2.patterns.end());
    } else {
      return CannotDo("pre_tokenizer " + Show(Get(*step, "type")));
    }
  }
  return byte_level ? OkStatus() : CannotDo("a pre_tokenizer without ByteLevel");
}

Status AddToken(const std::string& text, const Json& id_value, TokenKind kind, TokenizerData* data) {
  COPPICE_ASSIGN_OR_RETURN(const int32_t signed_id, TokenId("token " + Quoted(text), id_value, kMaxVocabulary));
  const auto id = static_cast<size_t>(signed_id);
  if (id >= data->tokens.size()) {
    data->tokens.resize(id + 1);
    data->kinds.resize(id + 1, TokenKind::kUnused);
  }
  if (data->kinds[id] != TokenKind::kUnused && data->tokens[id] != text) {
    return Wrong("id " + std::to_string(id), text, "one token, but it is also " + Quoted(data->tokens[id]));
  }
  data->tokens[id] = text;
  data->kinds[id] = kind;
  return OkStatus();
}

Status ParseMerges(const Json& merges, TokenizerData* data) {
  if (!merges.is_array()) return Wrong("model.merges", merges, "a list");
  data->merges.reserve(merges.size());
  for (const Json& merge : merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      data->merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string pair = merge.is_string() ? merge.get<std::string>() : "";
    const size_t space = pair.find(' ');
    if (space == std::string::npos || pair.find(' ', space + 1) != std::string::npos) {
      return Wrong("merge " + std::to_string(data->merges.size()), merge, "two tokens, as \"a b\" or [\"a\", \"b\"]");
    }
    data->merges.emplace_back(pair.substr(0, space), pair.substr(space + 1));
  }
  return OkStatus();
}

Status ParseModel(const Json& model, TokenizerData* data) {
  const Json& type = Get(model, "type");
  if (!type.is_null() && type != "BPE") return CannotDo("model type " + Show(type));
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = Get(model, key);
    if (!value.is_null() && value != "" && value != 0) return CannotDo(std::string("model.") + key + " " + Show(value));
  }
  if (GetBool(model, "byte_fallback", false)) return CannotDo("model.byte_fallback (SentencePiece's way to write bytes)");
  data->model = "bpe";
  data->ignore_merges = GetBool(model, "ignore_merges", false);

  const Json& vocabulary = Get(model, "vocab");
  if (!vocabulary.is_object() || vocabulary.empty()) return Wrong("model.vocab", vocabulary, "an object of tokens and their ids");
  for (const auto& [token, id] : vocabulary.items()) COPPICE_RETURN_IF_ERROR(AddToken(token, id, TokenKind::kNormal, data));
  return ParseMerges(Get(model, "merges"), data);
}

Status ParseAddedTokens(const Json& added_tokens, TokenizerData* data) {
  if (!added_tokens.is_null() && !added_tokens.is_array()) return Wrong("added_tokens", added_tokens, "a list");
  for (const Json& token : added_tokens) {
    const std::string content = GetString(token, "content");
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
      if (GetBool(token, flag, false)) return CannotDo("added token " + Quoted(content) + " with " + flag);
    }
    const TokenKind kind = GetBool(token, "special", false) ? TokenKind::kControl : TokenKind::kUserDefined;
    COPPICE_RETURN_IF_ERROR(AddToken(content, Get(token, "id"), kind, data));
  }
  return OkStatus();
}

// Special tokens around the text: at most one before (bos) and one after (eos). True where the file says so.
Result<bool> ParsePostProcessor(const Json& post_processor, TokenizerData* data) {
  bool has_template = false;
  for (const Json* step : Steps(post_processor, "processors")) {
    const std::string type = GetString(*step, "type");
    if (type == "ByteLevel") continue;  // adjusts offsets only
    if (type != "TemplateProcessing") return CannotDo("post_processor " + Show(Get(*step, "type")));
    has_template = true;
    bool after_text = false;
    for (const Json& item : Get(*step, "single")) {
      if (Get(item, "Sequence").is_object()) {
        after_text = true;
        continue;
      }
      const std::string name = GetString(Get(item, "SpecialToken"), "id");
      const Json& ids = Get(Get(Get(*step, "special_tokens"), name.c_str()), "ids");
      if (!ids.is_array() || ids.size() != 1 || (after_text ? data->add_eos : data->add_bos)) {
        return CannotDo("post_processor TemplateProcessing with " + Show(Get(*step, "single")));
      }
      COPPICE_ASSIGN_OR_RETURN(const int32_t id, TokenId("post_processor token " + Quoted(name), ids[0], data->tokens.size()));
      if (after_text) {
        data->add_eos = true;
        data->eos_ids = {id};
      } else {
        data->add_bos = true;
        data->bos_id = id;
      }
    }
  }
  return has_template;
}

// The text of a special token in tokenizer_config.json: a string, or an object with "content".
std::string SpecialTokenText(const Json& config, const char* key) {
  const Json& value = Get(config, key);
  return value.is_string() ? value.get<std::string>() : GetString(value, "content");
}

Status ParseConfig(const Json& config, bool has_template, TokenizerData* data) {
  const auto id_of = [&](const char* key) -> Result<int32_t> {
    const std::string text = SpecialTokenText(config, key);
    if (text.empty()) return -1;
    // Special tokens are usually added last.
    const auto found = std::find(data->tokens.rbegin(), data->tokens.rend(), text);
    if (found != data->tokens.rend()) return static_cast<int32_t>(data->tokens.rend() - found) - 1;
    return InvalidArgument("tokenizer_config.json: " + std::string(key) + " is " + Quoted(text) +
                           ", which tokenizer.json does not have; expected one of its tokens");
  };
  COPPICE_ASSIGN_OR_RETURN(const int32_t bos, id_of("bos_token"));
  COPPICE_ASSIGN_OR_RETURN(const int32_t eos, id_of("eos_token"));
  COPPICE_ASSIGN_OR_RETURN(data->unk_id, id_of("unk_token"));
  COPPICE_ASSIGN_OR_RETURN(data->pad_id, id_of("pad_token"));
  if (!data->add_bos && bos >= 0) data->bos_id = bos;
  if (!data->add_eos && eos >= 0) data->eos_ids = {eos};
  if (!has_template) {
    data->add_bos = GetBool(config, "add_bos_token", false) && data->bos_id >= 0;
    data->add_eos = GetBool(config, "add_eos_token", false) && !data->eos_ids.empty();
  }

  const Json& chat_template = Get(config, "chat_template");
  if (chat_template.is_string()) data->chat_template = chat_template.get<std::string>();
  if (chat_template.is_array()) {  // several, by name
    for (const Json& named : chat_template) {
      if (GetString(named, "name") == "default") data->chat_template = GetString(named, "template");
    }
  }
  return OkStatus();
}

Result<Json> ParseObject(const std::string& name, const std::string& text) {
  Result<Json> json = ParseJson(text);
  if (json.ok() && json->is_object()) return json;
  return InvalidArgument(name + " (" + std::to_string(text.size()) + " bytes) is not a JSON object" +
                         (json.ok() ? "" : " (" + json.status().message() + ")") + "; the file is damaged, download it again");
}

}  // namespace

Result<TokenizerData> ParseHuggingFaceTokenizer(const std::string& tokenizer_json, const std::string& tokenizer_config_json) {
  COPPICE_ASSIGN_OR_RETURN(const Json tokenizer, ParseObject("tokenizer.json", tokenizer_json));
  COPPICE_ASSIGN_OR_RETURN(const Json config,
                           ParseObject("tokenizer_config.json", tokenizer_config_json.empty() ? "{}" : tokenizer_config_json));

  TokenizerData data;
  COPPICE_RETURN_IF_ERROR(ParseModel(Get(tokenizer, "model"), &data));
  COPPICE_RETURN_IF_ERROR(ParseAddedTokens(Get(tokenizer, "added_tokens"), &data));
  COPPICE_RETURN_IF_ERROR(ParseNormalizer(Get(tokenizer, "normalizer"), &data));
  COPPICE_RETURN_IF_ERROR(ParsePreTokenizer(Get(tokenizer, "pre_tokenizer"), &data));
  COPPICE_ASSIGN_OR_RETURN(const bool has_template, ParsePostProcessor(Get(tokenizer, "post_processor"), &data));
  COPPICE_RETURN_IF_ERROR(ParseConfig(config, has_template, &data));
  return data;
}

}  // namespace coppice
