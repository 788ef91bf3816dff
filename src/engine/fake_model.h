// Stand-ins for tests and the host-overhead bench: a model without layers whose logits depend on the whole token history, read back
// through the page rows of the forest, so that any fault in sharing, copying or scheduling changes its tokens.
// Layer: engine, tests only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_parts.h"

namespace coppice {

// Each slot of KV holds the hash of the path up to its token, and in its lowest 16 bits the token. Attention is played by walking a
// query's whole row and checking that every slot continues the one before it; the plan must cover that row.
class FakeModel final : public StepModel {
 public:
  struct Options {
    int32_t vocab_size = 64, max_position = 256;
    int32_t num_pages = 64, page_size = 16;
    std::vector<int32_t> eos_token_ids;
    uint64_t seed = 0;         // models of different seeds say different things after the same tokens
    float logit_range = 8.0f;  // logits are uniform in [0, logit_range)
    int32_t memory = 0;        // of the history, the last so many tokens count; 0: all
  };
  explicit FakeModel(const Options& options);

  const ModelConfig& config() const override { return config_; }
  int64_t kv_bytes_per_token() const override { return 8; }
  Status CopyPages(std::span<const attention::PageCopy> copies) override;
  std::string fingerprint() const override { return fingerprint_; }
  void set_fingerprint(std::string fingerprint) { fingerprint_ = std::move(fingerprint); }
  DType kv_dtype() const override { return DType::kF32; }  // one head of one element: K and V are the two halves of a slot
  Status ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const override;
  Status WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) override;
  Status MoveSlots(std::span<const attention::SlotMove> moves) override;
  Result<MatrixView<const float>> Forward(const ForwardBatch& batch, const attention::PrefixForestView& forest,
                                          attention::AttentionPlan& plan) override;

  // What the model says after `tokens`, from the tokens alone.
  std::vector<float> LogitsAfter(std::span<const int32_t> tokens) const;
  int32_t GreedyAfter(std::span<const int32_t> tokens) const;
  int64_t tokens_computed() const { return tokens_computed_; }
  int32_t largest_batch() const { return largest_batch_; }
  // The next Forward fails.
  void FailNext(Status status) { failure_ = std::move(status); }

 private:
  void CheckPlan(const attention::PrefixForestView& forest, const attention::PlanView& plan) const;
  // What a query with these tokens before it (itself included) leads to.
  uint64_t StateAfter(std::span<const int32_t> tokens) const;
  void FillLogits(uint64_t state, std::span<float> logits) const;

  ModelConfig config_;
  Options options_;
  int32_t page_size_;
  std::string fingerprint_ = "fake";
  std::vector<uint64_t> memory_;
  std::vector<uint64_t> states_;  // by token of the batch
  std::vector<int32_t> history_;  // tokens that a query sees
  std::vector<float> logits_;
  int64_t tokens_computed_ = 0;
  int32_t largest_batch_ = 0;
  Status failure_;
};

// Token i is the text given for it.
class FakeTokenizer final : public Tokenizer {
 public:
  explicit FakeTokenizer(std::vector<std::string> texts) : Tokenizer(TokenizerData{}), texts_(std::move(texts)) {}
  using Tokenizer::Encode;
  Result<std::vector<int32_t>> Encode(std::string_view, const EncodeOptions&) const override {
    return Unimplemented("the fake tokenizer only decodes");
  }
  std::string_view TokenBytes(int32_t id, bool) const override { return texts_[id]; }

 private:
  std::vector<std::string> texts_;
};

}  // namespace coppice
