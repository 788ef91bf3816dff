#include "tokenizer/hf_tokenizer.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "core/check.h"
#include "core/json.h"
#include "core/quoted.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/regex_syntax.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

using Json = nlohmann::json;
using TokenKind = TokenizerData::TokenKind;

// More tokens are a damaged file, not a vocabulary (the largest in use are below 300 thousand).
constexpr size_t kMaxVocabulary = 1 << 24;

// The bound of ids in a file that lists so many tokens: vocabularies have gaps, of some thousands at most, but one id must not
// cost the memory of millions.
size_t IdLimit(size_t listed_tokens) { return std::min(kMaxVocabulary, 2 * listed_tokens + (size_t{1} << 16)); }

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
  return PrintableJson(value, 60);
}

constexpr char kTokenizerFile[] = "tokenizer.json", kConfigFile[] = "tokenizer_config.json", kAddedFile[] = "added_tokens.json",
               kSpecialFile[] = "special_tokens_map.json";

Status Wrong(const std::string& what, const Json& value, const std::string& expected, const std::string& file = kTokenizerFile) {
  return InvalidArgument(file + ": " + what + " is " + Show(value) + "; expected " + expected);
}

// `value` as an id below `limit`: nlohmann's own conversion would wrap what does not fit.
Result<int32_t> TokenId(const std::string& what, const Json& value, size_t limit, const std::string& file = kTokenizerFile) {
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() < limit;
  if (fits) return static_cast<int32_t>(value.get<uint64_t>());
  return Wrong("the id of " + what, value, "an integer from 0 to " + std::to_string(limit - 1), file);
}

Status CannotDo(const std::string& what) { return Unimplemented("tokenizer.json: " + what + " is not supported"); }

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

// "type" of a step, for messages.
std::string TypeOf(const Json& step) { return Show(Get(step, "type")); }

// {"Regex": ...} or {"String": ...} as a regular expression.
Result<std::string> PatternOf(const Json& step, const std::string& what) {
  const Json& pattern = Get(step, "pattern");
  if (Get(pattern, "Regex").is_string()) return GetString(pattern, "Regex");
  if (Get(pattern, "String").is_string()) return LiteralPattern(GetString(pattern, "String"));
  return Wrong("the pattern of a " + what, pattern, "{\"Regex\": ...} or {\"String\": ...}");
}

Result<std::string> DecodeBase64(std::string_view text) {
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) return InvalidArgument("tokenizer.json: the precompiled_charsmap is not in base64");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xFF));
  }
  return bytes;
}

Status ParseNormalizer(const Json& normalizer, TokenizerData* data) {
  using Kind = NormalizerStep::Kind;
  constexpr std::pair<std::string_view, Kind> kPlain[] = {{"NFC", Kind::kNfc},
                                                          {"NFD", Kind::kNfd},
                                                          {"NFKC", Kind::kNfkc},
                                                          {"NFKD", Kind::kNfkd},
                                                          {"Lowercase", Kind::kLowercase},
                                                          {"StripAccents", Kind::kStripAccents}};
  for (const Json* step : Steps(normalizer, "normalizers")) {
    const std::string type = GetString(*step, "type");
    const auto plain = std::ranges::find(kPlain, type, &std::pair<std::string_view, Kind>::first);
    if (plain != std::end(kPlain)) {
      data->normalizer.push_back({.kind = plain->second});
    } else if (type == "Strip") {
      data->normalizer.push_back(
          {.kind = Kind::kStrip, .left = GetBool(*step, "strip_left", true), .right = GetBool(*step, "strip_right", true)});
    } else if (type == "Prepend") {
      data->normalizer.push_back({.kind = Kind::kPrepend, .text = GetString(*step, "prepend")});
    } else if (type == "Replace") {
      COPPICE_ASSIGN_OR_RETURN(std::string pattern, PatternOf(*step, "normalizer Replace"));
      data->normalizer.push_back({.kind = Kind::kReplace, .pattern = std::move(pattern), .text = GetString(*step, "content")});
    } else if (type == "Nmt") {
      data->normalizer.push_back({.kind = Kind::kReplace, .pattern = R"([\x{1}-\x{8}\x{B}\x{E}-\x{1F}\x{7F}\x{8F}\x{9F}])"});
      constexpr char kSpaces[] = R"([\t\n\f\r\x{1680}\x{200B}-\x{200F}\x{2028}\x{2029}\x{2581}\x{FEFF}\x{FFFD}])";
      data->normalizer.push_back({.kind = Kind::kReplace, .pattern = kSpaces, .text = " "});
    } else if (type == "Precompiled") {
      COPPICE_ASSIGN_OR_RETURN(std::string map, DecodeBase64(GetString(*step, "precompiled_charsmap")));
      data->normalizer.push_back({.kind = Kind::kCharsMap, .text = std::move(map)});
    } else {
      return CannotDo("normalizer " + TypeOf(*step));
    }
  }
  return OkStatus();
}

