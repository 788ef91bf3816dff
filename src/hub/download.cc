#include "hub/download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "core/check.h"
#include "core/file.h"

namespace coppice::hub {
namespace {

// The part of a file that has come so far.
class PartFile {
 public:
  static Result<PartFile> Open(const std::string& path) {
    FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (file.get() < 0) return SystemError("write to", path);
    if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return FailedPrecondition(path + " is being written by another process; wait for it, or end it");
      return SystemError("lock", path);
    }
    struct stat facts = {};
    if (fstat(file.get(), &facts) != 0) return SystemError("read", path);
    PartFile part(path, std::move(file));
    part.size_ = facts.st_size;
    return part;
  }

  int64_t size() const { return size_; }
  int fd() const { return file_.get(); }

  // Forgets what lies beyond the first `bytes`.
  Status Truncate(int64_t bytes) {
    if (ftruncate(file_.get(), bytes) != 0 || lseek(file_.get(), bytes, SEEK_SET) < 0) return SystemError("write to", path_);
    size_ = bytes;
    return OkStatus();
  }
  Status Append(std::span<const std::byte> bytes) {
    COPPICE_RETURN_IF_ERROR(WriteAll(file_.get(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path_));
    size_ += std::ssize(bytes);
    return OkStatus();
  }
  Status MoveTo(const std::string& path) const {
    if (fsync(file_.get()) != 0) return SystemError("write to", path_);
    if (std::rename(path_.c_str(), path.c_str()) != 0) return SystemError("rename to", path);
    return OkStatus();
  }
  void Remove() const { unlink(path_.c_str()); }

 private:
  PartFile(std::string path, FileDescriptor file) : path_(std::move(path)), file_(std::move(file)) {}
  std::string path_;
  FileDescriptor file_;
  int64_t size_ = 0;
};

// Fetches the missing part of the file, in one request.
Status Fetch(HttpClient& client, const DownloadRequest& request, const Progress& progress, PartFile& part) {
  const std::string name = std::filesystem::path(request.path).filename().string();
  const Status status = client.Get(
      {.url = request.url, .bearer = request.bearer, .accept = {}, .from = part.size()},
      [&](const HttpBody& body) { return part.Truncate(body.from); },
      [&](std::span<const std::byte> bytes) {
        if (part.size() + std::ssize(bytes) > request.check.bytes)
          return DataLoss(
              fmt::format("{} sends more than the {} bytes that were expected", WithoutUser(request.url), request.check.bytes));
        COPPICE_RETURN_IF_ERROR(part.Append(bytes));
        if (progress) progress(name, part.size(), request.check.bytes);
        return OkStatus();
      });
  if (!status.ok()) return status;
  if (part.size() == request.check.bytes) return OkStatus();
  return Unavailable(fmt::format("{} ended after {} of {} bytes", WithoutUser(request.url), part.size(), request.check.bytes));
}

Status FetchAll(HttpClient& client, const DownloadRequest& request, const Progress& progress, PartFile& part) {
  if (part.size() > request.check.bytes) COPPICE_RETURN_IF_ERROR(part.Truncate(0));
  int64_t before = part.size();
  const auto attempt = [&]() -> Status {
    if (part.size() == request.check.bytes && part.size() > 0) return OkStatus();
    before = part.size();
    return Fetch(client, request, progress, part);
  };
  return client.Retry(attempt, [&] { return part.size() > before; });
}

}  // namespace

Status Download(HttpClient& client, const DownloadRequest& request, const Progress& progress) {
  COPPICE_ASSIGN_OR_RETURN(PartFile part, PartFile::Open(request.path + ".part"));
  const bool resumed = part.size() > 0;
  Status status = FetchAll(client, request, progress, part);
  if (status.ok()) status = CheckFile(part.fd(), request.path, request.check);
  const bool is_other = status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kOutOfRange;
  if (is_other && resumed) {  // the file may have changed since its first part came
    COPPICE_RETURN_IF_ERROR(part.Truncate(0));
    status = FetchAll(client, request, progress, part);
    if (status.ok()) status = CheckFile(part.fd(), request.path, request.check);
  }
  if (status.ok()) return part.MoveTo(request.path);
  if (status.code() != StatusCode::kDataLoss) return status;
  part.Remove();
  return DataLoss(fmt::format("{} ({}); it was not kept", status.message(), WithoutUser(request.url)));
}

}  // namespace coppice::hub
