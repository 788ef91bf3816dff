#include "runner/model_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/check.h"

namespace coppice {
namespace {

RunnerInfo InfoOf(const Transformer& transformer, std::string fingerprint) {
  const attention::AttentionSpec& spec = transformer.attention_specs().front();
  return {.model = transformer.config(),
          .fingerprint = std::move(fingerprint),
          .kv_dtype = spec.kv_dtype,
          .kv_bytes_per_token = KvPool::BytesPerPage(spec, transformer.config().num_layers, /*page_size=*/1)};
}

std::vector<HostRunner::GroupPlan> OtherPlans(const Transformer& transformer,
                                              std::vector<std::unique_ptr<attention::AttentionPlan>> plans) {
  std::vector<HostRunner::GroupPlan> others;
  for (size_t group = 1; group < plans.size(); ++group) {
    const auto layers = std::ranges::count(transformer.layer_groups(), static_cast<int32_t>(group));
    others.push_back({std::move(plans[group]), static_cast<int32_t>(layers)});
  }
  return others;
}

}  // namespace

Result<std::unique_ptr<ModelRunner>> ModelRunner::Create(Parts parts) {
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<OwnedStream> stream, parts.device->CreateStream());
  return std::unique_ptr<ModelRunner>(new ModelRunner(std::move(parts), std::move(stream)));
}

ModelRunner::ModelRunner(Parts parts, std::unique_ptr<OwnedStream> stream)
    : HostRunner({.info = InfoOf(*parts.transformer, std::move(parts.fingerprint)),
                  .plan = std::move(parts.plans.front()),
                  .other_plans = OtherPlans(*parts.transformer, std::move(parts.plans)),
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

Status ModelRunner::MoveSlots(std::span<const attention::SlotMove> moves) { return pool_->MoveSlots(moves, stream_->get()); }

Status ModelRunner::CopyPages(std::span<const attention::PageCopy> copies) {
  return copies.empty() ? OkStatus() : pool_->CopyPages(copies, stream_->get());
}

Result<MatrixView<const float>> ModelRunner::Forward(const ForwardBatch& batch, const attention::PrefixForestView&,
                                                     attention::AttentionPlan&) {
  COPPICE_ASSIGN_OR_RETURN(const DeviceBatch uploaded, inputs_->Upload(batch, stream_->get()));
  COPPICE_ASSIGN_OR_RETURN(const ConstDeviceTensor logits,
                           transformer_->Forward(uploaded, plans(), pool_->layers(), stream_->get()));
  return OnHost(logits);
}

Result<MatrixView<const float>> ModelRunner::OnHost(const ConstDeviceTensor& logits) {
  if (device_->kind() == DeviceKind::kCpu) return HostView<float>(logits);
  COPPICE_CHECK(logits.stride == logits.cols);
  const size_t bytes = logits.rows * logits.cols * sizeof(float);
  if (host_logits_.size() < bytes) {
    COPPICE_ASSIGN_OR_RETURN(host_logits_, device_->Allocate(bytes, MemoryKind::kHostPinned));
  }
  if (bytes > 0) COPPICE_RETURN_IF_ERROR(device_->Copy(host_logits_.data(), logits.data, bytes, stream_->get()));
  COPPICE_RETURN_IF_ERROR(device_->Synchronize(stream_->get()));
  return MatrixView<const float>(host_logits_.As<const float>(), logits.rows, logits.cols);
}

}  // namespace coppice
