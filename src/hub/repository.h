// A model's repository on a hub with Hugging Face's API: which of its files a model is made of. Layer: hub.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coppice/core/status.h"
#include "hub/digest.h"
#include "hub/http_client.h"

namespace coppice::hub {

// Folders of a repository in which a GGUF file may lie, one in the other.
inline constexpr int kMostFolders = 4;

// "owner/name", "owner/name@revision", and with ":file.gguf" or ":folder/file.gguf" one file of it.
struct RepositoryName {
  std::string owner, name;
  std::string revision = "main";
  std::string file;  // with the folders that it lies in; the first part stands for all; empty: the hub's choice of files decides
};

// Whether `text` looks like one at all.
bool IsRepositoryName(const std::string& text);
Result<RepositoryName> ParseRepositoryName(const std::string& text);

struct RepositoryFile {
  std::string name, url;
  FileCheck check;
};

// A folder's config.json, tokenizer and *.safetensors; of a repository without those its GGUF file, or all parts of it, the first
// one in front. Their names, which the hub gives, are paths that stay in the repository's folder: files whose names are none are
// not seen. INVALID_ARGUMENT lists the GGUF models where there are several and none was named. `token` may be empty.
Result<std::vector<RepositoryFile>> ListModelFiles(HttpClient& client, const std::string& hub, const std::string& token,
                                                   const RepositoryName& repository);

}  // namespace coppice::hub
