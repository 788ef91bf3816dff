// Distributions of a draft model's tokens, where its runner leaves them for the target's: rows of [vocab] probabilities that both
// name by number, so that no engine carries them. In the memory of the device that both run on. Layer: runner.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "core/check.h"
#include "core/device.h"

namespace coppice {

// Thread-compatible.
class DraftDistributions {
 public:
  // On the host, with as many rows as are asked for.
  explicit DraftDistributions(int32_t vocab_size) : vocab_size_(vocab_size) {}
  // On a GPU, `num_rows` of them.
  static Result<std::shared_ptr<DraftDistributions>> CreateOn(std::unique_ptr<Device> device, int32_t num_rows,
                                                              int32_t vocab_size) {
    auto distributions = std::make_shared<DraftDistributions>(vocab_size);
    const size_t bytes = static_cast<size_t>(num_rows) * static_cast<size_t>(vocab_size) * sizeof(float);
    COPPICE_ASSIGN_OR_RETURN(distributions->device_rows_, device->Allocate(bytes));
    distributions->num_device_rows_ = num_rows;
    distributions->device_ = std::move(device);
    return distributions;
  }

  // Stays where it is for good. REQUIRES: on the host.
  std::span<float> Row(int32_t row) {
    while (rows_.size() <= static_cast<size_t>(row)) rows_.emplace_back(vocab_size_);
    return rows_[row];
  }
  // [num_device_rows, vocab] in the GPU's memory.
  float* device_rows() const { return device_rows_.As<float>(); }
  int32_t num_device_rows() const { return num_device_rows_; }

 private:
  int32_t vocab_size_;
  std::vector<std::vector<float>> rows_;
  std::unique_ptr<Device> device_;  // before its memory
  DeviceMemory device_rows_;
  int32_t num_device_rows_ = 0;
};

}  // namespace coppice
