#include "ops/nccl_library.h"

#include <dlfcn.h>

#include <string>
#include <type_traits>

#include "core/check.h"

namespace coppice::ops {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

}  // namespace

Result<const NcclLibrary*> NcclLibrary::Find() {
  static const Result<NcclLibrary> found = Load();
  COPPICE_RETURN_IF_ERROR(found.status());
  return &*found;
}

Status NcclLibrary::StatusOf(int result, const char* what) const {
  if (result == kSuccess) return OkStatus();
  return Unavailable(std::string(what) + ": " + error_string(result) + "; NCCL_DEBUG=WARN in the environment says more");
}

Result<bool> NcclLibrary::IsDone(Handle handle) const {
  int result = kSuccess;
  COPPICE_RETURN_IF_ERROR(StatusOf(async_error(handle, &result), "ncclCommGetAsyncError"));
  if (result == kInProgress) return false;
  COPPICE_RETURN_IF_ERROR(StatusOf(result, "NCCL"));
  return true;
}

Result<NcclLibrary> NcclLibrary::Load() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Unavailable(std::string(dlerror()) + "; NCCL is in PyPI's nvidia-nccl-cu13");
  NcclLibrary nccl;
  bool all = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    all &= function != nullptr;
  };
  find(nccl.init_all, "ncclCommInitAll");
  find(nccl.init_rank, "ncclCommInitRankConfig");
  find(nccl.abort, "ncclCommAbort");
  find(nccl.async_error, "ncclCommGetAsyncError");
  find(nccl.error_string, "ncclGetErrorString");
  find(nccl.all_reduce, "ncclAllReduce");
  find(nccl.broadcast, "ncclBroadcast");
  find(nccl.send, "ncclSend");
  find(nccl.receive, "ncclRecv");
  find(nccl.group_start, "ncclGroupStart");
  find(nccl.group_end, "ncclGroupEnd");
  if (!all) return Unavailable(std::string(kLibrary) + " lacks a function of NCCL 2.14; install a later one");
  nccl.takes_host_memory_ = dlsym(library, "coppice_nccl_takes_host_memory") != nullptr;
  return nccl;
}

}  // namespace coppice::ops
