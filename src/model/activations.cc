#include "model/activations.h"

#include <utility>

#include "core/check.h"
#include "core/math.h"
#include "ops/ops.h"

namespace coppice {

Result<Activation> Activation::Create(Device& device, DType dtype, int64_t max_rows, int64_t cols) {
  Activation a;
  a.dtype_ = dtype;
  a.cols_ = cols;
  COPPICE_ASSIGN_OR_RETURN(a.memory_, device.Allocate(RoundUp(max_rows, ops::kRowPadding) * cols * SizeOf(dtype)));
  return a;
}

Result<Activations> Activations::Create(Device& device, const ModelConfig& config, DType dtype, int64_t gathered_vocab,
                                        const Limits& limits) {
  Activations act;
  const int64_t tokens = limits.max_tokens, logit_rows = limits.max_logit_rows, hidden = config.hidden_size;
  const int64_t q_cols = int64_t{config.num_qo_heads} * config.head_dim, kv_cols = int64_t{config.num_kv_heads} * config.head_dim;
  const struct {
    Activation& activation;
    DType dtype;
    int64_t rows, cols;
  } all[] = {
      {act.hidden, DType::kF32, tokens, hidden},
      {act.normed, dtype, tokens, hidden},
      {act.qkv, DType::kF32, tokens, q_cols + 2 * kv_cols},
      {act.q, dtype, tokens, q_cols},
      {act.attended, dtype, tokens, q_cols},
      {act.gathered_q, dtype, tokens, q_cols * limits.gathered_ranks},
      {act.partial, dtype, tokens, q_cols * limits.kv_sharers},
      {act.partial_lse, DType::kF32, tokens, int64_t{config.num_qo_heads} * limits.kv_sharers},
      {act.mlp, dtype, tokens, config.intermediate_size},
      {act.projected, DType::kF32, config.blocks.post_norms ? tokens : 0, hidden},
      {act.terms, limits.terms.value_or(dtype), limits.terms ? tokens : 0, hidden},
      {act.kept, DType::kF32, tokens / 2, hidden},
      {act.logits_normed, limits.head_inputs.value_or(dtype), logit_rows, hidden},
      {act.logits, DType::kF32, logit_rows, config.vocab_size},
      {act.gathered_logits, DType::kF32, logit_rows, gathered_vocab},
  };
  for (const auto& a : all) {
    COPPICE_ASSIGN_OR_RETURN(a.activation, Activation::Create(device, a.dtype, a.rows, a.cols));
  }
  return act;
}

}  // namespace coppice