constexpr char kPunctuation[] = R"([\p{P}$+<=>^`|~])";

Result<PreTokenizerStep::Behavior> BehaviorOf(const Json& step, const char* otherwise) {
  using Behavior = PreTokenizerStep::Behavior;
  constexpr std::pair<std::string_view, Behavior> kBehaviors[] = {{"Isolated", Behavior::kIsolated},
                                                                  {"Removed", Behavior::kRemoved},
                                                                  {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                                                                  {"MergedWithNext", Behavior::kMergedWithNext},
                                                                  {"Contiguous", Behavior::kContiguous}};
  const Json& value = Get(step, "behavior");
  const std::string name = value.is_null() ? otherwise : value.is_string() ? value.get<std::string>() : "";
  const auto found = std::ranges::find(kBehaviors, name, &std::pair<std::string_view, Behavior>::first);
  if (found == std::end(kBehaviors)) return CannotDo("pre_tokenizer " + TypeOf(step) + " with behavior " + Show(value));
  return found->second;
}

// Metaspace as pre-tokenizer and as decoder; files before 2023 say add_prefix_space.
Result<PreTokenizerStep> ParseMetaspace(const Json& step) {
  using Prepend = PreTokenizerStep::Prepend;
  PreTokenizerStep rule{.kind = PreTokenizerStep::Kind::kMetaspace, .split = GetBool(step, "split", true)};
  if (Get(step, "replacement").is_string()) rule.replacement = GetString(step, "replacement");
  if (rule.replacement.empty() || DecodeUtf8(rule.replacement).length != rule.replacement.size())
    return Wrong("the replacement of a Metaspace", rule.replacement, "a character");
  const Json& scheme = Get(step, "prepend_scheme");
  if (scheme == "first") {
    rule.prepend = Prepend::kFirst;
  } else if (scheme == "never" || (scheme.is_null() && !GetBool(step, "add_prefix_space", true))) {
    rule.prepend = Prepend::kNever;
  } else if (scheme != "always" && !scheme.is_null()) {
    return CannotDo("Metaspace with prepend_scheme " + Show(scheme));
  }
  return rule;
}

Status ParsePreTokenizer(const Json& pre_tokenizer, TokenizerData* data) {
  using Behavior = PreTokenizerStep::Behavior;
  data->byte_level = false;
  std::vector<PreTokenizerStep>& steps = data->pre_tokenizer_steps;
  for (const Json* step : Steps(pre_tokenizer, "pretokenizers")) {
    const std::string type = GetString(*step, "type");
    if (data->byte_level) return CannotDo("pre_tokenizer " + TypeOf(*step) + " after ByteLevel");
    if (type == "Split") {
      COPPICE_ASSIGN_OR_RETURN(std::string pattern, PatternOf(*step, "pre_tokenizer Split"));
      COPPICE_ASSIGN_OR_RETURN(const Behavior behavior, BehaviorOf(*step, ""));
      steps.push_back({.pattern = std::move(pattern), .behavior = behavior, .invert = GetBool(*step, "invert", false)});
    } else if (type == "Digits") {
      steps.push_back({.pattern = GetBool(*step, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)"});
    } else if (type == "Punctuation") {
      COPPICE_ASSIGN_OR_RETURN(const Behavior behavior, BehaviorOf(*step, "Isolated"));
      steps.push_back({.pattern = kPunctuation, .behavior = behavior});
    } else if (type == "Whitespace") {
      constexpr char kWord[] = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])";
      const std::string others = R"([^\s\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}]+)";
      steps.push_back({.pattern = std::string(kWord) + "+|" + others, .behavior = Behavior::kRemoved, .invert = true});
    } else if (type == "WhitespaceSplit" || type == "BertPreTokenizer") {
      steps.push_back({.pattern = R"(\s)", .behavior = Behavior::kRemoved});
      if (type == "BertPreTokenizer") steps.push_back({.pattern = kPunctuation});
    } else if (type == "CharDelimiterSplit") {
      steps.push_back({.pattern = LiteralPattern(GetString(*step, "delimiter")), .behavior = Behavior::kRemoved});
    } else if (type == "Metaspace") {
      COPPICE_ASSIGN_OR_RETURN(PreTokenizerStep rule, ParseMetaspace(*step));
      steps.push_back(std::move(rule));
    } else if (type == "ByteLevel") {
      data->byte_level = true;
      if (GetBool(*step, "add_prefix_space", true)) steps.push_back({.kind = PreTokenizerStep::Kind::kPrefixSpace});
      if (!GetBool(*step, "use_regex", true)) continue;
      COPPICE_ASSIGN_OR_RETURN(const PreTokenizerKind gpt2, FindPreTokenizerKind("gpt2"));
      for (const std::string& pattern : gpt2.patterns) steps.push_back({.pattern = pattern});
    } else {
      return CannotDo("pre_tokenizer " + TypeOf(*step));
    }
  }
  return OkStatus();
}

Status ParseDecoder(const Json& decoder, TokenizerData* data) {
  DecoderRules& rules = data->decoder;
  bool byte_level = false, fused = false;
  for (const Json* step : Steps(decoder, "decoders")) {
    const std::string type = GetString(*step, "type");
    const auto refuse = [&](const std::string& why) { return CannotDo("decoder " + TypeOf(*step) + why); };
    if (type == "ByteLevel") {
      byte_level = true;
    } else if (type == "ByteFallback") {
      rules.byte_fallback = true;
    } else if (type == "Fuse") {
      fused = true;
    } else if (type == "Metaspace") {
      COPPICE_ASSIGN_OR_RETURN(const PreTokenizerStep metaspace, ParseMetaspace(*step));
      if (fused) return refuse(" after Fuse");
      rules.replacements.emplace_back(metaspace.replacement, " ");
      rules.strip_start = metaspace.prepend == PreTokenizerStep::Prepend::kNever ? 0 : 1;
    } else if (type == "Replace") {
      const std::string from = GetString(Get(*step, "pattern"), "String");
      if (from.empty() || fused || rules.byte_fallback) return refuse(" with a regex, or after Fuse or ByteFallback");
      rules.replacements.emplace_back(from, GetString(*step, "content"));
    } else if (type == "Strip") {
      const Json &start = Get(*step, "start"), &stop = Get(*step, "stop");
      rules.strip = GetString(*step, "content");
      if (!fused || stop != 0 || rules.strip.empty() || !start.is_number_unsigned() || start > 1000) {
        return refuse(" " + Show(*step) + " (it must come after Fuse, with stop 0)");
      }
      rules.strip_start = start.get<int32_t>();
    } else {
      return refuse("");
    }
  }
  if (decoder.is_null() && !data->byte_level) return CannotDo("a tokenizer without decoder or ByteLevel pre_tokenizer");
  if (byte_level != data->byte_level && !(decoder.is_null() && data->byte_level)) {
    return CannotDo(std::string("decoder ") + (decoder.is_null() ? "null" : TypeOf(decoder)) + " with " +
                    (data->byte_level ? "a" : "no") + " ByteLevel pre_tokenizer");
  }
  return OkStatus();
}

Status AddToken(const std::string& text, const Json& id_value, TokenKind kind, size_t id_limit, TokenizerData* data,
                const std::string& file = kTokenizerFile) {
  COPPICE_ASSIGN_OR_RETURN(const int32_t signed_id, TokenId("token " + Quoted(text), id_value, id_limit, file));
  const auto id = static_cast<size_t>(signed_id);
  if (id >= data->tokens.size()) {
    data->tokens.resize(id + 1);
    data->kinds.resize(id + 1, TokenKind::kUnused);
  }
  if (data->kinds[id] != TokenKind::kUnused && data->tokens[id] != text) {
    return Wrong("id " + std::to_string(id), text, "one token, but it is also " + Quoted(data->tokens[id]), file);
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

Status ParseBpe(const Json& model, size_t id_limit, TokenizerData* data) {
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = Get(model, key);
    if (!value.is_null() && value != "" && value != 0) return CannotDo(std::string("model.") + key + " " + Show(value));
  }
  data->model = "bpe";
  data->ignore_merges = GetBool(model, "ignore_merges", false);
  data->fuse_unk = GetBool(model, "fuse_unk", false);
  const Json& vocabulary = Get(model, "vocab");
  if (!vocabulary.is_object() || vocabulary.empty()) return Wrong("model.vocab", vocabulary, "an object of tokens and their ids");
  for (const auto& [token, id] : vocabulary.items())
    COPPICE_RETURN_IF_ERROR(AddToken(token, id, TokenKind::kNormal, id_limit, data));
  if (const Json& unk = Get(model, "unk_token"); unk.is_string() && !unk.get_ref<const std::string&>().empty()) {
    const auto found = vocabulary.find(unk.get<std::string>());
    if (found == vocabulary.end()) return Wrong("model.unk_token", unk, "a token of model.vocab");
    COPPICE_ASSIGN_OR_RETURN(data->unk_id, TokenId("model.unk_token", *found, id_limit));
  }
  return ParseMerges(Get(model, "merges"), data);
}

Status ParseUnigram(const Json& model, TokenizerData* data) {
  data->model = "unigram";
  data->fuse_unk = true;
  const Json& vocabulary = Get(model, "vocab");
  if (!vocabulary.is_array() || vocabulary.empty() || vocabulary.size() > kMaxVocabulary) {
    return Wrong("model.vocab", vocabulary, "a list of tokens and their scores");
  }
  for (const Json& entry : vocabulary) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      return Wrong("model.vocab entry " + std::to_string(data->tokens.size()), entry, "[token, score]");
    }
    data->tokens.push_back(entry[0].get<std::string>());
    data->kinds.push_back(TokenKind::kNormal);
    data->scores.push_back(entry[1].get<double>());
  }
  if (const Json& unk = Get(model, "unk_id"); !unk.is_null()) {
    COPPICE_ASSIGN_OR_RETURN(data->unk_id, TokenId("model.unk_id", unk, data->tokens.size()));
  }
  return OkStatus();
}

