#include "model/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.h"

namespace coppice {
namespace {

constexpr size_t kAlignment = 64;  // of the data in the file: the header is padded with spaces

Status SystemError(const std::string& path, std::string_view what) {
  return Internal(fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { (void)Close(); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  bool Close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0;
  }

 private:
  int fd_;
};

bool WriteAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

std::string Header(std::span<const TensorToWrite> tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json;
  json["__metadata__"] = metadata;
  size_t begin = 0;
  for (const TensorToWrite& tensor : tensors) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    COPPICE_CHECK(StoredBytes(tensor.type, elements) == static_cast<int64_t>(tensor.data.size()));
    const size_t end = begin + tensor.data.size();
    json[tensor.name] = {{"dtype", Name(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string header = json.dump();
  const size_t length_bytes = sizeof(uint64_t);
  header.resize((length_bytes + header.size() + kAlignment - 1) / kAlignment * kAlignment - length_bytes, ' ');
  return header;
}

Status WriteContents(int fd, const std::string& path, std::span<const TensorToWrite> tensors,
                     const std::map<std::string, std::string>& metadata) {
  const std::string header = Header(tensors, metadata);
  const uint64_t header_bytes = header.size();  // little endian, as every machine that this project runs on
  bool ok = WriteAll(fd, std::as_bytes(std::span(&header_bytes, 1))) && WriteAll(fd, std::as_bytes(std::span(header)));
  for (const TensorToWrite& tensor : tensors) ok = ok && WriteAll(fd, tensor.data);
  return ok && ::fsync(fd) == 0 ? OkStatus() : SystemError(path, "cannot write");
}

}  // namespace

Status WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string temporary = path + ".XXXXXX";
  FileDescriptor file(::mkstemp(temporary.data()));
  if (file.get() < 0) return SystemError(path, "cannot create a file beside it");
  Status status = WriteContents(file.get(), path, tensors, metadata);
  if (!file.Close() && status.ok()) status = SystemError(path, "cannot write");
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0)
    status = SystemError(path, "cannot rename the new file to it");
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  // The new name is lasting once the folder is on the disk; where a file system cannot say, the file is complete all the same.
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const FileDescriptor directory(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY));
  if (directory.get() >= 0) (void)::fsync(directory.get());
  return OkStatus();
}

}  // namespace coppice
