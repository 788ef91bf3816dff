#include "tests/support/heap.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace coppice::heap {
namespace {

constinit std::atomic<int64_t> allocations = 0, refused = 0;
constinit std::atomic<int64_t> refuse_from = INT64_MAX, refuse_to = INT64_MAX;  // calls
constinit thread_local int exempt = 0;

}  // namespace

int64_t NumAllocations() { return allocations; }

void Refuse(int64_t granted, int64_t count) {
  refuse_from = INT64_MAX;
  refused = 0;
  refuse_to = allocations + granted + count;
  refuse_from = allocations + granted;
}

int64_t NumRefused() { return refused; }

Exempt::Exempt() { ++exempt; }
Exempt::~Exempt() { --exempt; }

void* Allocate(size_t size, size_t alignment) {
  if (exempt == 0) {
    const int64_t call = allocations++;
    if (call >= refuse_from && call < refuse_to) {
      ++refused;
      throw std::bad_alloc();
    }
  }
  void* const memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace coppice::heap

using coppice::heap::Allocate;

// Not inlined: GCC 12 would compare an inlined operator with its counterpart, and warn that they do not match.
[[gnu::noinline]] void* operator new(size_t size) { return Allocate(size, alignof(std::max_align_t)); }
[[gnu::noinline]] void* operator new[](size_t size) { return Allocate(size, alignof(std::max_align_t)); }
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void* operator new[](size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