Status ParseModel(const Json& model, size_t id_limit, TokenizerData* data) {
  data->byte_fallback = GetBool(model, "byte_fallback", false);
  const Json& type = Get(model, "type");
  if (type == "Unigram" || (type.is_null() && Get(model, "vocab").is_array())) return ParseUnigram(model, data);
  if (!type.is_null() && type != "BPE") return CannotDo("model type " + Show(type));
  return ParseBpe(model, id_limit, data);
}

// But for its id.
AddedToken ReadAddedToken(const Json& token) {
  AddedToken added{.text = GetString(token, "content"),
                   .special = GetBool(token, "special", false),
                   .single_word = GetBool(token, "single_word", false),
                   .lstrip = GetBool(token, "lstrip", false),
                   .rstrip = GetBool(token, "rstrip", false)};
  added.normalized = GetBool(token, "normalized", !added.special);
  return added;
}
TokenKind KindOf(const AddedToken& token) { return token.special ? TokenKind::kControl : TokenKind::kUserDefined; }

Status ParseAddedTokens(const Json& added_tokens, size_t id_limit, TokenizerData* data, const std::string& file = kTokenizerFile) {
  if (!added_tokens.is_null() && !added_tokens.is_array()) return Wrong("added_tokens", added_tokens, "a list", file);
  for (const Json& token : added_tokens) {
    AddedToken added = ReadAddedToken(token);
    COPPICE_RETURN_IF_ERROR(AddToken(added.text, Get(token, "id"), KindOf(added), id_limit, data, file));
    added.id = Get(token, "id").get<int32_t>();
    data->added_tokens.push_back(std::move(added));
  }
  return OkStatus();
}

