#include "model/transformer.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/check.h"
#include "core/math.h"
#include "model/rope.h"
#include "ops/ops.h"

namespace coppice {
namespace {

using Kind = ops::Epilogue::Kind;

// A matrix of activations with room for a largest batch; a product may read its rows up to the next multiple of kRowPadding.
class Activation {
 public:
  static Result<Activation> Create(Device& device, DType dtype, int64_t max_rows, int64_t cols) {
    Activation a;
    a.dtype_ = dtype;
    a.cols_ = cols;
    COPPICE_ASSIGN_OR_RETURN(a.memory_, device.Allocate(RoundUp(max_rows, ops::kRowPadding) * cols * SizeOf(dtype)));
    return a;
  }
  DeviceTensor Rows(int64_t rows) { return {memory_.data(), dtype_, rows, cols_, cols_}; }

 private:
  DeviceMemory memory_;
  DType dtype_ = DType::kF32;
  int64_t cols_ = 0;
};

// fp32 values in device memory.
class DeviceVector {
 public:
  static Result<DeviceVector> Create(Device& device, std::span<const float> values) {
    DeviceVector v;
    v.size_ = std::ssize(values);
    COPPICE_ASSIGN_OR_RETURN(v.memory_, device.Allocate(values.size_bytes()));
    COPPICE_RETURN_IF_ERROR(device.Copy(v.memory_.data(), values.data(), values.size_bytes(), nullptr));
    COPPICE_RETURN_IF_ERROR(device.Synchronize(Stream{nullptr}));
    return v;
  }
  DeviceSpan<const float> span() const { return {memory_.As<const float>(), size_}; }

 private:
  DeviceMemory memory_;
  int64_t size_ = 0;
};

struct Activations {
  Activation hidden;         // [T, hidden] f32: the residual stream
  Activation normed;         // [T, hidden]
  Activation qkv;            // [T, (qo + 2 kv) heads * head_dim] f32
  Activation q;              // [T, qo heads * head_dim]
  Activation attended;       // [T, qo heads * head_dim]
  Activation mlp;            // [T, intermediate]
  Activation cos, sin;       // [T, head_dim / 2] f32
  Activation logits_normed;  // [R, hidden]
  Activation logits;         // [R, vocab] f32
};

struct Layer {
  DeviceVector attention_norm, mlp_norm;
  std::optional<DeviceVector> q_norm, k_norm;  // [head_dim]
  std::unique_ptr<ops::Weight> qkv, output, gate_up, down;
};

struct Weights {
  std::unique_ptr<ops::Weight> embedding;
  std::unique_ptr<ops::Weight> lm_head;  // null: tied to the embedding
  DeviceVector final_norm;
  std::vector<Layer> layers;
};

// Reads tensors of a checkpoint into packed weights through one staging buffer.
class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, DType dtype, Device& device, ops::Ops& ops)
      : checkpoint_(checkpoint), dtype_(dtype), device_(device), ops_(ops) {}

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

  Result<std::vector<float>> HostVector(const std::string& name, int64_t n) {
    std::vector<float> values(n);
    COPPICE_RETURN_IF_ERROR(checkpoint_.Load(name, 1, n, DType::kF32, std::as_writable_bytes(std::span(values))));
    return values;
  }
  Result<DeviceVector> Vector(const std::string& name, int64_t n) {
    COPPICE_ASSIGN_OR_RETURN(const std::vector<float> values, HostVector(name, n));
    return DeviceVector::Create(device_, values);
  }

  Result<std::unique_ptr<ops::Weight>> Linear(int64_t in_features, const std::vector<Part>& parts, bool bias,
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
        COPPICE_ASSIGN_OR_RETURN(biases[i], HostVector(part.name + ".bias", part.rows));
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
  Device& device_;
  ops::Ops& ops_;
  Buffer staging_;  // host memory
};

class FamilyTransformer final : public Transformer {
 public:
  static Result<std::unique_ptr<Transformer>> Create(const Checkpoint& checkpoint, const Options& options);

  const ModelConfig& config() const override { return config_; }
  std::span<const attention::AttentionSpec> attention_specs() const override { return {&spec_, 1}; }
  std::span<const int32_t> layer_groups() const override { return layer_groups_; }
  Result<ConstDeviceTensor> Forward(const DeviceBatch& batch, std::span<attention::AttentionPlan* const> plans,
                                    std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) override;

 private:
  // What a step's layers have in common.
  struct Step {
    const DeviceBatch& batch;
    int64_t tokens;
    Stream stream;
  };

