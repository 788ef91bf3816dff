// A Hugging Face model folder: config.json, one or many *.safetensors files, and the tokenizer's files where there are any.
// Layer: model.
#pragma once

#include <string>
#include <vector>

#include "coppice/core/status.h"
#include "model/mapped_file.h"
#include "model/model_contents.h"

namespace coppice {

struct HuggingFaceFolder {
  std::vector<MappedFile> files;  // what the tensors of `contents` view into
  ModelContents contents;
};

// Weights come from model.safetensors, else from the shards of model.safetensors.index.json. Errors name the file, the tensor or
// key, and both values.
Result<HuggingFaceFolder> OpenHuggingFaceFolder(const std::string& path);

}  // namespace coppice
