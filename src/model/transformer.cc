#include "model/transformer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/check.h"
#include "model/rope.h"
#include "ops/ops.h"

namespace coppice {
namespace {

using ops::AnyMatrix;
using ops::LinearWeight;

// A matrix of activations with room for a largest batch; a product may read its rows up to the next multiple of kRowPadding.
class Activation {
 public:
  static Result<Activation> Create(DType dtype, int64_t max_rows, int64_t cols) {
    Activation a;
    a.dtype_ = dtype;
    a.cols_ = cols;
    COPPICE_ASSIGN_OR_RETURN(a.buffer_, Buffer::Allocate(ops::PadRows(max_rows) * cols * SizeOf(dtype)));
    return a;
  }
  AnyMatrix Rows(int64_t rows) { return {buffer_.data(), dtype_, rows, cols_, cols_}; }
  MatrixView<float> FloatRows(int64_t rows) { return {buffer_.As<float>(), rows, cols_}; }  // dtype f32 only

 private:
  Buffer buffer_;
  DType dtype_ = DType::kF32;
  int64_t cols_ = 0;
};

struct Activations {
  Activation hidden;         // [T, hidden] f32: the residual stream
  Activation normed;         // [T, hidden]
  Activation qkv;            // [T, (qo + 2 kv) heads * head_dim] f32
  Activation q, k, v;        // [T, heads * head_dim]
  Activation attended;       // [T, qo heads * head_dim]
  Activation mlp;            // [T, intermediate]
  Activation cos, sin;       // [T, head_dim / 2] f32
  Activation logits_normed;  // [R, hidden]
  Activation logits;         // [R, vocab] f32
};

struct Layer {
  std::vector<float> attention_norm, mlp_norm;
  std::vector<float> q_norm, k_norm;  // [head_dim], or empty
  std::unique_ptr<LinearWeight> qkv, output, gate_up, down;
};

struct Weights {
  std::unique_ptr<LinearWeight> embedding;
  std::unique_ptr<LinearWeight> lm_head;  // null: tied to the embedding
  std::vector<float> final_norm;
  std::vector<Layer> layers;
};

// Reads tensors of a checkpoint into packed weights through one staging buffer.
class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, DType dtype, ops::Ops& ops) : checkpoint_(checkpoint), dtype_(dtype), ops_(ops) {}

  Result<Weights> Load() {
    const ModelConfig& c = checkpoint_.config();
    const int64_t q_rows = int64_t{c.num_qo_heads} * c.head_dim, kv_rows = int64_t{c.num_kv_heads} * c.head_dim;
    Weights w;
    COPPICE_ASSIGN_OR_RETURN(w.embedding, Linear(c.hidden_size, {{"model.embed_tokens", c.vocab_size}}, false));
    if (!c.tie_embeddings) {
      COPPICE_ASSIGN_OR_RETURN(w.lm_head, Linear(c.hidden_size, {{"lm_head", c.vocab_size}}, false));
    }
    COPPICE_ASSIGN_OR_RETURN(w.final_norm, Vector("model.norm.weight", c.hidden_size));
    for (int32_t i = 0; i < c.num_layers; ++i) {
      const std::string prefix = "model.layers." + std::to_string(i) + ".";
      const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
      Layer& layer = w.layers.emplace_back();
      COPPICE_ASSIGN_OR_RETURN(layer.attention_norm, Vector(prefix + "input_layernorm.weight", c.hidden_size));
      COPPICE_ASSIGN_OR_RETURN(layer.mlp_norm, Vector(prefix + "post_attention_layernorm.weight", c.hidden_size));
      if (c.qk_norm) {
        COPPICE_ASSIGN_OR_RETURN(layer.q_norm, Vector(attention + "q_norm.weight", c.head_dim));
        COPPICE_ASSIGN_OR_RETURN(layer.k_norm, Vector(attention + "k_norm.weight", c.head_dim));
      }
      COPPICE_ASSIGN_OR_RETURN(
          layer.qkv,
          Linear(c.hidden_size, {{attention + "q_proj", q_rows}, {attention + "k_proj", kv_rows}, {attention + "v_proj", kv_rows}},
                 c.qkv_bias));
      COPPICE_ASSIGN_OR_RETURN(layer.output, Linear(q_rows, {{attention + "o_proj", c.hidden_size}}, c.attention_bias));
      COPPICE_ASSIGN_OR_RETURN(
          layer.gate_up, Linear(c.hidden_size, {{mlp + "gate_proj", c.intermediate_size}, {mlp + "up_proj", c.intermediate_size}},
                                c.mlp_bias, ops::PartOrder::kGateUp));
      COPPICE_ASSIGN_OR_RETURN(layer.down, Linear(c.intermediate_size, {{mlp + "down_proj", c.hidden_size}}, c.mlp_bias));
    }
    return w;
  }