// {"cls": ["<s>", 0], "sep": ["</s>", 2]}: one before the text, the other after it.
Status AddEnds(const Json& step, TokenizerData* data) {
  const auto id_of = [&](const char* key) -> Result<int32_t> {
    const Json& pair = Get(step, key);
    return TokenId(std::string("post_processor ") + key, pair.is_array() && pair.size() == 2 ? pair[1] : pair, data->tokens.size());
  };
  COPPICE_ASSIGN_OR_RETURN(data->bos_id, id_of("cls"));
  COPPICE_ASSIGN_OR_RETURN(const int32_t eos, id_of("sep"));
  data->eos_ids = {eos};
  data->add_bos = data->add_eos = true;
  return OkStatus();
}

// Special tokens around the text: at most one before (bos) and one after (eos). True where the file says so.
Result<bool> ParsePostProcessor(const Json& post_processor, TokenizerData* data) {
  bool has_template = false;
  for (const Json* step : Steps(post_processor, "processors")) {
    const std::string type = GetString(*step, "type");
    if (type == "ByteLevel") continue;  // adjusts offsets only
    if (type == "RobertaProcessing" || type == "BertProcessing") {
      has_template = true;
      COPPICE_RETURN_IF_ERROR(AddEnds(*step, data));
      continue;
    }
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

// The text of a special token in tokenizer_config.json or special_tokens_map.json: a string, or an object with "content".
std::string SpecialTokenText(const Json& value) {
  return value.is_string() ? value.get<std::string>() : GetString(value, "content");
}

// The id of a token; -1: there is none.
int32_t FindToken(const TokenizerData& data, const std::string& text) {
  if (text.empty()) return -1;
  // Special tokens are usually added last.
  const auto found = std::find(data.tokens.rbegin(), data.tokens.rend(), text);
  return static_cast<int32_t>(data.tokens.rend() - found) - 1;
}

void ParseConfig(const Json& config, bool has_template, TokenizerData* data) {
  // As in transformers, a bos or eos token that the tokenizer does not have is added to it as a special one, with the next id.
  const auto id_of = [&](const char* key) {
    const std::string text = SpecialTokenText(Get(config, key));
    if (const int32_t id = FindToken(*data, text); id >= 0 || text.empty()) return id;
    const auto id = static_cast<int32_t>(data->tokens.size());
    data->tokens.push_back(text);
    data->kinds.push_back(TokenKind::kControl);
    data->added_tokens.push_back({.text = text, .id = id, .special = true});
    return id;
  };
  const int32_t bos = id_of("bos_token"), eos = id_of("eos_token");
  data->pad_id = FindToken(*data, SpecialTokenText(Get(config, "pad_token")));  // not added: the engine does not pad
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
      const std::string name = GetString(named, "name");
      if (name == "default") data->chat_template = GetString(named, "template");
      if (name == "tool_use") data->tool_chat_template = GetString(named, "template");
    }
  }
}

