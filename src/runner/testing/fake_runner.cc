#include "runner/testing/fake_runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "attention/testing/forwarding_plan.h"
#include "core/check.h"

namespace coppice {
namespace {

uint64_t Mix(uint64_t h) {
  h = (h ^ (h >> 31)) * 0x7fb5d329728ea185u;
  h = (h ^ (h >> 27)) * 0x81dadef4bc2dd44du;
  return h ^ (h >> 33);
}

constexpr uint64_t kTokenBits = 0xffff;

uint64_t Extend(uint64_t path, int32_t token) {
  return (Mix(path + static_cast<uint64_t>(token) + 1) & ~kTokenBits) | static_cast<uint64_t>(token);
}

constexpr int kVersionShift = 16;

uint64_t ExtendKv(uint64_t before, int32_t token, uint8_t version) {
  return (Extend(before + (uint64_t{version} << 32), token) & ~(uint64_t{0xff} << kVersionShift)) | uint64_t{version}
                                                                                                        << kVersionShift;
}

int32_t TokenOf(uint64_t slot) { return static_cast<int32_t>(slot & kTokenBits); }
uint8_t VersionOf(uint64_t slot) { return static_cast<uint8_t>(slot >> kVersionShift); }

RunnerInfo InfoOf(const FakeRunner::Options& options) {
  RunnerInfo info{.fingerprint = "fake", .kv_dtype = DType::kF32, .kv_bytes_per_token = sizeof(uint64_t)};
  info.model.architecture = "fake";
  info.model.num_qo_heads = info.model.num_kv_heads = info.model.head_dim = 1;
  info.model.num_layers = 1;
  info.model.vocab_size = options.vocab_size;
  info.model.max_position = options.max_position;
  info.model.eos_token_ids = options.eos_token_ids;
  return info;
}

}  // namespace

// A plan that knows the forest it was updated with.
class FakeRunner::WatchedPlan final : public attention::ForwardingPlan {
 public:
  using ForwardingPlan::ForwardingPlan;

  const attention::PrefixForestView& forest() const { return forest_; }

  Status Update(const attention::PrefixForestView& forest) override {
    forest_ = forest;
    return ForwardingPlan::Update(forest);
  }

 private:
  attention::PrefixForestView forest_;
};

FakeRunner::FakeRunner(const Options& options, std::unique_ptr<attention::AttentionPlan> plan, Executor* executor,
                       std::shared_ptr<DraftDistributions> distributions)
    : HostRunner({.info = InfoOf(options),
                  .plans = LayerPlans::Single(std::make_unique<WatchedPlan>(std::move(plan)), InfoOf(options).model.num_layers),
                  .executor = executor,
                  .distributions = std::move(distributions)}),
      options_(options),
      loaded_seed_(options.seed),
      plan_(static_cast<const WatchedPlan&>(*plans().front())),
      page_size_(options.page_size),
      memory_(static_cast<size_t>(options.num_pages) * options.page_size) {
  COPPICE_CHECK(options.vocab_size <= static_cast<int32_t>(kTokenBits) + 1);
}

Status FakeRunner::CopyPages(std::span<const attention::PageCopy> copies) {
  for (const auto [from, to] : copies) {
    std::copy_n(memory_.begin() + static_cast<int64_t>(from) * page_size_, page_size_,
                memory_.begin() + static_cast<int64_t>(to) * page_size_);
  }
  return OkStatus();
}

Status FakeRunner::ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const {
  constexpr size_t kHalf = sizeof(uint64_t) / 2;
  for (int32_t t = 0; t < num_tokens; ++t) {
    const auto* const slot =
        reinterpret_cast<const std::byte*>(&memory_[int64_t{pages[t / page_size_]} * page_size_ + t % page_size_]);
    for (size_t half = 0; half < 2; ++half) std::memcpy(&kv[(half * num_tokens + t) * kHalf], slot + half * kHalf, kHalf);
  }
  return OkStatus();
}

Status FakeRunner::WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) {
  constexpr size_t kHalf = sizeof(uint64_t) / 2;
  for (int32_t t = begin; t < num_tokens; ++t) {
    auto* const slot =
        reinterpret_cast<std::byte*>(&memory_[int64_t{pages[(t - begin) / page_size_]} * page_size_ + t % page_size_]);
    for (size_t half = 0; half < 2; ++half) std::memcpy(slot + half * kHalf, &kv[(half * num_tokens + t) * kHalf], kHalf);
  }
  return OkStatus();
}

