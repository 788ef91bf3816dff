#include "server/trainer/trainer_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/math.h"
#include "server/trainer/pickled_id.h"

namespace coppice::server {
namespace {

using Clock = std::chrono::steady_clock;

// Where the group's first rank stores its name. vLLM: the first value that it broadcasts to the others.
constexpr std::string_view kIdKey = "broadcast_from/0/0";
// PyTorch: in a store for the group, within it one of the group's own, in it one for CUDA, of the first communicator.
std::string TorchIdKey(std::string_view name) { return fmt::format("{0}/{0}//cuda//0", name); }

Result<ops::NcclId> ReadRawId(std::span<const std::byte> value) {
  ops::NcclId id{};
  const auto bytes = std::as_writable_bytes(std::span(&id, 1));
  if (value.size() != bytes.size())
    return InvalidArgument(
        fmt::format("the name of the trainer's group has {} bytes, expected {} (ncclUniqueId)", value.size(), bytes.size()));
  std::ranges::copy(value, bytes.begin());
  return id;
}
// Of tensors that come each by itself: so many are brought together.
constexpr int64_t kBytesAtATime = int64_t{256} << 20;
constexpr int64_t kAlignment = 256;

ops::NcclRank::MayWait Until(Clock::time_point end, std::stop_token stop, std::string_view what,
                             std::chrono::milliseconds patience) {
  return [=, stop = std::move(stop)]() -> Status {
    if (stop.stop_requested()) return Unavailable("the server ends");
    if (Clock::now() < end) return OkStatus();
    return Unavailable(fmt::format("{} within {} s", what, patience.count() / 1000.0));
  };
}

}  // namespace

Result<std::unique_ptr<TrainerGroup>> TrainerGroup::Join(const GroupInfo& info, std::unique_ptr<Device> device, Options options) {
  COPPICE_RETURN_IF_ERROR(ops::NcclRank::CheckSupported(device->kind()));
  const ops::NcclRank::MayWait may_wait =
      Until(Clock::now() + options.patience, options.stop, "the trainer's group was not made", options.patience);
  COPPICE_ASSIGN_OR_RETURN(TcpStore store, TcpStore::Connect(info.address, info.port, may_wait));
  COPPICE_RETURN_IF_ERROR(store.JoinWorkers(may_wait));
  std::unique_ptr<TrainerGroup> group(new TrainerGroup(std::move(device), std::move(store), std::move(options), info));
  if (info.torch_name.empty()) COPPICE_RETURN_IF_ERROR(group->MakeRank(may_wait));
  return group;
}

Status TrainerGroup::MakeRank(const ops::NcclRank::MayWait& may_wait) {
  const bool is_torch = !info_.torch_name.empty();
  COPPICE_ASSIGN_OR_RETURN(const std::vector<std::byte> name,
                           store_.Get(is_torch ? TorchIdKey(info_.torch_name) : std::string(kIdKey), may_wait));
  COPPICE_ASSIGN_OR_RETURN(const ops::NcclId id, is_torch ? ReadRawId(name) : ReadPickledId(name));
  const auto trainer_is_there = [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(may_wait());
    return store_.CheckOpen();
  };
  COPPICE_ASSIGN_OR_RETURN(rank_, ops::NcclRank::Join({.group = id, .rank = info_.rank, .size = info_.size, .warms_up = !is_torch},
                                                      device_.get(), trainer_is_there));
  return OkStatus();
}

TrainerGroup::~TrainerGroup() = default;

ops::NcclRank::MayWait TrainerGroup::UntilLate() const {
  return [this, late = Until(Clock::now() + options_.patience, options_.stop, "the trainer did not broadcast", options_.patience)] {
    const Status status = late();
    return status.ok() ? store_.CheckOpen() : status;
  };
}

std::vector<TrainerGroup::Part> TrainerGroup::Divide(std::span<const SegmentTensor> tensors, bool packed, int64_t buffer_bytes,
                                                     DeviceKind kind) {
  std::vector<Part> parts;
  bool is_full = true;
  for (const SegmentTensor& tensor : tensors) {
    if (is_full) parts.emplace_back().is_packed = packed;
    Part& part = parts.back();
    if (!packed) part.bytes = RoundUp(part.bytes, kAlignment);
    part.offsets.push_back(part.bytes);
    part.tensors.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .device = kind});
    part.bytes += tensor.bytes;
    is_full = packed ? part.bytes > buffer_bytes : part.bytes >= kBytesAtATime;
  }
  return parts;
}

