#include "hub/repository.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "core/check.h"
#include "core/gguf_part.h"
#include "hub/json_text.h"

namespace coppice::hub {
namespace {

// Files that the reader of folders looks at, beside the weights.
constexpr std::string_view kToolTemplate = "additional_chat_templates/tool_use.jinja";
constexpr std::array<std::string_view, 13> kCompanions = {"config.json",
                                                          "generation_config.json",
                                                          "tokenizer.json",
                                                          "tokenizer_config.json",
                                                          "tokenizer.model",
                                                          "added_tokens.json",
                                                          "special_tokens_map.json",
                                                          "model.safetensors.index.json",
                                                          "vocab.json",
                                                          "merges.txt",
                                                          "chat_template.jinja",
                                                          "chat_template.json",
                                                          kToolTemplate};

// One step of a path on disk and of an address, and nothing else.
bool IsPlainName(std::string_view name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 200 && name.front() != '.' && name.front() != '-' && std::ranges::all_of(name, is_plain);
}

// A file's path in a repository, which leaves it nowhere.
bool IsPlainPath(std::string_view path) {
  int folders = 0;
  for (size_t slash = path.find('/'); slash != path.npos; slash = path.find('/')) {
    if (!IsPlainName(path.substr(0, slash)) || ++folders > kMostFolders) return false;
    path.remove_prefix(slash + 1);
  }
  return IsPlainName(path);
}

// Whether a file of that name can be part of a model: in a folder of its own, GGUF files only.
bool IsCandidate(const std::string& name) {
  return IsPlainName(name) || name == kToolTemplate || (name.ends_with(".gguf") && IsPlainPath(name));
}

// Those that the reader of folders takes; some repositories have the same weights once more under another name.
bool IsWeights(const std::string& name) { return name.starts_with("model") && name.ends_with(".safetensors"); }

// A repository's file as the hub lists it; nothing to check it against leaves the check's hashes empty.
RepositoryFile FileOf(const nlohmann::json& sibling, const std::string& base) {
  RepositoryFile file = {.name = TextIn(sibling, "rfilename")};
  file.url = base + file.name;
  file.check.bytes = NumberIn(sibling, "size");
  const auto lfs = sibling.is_object() ? sibling.find("lfs") : sibling.end();
  if (lfs != sibling.end()) file.check.sha256 = TextIn(*lfs, "sha256");
  if (file.check.sha256.empty()) file.check.git_sha1 = TextIn(sibling, "blobId");
  return file;
}

// The file, or all parts of it.
Result<std::vector<RepositoryFile>> ChooseFile(std::vector<RepositoryFile> files, const std::string& name,
                                               const std::string& where) {
  const GgufPart part = ParseGgufPart(name).value_or(GgufPart());
  if (part.number != 1) {
    return InvalidArgument(fmt::format("{} is part {} of {} of a split model; name the first part, as {}:{}", name, part.number,
                                       part.count, where, part.NameOf(1)));
  }
  std::map<std::string, RepositoryFile> by_name;
  for (RepositoryFile& file : files) by_name.emplace(file.name, std::move(file));
  std::vector<RepositoryFile> chosen;
  for (int32_t number = 1; number <= part.count; ++number) {
    const std::string wanted = number == 1 ? name : part.NameOf(number);
    const auto found = by_name.find(wanted);
    if (found == by_name.end()) return NotFound(fmt::format("{} has no file {}", where, wanted));
    chosen.push_back(std::move(found->second));
  }
  return chosen;
}

// Those of the repository's files that make a model.
Result<std::vector<RepositoryFile>> Choose(std::vector<RepositoryFile> files, const RepositoryName& repository) {
  const std::string where = repository.owner + "/" + repository.name;
  const auto keep = [&](const auto& wanted) {
    std::erase_if(files, [&](const RepositoryFile& file) { return !wanted(file.name); });
  };
  const auto has = [&](const auto& wanted) {
    return std::ranges::any_of(files, [&](const RepositoryFile& file) { return wanted(file.name); });
  };
  if (!repository.file.empty()) return ChooseFile(std::move(files), repository.file, where);
  if (has(IsWeights) && has([](const std::string& name) { return name == "config.json"; })) {
    keep([](const std::string& name) { return IsWeights(name) || std::ranges::find(kCompanions, name) != kCompanions.end(); });
    return files;
  }
  std::vector<std::string> names;
  for (const RepositoryFile& file : files) {
    if (IsGgufModel(file.name)) names.push_back(file.name);
  }
  if (names.size() == 1) return ChooseFile(std::move(files), names.front(), where);
  if (names.empty())
    return NotFound(where + " has neither config.json with *.safetensors nor a GGUF file: no model that runs here");
  return InvalidArgument(fmt::format("{} has {} GGUF files; name one, as {}:{}. There are: {}", where, names.size(), where,
                                     names.front(), fmt::join(names, ", ")));
}

}  // namespace

bool IsRepositoryName(const std::string& text) { return text.find('/') != text.npos && text.front() != '/'; }

Result<RepositoryName> ParseRepositoryName(const std::string& text) {
  RepositoryName result;
  std::string rest = text;
  if (const size_t colon = rest.find(':'); colon != rest.npos) {
    result.file = rest.substr(colon + 1);
    rest.resize(colon);
    if (!IsPlainPath(result.file)) {
      return InvalidArgument(
          fmt::format("'{}' is no file of a repository; expected its name, or its path as folder/file.gguf, in letters, digits, "
                      "'.', '_' and '-'",
                      result.file));
    }
  }
  if (const size_t at = rest.find('@'); at != rest.npos) {
    result.revision = rest.substr(at + 1);
    rest.resize(at);
  }
  const size_t slash = rest.find('/');
  result.owner = rest.substr(0, slash);
  result.name = slash == rest.npos ? "" : rest.substr(slash + 1);
  if (!IsPlainName(result.owner) || !IsPlainName(result.name) || !IsPlainName(result.revision)) {
    return InvalidArgument(
        fmt::format("'{}' is no repository; expected owner/name, owner/name@revision or owner/name:file.gguf", text));
  }
  return result;
}

Result<std::vector<RepositoryFile>> ListModelFiles(HttpClient& client, const std::string& hub, const std::string& token,
                                                   const RepositoryName& repository) {
  const std::string path = repository.owner + "/" + repository.name;
  const std::string api = fmt::format("{}/api/models/{}/revision/{}?blobs=true", hub, path, repository.revision);
  COPPICE_ASSIGN_OR_RETURN(const std::string text, client.GetText({.url = api, .bearer = token}));
  COPPICE_ASSIGN_OR_RETURN(const nlohmann::json info, ParseJson(text, WithoutUser(api)));
  // One commit for all files, whatever happens to the branch meanwhile.
  const std::string commit = TextIn(info, "sha");
  if (!IsPlainName(commit)) return Unavailable(WithoutUser(api) + " names no commit");
  std::vector<RepositoryFile> files;
  for (const nlohmann::json& sibling : ListIn(info, "siblings")) {
    RepositoryFile file = FileOf(sibling, fmt::format("{}/{}/resolve/{}/", hub, path, commit));
    if (IsCandidate(file.name)) files.push_back(std::move(file));
  }
  COPPICE_ASSIGN_OR_RETURN(files, Choose(std::move(files), repository));
  for (const RepositoryFile& file : files) {
    if ((file.check.sha256.empty() && file.check.git_sha1.empty()) || file.check.bytes < 0)
      return FailedPrecondition(
          fmt::format("{} gives no checksum of {}: there would be nothing to check it against", WithoutUser(hub), file.name));
  }
  return files;
}

}  // namespace coppice::hub