Result<std::unique_ptr<WeightSource>> FakeRunner::PrepareUpdate(TensorMap tensors) const {
  const auto is_known = [&](const auto& tensor) {
    return AllWeights().contains(tensor.first) && tensor.second.data.size() == sizeof(float);
  };
  if (tensors.empty() || !std::ranges::all_of(tensors, is_known))
    return InvalidArgument(options_.padded ? "a fake model has two weights, its seed and its pad"
                                           : "a fake model has one weight, its seed");
  class Seed final : public WeightSource {
   public:
    explicit Seed(TensorMap tensors) : tensors_(std::move(tensors)) {}
    const std::string& name() const override { return name_; }
    const TensorMap& tensors() const override { return tensors_; }

   private:
    std::string name_ = "seed";
    TensorMap tensors_;
  };
  return std::unique_ptr<WeightSource>(std::make_unique<Seed>(std::move(tensors)));
}

Status FakeRunner::UpdateWeights(const WeightSource& source) {
  COPPICE_CHECK(!asleep_);
  ++version_;
  if (!update_failure_.ok()) {
    missing_ = AllWeights();
    keeps_rest_ = false;
    return std::exchange(update_failure_, OkStatus());
  }
  for (const auto& [name, tensor] : source.tensors()) {
    missing_.erase(name);
    if (name != kSeedTensor) continue;
    float seed;
    std::memcpy(&seed, tensor.data.data(), sizeof(seed));
    options_.seed = static_cast<uint64_t>(seed);
  }
  return OkStatus();
}

std::set<std::string, std::less<>> FakeRunner::AllWeights() const {
  std::set<std::string, std::less<>> names = {std::string(kSeedTensor)};
  if (options_.padded) names.emplace(kPadTensor);
  return names;
}

void FakeRunner::BeginUpdate() {
  keeps_rest_ = missing_.empty();
  missing_ = AllWeights();
}

void FakeRunner::EndUpdate() {
  if (std::exchange(keeps_rest_, false)) missing_.clear();
}

HeldWeights FakeRunner::Weights() const {
  HeldWeights weights;
  for (const std::string& name : AllWeights())
    weights.emplace(name, HeldWeight{.shape = {1}, .dtype = DType::kF32, .missing = missing_.contains(name)});
  return weights;
}

Status FakeRunner::CheckSleep(bool keep_weights) const {
  return keep_weights || !holds_weights_ ? OkStatus() : FailedPrecondition("the weights cannot be dropped");
}

Status FakeRunner::Sleep(bool keep_weights) {
  COPPICE_CHECK(!std::exchange(asleep_, true));
  std::ranges::fill(memory_, ~uint64_t{0});
  if (!keep_weights) {
    missing_ = AllWeights();
    keeps_rest_ = false;
  }
  return OkStatus();
}

Status FakeRunner::Wake() {
  COPPICE_CHECK(std::exchange(asleep_, false));
  return OkStatus();
}

uint8_t FakeRunner::VersionAt(int64_t slot) const { return VersionOf(memory_[slot]); }

Status FakeRunner::MoveSlots(std::span<const attention::SlotMove> moves) {
  for (const auto [from, to] : moves) memory_[to] = memory_[from];
  return OkStatus();
}

// Every query's history must be covered by the items of its merge set, each kv index once, read through a row with the same KV.
void FakeRunner::CheckPlan() const {
  const attention::PrefixForestView& forest = plan_.forest();
  const attention::PlanView plan = plan_.View();
  const auto slot_at = [&](int32_t branch, int32_t kv_index) {
    const int32_t page = forest.page_indices[forest.branch_page_begin[branch] + kv_index / page_size_];
    return memory_[static_cast<int64_t>(page) * page_size_ + kv_index % page_size_];
  };
  std::vector<int32_t> planned(forest.branch_node.size());
  std::vector<int32_t> served(plan.merge_sets.size());
  for (const attention::WorkItem& item : plan.items) {
    for (int32_t m = 0; m < item.member_count; ++m) ++served[plan.members[item.member_begin + m]];
  }
  for (size_t id = 0; id < plan.merge_sets.size(); ++id) {
    const attention::MergeSet& set = plan.merge_sets[id];
    if (set.query_count == 0) continue;
    COPPICE_CHECK(served[id] == set.contribution_count);
    planned[set.branch] += set.query_count;
    const int32_t kv_len = forest.branch_kv_len[set.branch];
    const int32_t first_query = kv_len - forest.branch_query_count[set.branch] + set.query_begin;
    int32_t covered = 0;
    for (int32_t c = 0; c < set.contribution_count; ++c) {
      const attention::WorkItem& item = plan.items[plan.contributions[set.contribution_begin + c].item];
      const int32_t begin = std::min(item.kv_begin, kv_len), end = std::min(item.kv_end, kv_len);
      COPPICE_CHECK(begin <= covered);
      COPPICE_CHECK(begin == covered || begin == kv_len);
      COPPICE_CHECK((item.flags & attention::kItemMasked) || end <= first_query + 1);
      for (int32_t i = begin; i < end; ++i) COPPICE_CHECK(slot_at(item.page_row, i) == slot_at(set.branch, i));
      covered = end;
    }
    COPPICE_CHECK(covered >= first_query + set.query_count);
  }
  for (size_t b = 0; b < planned.size(); ++b) {
    if (forest.branch_node[b] != attention::kFreeSlot) COPPICE_CHECK(planned[b] == forest.branch_query_count[b]);
  }
}

