#include "runner/model_runner.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/check.h"

namespace coppice {
Result<std::unique_ptr<ModelRunner>> ModelRunner::Create(std::vector<ModelParts> ranks, std::unique_ptr<RankGroup> group) {
  COPPICE_CHECK(static_cast<int>(ranks.size()) == group->size());
  std::vector<std::unique_ptr<OwnedStream>> streams;
  for (const ModelParts& rank : ranks) {
    COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<OwnedStream> stream, rank.device->CreateStream());
    streams.push_back(std::move(stream));
  }
  return std::unique_ptr<ModelRunner>(new ModelRunner(std::move(ranks), std::move(streams), std::move(group)));
}

ModelRunner::ModelRunner(std::vector<ModelParts> parts, std::vector<std::unique_ptr<OwnedStream>> streams,
                         std::unique_ptr<RankGroup> group)
    : HostRunner({.info = InfoOf(parts.front()),
                  .plans = GroupsOf(*parts.front().transformer, parts.front().stripes.get(), std::move(parts.front().plans)),
                  .stream = streams.front()->get(),
                  .executor = parts.front().executor,
                  .distributions = std::move(parts.front().distributions)}),
      group_(std::move(group)) {
  for (size_t i = 0; i < parts.size(); ++i) {
    Rank& rank = ranks_.emplace_back();
    rank.device = std::move(parts[i].device);
    rank.stream = std::move(streams[i]);
    rank.transformer = std::move(parts[i].transformer);
    rank.pool = std::move(parts[i].pool);
    rank.inputs = std::move(parts[i].inputs);
    rank.stripes = std::move(parts[i].stripes);
    if (i == 0) continue;
    rank.plans = std::make_unique<LayerPlans>(GroupsOf(*rank.transformer, rank.stripes.get(), std::move(parts[i].plans)));
  }
}

Status ModelRunner::ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const {
  return group_->Run([&](int r) { return ranks_[r].pool->ReadKv(pages, num_tokens, kv, ranks_[r].stream->get()); });
}

Status ModelRunner::WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) {
  return group_->Run([&](int r) { return ranks_[r].pool->WriteKv(pages, begin, num_tokens, kv, ranks_[r].stream->get()); });
}

// Ranks hold weights of equal shapes in equal formats, so what one can take all can.
Result<std::unique_ptr<WeightSource>> ModelRunner::PrepareUpdate(TensorMap tensors) const {
  return ranks_.front().transformer->PrepareUpdate(std::move(tensors));
}

Status ModelRunner::UpdateWeights(const WeightSource& source) {
  return group_->Run([&](int r) { return ranks_[r].transformer->UpdateWeights(source); });
}

bool ModelRunner::weights_are_whole() const {
  return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.transformer->weights_are_whole(); });
}

void ModelRunner::BeginUpdate() {
  for (const Rank& rank : ranks_) rank.transformer->BeginUpdate();
}

void ModelRunner::EndUpdate() {
  for (const Rank& rank : ranks_) rank.transformer->EndUpdate();
}

Status ModelRunner::CheckSleep(bool keep_weights) const {
  for (const Rank& rank : ranks_) COPPICE_RETURN_IF_ERROR(CheckSleepOn(*rank.device, *rank.transformer, keep_weights));
  return OkStatus();
}

Status ModelRunner::Sleep(bool keep_weights) {
  return group_->Run([&](int r) { return SleepOn(*ranks_[r].device, *ranks_[r].transformer, keep_weights); });
}

Status ModelRunner::Wake() {
  return group_->Run([&](int r) { return WakeOn(*ranks_[r].device); });
}

Status ModelRunner::MoveSlots(std::span<const attention::SlotMove> moves) {
  if (moves.empty()) return OkStatus();
  return group_->Run([&](int r) { return ranks_[r].pool->MoveSlots(moves, ranks_[r].stream->get()); });
}

Status ModelRunner::CopyPages(std::span<const attention::PageCopy> copies) {
  if (copies.empty()) return OkStatus();
  return group_->Run([&](int r) { return ranks_[r].pool->CopyPages(copies, ranks_[r].stream->get()); });
}

Status ModelRunner::Prepare(const attention::PrefixForestView& forest, StepStats* stats) {
  COPPICE_RETURN_IF_ERROR(group_->Run([&](int r) -> Status {
    Rank& rank = ranks_[r];
    const attention::PrefixForestView of_rank = ForestOf(rank.stripes.get(), forest);
    if (r == 0) return HostRunner::Prepare(of_rank, stats);
    rank.reads = {};
    return rank.plans->Prepare(of_rank, rank.stream->get(), &rank.reads);
  }));
  if (ranks_.front().stripes == nullptr) return OkStatus();
  reads_.Begin(KnowsSharing(ranks_.front().stripes.get()), stats);
  for (const Rank& rank : std::span(ranks_).subspan(1)) reads_.Add(rank.reads, stats);
  return OkStatus();
}

Result<MatrixView<const float>> ModelRunner::Forward(const ForwardBatch& batch) {
  MatrixView<const float> gathered;
  COPPICE_RETURN_IF_ERROR(group_->Run([&](int r) -> Status {
    Rank& rank = ranks_[r];
    const Stream stream = rank.stream->get();
    ForwardBatch of_rank = batch;
    of_rank.slot_mapping = SlotsOf(rank.stripes.get(), batch.slot_mapping);
    COPPICE_ASSIGN_OR_RETURN(const DeviceBatch uploaded, rank.inputs->Upload(of_rank, stream));
    const std::span<attention::AttentionPlan* const> attends = r == 0 ? plans() : rank.plans->plans();
    COPPICE_RETURN_IF_ERROR(rank.transformer->Forward(uploaded, attends, rank.pool->layers(), stream));
    COPPICE_ASSIGN_OR_RETURN(const ConstDeviceTensor logits, rank.transformer->Logits(0, uploaded.logit_rows.size, stream));
    if (r == 0) gathered = HostView<float>(logits);
    return OkStatus();
  }));
  return gathered;
}

}  // namespace coppice
