#include "model/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"
#include "core/file.h"
#include "core/math.h"

namespace coppice {
namespace {

constexpr size_t kMostText = size_t{256} << 20;  // tokenizer.json of the largest vocabularies has 40 MB

}  // namespace

void MappedFile::Unmap::operator()(const std::byte* p) const { munmap(const_cast<std::byte*>(p), size); }

Result<MappedFile> MappedFile::Open(const std::string& path) {
  COPPICE_ASSIGN_OR_RETURN(const RegularFile opened, OpenRegularFile(path));
  if (opened.size == 0) return DataLoss(fmt::format("{}: the file is empty (0 bytes); fetch it again", path));
  void* data = mmap(nullptr, opened.size, PROT_READ, MAP_PRIVATE, opened.file.get(), 0);
  if (data == MAP_FAILED) return InvalidArgument(fmt::format("{}: cannot map: {}", path, std::strerror(errno)));
  madvise(data, opened.size, MADV_WILLNEED);  // a hint: the weights are read once, soon, front to back
  return MappedFile(path, static_cast<const std::byte*>(data), opened.size);
}

void MappedFile::Release(std::span<const std::byte> part) const {
  COPPICE_DCHECK(part.empty() || (part.data() >= data_.get() && part.data() + part.size() <= data_.get() + bytes().size()));
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), offset = part.data() - data_.get();
  const size_t begin = RoundUp(offset, page), end = (offset + part.size()) / page * page;
  if (begin < end) madvise(const_cast<std::byte*>(data_.get()) + begin, end - begin, MADV_DONTNEED);  // a hint
}

Result<std::string> ReadTextFile(const std::string& path) { return ReadRegularFile(path, kMostText); }

}  // namespace coppice
