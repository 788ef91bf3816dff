// A trainer's message about weights that it brings: which tensors, and where their bytes lie. JSON, never pickled.
// Layer: server. docs/trainers.md describes the form.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "core/ipc_memory.h"

namespace coppice::server {

// A tensor in shared memory, in an allocation of a GPU, or on its way from a trainer: row-major, without gaps.
struct SegmentTensor {
  std::string name;  // as WeightTensor::name
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;  // outermost dimension first
  int64_t offset = 0;          // bytes from the segment's or the allocation's beginning; 0 of one that is broadcast
  int64_t bytes = 0;
};

// An allocation of a GPU, in another process.
struct IpcSource {
  IpcMemory::Handle handle{};
  IpcMemory::DeviceId device;
};

// Broadcasts of a group's first rank, in the order of the message's tensors. Fields that are absent are those of the group,
// and then vLLM's defaults.
struct BroadcastSource {
  static constexpr int64_t kDefaultBufferBytes = int64_t{1} << 30;
  std::optional<bool> packed;  // several tensors go together, as bytes and without gaps; else each by itself, as its elements
  std::optional<int64_t> buffer_bytes;  // with the tensor that brings them above so many bytes, those that go together end
};

// A group of the trainer, its first rank, and of servers, which meet at the trainer's TCPStore.
struct GroupInfo {
  std::string address;  // of the store: a name or an address
  uint16_t port = 0;
  int32_t rank = 1;  // of this server
  int32_t size = 2;  // ranks
  BroadcastSource form = {};
  std::string torch_name =
      {};  // of a group of torch.distributed, as SGLang's clients make it; empty: of vLLM's StatelessProcessGroup
};

struct WeightMessage {
  // A segment of POSIX shared memory, without a slash; memory of a GPU; or a broadcast.
  std::variant<std::string, IpcSource, BroadcastSource> source;
  std::vector<SegmentTensor> tensors;
  bool checksum = false;  // /weight_checker is to know these bytes
};

// The object "update_info" of /update_weights, or the body of a route of SGLang's. INVALID_ARGUMENT names the field, its value and
// what is expected, a pickled payload among others.
Result<WeightMessage> ReadWeightMessage(const nlohmann::json& info);

// The object "init_info" of /init_weight_transfer_engine: a group to be made, or none where weights come by shared memory or CUDA
// IPC. Errors likewise, and UNIMPLEMENTED for weights in a GPU's memory in a build without CUDA.
Result<std::optional<GroupInfo>> ReadTransfer(const nlohmann::json& info);

// The body of /init_weights_update_group. Errors likewise.
Result<std::optional<GroupInfo>> ReadSglangGroup(const nlohmann::json& info);

}  // namespace coppice::server