Result<MatrixView<const float>> FakeRunner::Forward(const ForwardBatch& batch) {
  const attention::PrefixForestView& forest = plan_.forest();
  COPPICE_CHECK(!asleep_ && missing_.empty());
  ++num_steps_;
  if (!failure_.ok()) return std::exchange(failure_, OkStatus());
  if (fails_ && fails_(num_steps_)) return Internal("at random");
  const int32_t num_tokens = static_cast<int32_t>(batch.token_ids.size());
  largest_batch_ = std::max(largest_batch_, num_tokens);
  tokens_computed_ += num_tokens;
  states_.assign(num_tokens, 0);
  std::vector<int32_t> branches;  // in the order of their rows: a branch may read what one before it computes in this step
  for (size_t b = 0; b < forest.branch_node.size(); ++b) {
    if (forest.branch_node[b] != attention::kFreeSlot) branches.push_back(static_cast<int32_t>(b));
  }
  std::ranges::sort(branches, {}, [&](int32_t b) { return forest.branch_query_begin[b]; });
  for (const int32_t b : branches) {
    const auto slot_of = [&](int32_t kv_index) {
      const int32_t page = forest.page_indices[forest.branch_page_begin[b] + kv_index / page_size_];
      return static_cast<int64_t>(page) * page_size_ + kv_index % page_size_;
    };
    const int32_t queries_begin = forest.branch_kv_len[b] - forest.branch_query_count[b];
    for (int32_t i = 0; i < forest.branch_query_count[b]; ++i) {
      const int32_t row = forest.branch_query_begin[b] + i;
      const int32_t own = queries_begin + i;
      const auto sees = [&](int32_t kv_index) {
        return kv_index < queries_begin || forest.query_tree_mask.empty() ||
               (forest.query_tree_mask[row] >> (kv_index - queries_begin) & 1) != 0;
      };
      COPPICE_CHECK(sees(own));
      uint64_t path = loaded_seed_;
      uint8_t version = 0;
      history_.clear();
      const auto read = [&](int32_t kv_index, int32_t token) {
        const uint64_t kv = memory_[slot_of(kv_index)];
        COPPICE_CHECK(VersionOf(kv) >= version);
        version = VersionOf(kv);
        path = ExtendKv(path, token, version);
        COPPICE_CHECK(kv == path);
        history_.push_back(token);
      };
      for (int32_t k = 0; k < own; ++k) {
        if (sees(k)) read(k, TokenOf(memory_[slot_of(k)]));
      }
      COPPICE_CHECK(batch.positions[row] == static_cast<int32_t>(history_.size()));
      if (const int64_t slot = batch.slot_mapping[row]; slot >= 0) {
        COPPICE_CHECK(slot == slot_of(own));
        memory_[slot] = ExtendKv(path, batch.token_ids[row], version_);
      }
      read(own, batch.token_ids[row]);  // of what was computed before, where it is computed again for its logits alone
      states_[row] = StateAfter(history_);
    }
  }
  CheckPlan();
  const int64_t rows = static_cast<int64_t>(batch.logit_rows.size());
  logits_.resize(rows * options_.vocab_size);
  for (int64_t r = 0; r < rows; ++r) {
    FillLogits(states_[batch.logit_rows[r]], std::span(logits_).subspan(r * options_.vocab_size, options_.vocab_size));
  }
  return MatrixView<const float>(logits_.data(), rows, options_.vocab_size);
}

uint64_t FakeRunner::StateAfter(std::span<const int32_t> tokens) const {
  if (options_.memory > 0 && tokens.size() > static_cast<size_t>(options_.memory)) tokens = tokens.last(options_.memory);
  uint64_t state = options_.seed;
  for (const int32_t token : tokens) state = Extend(state, token);
  return state;
}

void FakeRunner::FillLogits(uint64_t state, std::span<float> logits) const {
  for (size_t v = 0; v < logits.size(); ++v) {
    logits[v] = static_cast<float>(Mix(state ^ (v * 0x9e3779b97f4a7c15u)) >> 40) * 0x1p-24f * options_.logit_range;
  }
}

std::vector<float> FakeRunner::LogitsAfter(std::span<const int32_t> tokens) const {
  std::vector<float> logits(options_.vocab_size);
  FillLogits(StateAfter(tokens), logits);
  return logits;
}

int32_t FakeRunner::GreedyAfter(std::span<const int32_t> tokens) const {
  const std::vector<float> logits = LogitsAfter(tokens);
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace coppice