  FamilyTransformer(const ModelConfig& config, const Options& options)
      : config_(config),
        options_(options),
        spec_{.num_qo_heads = config.num_qo_heads,
              .num_kv_heads = config.num_kv_heads,
              .head_dim = config.head_dim,
              .q_dtype = options.dtype,
              .kv_dtype = options.dtype,
              .window = config.window,
              .deterministic = options.deterministic},
        layer_groups_(config.num_layers, 0) {}

  Status AllocateActivations();
  Status Check(const DeviceBatch& batch, size_t num_plans, size_t num_kv_layers) const;
  ops::NormArgs Norm(const DeviceVector& weight) const { return {.weight = weight.span(), .eps = config_.rms_norm_eps}; }
  std::optional<ops::NormArgs> Norm(const std::optional<DeviceVector>& weight) const {
    return weight ? std::optional(Norm(*weight)) : std::nullopt;
  }
  Status Attend(const Layer& layer, const Step& step, const attention::BoundKv& kv, attention::AttentionPlan& plan);
  Status FeedForward(const Layer& layer, const Step& step);
  Result<ConstDeviceTensor> Logits(const Step& step);

  const ModelConfig config_;
  const Options options_;
  const attention::AttentionSpec spec_;
  const std::vector<int32_t> layer_groups_;
  DeviceVector inverse_frequencies_;
  std::unique_ptr<ops::Ops> ops_;
  Weights weights_;
  Activations act_;
};

Result<ConstDeviceTensor> FamilyTransformer::Forward(const DeviceBatch& batch, std::span<attention::AttentionPlan* const> plans,
                                                     std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) {
  COPPICE_RETURN_IF_ERROR(Check(batch, plans.size(), kv.size()));
  const Step step = {batch, batch.token_ids.size, stream};
  COPPICE_RETURN_IF_ERROR(ops_->Embed(batch.token_ids, *weights_.embedding, {}, act_.hidden.Rows(step.tokens), stream));
  COPPICE_RETURN_IF_ERROR(ops_->RopeAngles(batch.positions, inverse_frequencies_.span(), 1.0f, act_.cos.Rows(step.tokens),
                                           act_.sin.Rows(step.tokens), stream));
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    COPPICE_RETURN_IF_ERROR(Attend(weights_.layers[i], step, *kv[i], *plans[layer_groups_[i]]));
    COPPICE_RETURN_IF_ERROR(FeedForward(weights_.layers[i], step));
  }
  return Logits(step);
}

// hidden += output(attention(rope(qkv(norm(hidden)))))
Status FamilyTransformer::Attend(const Layer& layer, const Step& step, const attention::BoundKv& kv,
                                 attention::AttentionPlan& plan) {
  const DeviceTensor hidden = act_.hidden.Rows(step.tokens), normed = act_.normed.Rows(step.tokens);
  const DeviceTensor qkv = act_.qkv.Rows(step.tokens), q = act_.q.Rows(step.tokens), attended = act_.attended.Rows(step.tokens);

  COPPICE_RETURN_IF_ERROR(ops_->Norm(hidden, Norm(layer.attention_norm), normed, {}, step.stream));
  COPPICE_RETURN_IF_ERROR(ops_->Linear(normed, *layer.qkv, qkv, {}, step.stream));
  COPPICE_RETURN_IF_ERROR(ops_->RopeAppend({.qkv = qkv,
                                            .cos = act_.cos.Rows(step.tokens),
                                            .sin = act_.sin.Rows(step.tokens),
                                            .num_qo_heads = config_.num_qo_heads,
                                            .num_kv_heads = config_.num_kv_heads,
                                            .head_dim = config_.head_dim,
                                            .q_norm = Norm(layer.q_norm),
                                            .k_norm = Norm(layer.k_norm),
                                            .q = q,
                                            .kv = kv.view(),
                                            .slot_mapping = step.batch.slot_mapping},
                                           step.stream));
  COPPICE_RETURN_IF_ERROR(
      plan.Run(kv, {.q = q.data, .q_row_stride = q.stride, .out = attended.data, .out_row_stride = attended.stride}, step.stream));
  return ops_->Linear(attended, *layer.output, hidden, {.kind = Kind::kAdd}, step.stream);
}

