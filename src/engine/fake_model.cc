#include "engine/fake_model.h"

#include <algorithm>

#include "core/check.h"

namespace coppice {
namespace {

uint64_t Mix(uint64_t h) {
  h = (h ^ (h >> 31)) * 0x7fb5d329728ea185u;
  h = (h ^ (h >> 27)) * 0x81dadef4bc2dd44du;
  return h ^ (h >> 33);
}

uint64_t Extend(uint64_t path, int32_t token) { return Mix(path + static_cast<uint64_t>(token) + 1); }

}  // namespace

FakeModel::FakeModel(const Options& options)
    : page_size_(options.page_size), memory_(static_cast<size_t>(options.num_pages) * options.page_size) {
  config_.architecture = "fake";
  config_.num_layers = 1;
  config_.vocab_size = options.vocab_size;
  config_.max_position = options.max_position;
  config_.eos_token_ids = options.eos_token_ids;
}

Status FakeModel::CopyPages(std::span<const attention::PageCopy> copies) {
  for (const auto [from, to] : copies) {
    std::copy_n(memory_.begin() + static_cast<int64_t>(from) * page_size_, page_size_,
                memory_.begin() + static_cast<int64_t>(to) * page_size_);
  }
  return OkStatus();
}

Result<MatrixView<const float>> FakeModel::Forward(const ForwardBatch& batch, const attention::PrefixForestView& forest,
                                                   attention::AttentionPlan&) {
  if (!failure_.ok()) return std::exchange(failure_, OkStatus());
  const int32_t num_tokens = static_cast<int32_t>(batch.token_ids.size());
  largest_batch_ = std::max(largest_batch_, num_tokens);
  tokens_computed_ += num_tokens;
  paths_.assign(num_tokens, 0);
  for (size_t b = 0; b < forest.branch_node.size(); ++b) {
    if (forest.branch_node[b] == attention::kFreeSlot) continue;
    const auto slot_of = [&](int32_t kv_index) {
      const int32_t page = forest.page_indices[forest.branch_page_begin[b] + kv_index / page_size_];
      return static_cast<int64_t>(page) * page_size_ + kv_index % page_size_;
    };
    for (int32_t i = 0; i < forest.branch_query_count[b]; ++i) {
      const int32_t row = forest.branch_query_begin[b] + i;
      const int32_t kv_index = forest.branch_kv_len[b] - forest.branch_query_count[b] + i;
      COPPICE_CHECK(batch.positions[row] == kv_index);
      paths_[row] = Extend(kv_index == 0 ? 0 : memory_[slot_of(kv_index - 1)], batch.token_ids[row]);
      const int64_t slot = batch.slot_mapping[row];
      if (slot < 0) {
        COPPICE_CHECK(memory_[slot_of(kv_index)] == paths_[row]);  // claimed to be cached: it must be this token's
      } else {
        COPPICE_CHECK(slot == slot_of(kv_index));
        memory_[slot] = paths_[row];
      }
    }
  }
  const int64_t rows = static_cast<int64_t>(batch.logit_rows.size());
  logits_.resize(rows * config_.vocab_size);
  for (int64_t r = 0; r < rows; ++r) {
    FillLogits(paths_[batch.logit_rows[r]], std::span(logits_).subspan(r * config_.vocab_size, config_.vocab_size));
  }
  return MatrixView<const float>(logits_.data(), rows, config_.vocab_size);
}

void FakeModel::FillLogits(uint64_t path, std::span<float> logits) const {
  for (size_t v = 0; v < logits.size(); ++v) logits[v] = static_cast<float>(Mix(path ^ (v * 0x9e3779b97f4a7c15u)) >> 40) * 0x1p-21f;
}

std::vector<float> FakeModel::LogitsAfter(std::span<const int32_t> tokens) const {
  uint64_t path = 0;
  for (const int32_t token : tokens) path = Extend(path, token);
  std::vector<float> logits(config_.vocab_size);
  FillLogits(path, logits);
  return logits;
}

int32_t FakeModel::GreedyAfter(std::span<const int32_t> tokens) const {
  const std::vector<float> logits = LogitsAfter(tokens);
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace coppice
