// The names that callers give to versions of weights. Layer: server.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

#include "coppice/engine/engine.h"

namespace coppice::server {

// Thread-safe.
class WeightLabels {
 public:
  // `engine` outlives it.
  explicit WeightLabels(const Engine* engine) : engine_(*engine) {}

  // Names the weights that the engine has now. After an update, before the next one begins.
  void Set(std::string label);
  // Of a version that events name; empty where it had none, or is none of the last 64 that were set.
  std::string Find(int64_t version) const;
  // Of the weights that the engine has now; without a label, the number of their version.
  std::string Now() const;

 private:
  static constexpr size_t kMost = 64;

  const Engine& engine_;
  mutable std::mutex mutex_;  // guards what follows
  std::deque<WeightVersion> set_;
};

}  // namespace coppice::server
