#include "model/transformer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/math.h"
#include "model/rope.h"
#include "model/tensor_source.h"
#include "model/weight_store.h"
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

struct Activations {
  Activation hidden;         // [T, hidden] f32: the residual stream
  Activation normed;         // [T, hidden]
  Activation qkv;            // [T, (qo + 2 kv) heads * head_dim] f32
  Activation q;              // [T, qo heads * head_dim]
  Activation attended;       // [T, qo heads * head_dim]
  Activation mlp;            // [T, intermediate]
  Activation projected;      // [T, hidden] f32: what a block gives before its norm, where it has one
  Activation kept;           // [R, hidden] f32: the residual stream of the rows whose logits are wanted, in the last layer
  Activation logits_normed;  // [R, hidden]
  Activation logits;         // [R, vocab] f32
};

// Layers that attend alike: one attention spec and one rotary embedding.
struct LayerGroup {
  DeviceVector inverse_frequencies;  // empty: no rotation
  float rope_scale = 1;
  Activation cos, sin;  // [T, rotated / 2] f32
};

// A layer is what Blocks says it is made of.
class FamilyTransformer final : public Transformer {
 public:
  static Result<std::unique_ptr<Transformer>> Create(const Checkpoint& checkpoint, const Options& options);

  const ModelConfig& config() const override { return config_; }
  std::span<const attention::AttentionSpec> attention_specs() const override { return specs_; }
  std::span<const int32_t> layer_groups() const override { return layer_groups_; }
  Status Forward(const DeviceBatch& batch, std::span<attention::AttentionPlan* const> plans,
                 std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) override;
  Status Tune(const DeviceBatch& batch, std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) override;
  Result<ConstDeviceTensor> Logits(int64_t begin, int64_t count, Stream stream) override;
  Result<std::unique_ptr<WeightSource>> PrepareUpdate(TensorMap tensors) const override;
  Status UpdateWeights(const WeightSource& source) override { return store_->Update(source); }
  bool weights_are_whole() const override { return store_->is_whole(); }
  Status DropWeights() override { return store_->Drop(); }

 private:
  // What a step's layers have in common.
  struct Step {
    const DeviceBatch& batch;
    int64_t tokens;
    Stream stream;
    // One a group of layers; none: queries go on in place of what they would find.
    std::span<attention::AttentionPlan* const> plans;
    DeviceTensor hidden;               // [tokens, hidden]: the residual stream
    bool has_logit_rows_only = false;  // KeepLogitRows left those
  };
  // What Logits goes on from: the last step's residual stream, and where in it the wanted rows are.
  struct Wanted {
    DeviceTensor hidden;
    DeviceSpan<const int32_t> rows;  // none: hidden's, in order
    int64_t count = 0;
  };

  FamilyTransformer(const ModelConfig& config, const Options& options)
      : config_(config), blocks_(config_.blocks), options_(options), layer_groups_(config.num_layers, 0) {}

  Status MakeGroups();
  Status AllocateActivations();
  Status LoadKernels();
  Status Check(const DeviceBatch& batch, size_t num_plans, size_t num_kv_layers) const;
  ops::NormArgs Norm(const NormWeights& norm) const { return norm.args(blocks_.norm, config_.norm_eps); }
  std::optional<ops::NormArgs> Norm(const std::optional<NormWeights>& norm) const {
    return norm ? std::optional(Norm(*norm)) : std::nullopt;
  }
  const ModelWeights& weights() const { return store_->weights(); }
  const ops::Weight& head() const { return weights().lm_head != nullptr ? *weights().lm_head : *weights().embedding; }
  Status Embed(const Step& step);
  Status RunLayers(const DeviceBatch& batch, std::span<attention::AttentionPlan* const> plans,
                   std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream);
  Status RunLayer(size_t layer, const attention::BoundKv& kv, Step* step);
  Result<DeviceTensor> Attend(size_t layer, const Step& step, const attention::BoundKv& kv);
  Status KeepLogitRows(DeviceTensor* attended, Step* step);
  Status FeedForward(const LayerWeights& layer, const Step& step);
  Status AddBlock(ConstDeviceTensor x, const ops::Weight& weight, const NormWeights& post_norm, const Step& step);

  const ModelConfig config_;
  const Blocks& blocks_;
  const Options options_;
  std::vector<attention::AttentionSpec> specs_;
  std::vector<int32_t> layer_groups_;
  std::vector<LayerGroup> groups_;
  std::unique_ptr<ops::Ops> ops_;
  std::optional<WeightStore> store_;  // always there once made
  Activations act_;
  Wanted wanted_;
};

