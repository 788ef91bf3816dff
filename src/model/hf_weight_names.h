// The tensors of a Hugging Face folder under the names that its model's family has. Savers differ: names with the prefix of the
// model in front or without it, either of two names of a tied matrix, parts of other modalities beside the text model. Layer:
// model.
#pragma once

#include <string>
#include <vector>

#include "coppice/core/status.h"
#include "model/config.h"
#include "model/weights.h"

namespace coppice {

// Renames and drops tensors until they are those of CheckWeights, where they can be. Where `config` ties the output projection to
// the embedding, but the folder has another one, that one is taken and `config` changed, as transformers 5 does; `notes` says so.
// `path`: the folder, for messages. INVALID_ARGUMENT names a tensor that is there twice.
Status NameWeights(const std::string& path, ModelConfig* config, TensorMap* tensors, std::vector<std::string>* notes);

// The same for some of the tensors of a model that runs as `config` says. INVALID_ARGUMENT also where embeddings are tied, but the
// output projection holds other values than the embedding beside it.
Status NameSomeWeights(const std::string& path, const ModelConfig& config, TensorMap* tensors);

}  // namespace coppice