 private:
  struct Part {
    std::string name;  // without ".weight"
    int64_t rows;
  };

  Result<std::vector<float>> Vector(const std::string& name, int64_t n) {
    std::vector<float> values(n);
    COPPICE_RETURN_IF_ERROR(checkpoint_.Load(name, 1, n, DType::kF32, std::as_writable_bytes(std::span(values))));
    return values;
  }

  Result<std::unique_ptr<LinearWeight>> Linear(int64_t in_features, const std::vector<Part>& parts, bool bias,
                                               ops::PartOrder order = ops::PartOrder::kConcatenated) {
    size_t bytes = 0;
    for (const Part& part : parts) bytes += part.rows * in_features * SizeOf(dtype_);
    if (staging_.size() < bytes) {
      COPPICE_ASSIGN_OR_RETURN(staging_, Buffer::Allocate(bytes));
    }
    std::vector<std::vector<float>> biases(parts.size());
    std::vector<std::optional<Checkpoint::Codes>> codes(parts.size());
    std::vector<ops::LinearPart> loaded;
    size_t offset = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      const std::span<std::byte> to{staging_.data() + offset, part.rows * in_features * SizeOf(dtype_)};
      COPPICE_RETURN_IF_ERROR(checkpoint_.Load(part.name + ".weight", part.rows, in_features, dtype_, to));
      if (bias) {
        COPPICE_ASSIGN_OR_RETURN(biases[i], Vector(part.name + ".bias", part.rows));
      }
      loaded.push_back({to.data(), part.rows, bias ? biases[i].data() : nullptr});
      if (ops_.WantsCodes(dtype_)) codes[i] = checkpoint_.LoadCodes(part.name + ".weight");
      if (codes[i]) {
        loaded.back().coded = {.bits = codes[i]->bits,
                               .codes = codes[i]->codes.data(),
                               .scales = codes[i]->scales.data(),
                               .minima = codes[i]->minima.data()};
      }
      offset += to.size();
    }
    return ops_.Pack(dtype_, in_features, loaded, order);
  }

  const Checkpoint& checkpoint_;
  const DType dtype_;
  ops::Ops& ops_;
  Buffer staging_;
};

class LlamaTransformer final : public Transformer {
 public:
  static Result<std::unique_ptr<Transformer>> Create(const Checkpoint& checkpoint, const Options& options);

  const ModelConfig& config() const override { return config_; }
  attention::AttentionSpec attention_spec() const override { return spec_; }
  Result<MatrixView<const float>> Forward(const ForwardBatch& batch, attention::AttentionPlan& plan,
                                          std::span<const std::unique_ptr<attention::BoundKv>> kv) override;

 private:
  LlamaTransformer(const ModelConfig& config, const Options& options)
      : config_(config),
        options_(options),
        spec_{.num_qo_heads = config.num_qo_heads,
              .num_kv_heads = config.num_kv_heads,
              .head_dim = config.head_dim,
              .q_dtype = options.dtype,
              .kv_dtype = options.dtype,
              .window = config.window,
              .deterministic = options.deterministic},
        inverse_frequencies_(InverseFrequencies(config.rope, config.head_dim)) {}

  Status AllocateActivations();
  Status Check(const ForwardBatch& batch, size_t num_kv_layers) const;
  Status Attend(const Layer& layer, const ForwardBatch& batch, const attention::BoundKv& kv, attention::AttentionPlan& plan);
  void FeedForward(const Layer& layer, int64_t tokens);
  MatrixView<const float> Logits(std::span<const int32_t> rows, int64_t tokens);

  const ModelConfig config_;
  const Options options_;
  const attention::AttentionSpec spec_;
  const std::vector<float> inverse_frequencies_;
  std::unique_ptr<ops::Ops> ops_;
  Weights weights_;
  Activations act_;
};

