#include "model/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"
#include "core/file.h"
#include "core/math.h"

namespace coppice {
namespace {

constexpr size_t kMostText = size_t{256} << 20;  // tokenizer.json of the largest vocabularies has 40 MB

Status CannotRead(const std::string& path, const char* action) {
  const int error = errno;
  const StatusCode code = error == ENOENT || error == ENOTDIR ? StatusCode::kNotFound : StatusCode::kInvalidArgument;
  return {code, fmt::format("{}: cannot {}: {}", path, action, std::strerror(error))};
}

// Does not wait for a writer where a folder holds a pipe.
FileDescriptor OpenToRead(const std::string& path) { return FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)); }

// Size of a regular file, else why it cannot be read.
Result<size_t> RegularFileSize(const FileDescriptor& file, const std::string& path) {
  if (file.get() < 0) return CannotRead(path, "open");
  struct stat info;
  if (fstat(file.get(), &info) != 0) return CannotRead(path, "read the size");
  if (!S_ISREG(info.st_mode)) return InvalidArgument(fmt::format("{}: not a regular file", path));
  return static_cast<size_t>(info.st_size);
}

}  // namespace

void MappedFile::Unmap::operator()(const std::byte* p) const { munmap(const_cast<std::byte*>(p), size); }

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const FileDescriptor file = OpenToRead(path);
  COPPICE_ASSIGN_OR_RETURN(const size_t size, RegularFileSize(file, path));
  if (size == 0) return DataLoss(fmt::format("{}: the file is empty (0 bytes); fetch it again", path));
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return CannotRead(path, "map");
  madvise(data, size, MADV_WILLNEED);  // a hint: the weights are read once, soon, front to back
  return MappedFile(path, static_cast<const std::byte*>(data), size);
}

void MappedFile::Release(std::span<const std::byte> part) const {
  COPPICE_DCHECK(part.empty() || (part.data() >= data_.get() && part.data() + part.size() <= data_.get() + bytes().size()));
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), offset = part.data() - data_.get();
  const size_t begin = RoundUp(offset, page), end = (offset + part.size()) / page * page;
  if (begin < end) madvise(const_cast<std::byte*>(data_.get()) + begin, end - begin, MADV_DONTNEED);  // a hint
}

Result<std::string> ReadTextFile(const std::string& path) {
  const FileDescriptor file = OpenToRead(path);
  COPPICE_ASSIGN_OR_RETURN(const size_t size, RegularFileSize(file, path));
  if (size > kMostText) {
    return InvalidArgument(
        fmt::format("{}: {} bytes, expected at most {}: the file is damaged, fetch it again", path, size, kMostText));
  }
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t count = read(file.get(), text.data() + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return CannotRead(path, "read");
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

}  // namespace coppice
