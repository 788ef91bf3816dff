#include "model/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "core/check.h"
#include "model/error_text.h"
#include "model/families/family.h"
#include "model/weight_map.h"

namespace coppice {
namespace {

constexpr int64_t kMaxInt32 = INT32_MAX;

constexpr std::string_view kRopeFactors = "rope_freqs.weight";  // llama3 scaling, as divisors of the inverse frequencies

// "blk.7.attn_q.weight" -> "model.layers.7.self_attn.q_proj.weight"; nothing for a name that the family does not have.
std::optional<std::string> TensorName(const Family& family, std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return std::nullopt;
  const std::string_view kind = name.substr(dot);
  if (kind != ".weight" && kind != ".bias") return std::nullopt;
  const std::optional<std::string> stem = HuggingFaceName(family, name.substr(0, dot));
  return stem ? std::optional(fmt::format("{}{}", *stem, kind)) : std::nullopt;
}

class Reader {
 public:
  explicit Reader(const GgufDirectory& gguf) : gguf_(gguf) {}

  Result<ModelContents> Run() {
    COPPICE_RETURN_IF_ERROR(FindFamily());
    COPPICE_RETURN_IF_ERROR(Config());
    COPPICE_RETURN_IF_ERROR(Rope());
    if (family_->complete_gguf != nullptr) family_->complete_gguf(&contents_.config);
    COPPICE_RETURN_IF_ERROR(CheckConfig(contents_.config, gguf_.path()));
    contents_.sampling = ReadSamplingDefaults(gguf_, &contents_.notes);
    contents_.tokenizer_status = Tokenizer();
    if (!contents_.tokenizer_status.ok()) contents_.tokenizer.reset();
    COPPICE_RETURN_IF_ERROR(Tensors());
    return std::move(contents_);
  }

 private:
  std::string Key(std::string_view name) const { return fmt::format("{}.{}", family_->gguf_architecture, name); }

  Status ReadInt(const std::string& key, int64_t min, int64_t max, int32_t* value) const {
    COPPICE_ASSIGN_OR_RETURN(const int64_t number, gguf_.Int(key, min, max));
    *value = static_cast<int32_t>(number);
    return OkStatus();
  }
  Status ReadOptionalInt(const std::string& key, int64_t min, int64_t max, int32_t* value) const {
    return gguf_.Has(key) ? ReadInt(key, min, max, value) : OkStatus();
  }
  Status ReadOptionalBool(std::string_view key, bool* value) const {
    if (!gguf_.Has(key)) return OkStatus();
    COPPICE_ASSIGN_OR_RETURN(*value, gguf_.Bool(key));
    return OkStatus();
  }
  bool HasTensor(std::string_view name) const { return gguf_.tensors().contains(name); }

  Status FindFamily() {
    COPPICE_ASSIGN_OR_RETURN(const std::string_view architecture, gguf_.String("general.architecture"));
    const auto found = std::ranges::find(Families(), architecture, &Family::gguf_architecture);
    if (architecture.empty() || found == Families().end()) {
      std::string supported;
      for (const Family* family : Families()) {
        if (family->gguf_architecture.empty()) continue;
        supported += fmt::format("{}{}", supported.empty() ? "" : ", ", family->gguf_architecture);
      }
      return Unimplemented(
          fmt::format("{}: architecture {} is not supported; supported are {}", gguf_.path(), Quoted(architecture), supported));
    }
    family_ = *found;
    contents_.config.architecture = std::string(family_->name);
    contents_.config.blocks = family_->blocks;
    return OkStatus();
  }

