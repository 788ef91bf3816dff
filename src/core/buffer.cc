#include "core/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace coppice {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

void Buffer::Release::operator()(std::byte* p) const { munmap(p, mapped_bytes); }

Result<Buffer> Buffer::Allocate(size_t bytes) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  if (bytes > SIZE_MAX - kPageBytes)
    return ResourceExhausted("cannot allocate " + std::to_string(bytes) + " bytes: the size overflows");
  const size_t mapped = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    return ResourceExhausted("cannot allocate " + std::to_string(bytes) + " bytes: " + std::strerror(errno) +
                             "; use a smaller context, fewer pages or a machine with more memory");
  }
  if (mapped >= kHugePageBytes) madvise(p, mapped, MADV_HUGEPAGE);  // a hint: failure only costs TLB misses
  buffer.data_ = {static_cast<std::byte*>(p), Release{mapped}};
  buffer.size_ = bytes;
  return buffer;
}

}  // namespace coppice