Status FamilyTransformer::Forward(const DeviceBatch& batch, std::span<attention::AttentionPlan* const> plans,
                                  std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) {
  wanted_ = {};
  COPPICE_RETURN_IF_ERROR(Check(batch, plans.size(), kv.size()));
  return RunLayers(batch, options_.attends ? plans : std::span<attention::AttentionPlan* const>(), kv, stream);
}

Status FamilyTransformer::Tune(const DeviceBatch& batch, std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) {
  const auto step = [&](int64_t rows) -> Status {
    const DeviceBatch first = {.token_ids = batch.token_ids.Sub(0, rows),
                               .positions = batch.positions.Sub(0, rows),
                               .slot_mapping = batch.slot_mapping.Sub(0, rows),
                               .logit_rows = batch.logit_rows.Sub(0, rows)};
    COPPICE_RETURN_IF_ERROR(RunLayers(first, /*plans=*/{}, kv, stream));
    for (int64_t begin = 0; begin < rows; begin += options_.max_logit_rows) {
      COPPICE_RETURN_IF_ERROR(Logits(begin, std::min<int64_t>(options_.max_logit_rows, rows - begin), stream).status());
    }
    return OkStatus();
  };
  return ops_->Tune(batch.token_ids.size, step, stream);
}

Status FamilyTransformer::RunLayers(const DeviceBatch& batch, std::span<attention::AttentionPlan* const> plans,
                                    std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) {
  const int64_t tokens = batch.token_ids.size;
  Step step = {batch, tokens, stream, plans, act_.hidden.Rows(tokens)};
  COPPICE_RETURN_IF_ERROR(Embed(step));
  for (size_t i = 0; i < weights().layers.size(); ++i) {
    COPPICE_RETURN_IF_ERROR(RunLayer(i, *kv[i], &step));
  }
  wanted_ = {.hidden = step.hidden,
             .rows = step.has_logit_rows_only ? DeviceSpan<const int32_t>() : batch.logit_rows,
             .count = batch.logit_rows.size};
  return OkStatus();
}

// hidden = scale * embedding[tokens] [+ positions]; the angles of the step's positions, for each group.
Status FamilyTransformer::Embed(const Step& step) {
  COPPICE_RETURN_IF_ERROR(
      ops_->Embed(step.batch.token_ids, *weights().embedding, {.scale = config_.embedding_scale}, step.hidden, step.stream));
  if (weights().positions != nullptr) {
    COPPICE_RETURN_IF_ERROR(ops_->Embed(step.batch.positions, *weights().positions, {.add = true}, step.hidden, step.stream));
  }
  for (LayerGroup& group : groups_) {
    if (group.inverse_frequencies.span().empty()) continue;
    COPPICE_RETURN_IF_ERROR(ops_->RopeAngles(step.batch.positions, group.inverse_frequencies.span(), group.rope_scale,
                                             group.cos.Rows(step.tokens), group.sin.Rows(step.tokens), step.stream));
  }
  return OkStatus();
}

// hidden += attention(norm(hidden)); hidden += mlp(norm(hidden)), or both of one norm.
Status FamilyTransformer::RunLayer(size_t index, const attention::BoundKv& kv, Step* step) {
  const LayerWeights& layer = weights().layers[index];
  COPPICE_ASSIGN_OR_RETURN(DeviceTensor attended, Attend(index, *step, kv));
  if (index + 1 == weights().layers.size()) COPPICE_RETURN_IF_ERROR(KeepLogitRows(&attended, step));
  if (step->tokens == 0) return OkStatus();
  COPPICE_RETURN_IF_ERROR(AddBlock(attended, *layer.output, layer.post_attention_norm, *step));
  return FeedForward(layer, *step);
}