  Status Config() {
    ModelConfig& config = contents_.config;
    COPPICE_RETURN_IF_ERROR(ReadInt(Key("block_count"), 1, 65536, &config.num_layers));
    COPPICE_RETURN_IF_ERROR(ReadInt(Key("context_length"), 1, kMaxInt32, &config.max_position));
    COPPICE_RETURN_IF_ERROR(ReadInt(Key("embedding_length"), 1, kMaxInt32, &config.hidden_size));
    COPPICE_RETURN_IF_ERROR(ReadInt(Key("feed_forward_length"), 1, kMaxInt32, &config.intermediate_size));
    COPPICE_RETURN_IF_ERROR(ReadInt(Key("attention.head_count"), 1, 65536, &config.num_qo_heads));
    config.num_kv_heads = config.num_qo_heads;
    COPPICE_RETURN_IF_ERROR(ReadOptionalInt(Key("attention.head_count_kv"), 1, 65536, &config.num_kv_heads));
    const bool rms = config.blocks.norm == ops::NormKind::kRms;
    COPPICE_ASSIGN_OR_RETURN(config.norm_eps,
                             gguf_.Float(Key(rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon")));
    COPPICE_RETURN_IF_ERROR(ReadOptionalInt(Key("attention.sliding_window"), 0, kMaxInt32, &config.window));
    int32_t experts = 0;
    COPPICE_RETURN_IF_ERROR(ReadOptionalInt(Key("expert_count"), 0, kMaxInt32, &experts));
    if (experts > 0) {
      return Unimplemented(fmt::format("{}: a mixture of {} experts is not supported; use a dense model", gguf_.path(), experts));
    }

    config.head_dim = config.hidden_size / config.num_qo_heads;
    const std::string key_length = Key("attention.key_length"), value_length = Key("attention.value_length");
    COPPICE_RETURN_IF_ERROR(ReadOptionalInt(key_length, 1, kMaxInt32, &config.head_dim));
    int32_t value_dim = config.head_dim;
    COPPICE_RETURN_IF_ERROR(ReadOptionalInt(value_length, 1, kMaxInt32, &value_dim));
    if (value_dim != config.head_dim) {
      return Unimplemented(fmt::format("{}: values of {} elements a head beside keys of {} are not supported", gguf_.path(),
                                       value_dim, config.head_dim));
    }

    // Which of a family's optional parts the model has shows in its tensors; CheckWeights then asks for them in every layer.
    config.tie_embeddings = !HasTensor("output.weight");
    Blocks& blocks = config.blocks;
    const bool fused = HasTensor("blk.0.attn_qkv.weight");
    blocks.qkv = fused ? QkvLayout::kFused : QkvLayout::kSeparate;
    blocks.attention_bias = HasTensor("blk.0.attn_output.bias");
    blocks.qkv_bias = HasTensor(fused ? "blk.0.attn_qkv.bias" : "blk.0.attn_q.bias");
    blocks.mlp_bias = HasTensor("blk.0.ffn_up.bias");
    blocks.lm_head_bias = HasTensor("output.bias");
    blocks.qk_norm = HasTensor("blk.0.attn_q_norm.weight");
    if (fused && family_->gguf_interleaves_qk) {
      return Unimplemented(
          fmt::format("{}: tensor \"blk.0.attn_qkv.weight\": a fused projection is not supported in architecture {}", gguf_.path(),
                      Quoted(family_->gguf_architecture)));
    }
    const auto embedding = gguf_.tensors().find("token_embd.weight");
    if (embedding == gguf_.tensors().end()) {
      return InvalidArgument(fmt::format("{}: tensor \"token_embd.weight\" is missing", gguf_.path()));
    }
    const int64_t vocab = embedding->second.shape.front();
    if (vocab > kMaxInt32) {
      return InvalidArgument(
          fmt::format("{}: tensor \"token_embd.weight\" has {} rows, at most {} are supported", gguf_.path(), vocab, kMaxInt32));
    }
    config.vocab_size = static_cast<int32_t>(vocab);
    return OkStatus();
  }

  Status Rope() {
    ModelConfig& config = contents_.config;
    RopeConfig& rope = config.rope;
    if (const std::string key = Key("rope.freq_base"); gguf_.Has(key)) {
      COPPICE_ASSIGN_OR_RETURN(rope.theta, gguf_.Float(key));
    }
    int32_t rotated = config.head_dim;
    if (config.blocks.rotary) {
      COPPICE_RETURN_IF_ERROR(ReadOptionalInt(Key("rope.dimension_count"), 0, kMaxInt32, &rotated));
      config.rotary_dim = rotated;
    }
    const std::string type_key = Key("rope.scaling.type"), old_factor_key = Key("rope.scale_linear");
    std::string factor_key = Key("rope.scaling.factor");
    if (!gguf_.Has(factor_key) && gguf_.Has(old_factor_key)) factor_key = old_factor_key;
    if (!gguf_.Has(type_key)) {
      // As in llama.cpp, a factor alone is of linear scaling, and 0 stands for none.
      COPPICE_RETURN_IF_ERROR(ReadOptionalFloat(factor_key, &rope.factor));
      if (rope.factor == 0) rope.factor = 1;
      if (rope.factor != 1) rope.scaling = RopeScaling::kLinear;
    } else {
      COPPICE_ASSIGN_OR_RETURN(const std::string_view type, gguf_.String(type_key));
      if (type == "linear") {
        rope.scaling = RopeScaling::kLinear;
        COPPICE_ASSIGN_OR_RETURN(rope.factor, gguf_.Float(factor_key));
      } else if (type == "yarn") {
        COPPICE_RETURN_IF_ERROR(Yarn(factor_key));
      } else if (type != "none") {
        return Unimplemented(
            fmt::format("{}: RoPE scaling {} is not supported; supported are none, linear, yarn and llama3 (tensor {})",
                        gguf_.path(), Quoted(type), kRopeFactors));
      }
    }
    return RopeFactors();
  }

  Status ReadOptionalFloat(const std::string& key, float* value) const {
    if (!gguf_.Has(key)) return OkStatus();
    COPPICE_ASSIGN_OR_RETURN(*value, gguf_.Float(key));
    return OkStatus();
  }

  Status Yarn(const std::string& factor_key) {
    ModelConfig& config = contents_.config;
    RopeConfig& rope = config.rope;
    rope.scaling = RopeScaling::kYarn;
    COPPICE_ASSIGN_OR_RETURN(rope.factor, gguf_.Float(factor_key));
    rope.original_max_position = config.max_position;
    COPPICE_RETURN_IF_ERROR(
        ReadOptionalInt(Key("rope.scaling.original_context_length"), 1, kMaxInt32, &rope.original_max_position));
    COPPICE_RETURN_IF_ERROR(ReadOptionalFloat(Key("rope.scaling.yarn_beta_fast"), &rope.beta_fast));
    COPPICE_RETURN_IF_ERROR(ReadOptionalFloat(Key("rope.scaling.yarn_beta_slow"), &rope.beta_slow));
    float attention = 1;
    COPPICE_RETURN_IF_ERROR(ReadOptionalFloat(Key("rope.scaling.attn_factor"), &attention));
    rope.attention_factor = attention * (rope.factor > 1 ? 0.1f * std::log(rope.factor) + 1.0f : 1.0f);
    return OkStatus();
  }

  Status RopeFactors() {
    const auto found = gguf_.tensors().find(kRopeFactors);
    if (found == gguf_.tensors().end()) return OkStatus();
    std::vector<float>& divisors = contents_.config.rope.frequency_divisors;
    const StoredTensor& tensor = found->second;
    const int64_t expected = contents_.config.rotated() / 2;
    if (tensor.shape != std::vector<int64_t>{expected}) {
      return InvalidArgument(fmt::format("{}: tensor {} has shape {}, expected [{}] (half the rotated elements of a head)",
                                         gguf_.path(), Quoted(kRopeFactors), ShapeText(tensor.shape), expected));
    }
    divisors.resize(static_cast<size_t>(expected));
    return LoadWeight(kRopeFactors, tensor, 1, expected, DType::kF32, std::as_writable_bytes(std::span(divisors)));
  }

  template <class... Values>
  void Note(fmt::format_string<Values...> format, Values&&... values) {
    contents_.notes.push_back(fmt::format("{}: {}", gguf_.path(), fmt::format(format, std::forward<Values>(values)...)));
  }

  // A token id of the vocabulary; -1 if the key is absent, or its id is that of no token: some writers state -1 so, others ids
  // beyond a vocabulary that they cut.
  Status ReadTokenId(std::string_view name, int32_t* id) {
    const std::string key = fmt::format("tokenizer.ggml.{}", name);
    if (!gguf_.Has(key)) return OkStatus();
    COPPICE_ASSIGN_OR_RETURN(const int64_t number, gguf_.Int(key, INT64_MIN, INT64_MAX));
    const int32_t vocab_size = contents_.config.vocab_size;
    if (number >= 0 && number < vocab_size) {
      *id = static_cast<int32_t>(number);
    } else if (number != -1 && number != UINT32_MAX) {
      Note("{} is {}, which is none of {} tokens: it counts as absent", key, number, vocab_size);
    }
    return OkStatus();
  }

  Status Tokenizer() {
    constexpr std::string_view kModelKey = "tokenizer.ggml.model", kTokensKey = "tokenizer.ggml.tokens";
    ModelConfig& config = contents_.config;
    COPPICE_RETURN_IF_ERROR(SpecialIds(&config));
    if (!gguf_.Has(kModelKey) && !gguf_.Has(kTokensKey)) {
      return NotFound(fmt::format("{}: the model has no tokenizer ({}, {})", gguf_.path(), kModelKey, kTokensKey));
    }
    for (const std::string_view key : {kModelKey, kTokensKey}) COPPICE_RETURN_IF_ERROR(Require(key));
    TokenizerData& data = contents_.tokenizer.emplace();

    COPPICE_ASSIGN_OR_RETURN(const std::string_view model, gguf_.String(kModelKey));
    // Others are refused, by their name, by CreateTokenizer.
    data.model = model == "gpt2" ? "bpe" : model == "llama" ? "spm-bpe" : model == "t5" ? "spm-unigram" : std::string(model);
    data.pre_tokenizer = "default";
    if (gguf_.Has("tokenizer.ggml.pre")) {
      COPPICE_ASSIGN_OR_RETURN(data.pre_tokenizer, gguf_.String("tokenizer.ggml.pre"));
    } else if (data.model == "bpe") {
      Note("tokenizer.ggml.pre is missing: texts are cut as \"default\" does, which may not be what the model was trained with");
    }
    if (data.model == "spm-bpe" || data.model == "spm-unigram") COPPICE_RETURN_IF_ERROR(SentencePiece(&data));

    COPPICE_ASSIGN_OR_RETURN(const std::vector<std::string_view> tokens, gguf_.Strings(kTokensKey));
    if (tokens.size() != static_cast<size_t>(config.vocab_size)) {
      return InvalidArgument(fmt::format("{}: {} has {} tokens, but tensor \"token_embd.weight\" has {} rows", gguf_.path(),
                                         kTokensKey, tokens.size(), config.vocab_size));
    }
    data.tokens.assign(tokens.begin(), tokens.end());
    COPPICE_RETURN_IF_ERROR(TokenKinds(&data));
    COPPICE_RETURN_IF_ERROR(Merges(&data));

    AddEnds(&data, &config.eos_token_ids);
    data.bos_id = config.bos_token_id;
    data.eos_ids = config.eos_token_ids;
    if (data.model != "bpe") COPPICE_RETURN_IF_ERROR(ReadTokenId("unknown_token_id", &data.unk_id));
    COPPICE_RETURN_IF_ERROR(ReadTokenId("padding_token_id", &data.pad_id));
    COPPICE_RETURN_IF_ERROR(FillInTheMiddle(&data.fim));
    data.add_bos = data.model == "spm-bpe" && data.bos_id >= 0;  // unless the file says otherwise
    COPPICE_RETURN_IF_ERROR(ReadOptionalBool("tokenizer.ggml.add_bos_token", &data.add_bos));
    COPPICE_RETURN_IF_ERROR(ReadOptionalBool("tokenizer.ggml.add_eos_token", &data.add_eos));
    if (gguf_.Has("tokenizer.chat_template")) {
      COPPICE_ASSIGN_OR_RETURN(data.chat_template, gguf_.String("tokenizer.chat_template"));
    }
    if (gguf_.Has("tokenizer.chat_template.tool_use")) {
      COPPICE_ASSIGN_OR_RETURN(data.tool_chat_template, gguf_.String("tokenizer.chat_template.tool_use"));
    }
    return OkStatus();
  }

  // They count for runs on token ids, too.
  Status SpecialIds(ModelConfig* config) {
    COPPICE_RETURN_IF_ERROR(ReadTokenId("bos_token_id", &config->bos_token_id));
    for (const std::string_view name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {  // end of text, of turn, of message
      int32_t id = -1;
      COPPICE_RETURN_IF_ERROR(ReadTokenId(name, &id));
      std::vector<int32_t>& ids = config->eos_token_ids;
      if (id >= 0 && std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
    }
    return OkStatus();
  }

  // Under the names of today, and those that CodeLlama's files have.
  Status FillInTheMiddle(FimTokens* fim) {
    const std::pair<std::string_view, int32_t*> keys[] = {{"fim_pre_token_id", &fim->prefix},     {"prefix_token_id", &fim->prefix},
                                                          {"fim_suf_token_id", &fim->suffix},     {"suffix_token_id", &fim->suffix},
                                                          {"fim_mid_token_id", &fim->middle},     {"middle_token_id", &fim->middle},
                                                          {"fim_rep_token_id", &fim->repository}, {"fim_sep_token_id", &fim->file}};
    for (const auto& [name, id] : keys) {
      if (*id < 0) COPPICE_RETURN_IF_ERROR(ReadTokenId(name, id));
    }
    int32_t pad = -1;
    COPPICE_RETURN_IF_ERROR(ReadTokenId("fim_pad_token_id", &pad));
    if (pad >= 0) fim->ends.push_back(pad);
    return OkStatus();
  }

  // Many files name only one end in their keys: of Llama 3 the end of text and not that of a turn, of Qwen2.5 the reverse. So every
  // token whose text is an end in one of the families read here is one, after those of the keys; llama.cpp (llama-vocab.cpp,
  // special_eog_ids) does the same with more texts. Not so the file's unknown token: SmolLM2's instruct models have "<|endoftext|>"
  // for that, and end with "<|im_end|>" alone. Converters write added tokens that are not special as user-defined, ends among them:
  // an end is a control token all the same, and no text. A normal token that a key names, such as a newline, stays text.
  void AddEnds(TokenizerData* data, std::vector<int32_t>* ids) {
    using Kind = TokenizerData::TokenKind;
    static constexpr std::array<std::string_view, 10> kEnds = {
        "<|end_of_text|>", "<|eot_id|>",    "<|eom_id|>",  // Llama 3
        "<|endoftext|>",   "<|im_end|>",                   // Qwen, Yi, SmolLM2, Phi-2, StarCoder
        "<|end|>",                                         // StarChat
        "<eos>",           "<end_of_turn>",                // Gemma
        "<EOT>",           "\u2581<EOT>"};                 // CodeLlama
    const Result<int64_t> unknown = gguf_.Int("tokenizer.ggml.unknown_token_id", 0, kMaxInt32);
    for (size_t i = 0; i < data->tokens.size(); ++i) {
      const auto id = static_cast<int32_t>(i);
      const bool is_named = std::ranges::find(*ids, id) != ids->end();
      const bool is_end =
          std::ranges::find(kEnds, data->tokens[i]) != kEnds.end() && id != data->unk_id && !(unknown.ok() && id == *unknown);
      if (is_end && !is_named) ids->push_back(id);
      Kind& kind = data->kinds[i];
      if (kind == Kind::kControl || !(is_end || (is_named && kind == Kind::kUserDefined))) continue;
      kind = Kind::kControl;
      if (!has_types_) continue;
      Note("token {} {} ends a turn, but its type says that it is text: it is taken for a control token", id,
           Quoted(data->tokens[i]));
    }
  }

  // Without it texts would become other tokens than the model was trained with.
  Status Require(std::string_view key) const {
    if (gguf_.Has(key)) return OkStatus();
    return InvalidArgument(
        fmt::format("{}: metadata key {} is missing, which the tokenizer needs; convert the model again, with a current converter",
                    gguf_.path(), Quoted(key)));
  }

  // Scores, and how SentencePiece treats spaces and characters.
  Status SentencePiece(TokenizerData* data) const {
    constexpr std::string_view kScores = "tokenizer.ggml.scores";
    data->byte_fallback = data->fuse_unk = true;
    COPPICE_RETURN_IF_ERROR(Require(kScores));
    COPPICE_ASSIGN_OR_RETURN(const std::vector<float> scores, gguf_.Floats(kScores));
    data->scores.assign(scores.begin(), scores.end());
    NormalizerStep normalizer{.kind = NormalizerStep::Kind::kSentencePiece, .add_prefix = true};
    COPPICE_RETURN_IF_ERROR(ReadOptionalBool("tokenizer.ggml.add_space_prefix", &normalizer.add_prefix));
    COPPICE_RETURN_IF_ERROR(ReadOptionalBool("tokenizer.ggml.remove_extra_whitespaces", &normalizer.collapse_spaces));
    if (constexpr std::string_view kMap = "tokenizer.ggml.precompiled_charsmap"; gguf_.Has(kMap)) {
      COPPICE_ASSIGN_OR_RETURN(const std::vector<int64_t> bytes, gguf_.Ints(kMap));
      for (const int64_t byte : bytes) normalizer.text.push_back(static_cast<char>(byte));
    }
    data->decoder = {.replacements = {{"\u2581", " "}}, .byte_fallback = true};
    data->decoder.strip_start = normalizer.collapse_spaces ? -1 : normalizer.add_prefix ? 1 : 0;
    data->normalizer.push_back(std::move(normalizer));
    return OkStatus();
  }

  Status TokenKinds(TokenizerData* data) {
    using Kind = TokenizerData::TokenKind;
    constexpr std::string_view kKey = "tokenizer.ggml.token_type";
    data->kinds.assign(data->tokens.size(), Kind::kNormal);
    has_types_ = gguf_.Has(kKey);
    if (!has_types_) {
      Note("{} is missing: all tokens but those that end a turn are text", kKey);
      return OkStatus();
    }
    COPPICE_ASSIGN_OR_RETURN(const std::vector<int64_t> types, gguf_.Ints(kKey));
    if (types.size() != data->tokens.size()) {
      return InvalidArgument(
          fmt::format("{}: {} has {} entries for {} tokens", gguf_.path(), kKey, types.size(), data->tokens.size()));
    }
    // Ids 1..6 of the format: normal, unknown, control, user defined, unused, byte.
    constexpr std::array<Kind, 6> kKinds = {Kind::kNormal,      Kind::kControl, Kind::kControl,
                                            Kind::kUserDefined, Kind::kUnused,  Kind::kByte};
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i] < 1 || types[i] > static_cast<int64_t>(kKinds.size())) {
        return InvalidArgument(
            fmt::format("{}: {} of token {} is {}, expected 1..{}", gguf_.path(), kKey, i, types[i], kKinds.size()));
      }
      data->kinds[i] = kKinds[static_cast<size_t>(types[i] - 1)];
      if (types[i] == 2 && data->model != "bpe" && data->unk_id < 0) data->unk_id = static_cast<int32_t>(i);
    }
    return OkStatus();
  }

  Status Merges(TokenizerData* data) const {
    constexpr std::string_view kKey = "tokenizer.ggml.merges";
    if (data->model != "bpe") return OkStatus();  // it merges by scores
    COPPICE_RETURN_IF_ERROR(Require(kKey));
    COPPICE_ASSIGN_OR_RETURN(const std::vector<std::string_view> merges, gguf_.Strings(kKey));
    data->merges.reserve(merges.size());
    for (size_t i = 0; i < merges.size(); ++i) {
      const size_t space = merges[i].find(' ', 1);
      if (space == merges[i].npos || space + 1 == merges[i].size()) {
        return InvalidArgument(fmt::format("{}: {} entry {} is {}, expected two tokens with a space between", gguf_.path(), kKey, i,
                                           Quoted(merges[i])));
      }
      data->merges.emplace_back(merges[i].substr(0, space), merges[i].substr(space + 1));
    }
    return OkStatus();
  }

  Status Tensors() {
    const ModelConfig& config = contents_.config;
    for (const auto& [name, tensor] : gguf_.tensors()) {
      if (name == kRopeFactors) continue;
      // A name of no table keeps it, and CheckWeights refuses it.
      const std::string weight_name = TensorName(*family_, name).value_or(name);
      const auto [entry, inserted] = contents_.tensors.emplace(weight_name, tensor);
      if (!inserted) return InvalidArgument(fmt::format("{}: two tensors are {}", gguf_.path(), Quoted(weight_name)));
      const bool is_q = weight_name.find(".self_attn.q_proj.") != weight_name.npos;
      const bool is_k = weight_name.find(".self_attn.k_proj.") != weight_name.npos;
      if (!family_->gguf_interleaves_qk || !(is_q || is_k)) continue;
      entry->second.interleaved_heads = is_q ? config.num_qo_heads : config.num_kv_heads;
      if (tensor.shape.size() == 1 && Traits(tensor.type).block_elements > 1) {
        return Unimplemented(fmt::format("{}: tensor {} is a bias of type {}, expected F32, F16 or BF16", gguf_.path(),
                                         Quoted(name), Name(tensor.type)));
      }
    }
    return CheckWeights(config, contents_.tensors, gguf_.path());
  }

  const GgufDirectory& gguf_;
  const Family* family_ = nullptr;
  ModelContents contents_;
  bool has_types_ = false;  // of tokens
};

}  // namespace

Result<ModelContents> ReadGgufModel(const GgufDirectory& gguf) { return Reader(gguf).Run(); }

}  // namespace coppice