Result<MatrixView<const float>> LlamaTransformer::Forward(const ForwardBatch& batch, attention::AttentionPlan& plan,
                                                          std::span<const std::unique_ptr<attention::BoundKv>> kv) {
  COPPICE_RETURN_IF_ERROR(Check(batch, kv.size()));
  const auto tokens = static_cast<int64_t>(batch.token_ids.size());
  ops_->Embed(batch.token_ids, *weights_.embedding, act_.hidden.FloatRows(tokens));
  ops_->RopeAngles(batch.positions, inverse_frequencies_, act_.cos.FloatRows(tokens), act_.sin.FloatRows(tokens));
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    COPPICE_RETURN_IF_ERROR(Attend(weights_.layers[i], batch, *kv[i], plan));
    FeedForward(weights_.layers[i], tokens);
  }
  return Logits(batch.logit_rows, tokens);
}

// hidden += output(attention(rope(qkv(norm(hidden)))))
Status LlamaTransformer::Attend(const Layer& layer, const ForwardBatch& batch, const attention::BoundKv& kv,
                                attention::AttentionPlan& plan) {
  const auto tokens = static_cast<int64_t>(batch.token_ids.size());
  const AnyMatrix normed = act_.normed.Rows(tokens), attended = act_.attended.Rows(tokens);
  const AnyMatrix q = act_.q.Rows(tokens), k = act_.k.Rows(tokens), v = act_.v.Rows(tokens);
  const MatrixView<float> hidden = act_.hidden.FloatRows(tokens), qkv = act_.qkv.FloatRows(tokens);

  ops_->RmsNorm(hidden, {layer.attention_norm, config_.rms_norm_eps}, normed);
  ops_->Linear(normed, *layer.qkv, qkv);
  ops_->SplitHeads({.qkv = qkv,
                    .cos = act_.cos.FloatRows(tokens),
                    .sin = act_.sin.FloatRows(tokens),
                    .num_qo_heads = config_.num_qo_heads,
                    .num_kv_heads = config_.num_kv_heads,
                    .head_dim = config_.head_dim,
                    .q_norm = {layer.q_norm, config_.rms_norm_eps},
                    .k_norm = {layer.k_norm, config_.rms_norm_eps},
                    .q = q,
                    .k = k,
                    .v = v});
  COPPICE_RETURN_IF_ERROR(options_.attention->AppendKv(
      spec_, kv.view(), {.k = k.data, .v = v.data, .row_stride = k.stride, .slot_mapping = batch.slot_mapping}));
  COPPICE_RETURN_IF_ERROR(
      plan.Run(kv, {.q = q.data, .q_row_stride = q.stride, .out = attended.data, .out_row_stride = attended.stride}));
  ops_->LinearAdd(attended, *layer.output, hidden);
  return OkStatus();
}

// hidden += down(silu(gate(norm(hidden))) * up(norm(hidden)))
void LlamaTransformer::FeedForward(const Layer& layer, int64_t tokens) {
  const AnyMatrix normed = act_.normed.Rows(tokens), mlp = act_.mlp.Rows(tokens);
  const MatrixView<float> hidden = act_.hidden.FloatRows(tokens);
  ops_->RmsNorm(hidden, {layer.mlp_norm, config_.rms_norm_eps}, normed);
  ops_->LinearSiluMul(normed, *layer.gate_up, mlp);
  ops_->LinearAdd(mlp, *layer.down, hidden);
}

MatrixView<const float> LlamaTransformer::Logits(std::span<const int32_t> rows, int64_t tokens) {
  const auto count = static_cast<int64_t>(rows.size());
  const MatrixView<float> logits = act_.logits.FloatRows(count);
  if (count == 0) return logits;
  const AnyMatrix normed = act_.logits_normed.Rows(count);
  ops_->RmsNorm(act_.hidden.FloatRows(tokens), {weights_.final_norm, config_.rms_norm_eps}, normed, rows);
  ops_->Linear(normed, weights_.lm_head != nullptr ? *weights_.lm_head : *weights_.embedding, logits);
  return logits;
}

