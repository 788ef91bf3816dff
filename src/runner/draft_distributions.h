// What a draft model's tokens were drawn from, where its runner leaves it for the target's: rows of [vocab] probabilities that both
// name by number, so that no engine carries them. On the host. Layer: runner.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace coppice {

// Thread-compatible.
class DraftDistributions {
 public:
  explicit DraftDistributions(int32_t vocab_size) : vocab_size_(vocab_size) {}

  // Stays where it is for good.
  std::span<float> Row(int32_t row) {
    while (rows_.size() <= static_cast<size_t>(row)) rows_.emplace_back(vocab_size_);
    return rows_[row];
  }

 private:
  int32_t vocab_size_;
  std::vector<std::vector<float>> rows_;
};

}  // namespace coppice