// attention(rope(qkv(normed)))
Result<DeviceTensor> FamilyTransformer::Attend(size_t index, const Step& step, const attention::BoundKv& kv) {
  const LayerWeights& layer = weights().layers[index];
  LayerGroup& group = groups_[layer_groups_[index]];
  const DeviceTensor qkv = act_.qkv.Rows(step.tokens), q = act_.q.Rows(step.tokens), attended = act_.attended.Rows(step.tokens);

  const ops::RopeAppendArgs rows = {.qkv = qkv,
                                    .cos = group.cos.Rows(step.tokens),
                                    .sin = group.sin.Rows(step.tokens),
                                    .pairs = blocks_.rope_pairs,
                                    .num_qo_heads = config_.num_qo_heads,
                                    .num_kv_heads = config_.num_kv_heads,
                                    .head_dim = config_.head_dim,
                                    .q_norm = Norm(layer.q_norm),
                                    .k_norm = Norm(layer.k_norm),
                                    .q = q,
                                    .kv = kv.view(),
                                    .slot_mapping = step.batch.slot_mapping};
  const DeviceTensor normed = act_.normed.Rows(step.tokens);
  if (blocks_.parallel) {
    COPPICE_RETURN_IF_ERROR(ops_->Norm(step.hidden, Norm(layer.attention_norm), normed, {}, step.stream));
    COPPICE_RETURN_IF_ERROR(ops_->QkvRope(normed, *layer.qkv, rows, step.stream));
  } else {
    COPPICE_RETURN_IF_ERROR(ops_->NormQkvRope(step.hidden, Norm(layer.attention_norm), normed, *layer.qkv, rows, step.stream));
  }
  if (step.plans.empty()) return q;
  attention::AttentionPlan& plan = *step.plans[layer_groups_[index]];
  COPPICE_RETURN_IF_ERROR(
      plan.Run(kv, {.q = q.data, .q_row_stride = q.stride, .out = attended.data, .out_row_stride = attended.stride}, step.stream));
  return attended;
}

// Once the last layer's K and V are stored, nobody reads what becomes of rows whose logits are not wanted: a prompt's, but for its
// last token. Where most are wanted, all rows go on.
Status FamilyTransformer::KeepLogitRows(DeviceTensor* attended, Step* step) {
  const DeviceSpan<const int32_t> rows = step->batch.logit_rows;
  if (2 * rows.size > step->tokens) return OkStatus();
  const DeviceTensor all_hidden = std::exchange(step->hidden, act_.kept.Rows(rows.size)), all_attended = *attended;
  *attended = (step->plans.empty() ? act_.attended : act_.q).Rows(rows.size);
  step->tokens = rows.size;
  step->has_logit_rows_only = true;
  if (rows.empty()) return OkStatus();
  COPPICE_RETURN_IF_ERROR(ops_->Gather(all_hidden, rows, step->hidden, step->stream));
  COPPICE_RETURN_IF_ERROR(ops_->Gather(all_attended, rows, *attended, step->stream));
  if (!blocks_.parallel) return OkStatus();
  const NormWeights& norm = weights().layers.back().attention_norm;  // both blocks'
  return ops_->Norm(step->hidden, Norm(norm), act_.normed.Rows(rows.size), {}, step->stream);
}

// hidden += down(act(up(normed))), or down(act(gate(normed)) * up(normed))
Status FamilyTransformer::FeedForward(const LayerWeights& layer, const Step& step) {
  const DeviceTensor mlp = act_.mlp.Rows(step.tokens);
  const DeviceTensor normed = act_.normed.Rows(step.tokens);
  const ops::Epilogue epilogue = {blocks_.gated_mlp ? Kind::kGated : Kind::kActivate, blocks_.activation};
  if (blocks_.parallel) {  // of the norm that attention has
    COPPICE_RETURN_IF_ERROR(ops_->Linear(normed, *layer.up, mlp, epilogue, step.stream));
  } else {
    COPPICE_RETURN_IF_ERROR(ops_->NormLinear(step.hidden, Norm(layer.mlp_norm), normed, *layer.up, mlp, epilogue, step.stream));
  }
  return AddBlock(mlp, *layer.down, layer.post_mlp_norm, step);
}

// hidden += [norm](x W^T)
Status FamilyTransformer::AddBlock(ConstDeviceTensor x, const ops::Weight& weight, const NormWeights& post_norm, const Step& step) {
  if (!blocks_.post_norms) return ops_->Linear(x, weight, step.hidden, {.kind = Kind::kAdd}, step.stream);
  const DeviceTensor projected = act_.projected.Rows(step.tokens);
  COPPICE_RETURN_IF_ERROR(ops_->Linear(x, weight, projected, {}, step.stream));
  return ops_->AddNorm(projected, Norm(post_norm), step.hidden, step.stream);
}