Status LlamaTransformer::Check(const ForwardBatch& batch, size_t num_kv_layers) const {
  const size_t tokens = batch.token_ids.size();
  if (tokens == 0 || tokens > static_cast<size_t>(options_.max_tokens))
    return OutOfRange("a batch has " + std::to_string(tokens) + " tokens; expected 1 to " + std::to_string(options_.max_tokens) +
                      " (Options::max_tokens)");
  if (batch.positions.size() != tokens || batch.slot_mapping.size() != tokens)
    return InvalidArgument("a batch of " + std::to_string(tokens) + " tokens has " + std::to_string(batch.positions.size()) +
                           " positions and " + std::to_string(batch.slot_mapping.size()) + " slots; expected one each per token");
  if (batch.logit_rows.size() > static_cast<size_t>(options_.max_logit_rows))
    return OutOfRange("a batch asks for " + std::to_string(batch.logit_rows.size()) + " rows of logits; expected at most " +
                      std::to_string(options_.max_logit_rows) + " (Options::max_logit_rows)");
  if (num_kv_layers != weights_.layers.size())
    return InvalidArgument("the KV cache has " + std::to_string(num_kv_layers) + " layers, the model " +
                           std::to_string(weights_.layers.size()));
  for (size_t i = 0; i < tokens; ++i) {
    if (batch.token_ids[i] < 0 || batch.token_ids[i] >= config_.vocab_size)
      return OutOfRange("token " + std::to_string(i) + " of a batch is " + std::to_string(batch.token_ids[i]) +
                        "; the model's ids are 0 to " + std::to_string(config_.vocab_size - 1));
  }
  for (const int32_t row : batch.logit_rows) {
    if (row < 0 || row >= static_cast<int64_t>(tokens))
      return OutOfRange("logits are asked of row " + std::to_string(row) + " of a batch of " + std::to_string(tokens) + " tokens");
  }
  return OkStatus();
}

Status LlamaTransformer::AllocateActivations() {
  const int64_t tokens = options_.max_tokens, logit_rows = options_.max_logit_rows;
  const int64_t q_cols = int64_t{config_.num_qo_heads} * config_.head_dim,
                kv_cols = int64_t{config_.num_kv_heads} * config_.head_dim;
  const struct {
    Activation& activation;
    DType dtype;
    int64_t rows, cols;
  } all[] = {
      {act_.hidden, DType::kF32, tokens, config_.hidden_size},
      {act_.normed, options_.dtype, tokens, config_.hidden_size},
      {act_.qkv, DType::kF32, tokens, q_cols + 2 * kv_cols},
      {act_.q, options_.dtype, tokens, q_cols},
      {act_.k, options_.dtype, tokens, kv_cols},
      {act_.v, options_.dtype, tokens, kv_cols},
      {act_.attended, options_.dtype, tokens, q_cols},
      {act_.mlp, options_.dtype, tokens, config_.intermediate_size},
      {act_.cos, DType::kF32, tokens, config_.head_dim / 2},
      {act_.sin, DType::kF32, tokens, config_.head_dim / 2},
      {act_.logits_normed, options_.dtype, logit_rows, config_.hidden_size},
      {act_.logits, DType::kF32, logit_rows, config_.vocab_size},
  };
  for (const auto& a : all) {
    COPPICE_ASSIGN_OR_RETURN(a.activation, Activation::Create(a.dtype, a.rows, a.cols));
  }
  return OkStatus();
}

Result<std::unique_ptr<Transformer>> LlamaTransformer::Create(const Checkpoint& checkpoint, const Options& options) {
  if (options.executor == nullptr || options.attention == nullptr)
    return InvalidArgument("a transformer needs an executor and an attention context; one of them is null");
  if (options.max_tokens < 1 || options.max_logit_rows < 1)
    return InvalidArgument("max_tokens is " + std::to_string(options.max_tokens) + " and max_logit_rows " +
                           std::to_string(options.max_logit_rows) + "; expected at least 1 each");
  std::unique_ptr<LlamaTransformer> transformer(new LlamaTransformer(checkpoint.config(), options));
  COPPICE_ASSIGN_OR_RETURN(transformer->ops_, ops::Ops::CreateCpu(options.executor, {.deterministic = options.deterministic}));
  COPPICE_ASSIGN_OR_RETURN(transformer->weights_, WeightLoader(checkpoint, options.dtype, *transformer->ops_).Load());
  COPPICE_RETURN_IF_ERROR(transformer->AllocateActivations());
  return std::unique_ptr<Transformer>(std::move(transformer));
}

}  // namespace

Result<std::unique_ptr<Transformer>> Transformer::Create(const Checkpoint& checkpoint, const Options& options) {
  return LlamaTransformer::Create(checkpoint, options);
}

}  // namespace coppice
