#include "runner/model_runner.h"

#include <utility>

#include "core/check.h"

namespace coppice {
Result<std::unique_ptr<ModelRunner>> ModelRunner::Create(ModelParts parts) {
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<OwnedStream> stream, parts.device->CreateStream());
  return std::unique_ptr<ModelRunner>(new ModelRunner(std::move(parts), std::move(stream)));
}

ModelRunner::ModelRunner(ModelParts parts, std::unique_ptr<OwnedStream> stream)
    : HostRunner({.info = InfoOf(parts),
                  .plans = GroupsOf(*parts.transformer, std::move(parts.plans)),
                  .stream = stream->get(),
                  .executor = parts.executor,
                  .distributions = std::move(parts.distributions)}),
      device_(std::move(parts.device)),
      stream_(std::move(stream)),
      transformer_(std::move(parts.transformer)),
      pool_(std::move(parts.pool)),
      inputs_(std::move(parts.inputs)) {}

Status ModelRunner::ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const {
  return pool_->ReadKv(pages, num_tokens, kv, stream_->get());
}

Status ModelRunner::WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) {
  return pool_->WriteKv(pages, begin, num_tokens, kv, stream_->get());
}

Result<std::unique_ptr<WeightSource>> ModelRunner::PrepareUpdate(TensorMap tensors) const {
  return transformer_->PrepareUpdate(std::move(tensors));
}

Status ModelRunner::UpdateWeights(const WeightSource& source) { return transformer_->UpdateWeights(source); }

Status ModelRunner::Sleep(bool keep_weights) { return SleepOn(*device_, *transformer_, keep_weights); }

Status ModelRunner::Wake() { return WakeOn(*device_); }

Status ModelRunner::MoveSlots(std::span<const attention::SlotMove> moves) { return pool_->MoveSlots(moves, stream_->get()); }

Status ModelRunner::CopyPages(std::span<const attention::PageCopy> copies) {
  return copies.empty() ? OkStatus() : pool_->CopyPages(copies, stream_->get());
}

Result<MatrixView<const float>> ModelRunner::Forward(const ForwardBatch& batch) {
  COPPICE_ASSIGN_OR_RETURN(const DeviceBatch uploaded, inputs_->Upload(batch, stream_->get()));
  COPPICE_RETURN_IF_ERROR(transformer_->Forward(uploaded, plans(), pool_->layers(), stream_->get()));
  COPPICE_ASSIGN_OR_RETURN(const ConstDeviceTensor logits, transformer_->Logits(0, uploaded.logit_rows.size, stream_->get()));
  return HostView<float>(logits);
}

}  // namespace coppice
