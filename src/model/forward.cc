// The forward pass: one screen per layer, the verbs of the papers. Layer: model.
#include <cmath>
#include <string>
#include <utility>

#include "core/check.h"
#include "model/family_transformer.h"

namespace coppice {

using Kind = ops::Epilogue::Kind;

Status FamilyTransformer::Forward(const DeviceBatch& batch, std::span<attention::AttentionPlan* const> plans,
                                  std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) {
  wanted_ = {};
  COPPICE_RETURN_IF_ERROR(Check(batch, plans.size(), kv.size()));
  return RunLayers(batch, options_.attends ? plans : std::span<attention::AttentionPlan* const>(), kv, stream);
}

Status FamilyTransformer::RunLayers(const DeviceBatch& batch, std::span<attention::AttentionPlan* const> plans,
                                    std::span<const std::unique_ptr<attention::BoundKv>> kv, Stream stream) {
  const int64_t tokens = batch.token_ids.size;
  Step step = {batch, tokens, stream, plans, act_.hidden.Rows(tokens)};
  COPPICE_RETURN_IF_ERROR(Embed(step));
  // Rows that see none of the rank's tokens are in no plan, and their states stay empty.
  if (options_.splits_tokens) COPPICE_RETURN_IF_ERROR(ops_->Fill(act_.partial_lse.Rows(tokens), -INFINITY, stream));
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
  const auto first_id = static_cast<int32_t>(shard_.VocabularyRows(config_).begin);
  COPPICE_RETURN_IF_ERROR(ops_->Embed(step.batch.token_ids, *weights().embedding,
                                      {.scale = config_.embedding_scale, .first_id = first_id}, step.hidden, step.stream));
  COPPICE_RETURN_IF_ERROR(AddOverRanks(step.hidden, step.stream));
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
  COPPICE_RETURN_IF_ERROR(AddBlock(attended, *layer.output, layer.post_attention_norm, &layer.mlp_norm, *step));
  const bool is_last = index + 1 == weights().layers.size();
  return FeedForward(layer, is_last ? nullptr : &weights().layers[index + 1].attention_norm, *step);
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
                                    .num_qo_heads = local_.num_qo_heads,
                                    .num_kv_heads = local_.num_kv_heads,
                                    .head_dim = local_.head_dim,
                                    .q_norm = Norm(layer.q_norm),
                                    .k_norm = Norm(layer.k_norm),
                                    .q = q,
                                    .kv = kv.view(),
                                    .slot_mapping = step.batch.slot_mapping};
  const DeviceTensor normed = act_.normed.Rows(step.tokens);
  const bool is_normed = peers_ != nullptr && index > 0;
  if (blocks_.parallel || is_normed) {
    if (!is_normed) {
      COPPICE_RETURN_IF_ERROR(ops_->Norm(step.hidden, Norm(layer.attention_norm), normed, {}, step.stream));
    }
    COPPICE_RETURN_IF_ERROR(ops_->QkvRope(normed, *layer.qkv, rows, step.stream));
  } else {
    COPPICE_RETURN_IF_ERROR(ops_->NormQkvRope(step.hidden, Norm(layer.attention_norm), normed, *layer.qkv, rows, step.stream));
  }
  if (step.plans.empty()) return q;
  attention::AttentionPlan& plan = *step.plans[layer_groups_[index]];
  if (options_.splits_tokens) {
    COPPICE_RETURN_IF_ERROR(AttendToPart(plan, kv, attended, step));
    return attended;
  }
  COPPICE_RETURN_IF_ERROR(
      plan.Run(kv, {.q = q.data, .q_row_stride = q.stride, .out = attended.data, .out_row_stride = attended.stride}, step.stream));
  return attended;
}

// attention(q), of which this rank has a part of the tokens: that part for the query heads of all ranks that have the others, then
// of its own heads the states of all parts (Cascade Inference's merge).
Status FamilyTransformer::AttendToPart(attention::AttentionPlan& plan, const attention::BoundKv& kv, DeviceTensor attended,
                                       const Step& step) {
  const DeviceTensor q = act_.q.Rows(step.tokens), gathered = act_.gathered_q.Rows(step.tokens);
  COPPICE_RETURN_IF_ERROR(ranks_.AllGather(q, gathered, step.stream));
  const DeviceTensor queries = gathered.Cols(sharers_.first * q.cols, sharers_.count * q.cols);
  const DeviceTensor partial = act_.partial.Rows(step.tokens), lse = act_.partial_lse.Rows(step.tokens);
  COPPICE_RETURN_IF_ERROR(plan.Run(kv,
                                   {.q = queries.data,
                                    .q_row_stride = queries.stride,
                                    .out = partial.data,
                                    .out_row_stride = partial.stride,
                                    .lse = static_cast<float*>(lse.data)},
                                   step.stream));
  return ranks_.MergeStates({.ranks = sharers_, .out = partial, .lse = lse}, attended, step.stream);
}