Result<Json> ParseObject(const std::string& name, const std::string& text) {
  Result<Json> json = ParseJson(text);
  if (json.ok() && json->is_object()) return json;
  return InvalidArgument(name + " (" + std::to_string(text.size()) + " bytes) is not a JSON object" +
                         (json.ok() ? "" : " (" + json.status().message() + ")") + "; the file is damaged, download it again");
}

// As ParseObject, or an empty object where there is no such file.
Result<Json> ParseOptionalObject(const std::string& name, const std::string& text) {
  return ParseObject(name, text.empty() ? "{}" : text);
}

// Whether tokenizer_config.json lists the added tokens: then it stands for special_tokens_map.json and added_tokens.json, too.
bool ListsAddedTokens(const Json& config) { return Get(config, "added_tokens_decoder").is_object(); }

// tokenizer_config.json with what special_tokens_map.json, where it counts, puts in its place.
Result<Json> ReadConfig(const TokenizerConfigFiles& files) {
  COPPICE_ASSIGN_OR_RETURN(Json config, ParseOptionalObject(kConfigFile, files.tokenizer_config));
  if (ListsAddedTokens(config)) return config;
  COPPICE_ASSIGN_OR_RETURN(const Json special_map, ParseOptionalObject(kSpecialFile, files.special_tokens_map));
  config.update(special_map);
  return config;
}

// The tokens of "added_tokens_decoder" ({id: properties}), in the form of "added_tokens" in tokenizer.json.
Result<Json> ListDecoderTokens(const Json& decoder) {
  Json list = Json::array();
  for (const auto& [id, token] : decoder.items()) {
    uint64_t number = 0;
    const char* end = id.data() + id.size();
    const auto [parsed_end, error] = std::from_chars(id.data(), end, number);
    if (error != std::errc() || parsed_end != end) return Wrong("an id in added_tokens_decoder", id, "an integer", kConfigFile);
    if (!token.is_object()) return Wrong("added_tokens_decoder entry " + Quoted(id), token, "an object", kConfigFile);
    Json entry = token;
    entry["id"] = number;
    list.push_back(std::move(entry));
  }
  return list;
}

