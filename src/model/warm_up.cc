// Steps in which a GPU's libraries load and measure before the first request. Layer: model.
#include <algorithm>

#include "core/check.h"
#include "model/family_transformer.h"

namespace coppice {

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
  measures_ = true;
  const Status tuned = ops_->Tune(batch.token_ids.size, step, stream);
  measures_ = false;
  return tuned;
}

// Multiplies at the sizes of steps, results unused: a GPU's library chooses and loads its kernels at their first use, which takes
// longer than the prompt of a first request.
Status FamilyTransformer::LoadKernels() {
  if (options_.device->kind() != DeviceKind::kCuda || weights().layers.empty()) return OkStatus();
  constexpr int64_t kLeastRows = 32;  // fewer are multiplied by kernels that are loaded already, or as these are
  const Stream stream = nullptr;
  measures_ = true;
  for (int64_t rows = options_.max_tokens; rows > kLeastRows / 2; rows /= 2) {
    DeviceBatch batch;
    const Step step = {batch, rows, stream, /*plans=*/{}, act_.hidden.Rows(rows)};
    const LayerWeights& layer = weights().layers.front();
    COPPICE_RETURN_IF_ERROR(ops_->Norm(act_.hidden.Rows(rows), Norm(layer.attention_norm), act_.normed.Rows(rows), {}, stream));
    COPPICE_RETURN_IF_ERROR(ops_->Linear(act_.normed.Rows(rows), *layer.qkv, act_.qkv.Rows(rows), {}, stream));
    COPPICE_RETURN_IF_ERROR(AddBlock(act_.attended.Rows(rows), *layer.output, layer.post_attention_norm, &layer.mlp_norm, step));
    COPPICE_RETURN_IF_ERROR(FeedForward(layer, &layer.attention_norm, step));
    const int64_t logit_rows = std::min<int64_t>(rows, options_.max_logit_rows);
    COPPICE_RETURN_IF_ERROR(ops_->Linear(act_.logits_normed.Rows(logit_rows), head(), act_.logits.Rows(logit_rows), {}, stream));
  }
  measures_ = false;
  return options_.device->Synchronize(stream);
}

}  // namespace coppice
