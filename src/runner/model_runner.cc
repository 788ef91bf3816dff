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

ModelRunner::ModelRunner(Parts parts)
    : HostRunner({.info = InfoOf(*parts.transformer, std::move(parts.fingerprint)),
                  .plan = std::move(parts.plans.front()),
                  .other_plans = OtherPlans(*parts.transformer, std::move(parts.plans)),
                  .executor = parts.executor,
                  .distributions = std::move(parts.distributions)}),
      device_(std::move(parts.device)),
      transformer_(std::move(parts.transformer)),
      pool_(std::move(parts.pool)),
      inputs_(std::move(parts.inputs)) {}

Status ModelRunner::ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const {
  return pool_->ReadKv(pages, num_tokens, kv);
}

Status ModelRunner::WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) {
  return pool_->WriteKv(pages, begin, num_tokens, kv);
}

Status ModelRunner::MoveSlots(std::span<const attention::SlotMove> moves) { return pool_->MoveSlots(moves); }

Status ModelRunner::CopyPages(std::span<const attention::PageCopy> copies) {
  return copies.empty() ? OkStatus() : pool_->CopyPages(copies);
}

Result<MatrixView<const float>> ModelRunner::Forward(const ForwardBatch& batch, const attention::PrefixForestView&,
                                                     attention::AttentionPlan&) {
  COPPICE_ASSIGN_OR_RETURN(const DeviceBatch uploaded, inputs_->Upload(batch, /*stream=*/nullptr));
  COPPICE_ASSIGN_OR_RETURN(const ConstDeviceTensor logits,
                           transformer_->Forward(uploaded, plans(), pool_->layers(), /*stream=*/nullptr));
  return HostView<float>(logits);
}

}  // namespace coppice
