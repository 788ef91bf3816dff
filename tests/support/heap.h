// The heap of a test program that is linked with heap.cc: operator new counts, and refuses what a test wants refused.
// Not under sanitizers, which bring an operator new of their own. Tests only.
#pragma once

#include <cstdint>

namespace coppice::heap {

// Calls of operator new so far that were not exempt.
int64_t NumAllocations();
// Of the calls that come, the first `granted` are granted and the next `refused` throw std::bad_alloc, on whatever thread.
void Refuse(int64_t granted, int64_t refused);
// How many of them were refused.
int64_t NumRefused();

// While one lives, calls of its thread are granted and not counted: those of the test itself.
class Exempt {
 public:
  Exempt();
  ~Exempt();
};

}  // namespace coppice::heap