// hidden += down(silu(gate(norm(hidden))) * up(norm(hidden)))
Status FamilyTransformer::FeedForward(const Layer& layer, const Step& step) {
  const DeviceTensor hidden = act_.hidden.Rows(step.tokens), normed = act_.normed.Rows(step.tokens);
  const DeviceTensor mlp = act_.mlp.Rows(step.tokens);
  COPPICE_RETURN_IF_ERROR(ops_->Norm(hidden, Norm(layer.mlp_norm), normed, {}, step.stream));
  COPPICE_RETURN_IF_ERROR(ops_->Linear(normed, *layer.gate_up, mlp, {.kind = Kind::kGated}, step.stream));
  return ops_->Linear(mlp, *layer.down, hidden, {.kind = Kind::kAdd}, step.stream);
}

Result<ConstDeviceTensor> FamilyTransformer::Logits(const Step& step) {
  const int64_t count = step.batch.logit_rows.size;
  const DeviceTensor logits = act_.logits.Rows(count), normed = act_.logits_normed.Rows(count);
  if (count == 0) return ConstDeviceTensor(logits);
  COPPICE_RETURN_IF_ERROR(
      ops_->Norm(act_.hidden.Rows(step.tokens), Norm(weights_.final_norm), normed, step.batch.logit_rows, step.stream));
  const ops::Weight& lm_head = weights_.lm_head != nullptr ? *weights_.lm_head : *weights_.embedding;
  COPPICE_RETURN_IF_ERROR(ops_->Linear(normed, lm_head, logits, {}, step.stream));
  return ConstDeviceTensor(logits);
}

Status FamilyTransformer::Check(const DeviceBatch& batch, size_t num_plans, size_t num_kv_layers) const {
  if (batch.token_ids.size > options_.max_tokens || batch.logit_rows.size > options_.max_logit_rows)
    return OutOfRange("a batch has " + std::to_string(batch.token_ids.size) + " tokens and asks for " +
                      std::to_string(batch.logit_rows.size) + " rows of logits; expected at most " +
                      std::to_string(options_.max_tokens) + " and " + std::to_string(options_.max_logit_rows));
  if (num_kv_layers != weights_.layers.size())
    return InvalidArgument("the KV cache has " + std::to_string(num_kv_layers) + " layers, the model " +
                           std::to_string(weights_.layers.size()));
  if (num_plans != attention_specs().size())
    return InvalidArgument("a step has " + std::to_string(num_plans) + " attention plans; the model's layers attend in " +
                           std::to_string(attention_specs().size()) + " ways");
  return OkStatus();
}

Status FamilyTransformer::AllocateActivations() {
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
      {act_.attended, options_.dtype, tokens, q_cols},
      {act_.mlp, options_.dtype, tokens, config_.intermediate_size},
      {act_.cos, DType::kF32, tokens, config_.head_dim / 2},
      {act_.sin, DType::kF32, tokens, config_.head_dim / 2},
      {act_.logits_normed, options_.dtype, logit_rows, config_.hidden_size},
      {act_.logits, DType::kF32, logit_rows, config_.vocab_size},
  };
  for (const auto& a : all) {
    COPPICE_ASSIGN_OR_RETURN(a.activation, Activation::Create(*options_.device, a.dtype, a.rows, a.cols));
  }
  return OkStatus();
}

Result<std::unique_ptr<Transformer>> FamilyTransformer::Create(const Checkpoint& checkpoint, const Options& options) {
  if (options.device == nullptr) return InvalidArgument("a transformer needs a device; it is null");
  if (options.max_tokens < 1 || options.max_logit_rows < 1)
    return InvalidArgument("max_tokens is " + std::to_string(options.max_tokens) + " and max_logit_rows " +
                           std::to_string(options.max_logit_rows) + "; expected at least 1 each");
  const ModelConfig& config = checkpoint.config();
  Device& device = *options.device;
  std::unique_ptr<FamilyTransformer> transformer(new FamilyTransformer(config, options));
  COPPICE_ASSIGN_OR_RETURN(transformer->ops_, ops::Ops::Create(&device, {.deterministic = options.deterministic}));
  COPPICE_ASSIGN_OR_RETURN(transformer->weights_, WeightLoader(checkpoint, options.dtype, device, *transformer->ops_).Load());
  COPPICE_ASSIGN_OR_RETURN(transformer->inverse_frequencies_,
                           DeviceVector::Create(device, InverseFrequencies(config.rope, config.head_dim)));
  COPPICE_RETURN_IF_ERROR(transformer->AllocateActivations());
  return std::unique_ptr<Transformer>(std::move(transformer));
}

}  // namespace

Result<std::unique_ptr<Transformer>> Transformer::Create(const Checkpoint& checkpoint, const Options& options) {
  return FamilyTransformer::Create(checkpoint, options);
}

}  // namespace coppice