// The tokens of "added_tokens_decoder", as transformers adds them to those of tokenizer.json: a text that is a token keeps its id,
// with the properties listed here, and the others get the next ids, in the order of those that they are listed with.
Status AddDecoderTokens(const Json& config, TokenizerData* data) {
  if (!ListsAddedTokens(config)) return OkStatus();
  COPPICE_ASSIGN_OR_RETURN(Json listed, ListDecoderTokens(Get(config, "added_tokens_decoder")));
  const auto id_of = [](const Json& token) { return token["id"].get<uint64_t>(); };
  std::sort(listed.begin(), listed.end(), [&](const Json& a, const Json& b) { return id_of(a) < id_of(b); });
  std::unordered_map<std::string, size_t> places;  // in data->added_tokens
  for (size_t i = 0; i < data->added_tokens.size(); ++i) places.emplace(data->added_tokens[i].text, i);
  std::unordered_map<std::string, uint64_t> ids;  // of all tokens, once one is asked for that is not among the added ones
  for (const Json& token : listed) {
    AddedToken added = ReadAddedToken(token);
    if (added.text.empty()) continue;
    const auto [place, is_new] = places.emplace(added.text, data->added_tokens.size());
    if (is_new) {
      if (ids.empty()) {
        for (size_t i = 0; i < data->tokens.size(); ++i) ids.emplace(data->tokens[i], i);
      }
      data->added_tokens.emplace_back();
    }
    const uint64_t id = is_new ? ids.emplace(added.text, data->tokens.size()).first->second : data->added_tokens[place->second].id;
    COPPICE_RETURN_IF_ERROR(AddToken(added.text, id, KindOf(added), kMaxVocabulary, data, kConfigFile));
    added.id = static_cast<int32_t>(id);
    data->added_tokens[place->second] = std::move(added);
  }
  return OkStatus();
}

// The texts of the tokens that `config` names as special ones.
std::unordered_set<std::string> SpecialTexts(const Json& config) {
  std::unordered_set<std::string> texts;
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    texts.insert(SpecialTokenText(Get(config, key)));
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    for (const Json& token : Get(config, key)) texts.insert(SpecialTokenText(token));  // a list, or an object of names
  }
  texts.erase("");
  return texts;
}

// The tokens of added_tokens.json ({text: id}), in the form of "added_tokens" in tokenizer.json.
Json ListLegacyTokens(const Json& added_tokens, const std::unordered_set<std::string>& special) {
  Json list = Json::array();
  for (const auto& [text, id] : added_tokens.items()) {
    list.push_back({{"content", text}, {"id", id}, {"special", special.contains(text)}});
  }
  return list;
}

// The control tokens of the model that `data->added_tokens` does not list, and its other tokens that are named as special ones.
void AddUnlistedSpecialTokens(const std::unordered_set<std::string>& special, TokenizerData* data) {
  std::unordered_set<int32_t> listed;
  for (const AddedToken& token : data->added_tokens) listed.insert(token.id);
  for (size_t i = 0; i < data->tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (data->kinds[i] != TokenKind::kControl && !special.contains(data->tokens[i])) continue;
    if (!listed.insert(id).second) continue;
    data->kinds[i] = TokenKind::kControl;
    data->added_tokens.push_back({.text = data->tokens[i], .id = id, .special = true});
  }
}

}  // namespace

Status AddHuggingFaceConfig(const TokenizerConfigFiles& files, TokenizerData* data) {
  COPPICE_ASSIGN_OR_RETURN(Json config, ReadConfig(files));
  Json added;
  const char* added_file = kConfigFile;
  if (ListsAddedTokens(config)) {
    COPPICE_ASSIGN_OR_RETURN(added, ListDecoderTokens(Get(config, "added_tokens_decoder")));
  } else {
    COPPICE_ASSIGN_OR_RETURN(const Json added_tokens, ParseOptionalObject(kAddedFile, files.added_tokens));
    added = ListLegacyTokens(added_tokens, SpecialTexts(config));
    added_file = kAddedFile;
  }
  COPPICE_RETURN_IF_ERROR(ParseAddedTokens(added, IdLimit(data->tokens.size() + added.size()), data, added_file));
  AddUnlistedSpecialTokens(SpecialTexts(config), data);
  // The Python tokenizers look for added tokens in the text as it is, whatever "normalized" says.
  for (AddedToken& token : data->added_tokens) token.normalized = false;

  // "legacy": false puts the space before the whole text only, and not after each added token too.
  for (NormalizerStep& step : data->normalizer) step.prefix_at_start = Get(config, "legacy") == false;
  // The base class of the tokenizers that read SentencePiece models adds bos by default.
  if (!Get(config, "add_bos_token").is_boolean()) config["add_bos_token"] = data->bos_id >= 0;
  ParseConfig(config, /*has_template=*/false, data);
  data->scores.resize(data->tokens.size(), 0);
  return OkStatus();
}

