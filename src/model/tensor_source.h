// Weights that the caller holds: tensors by name in host memory, as a trainer's state dict has them. Layer: model.
#pragma once

#include <string>
#include <utility>

#include "coppice/core/status.h"
#include "core/check.h"
#include "model/config.h"
#include "model/hf_weight_names.h"
#include "model/weight_source.h"

namespace coppice {

class TensorSource final : public WeightSource {
 public:
  // Some or all of the weights of a model of `config`, under any names that its folders may have (NameWeights). The tensors' memory
  // outlives the source. INVALID_ARGUMENT of NameSomeWeights.
  static Result<TensorSource> Create(std::string name, const ModelConfig& config, TensorMap tensors) {
    COPPICE_RETURN_IF_ERROR(NameSomeWeights(name, config, &tensors));
    return TensorSource(std::move(name), std::move(tensors));
  }

  const std::string& name() const override { return name_; }
  const TensorMap& tensors() const override { return tensors_; }

 private:
  TensorSource(std::string name, TensorMap tensors) : name_(std::move(name)), tensors_(std::move(tensors)) {}

  std::string name_;
  TensorMap tensors_;
};

}  // namespace coppice