Result<ConstDeviceTensor> FamilyTransformer::Logits(int64_t begin, int64_t count, Stream stream) {
  if (begin < 0 || count < 0 || count > options_.max_logit_rows || begin + count > wanted_.count)
    return OutOfRange("logits of rows [" + std::to_string(begin) + ", " + std::to_string(begin + count) +
                      ") are asked for; expected at most " + std::to_string(options_.max_logit_rows) + " at a time of the step's " +
                      std::to_string(wanted_.count));
  const DeviceTensor logits = act_.logits.Rows(count), normed = act_.logits_normed.Rows(count);
  if (count == 0) return ConstDeviceTensor(logits);
  const ops::NormArgs norm = Norm(weights().final_norm);
  if (wanted_.hidden.rows == 1) {
    COPPICE_RETURN_IF_ERROR(ops_->NormLinear(wanted_.hidden, norm, normed, head(), logits, {}, stream));
    return ConstDeviceTensor(logits);
  }
  if (wanted_.rows.empty()) {
    COPPICE_RETURN_IF_ERROR(ops_->Norm(wanted_.hidden.Rows(begin, count), norm, normed, {}, stream));
  } else {
    COPPICE_RETURN_IF_ERROR(ops_->Norm(wanted_.hidden, norm, normed, wanted_.rows.Sub(begin, count), stream));
  }
  COPPICE_RETURN_IF_ERROR(ops_->Linear(normed, head(), logits, {}, stream));
  return ConstDeviceTensor(logits);
}

Result<std::unique_ptr<WeightSource>> FamilyTransformer::PrepareUpdate(TensorMap tensors) const {
  COPPICE_ASSIGN_OR_RETURN(TensorSource source, TensorSource::Create("update of weights", config_, std::move(tensors)));
  COPPICE_RETURN_IF_ERROR(store_->CheckUpdate(source));
  return std::unique_ptr<WeightSource>(std::make_unique<TensorSource>(std::move(source)));
}

Status FamilyTransformer::Check(const DeviceBatch& batch, size_t num_plans, size_t num_kv_layers) const {
  if (batch.token_ids.size > options_.max_tokens || batch.logit_rows.size > batch.token_ids.size)
    return OutOfRange("a batch has " + std::to_string(batch.token_ids.size) + " tokens and asks for " +
                      std::to_string(batch.logit_rows.size) + " rows of logits; expected at most " +
                      std::to_string(options_.max_tokens) + " tokens, and as many rows of logits as tokens");
  if (num_kv_layers != weights().layers.size())
    return InvalidArgument("the KV cache has " + std::to_string(num_kv_layers) + " layers, the model " +
                           std::to_string(weights().layers.size()));
  if (num_plans != attention_specs().size())
    return InvalidArgument("a step has " + std::to_string(num_plans) + " attention plans; the model's layers attend in " +
                           std::to_string(attention_specs().size()) + " ways");
  return OkStatus();
}

// Group 0: all layers but the local ones. Group 1: those, if there are any.
Status FamilyTransformer::MakeGroups() {
  const int32_t rotated = config_.rotated();
  const auto add = [&](int32_t window, const RopeConfig& rope) -> Status {
    specs_.push_back({.num_qo_heads = config_.num_qo_heads,
                      .num_kv_heads = config_.num_kv_heads,
                      .head_dim = config_.head_dim,
                      .q_dtype = options_.dtype,
                      .kv_dtype = options_.kv_dtype.value_or(options_.dtype),
                      .sm_scale = config_.sm_scale,
                      .soft_cap = config_.soft_cap,
                      .window = window,
                      .deterministic = options_.deterministic});
    LayerGroup& group = groups_.emplace_back();
    group.rope_scale = rope.attention_factor;
    const int32_t context = options_.max_context > 0 ? options_.max_context : config_.max_position;
    COPPICE_ASSIGN_OR_RETURN(group.inverse_frequencies,
                             DeviceVector::Create(*options_.device, InverseFrequencies(rope, rotated, context)));
    COPPICE_ASSIGN_OR_RETURN(group.cos, Activation::Create(*options_.device, DType::kF32, options_.max_tokens, rotated / 2));
    COPPICE_ASSIGN_OR_RETURN(group.sin, Activation::Create(*options_.device, DType::kF32, options_.max_tokens, rotated / 2));
    return OkStatus();
  };
  COPPICE_RETURN_IF_ERROR(add(config_.window, config_.rope));
  if (config_.local_layers.empty()) return OkStatus();
  for (int32_t i = 0; i < config_.num_layers; ++i) layer_groups_[i] = config_.local_layers[i] ? 1 : 0;
  return add(config_.local_window, config_.local_rope);
}

