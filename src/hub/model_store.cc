#include "hub/model_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "core/gguf_part.h"
#include "hub/catalogue.h"
#include "hub/repository.h"

namespace coppice::hub {
namespace {

namespace fs = std::filesystem;

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

int64_t BytesOf(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return static_cast<int64_t>(fs::file_size(path, error));
  int64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (entry.is_regular_file(error)) bytes += static_cast<int64_t>(entry.file_size(error));
  }
  return bytes;
}

// A GGUF model's bytes, in all its files.
int64_t BytesOfGguf(const fs::path& path) {
  const GgufPart part = ParseGgufPart(path.filename()).value_or(GgufPart());
  int64_t bytes = BytesOf(path);
  for (int32_t number = 2; number <= part.count; ++number) {
    if (const fs::path other = path.parent_path() / part.NameOf(number); Exists(other)) bytes += BytesOf(other);
  }
  return bytes;
}

// The entries of a folder that are not hidden.
std::vector<fs::path> Visible(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with('.')) paths.push_back(entry.path());
  }
  return paths;
}

// The GGUF models in a repository's folder and the folders in it, without hidden ones.
std::vector<fs::path> GgufModelsIn(const fs::path& folder, int most_folders = kMostFolders) {
  std::vector<fs::path> models;
  std::error_code error;
  for (const fs::path& path : Visible(folder)) {
    if (!fs::is_directory(path, error)) {
      if (IsGgufModel(path.filename())) models.push_back(path);
    } else if (most_folders > 0 && !fs::is_symlink(path, error)) {  // which may lead in a circle
      std::ranges::move(GgufModelsIn(path, most_folders - 1), std::back_inserter(models));
    }
  }
  return models;
}

std::string NameOfFile(const std::string& file) {
  const auto entry = std::ranges::find(Catalogue(), file, &CatalogueEntry::file);
  return entry == Catalogue().end() ? file : std::string(entry->name);
}

// Of a repository's folder: itself, or the file of its only GGUF model.
fs::path ModelIn(const fs::path& folder) {
  if (Exists(folder / "config.json")) return folder;
  const std::vector<fs::path> ggufs = GgufModelsIn(folder);
  return ggufs.size() == 1 ? ggufs.front() : folder;
}

}  // namespace

std::string ModelFolder() {
  const char* const models = std::getenv("COPPICE_MODELS");
  const char* const home = std::getenv("HOME");
  return models && *models ? models : (fs::path(home ? home : "") / ".cache/coppice/models").string();
}

std::vector<StoredModel> StoredModels() {
  std::vector<StoredModel> models;
  std::error_code error;
  for (const fs::path& path : Visible(ModelFolder())) {
    if (!fs::is_directory(path, error)) {
      if (IsGgufModel(path.filename())) models.push_back({NameOfFile(path.filename()), path, BytesOfGguf(path)});
      continue;
    }
    if (Exists(path / "config.json")) models.push_back({path.filename(), path, BytesOf(path)});
    for (const fs::path& inner : Visible(path)) {
      if (!fs::is_directory(inner, error)) continue;
      const std::string name = path.filename().string() + "/" + inner.filename().string();
      if (Exists(inner / "config.json")) models.push_back({name, inner, BytesOf(inner)});
      for (const fs::path& file : GgufModelsIn(inner))
        models.push_back({name + ":" + file.lexically_relative(inner).string(), file, BytesOfGguf(file)});
    }
  }
  std::ranges::sort(models, {}, &StoredModel::name);
  return models;
}

Result<std::string> FindModel(const std::string& given) {
  const CatalogueEntry* const entry = given.empty() ? &Catalogue().front() : FindInCatalogue(given);
  if (!given.empty() && Exists(given)) return given;
  const fs::path folder = ModelFolder();
  if (entry != nullptr) {
    const fs::path path = folder / entry->file;
    if (Exists(path)) return path.string();
    return NotFound(given.empty() ? fmt::format("no --model given and the default model is not at {}; run coppice pull {} or give "
                                                "--model PATH",
                                                path.string(), entry->name)
                                  : fmt::format("{} is not at {}; run coppice pull {}", given, path.string(), entry->name));
  }
  for (const StoredModel& model : StoredModels()) {
    if (model.name == given) return model.path;
  }
  if (IsRepositoryName(given) && ParseRepositoryName(given).ok()) {
    if (const fs::path path = folder / given; Exists(path)) return ModelIn(path).string();
    return NotFound(fmt::format(
        "there is no model at {}; give a GGUF file or a Hugging Face folder to --model, or run coppice pull {}", given, given));
  }
  return NotFound(fmt::format(
      "there is no model at {}; give a GGUF file, a Hugging Face folder or a name of `coppice models` to --model", given));
}

}  // namespace coppice::hub
