#include "core/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/format_bytes.h"
#include "core/math.h"

namespace coppice {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

void Buffer::Release::operator()(std::byte* p) const { munmap(p, mapped_bytes); }

Result<Buffer> Buffer::Allocate(size_t bytes) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  if (bytes > SIZE_MAX - 2 * kHugePageBytes)
    return ResourceExhausted("cannot allocate " + std::to_string(bytes) + " bytes: the size overflows");
  const size_t mapped = RoundUp(bytes, kPageBytes);
  const size_t slack = mapped >= kHugePageBytes ? kHugePageBytes : 0;  // to begin where a huge page does
  void* p = mmap(nullptr, mapped + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    return ResourceExhausted("cannot allocate " + FormatBytes(static_cast<double>(bytes)) + ": " + std::strerror(errno));
  }
  auto* data = static_cast<std::byte*>(p);
  if (slack > 0) {
    const size_t before = (kHugePageBytes - reinterpret_cast<uintptr_t>(data) % kHugePageBytes) % kHugePageBytes;
    if (before > 0) munmap(data, before);
    data += before;
    munmap(data + mapped, slack - before);  // slack > before: `before` is less than a huge page
    madvise(data, mapped, MADV_HUGEPAGE);   // a hint: failure only costs TLB misses
  }
  buffer.data_ = {data, Release{mapped}};
  buffer.size_ = bytes;
  return buffer;
}

void Buffer::Discard() {
  if (size_ > 0) madvise(data_.get(), data_.get_deleter().mapped_bytes, MADV_DONTNEED);
}

}  // namespace coppice