Status FamilyTransformer::AllocateActivations() {
  const int64_t tokens = options_.max_tokens, logit_rows = options_.max_logit_rows, hidden = config_.hidden_size;
  const int64_t q_cols = int64_t{config_.num_qo_heads} * config_.head_dim,
                kv_cols = int64_t{config_.num_kv_heads} * config_.head_dim;
  const struct {
    Activation& activation;
    DType dtype;
    int64_t rows, cols;
  } all[] = {
      {act_.hidden, DType::kF32, tokens, hidden},
      {act_.normed, options_.dtype, tokens, hidden},
      {act_.qkv, DType::kF32, tokens, q_cols + 2 * kv_cols},
      {act_.q, options_.dtype, tokens, q_cols},
      {act_.attended, options_.dtype, tokens, q_cols},
      {act_.mlp, options_.dtype, tokens, config_.intermediate_size},
      {act_.projected, DType::kF32, blocks_.post_norms ? tokens : 0, hidden},
      {act_.kept, DType::kF32, tokens / 2, hidden},
      {act_.logits_normed, options_.dtype, logit_rows, hidden},
      {act_.logits, DType::kF32, logit_rows, config_.vocab_size},
  };
  for (const auto& a : all) {
    COPPICE_ASSIGN_OR_RETURN(a.activation, Activation::Create(*options_.device, a.dtype, a.rows, a.cols));
  }
  return OkStatus();
}

// Multiplies at the sizes of steps, results unused: a GPU's library chooses and loads its kernels at their first use, which takes
// longer than the prompt of a first request.
Status FamilyTransformer::LoadKernels() {
  if (options_.device->kind() != DeviceKind::kCuda || weights().layers.empty()) return OkStatus();
  constexpr int64_t kLeastRows = 32;  // fewer are multiplied by kernels that are loaded already, or as these are
  const Stream stream = nullptr;
  for (int64_t rows = options_.max_tokens; rows > kLeastRows / 2; rows /= 2) {
    DeviceBatch batch;
    const Step step = {batch, rows, stream, /*plans=*/{}, act_.hidden.Rows(rows)};
    const LayerWeights& layer = weights().layers.front();
    COPPICE_RETURN_IF_ERROR(ops_->Norm(act_.hidden.Rows(rows), Norm(layer.attention_norm), act_.normed.Rows(rows), {}, stream));
    COPPICE_RETURN_IF_ERROR(ops_->Linear(act_.normed.Rows(rows), *layer.qkv, act_.qkv.Rows(rows), {}, stream));
    COPPICE_RETURN_IF_ERROR(AddBlock(act_.attended.Rows(rows), *layer.output, layer.post_attention_norm, step));
    COPPICE_RETURN_IF_ERROR(FeedForward(layer, step));
    const int64_t logit_rows = std::min<int64_t>(rows, options_.max_logit_rows);
    COPPICE_RETURN_IF_ERROR(ops_->Linear(act_.logits_normed.Rows(logit_rows), head(), act_.logits.Rows(logit_rows), {}, stream));
  }
  return options_.device->Synchronize(stream);
}

Result<std::unique_ptr<Transformer>> FamilyTransformer::Create(const Checkpoint& checkpoint, const Options& options) {
  if (options.device == nullptr) return InvalidArgument("a transformer needs a device; it is null");
  if (options.max_tokens < 1 || options.max_logit_rows < 1)
    return InvalidArgument("max_tokens is " + std::to_string(options.max_tokens) + " and max_logit_rows " +
                           std::to_string(options.max_logit_rows) + "; expected at least 1 each");
  Device& device = *options.device;
  std::unique_ptr<FamilyTransformer> transformer(new FamilyTransformer(checkpoint.config(), options));
  COPPICE_ASSIGN_OR_RETURN(transformer->ops_, ops::Ops::Create(&device, {.deterministic = options.deterministic}));
  COPPICE_ASSIGN_OR_RETURN(transformer->store_, WeightStore::Load(checkpoint, checkpoint.config(),
                                                                  {.dtype = options.dtype, .keep_stored = options.keep_stored},
                                                                  device, *transformer->ops_));
  COPPICE_RETURN_IF_ERROR(transformer->MakeGroups());
  COPPICE_RETURN_IF_ERROR(transformer->AllocateActivations());
  COPPICE_RETURN_IF_ERROR(transformer->LoadKernels());
  return std::unique_ptr<Transformer>(std::move(transformer));
}

}  // namespace

Result<std::unique_ptr<Transformer>> Transformer::Create(const Checkpoint& checkpoint, const Options& options) {
  return FamilyTransformer::Create(checkpoint, options);
}

}  // namespace coppice
