// The functions of NCCL that are called. The library is looked for when it is first needed, so that nothing depends on it, and its
// C interface is declared here, so that no build needs its header. Layer: ops. cuda/nccl_group.cc compares the declarations with
// nccl.h, where that is there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "coppice/core/status.h"
#include "coppice/core/types.h"

namespace coppice::ops {

// ncclUniqueId: names a group of ranks, and is made by its first one.
struct NcclId {
  std::array<std::byte, 128> bytes;
};

// ncclConfig_t of NCCL 2.14, which later versions take too: they read as much of it as `size` says, by `version`.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  uint32_t magic = 0xcafebeef;
  uint32_t version = 21400;
  int32_t blocking = 1;  // 0: calls return before they are done, and ncclCommGetAsyncError says when they are
};

// Thread-safe.
class NcclLibrary {
 public:
  using Handle = void*;                                            // ncclComm_t
  using Stream = void*;                                            // cudaStream_t
  static constexpr int kSuccess = 0, kInProgress = 7;              // ncclResult_t
  static constexpr int kUint8 = 1, kF16 = 6, kF32 = 7, kBF16 = 9;  // ncclDataType_t
  static constexpr int kSum = 0;                                   // ncclRedOp_t

  // The library by the name that the dynamic linker knows, libnccl.so.2: loaded once and never unloaded. UNAVAILABLE: there is
  // none, or one that lacks a function.
  static Result<const NcclLibrary*> Find();

  static constexpr int TypeOf(DType dtype) { return dtype == DType::kF32 ? kF32 : dtype == DType::kF16 ? kF16 : kBF16; }
  // OK for kSuccess; UNAVAILABLE with `what` and the library's reason.
  Status StatusOf(int result, const char* what) const;
  // Whether the last call on the handle is done; errors as StatusOf.
  Result<bool> IsDone(Handle handle) const;
  // Whether buffers may lie in host memory. NCCL's own take a GPU's alone; one made for tests says so by the symbol
  // coppice_nccl_takes_host_memory.
  bool takes_host_memory() const { return takes_host_memory_; }

  int (*init_all)(Handle* handles, int count, const int* ordinals) = nullptr;
  int (*init_rank)(Handle* handle, int ranks, NcclId id, int rank, NcclConfig* config) = nullptr;
  int (*abort)(Handle) = nullptr;
  int (*async_error)(Handle, int* result) = nullptr;
  const char* (*error_string)(int result) = nullptr;
  int (*all_reduce)(const void* from, void* to, size_t count, int type, int op, Handle, Stream) = nullptr;
  int (*broadcast)(const void* from, void* to, size_t count, int type, int root, Handle, Stream) = nullptr;
  int (*send)(const void* from, size_t count, int type, int peer, Handle, Stream) = nullptr;
  int (*receive)(void* to, size_t count, int type, int peer, Handle, Stream) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;

 private:
  static Result<NcclLibrary> Load();

  bool takes_host_memory_ = false;
};

}  // namespace coppice::ops
