// A fixture's weights changed, as tensors and as a folder. Layer: engine, tests only.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "coppice/engine/weights.h"
#include "engine/testing/fixture_models.h"
#include "model/checkpoint.h"
#include "tests/support/tiny_model.h"

namespace coppice {

class ChangedModel {
 public:
  explicit ChangedModel(const std::string& fixture) {
    const auto checkpoint = Checkpoint::Open(ModelPath(fixture)).value();
    model_.config = checkpoint->config();
    for (const auto& [name, tensor] : checkpoint->tensors()) {
      const bool is_vector = tensor.shape.size() == 1;
      std::vector<float>& values = model_.weights[name];
      values.resize(tensor.shape[0] * (is_vector ? 1 : tensor.shape[1]));
      const Status loaded = checkpoint->Load(name, is_vector ? 1 : tensor.shape[0], tensor.shape.back(), DType::kF32,
                                             std::as_writable_bytes(std::span(values)));
      EXPECT_TRUE(loaded.ok()) << loaded.ToString();
      for (size_t i = 0; i < values.size(); ++i) values[i] = values[i] * (0.75f + 0.01f * static_cast<float>(i % 50)) + 0.001f;
      tensors_.push_back({.name = name, .dtype = DType::kF32, .shape = tensor.shape, .data = values.data()});
    }
    std::filesystem::copy(ModelPath(fixture) + "/config.json", path() + "/config.json");
    folder_.Write("model.safetensors", testing::ToSafetensors(model_));
  }

  std::string path() const { return folder_.path(); }
  // f32, in host memory.
  const std::vector<WeightTensor>& tensors() const { return tensors_; }

 private:
  testing::TinyModel model_;
  std::vector<WeightTensor> tensors_;
  testing::TemporaryFolder folder_;
};

}  // namespace coppice