Status TrainerGroup::Reserve(std::span<const Part> parts) {
  const auto bytes = static_cast<size_t>(std::ranges::max_element(parts, {}, &Part::bytes)->bytes);
  COPPICE_ASSIGN_OR_RETURN(DeviceMemory first, device_->Allocate(bytes));
  memory_.push_back(std::move(first));
  if (parts.size() == 1) return OkStatus();
  Result<DeviceMemory> second = device_->Allocate(bytes);
  if (second.ok()) memory_.push_back(*std::move(second));
  return second.ok() || second.status().code() == StatusCode::kResourceExhausted ? OkStatus() : second.status();
}

Status TrainerGroup::Request(Part* part, const DeviceMemory& memory) {
  for (size_t i = 0; i < part->tensors.size(); ++i) {
    WeightTensor& tensor = part->tensors[i];
    std::byte* const data = memory.data() + part->offsets[i];
    tensor.data = data;
    if (part->is_packed) continue;
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    COPPICE_RETURN_IF_ERROR(rank_->Receive(data, elements, ops::NcclLibrary::TypeOf(tensor.dtype), UntilLate()));
  }
  if (part->is_packed) COPPICE_RETURN_IF_ERROR(rank_->Receive(memory.data(), part->bytes, ops::NcclLibrary::kUint8, UntilLate()));
  COPPICE_ASSIGN_OR_RETURN(part->mark, rank_->Mark());
  return OkStatus();
}

Status TrainerGroup::ReceiveParts(std::span<Part> parts, const Bring& bring) {
  const size_t ahead = memory_.size();  // parts that are under way or being read at a time
  const auto request = [&](size_t i) { return i < parts.size() ? Request(&parts[i], memory_[i % ahead]) : OkStatus(); };
  COPPICE_RETURN_IF_ERROR(request(0));
  for (size_t i = 0; i < parts.size(); ++i) {
    if (ahead > 1) COPPICE_RETURN_IF_ERROR(request(i + 1));
    COPPICE_RETURN_IF_ERROR(rank_->Await(*parts[i].mark, UntilLate()));
    COPPICE_RETURN_IF_ERROR(bring(parts[i].tensors, device_.get()));
    if (ahead == 1) COPPICE_RETURN_IF_ERROR(request(i + 1));
  }
  return OkStatus();
}

Status TrainerGroup::Receive(std::span<const SegmentTensor> tensors, const BroadcastSource& form, const Bring& bring) {
  if (has_ended_) return Unavailable("the group with the trainer has ended");
  const bool packed = form.packed.value_or(info_.form.packed.value_or(false));
  const int64_t buffer_bytes = form.buffer_bytes.value_or(info_.form.buffer_bytes.value_or(BroadcastSource::kDefaultBufferBytes));
  std::vector<Part> parts = Divide(tensors, packed, buffer_bytes, device_->kind());
  Status received = rank_ == nullptr ? MakeRank(UntilLate()) : OkStatus();
  if (received.ok()) received = Reserve(parts);
  if (received.ok()) received = ReceiveParts(parts, bring);
  if (!received.ok()) {
    has_ended_ = true;
    rank_.reset();  // before the memory that it writes
  }
  memory_.clear();
  return received;
}

}  // namespace coppice::server
