// Where models lie on this machine: one folder, with files of the catalogue and GGUF files in it and repositories as owner/name.
// Layer: hub.
#pragma once

#include <string>
#include <vector>

#include "coppice/core/status.h"

namespace coppice::hub {

// $COPPICE_MODELS, else ~/.cache/coppice/models.
std::string ModelFolder();

struct StoredModel {
  std::string name;  // what --model takes: of the catalogue, owner/name, owner/name:folder/file.gguf, or a file's name
  std::string path;
  int64_t bytes = 0;
};

// Whole models, by name; what is still being fetched is not among them.
std::vector<StoredModel> StoredModels();

// The path of a model: `given` itself if there is such a file or folder, else the stored model of that name; the default model for
// an empty one. NOT_FOUND says how to get it.
Result<std::string> FindModel(const std::string& given);

}  // namespace coppice::hub