// Once the last layer's K and V are stored, rows whose logits are not wanted have no reader: a prompt's, but for its
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
Status FamilyTransformer::FeedForward(const LayerWeights& layer, const NormWeights* next_norm, const Step& step) {
  const DeviceTensor mlp = act_.mlp.Rows(step.tokens);
  const DeviceTensor normed = act_.normed.Rows(step.tokens);
  const ops::Epilogue epilogue = {blocks_.gated_mlp ? Kind::kGated : Kind::kActivate, blocks_.activation};
  if (blocks_.parallel || peers_ != nullptr) {  // of the norm that attention has; of the sum that ended attention
    COPPICE_RETURN_IF_ERROR(ops_->Linear(normed, *layer.up, mlp, epilogue, step.stream));
  } else {
    COPPICE_RETURN_IF_ERROR(ops_->NormLinear(step.hidden, Norm(layer.mlp_norm), normed, *layer.up, mlp, epilogue, step.stream));
  }
  return AddBlock(mlp, *layer.down, layer.post_mlp_norm, next_norm, step);
}

// hidden += [norm](x W^T). Each rank has the inputs of a part of W's columns: a term of the sum over ranks. All have the residual
// stream, which enters that sum once, with the first rank's term.
Status FamilyTransformer::AddBlock(ConstDeviceTensor x, const ops::Weight& weight, const NormWeights& post_norm,
                                   const NormWeights* next_norm, const Step& step) {
  if (peers_ != nullptr) {
    const DeviceTensor terms = act_.terms.Rows(step.tokens);
    COPPICE_RETURN_IF_ERROR(ops_->Linear(x, weight, terms, {}, step.stream));
    if (measures_) return OkStatus();
    DeviceTensor normed = act_.normed.Rows(step.tokens);
    if (next_norm == nullptr) normed.data = nullptr;
    return peers_->AddNorm(terms, step.hidden, next_norm != nullptr ? Norm(*next_norm) : ops::NormArgs(), normed, step.stream);
  }
  if (!blocks_.post_norms) {
    const Kind kind = shard_.rank == 0 ? Kind::kAdd : Kind::kStore;
    COPPICE_RETURN_IF_ERROR(ops_->Linear(x, weight, step.hidden, {.kind = kind}, step.stream));
    return AddOverRanks(step.hidden, step.stream);
  }
  const DeviceTensor projected = act_.projected.Rows(step.tokens);
  COPPICE_RETURN_IF_ERROR(ops_->Linear(x, weight, projected, {}, step.stream));
  COPPICE_RETURN_IF_ERROR(AddOverRanks(projected, step.stream));
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
    return GatherLogits(logits, stream);
  }
  if (wanted_.rows.empty()) {
    COPPICE_RETURN_IF_ERROR(ops_->Norm(wanted_.hidden.Rows(begin, count), norm, normed, {}, stream));
  } else {
    COPPICE_RETURN_IF_ERROR(ops_->Norm(wanted_.hidden, norm, normed, wanted_.rows.Sub(begin, count), stream));
  }
  COPPICE_RETURN_IF_ERROR(ops_->Linear(normed, head(), logits, {}, stream));
  return GatherLogits(logits, stream);
}

Status FamilyTransformer::AddOverRanks(DeviceTensor x, Stream stream) {
  return measures_ ? OkStatus() : ranks_.AllReduce(x, stream);
}

// Each rank has the logits of a part of the vocabulary; the first one draws, from all of them.
Result<ConstDeviceTensor> FamilyTransformer::GatherLogits(ConstDeviceTensor part, Stream stream) {
  if (shard_.ranks == 1 || measures_) return part;
  const DeviceTensor all = shard_.rank == 0 ? act_.gathered_logits.Rows(part.rows) : DeviceTensor();
  COPPICE_RETURN_IF_ERROR(ranks_.Gather(part, all, stream));
  return ConstDeviceTensor(all);
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

}  // namespace coppice