Result<TokenizerData> ParseHuggingFaceTokenizer(const std::string& tokenizer_json, const TokenizerConfigFiles& files) {
  COPPICE_ASSIGN_OR_RETURN(const Json tokenizer, ParseObject(kTokenizerFile, tokenizer_json));
  COPPICE_ASSIGN_OR_RETURN(const Json config, ReadConfig(files));

  TokenizerData data;
  const Json &model = Get(tokenizer, "model"), &added_tokens = Get(tokenizer, "added_tokens");
  const size_t id_limit = IdLimit(Get(model, "vocab").size() + added_tokens.size());
  COPPICE_RETURN_IF_ERROR(ParseModel(model, id_limit, &data));
  COPPICE_RETURN_IF_ERROR(ParseAddedTokens(added_tokens, id_limit, &data));
  COPPICE_RETURN_IF_ERROR(ParseNormalizer(Get(tokenizer, "normalizer"), &data));
  COPPICE_RETURN_IF_ERROR(ParsePreTokenizer(Get(tokenizer, "pre_tokenizer"), &data));
  if (data.byte_level && data.model != "bpe") return CannotDo("a ByteLevel pre_tokenizer with a Unigram model");
  COPPICE_RETURN_IF_ERROR(ParseDecoder(Get(tokenizer, "decoder"), &data));
  COPPICE_ASSIGN_OR_RETURN(const bool has_template, ParsePostProcessor(Get(tokenizer, "post_processor"), &data));
  COPPICE_RETURN_IF_ERROR(AddDecoderTokens(config, &data));
  ParseConfig(config, has_template, &data);
  if (!data.scores.empty()) data.scores.resize(data.tokens.size(), std::numeric_limits<double>::quiet_NaN());
  return data;
}

Status DropAddedTokensBeyond(int32_t vocab_size, TokenizerData* data) {
  const auto is_beyond = [&](int32_t id) { return id >= vocab_size; };
  if (data->tokens.size() <= static_cast<size_t>(vocab_size)) return OkStatus();
  std::unordered_set<int32_t> added;
  for (const AddedToken& token : data->added_tokens) added.insert(token.id);
  const auto wrong = [&](const std::string& what) {
    return InvalidArgument(what + ", but config.json says \"vocab_size\" " + std::to_string(vocab_size) +
                           "; expected an id below it");
  };
  for (size_t id = static_cast<size_t>(vocab_size); id < data->tokens.size(); ++id) {
    const bool is_gap = data->kinds[id] == TokenKind::kUnused && data->tokens[id].empty();
    if (is_gap || added.contains(static_cast<int32_t>(id))) continue;
    return wrong("token " + Quoted(data->tokens[id]) + " has id " + std::to_string(id));
  }
  if (is_beyond(data->unk_id)) return wrong("the unk token has id " + std::to_string(data->unk_id));
  if (data->add_bos && is_beyond(data->bos_id)) {
    return wrong("the bos token, which the tokenizer puts before each text, has id " + std::to_string(data->bos_id));
  }
  if (data->add_eos && is_beyond(data->eos_ids.front())) {
    return wrong("the eos token, which the tokenizer puts after each text, has id " + std::to_string(data->eos_ids.front()));
  }
  if (is_beyond(data->bos_id)) data->bos_id = -1;
  if (is_beyond(data->pad_id)) data->pad_id = -1;
  std::erase_if(data->eos_ids, is_beyond);
  std::erase_if(data->added_tokens, [&](const AddedToken& token) { return is_beyond(token.id); });
  const auto size = static_cast<size_t>(vocab_size);
  data->tokens.resize(size);
  data->kinds.resize(size);
  if (!data->scores.empty()) data->scores.resize(size);
  return OkStatus();
}

}  // namespace coppice
