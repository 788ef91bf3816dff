#include "server/trainer/weight_message.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/json.h"

namespace coppice::server {
namespace {

using nlohmann::json;

constexpr size_t kMostShown = 80;  // bytes of a value in a message
constexpr size_t kMostDimensions = 8;

enum class Transport : uint8_t { kSharedMemory, kCudaIpc, kNccl };
constexpr std::array<std::pair<std::string_view, Transport>, 3> kTransports = {
    {{"shared_memory", Transport::kSharedMemory}, {"cuda_ipc", Transport::kCudaIpc}, {"nccl", Transport::kNccl}}};

Status Wrong(std::string_view field, const json* value, std::string_view expected) {
  return InvalidArgument(
      fmt::format("{} is {}, expected {}", field, value != nullptr ? PrintableJson(*value, kMostShown) : "missing", expected));
}

// Null where it is missing or null.
const json* Find(const json& object, std::string_view name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Status RefusePickled(const json& info) {
  for (const std::string_view field : {"ipc_handles_pickled", "ipc_handles", "serialized_named_tensors", "pickled"}) {
    if (Find(info, field) != nullptr)
      return InvalidArgument(
          fmt::format("{} is a pickled payload, which this server never reads, since reading one runs what its "
                      "sender wrote: send \"segment\" and \"tensors\" (docs/trainers.md)",
                      field));
  }
  return OkStatus();
}

// The transport that the message names, or else the one that its fields belong to.
Result<Transport> TransportOf(const json& info) {
  for (const std::string_view field : {"transport", "backend"}) {
    const json* const named = Find(info, field);
    if (named == nullptr) continue;
    for (const auto& [name, transport] : kTransports) {
      if (*named == name) return transport;
    }
    return Wrong(field, named, "shared_memory, cuda_ipc or nccl");
  }
  if (Find(info, "handle") != nullptr) return Transport::kCudaIpc;
  const bool is_nccl =
      Find(info, "master_address") != nullptr || (Find(info, "names") != nullptr && Find(info, "segment") == nullptr);
  return is_nccl ? Transport::kNccl : Transport::kSharedMemory;
}

std::optional<DType> DTypeOf(const json& value) {
  if (!value.is_string()) return std::nullopt;
  std::string_view name = value.get_ref<const std::string&>();
  if (name.starts_with("torch.")) name.remove_prefix(6);
  if (name == "float32" || name == "f32") return DType::kF32;
  if (name == "bfloat16" || name == "bf16") return DType::kBF16;
  if (name == "float16" || name == "f16") return DType::kF16;
  return std::nullopt;
}

// Dtype and shape of a tensor, which `value` says under the names of the fields, and so its bytes.
Status ReadForm(const json* dtype, std::string_view dtype_field, const json* shape, std::string_view shape_field,
                SegmentTensor* tensor) {
  const std::optional<DType> known = dtype != nullptr ? DTypeOf(*dtype) : std::nullopt;
  if (!known) return Wrong(dtype_field, dtype, "float32, bfloat16 or float16");
  tensor->dtype = *known;
  if (shape == nullptr || !shape->is_array() || shape->empty() || shape->size() > kMostDimensions)
    return Wrong(shape_field, shape, "a list of 1 to 8 sizes, outermost dimension first");
  tensor->bytes = static_cast<int64_t>(SizeOf(tensor->dtype));
  for (const json& size : *shape) {
    if (!size.is_number_integer() || size.get<int64_t>() < 1 ||
        __builtin_mul_overflow(tensor->bytes, size.get<int64_t>(), &tensor->bytes))
      return Wrong(shape_field, shape, "sizes of at least 1 whose product fits into memory");
    tensor->shape.push_back(size.get<int64_t>());
  }
  return OkStatus();
}

Status ReadName(const json* name, std::string_view field, SegmentTensor* tensor) {
  if (name == nullptr || !name->is_string() || name->get_ref<const std::string&>().empty())
    return Wrong(field, name, "a tensor's name");
  tensor->name = name->get<std::string>();
  return OkStatus();
}

Result<SegmentTensor> ReadTensor(const json& value, size_t index) {
  const auto field = [&](std::string_view name) { return fmt::format("tensors[{}].{}", index, name); };
  if (!value.is_object()) return Wrong(fmt::format("tensors[{}]", index), &value, "an object with name, dtype, shape and offset");
  SegmentTensor tensor;
  COPPICE_RETURN_IF_ERROR(ReadName(Find(value, "name"), field("name"), &tensor));
  COPPICE_RETURN_IF_ERROR(ReadForm(Find(value, "dtype"), field("dtype"), Find(value, "shape"), field("shape"), &tensor));
  const json* const offset = Find(value, "offset");
  int64_t end = 0;
  if (offset == nullptr || !offset->is_number_integer() || offset->get<int64_t>() < 0 ||
      __builtin_add_overflow(offset->get<int64_t>(), tensor.bytes, &end))
    return Wrong(field("offset"), offset, "bytes from the beginning of the segment, or of the allocation");
  tensor.offset = offset->get<int64_t>();
  return tensor;
}

Result<std::vector<SegmentTensor>> ReadTensors(const json& info) {
  const json* const list = Find(info, "tensors");
  if (list == nullptr || !list->is_array() || list->empty())
    return Wrong("tensors", list, "a list of objects with name, dtype, shape and offset");
  std::vector<SegmentTensor> tensors;
  for (const json& value : *list) {
    COPPICE_ASSIGN_OR_RETURN(SegmentTensor tensor, ReadTensor(value, tensors.size()));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// A name that leads to no other folder than that of shared memory.
Status CheckSegmentName(const json* value) {
  constexpr std::string_view kExpected = "a name below /dev/shm, without a slash, of 1 to 200 bytes";
  if (value == nullptr || !value->is_string()) return Wrong("segment", value, kExpected);
  const std::string& name = value->get_ref<const std::string&>();
  const bool is_name = !name.empty() && name.size() <= 200 && name != "." && name != ".." && name.find('/') == name.npos &&
                       name.find('\0') == name.npos;
  return is_name ? OkStatus() : Wrong("segment", value, kExpected);
}

// Of 64 bytes as 128 hex digits, or as 88 characters of base64.
Result<IpcMemory::Handle> ReadIpcHandle(const json* value) {
  constexpr std::string_view kExpected = "64 bytes as 128 hex digits or as base64";
  if (value == nullptr || !value->is_string()) return Wrong("handle", value, kExpected);
  const std::string& text = value->get_ref<const std::string&>();
  IpcMemory::Handle handle;
  if (text.size() == 2 * handle.size()) {
    for (size_t i = 0; i < handle.size(); ++i) {
      uint8_t byte = 0;
      const char* const digits = text.data() + 2 * i;
      if (const auto read = std::from_chars(digits, digits + 2, byte, 16); read.ptr != digits + 2)
        return Wrong("handle", value, kExpected);
      handle[i] = std::byte{byte};
    }
    return handle;
  }
  std::array<unsigned char, 66> decoded;  // EVP_DecodeBlock counts the padding
  if (text.size() != 88 || !text.ends_with("==") || text[85] == '=' ||
      EVP_DecodeBlock(decoded.data(), reinterpret_cast<const unsigned char*>(text.data()), 88) != 66)
    return Wrong("handle", value, kExpected);
  std::memcpy(handle.data(), decoded.data(), handle.size());
  return handle;
}

Result<IpcSource> ReadIpcSource(const json& info) {
  IpcSource source;
  COPPICE_ASSIGN_OR_RETURN(source.handle, ReadIpcHandle(Find(info, "handle")));
  const json* const device = Find(info, "device");
  if (device != nullptr && device->is_number_integer() && device->get<int64_t>() >= 0) {
    source.device = device->get<int64_t>();
  } else if (device != nullptr && device->is_string() && !device->get_ref<const std::string&>().empty()) {
    source.device = device->get<std::string>();
  } else {
    return Wrong("device", device, "the UUID of the GPU whose memory it is, or its number in this server's process");
  }
  return source;
}

// Of lists by tensor: names, dtype_names, which SGLang calls dtypes, and shapes.
Result<std::vector<SegmentTensor>> ReadBroadcastTensors(const json& info) {
  const auto list_of = [&](std::string_view field, size_t size) -> Result<const json*> {
    const json* const list = Find(info, field);
    if (list == nullptr || !list->is_array() || list->empty()) return Wrong(field, list, "a list with an entry for each tensor");
    if (size != 0 && list->size() != size)
      return InvalidArgument(fmt::format("{} has {} entries, expected {}, one for each of names", field, list->size(), size));
    return list;
  };
  COPPICE_ASSIGN_OR_RETURN(const json* const names, list_of("names", 0));
  const std::string_view dtype_field = Find(info, "dtypes") != nullptr ? "dtypes" : "dtype_names";
  COPPICE_ASSIGN_OR_RETURN(const json* const dtypes, list_of(dtype_field, names->size()));
  COPPICE_ASSIGN_OR_RETURN(const json* const shapes, list_of("shapes", names->size()));
  std::vector<SegmentTensor> tensors(names->size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    COPPICE_RETURN_IF_ERROR(ReadName(&(*names)[i], fmt::format("names[{}]", i), &tensors[i]));
    COPPICE_RETURN_IF_ERROR(
        ReadForm(&(*dtypes)[i], fmt::format("{}[{}]", dtype_field, i), &(*shapes)[i], fmt::format("shapes[{}]", i), &tensors[i]));
  }
  return tensors;
}

Result<BroadcastSource> ReadBroadcastSource(const json& info) {
  BroadcastSource source;
  if (const json* const packed = Find(info, "packed"); packed != nullptr) {
    if (!packed->is_boolean()) return Wrong("packed", packed, "true or false");
    source.packed = packed->get<bool>();
  }
  if (const json* const bytes = Find(info, "packed_buffer_size_bytes"); bytes != nullptr) {
    if (!bytes->is_number_integer() || bytes->get<int64_t>() < 1)
      return Wrong("packed_buffer_size_bytes", bytes, "a number of bytes, of at least 1");
    source.buffer_bytes = bytes->get<int64_t>();
  }
  if (const json* const format = Find(info, "load_format");
      format != nullptr) {  // SGLang's: all tensors of the message in one piece
    if (*format != "flattened_bucket") return Wrong("load_format", format, "flattened_bucket, or nothing");
    source = {.packed = true, .buffer_bytes = INT64_MAX};
  }
  return source;
}

Result<int64_t> ReadWhole(const json& info, std::string_view field, int64_t least, int64_t most) {
  const json* const value = Find(info, field);
  if (value == nullptr || !value->is_number_integer() || *value < least || *value > most)
    return Wrong(field, value, fmt::format("a whole number from {} to {}", least, most));
  return value->get<int64_t>();
}

Result<GroupInfo> ReadGroupInfo(const json& info) {
  constexpr int64_t kMostRanks = 4096;
  GroupInfo group;
  const json* const address = Find(info, "master_address");
  if (address == nullptr || !address->is_string() || address->get_ref<const std::string&>().empty() ||
      address->get_ref<const std::string&>().find('\0') != std::string::npos)
    return Wrong("master_address", address, "the name or address of the trainer's machine");
  group.address = address->get<std::string>();
  COPPICE_ASSIGN_OR_RETURN(const int64_t port, ReadWhole(info, "master_port", 1, UINT16_MAX));
  COPPICE_ASSIGN_OR_RETURN(const int64_t size, ReadWhole(info, "world_size", 2, kMostRanks));
  COPPICE_ASSIGN_OR_RETURN(const int64_t rank, ReadWhole(info, "rank_offset", 1, size - 1));
  COPPICE_ASSIGN_OR_RETURN(group.form, ReadBroadcastSource(info));
  group.port = static_cast<uint16_t>(port);
  group.size = static_cast<int32_t>(size);
  group.rank = static_cast<int32_t>(rank);
  return group;
}

}  // namespace

Result<WeightMessage> ReadWeightMessage(const json& info) {
  if (!info.is_object()) return Wrong("update_info", &info, "an object");
  COPPICE_RETURN_IF_ERROR(RefusePickled(info));
  COPPICE_ASSIGN_OR_RETURN(const Transport transport, TransportOf(info));
  WeightMessage message;
  if (transport == Transport::kNccl) {
    COPPICE_ASSIGN_OR_RETURN(message.source, ReadBroadcastSource(info));
  } else if (transport == Transport::kCudaIpc) {
    COPPICE_ASSIGN_OR_RETURN(message.source, ReadIpcSource(info));
  } else {
    COPPICE_RETURN_IF_ERROR(CheckSegmentName(Find(info, "segment")));
    message.source = info["segment"].get<std::string>();
  }
  if (const json* const checksum = Find(info, "checksum"); checksum != nullptr) {
    if (!checksum->is_boolean()) return Wrong("checksum", checksum, "true or false");
    message.checksum = checksum->get<bool>();
  }
  COPPICE_ASSIGN_OR_RETURN(message.tensors, transport == Transport::kNccl ? ReadBroadcastTensors(info) : ReadTensors(info));
  return message;
}

Result<std::optional<GroupInfo>> ReadTransfer(const json& info) {
  if (!info.is_object()) return Wrong("init_info", &info, "an object");
  COPPICE_RETURN_IF_ERROR(RefusePickled(info));
  COPPICE_ASSIGN_OR_RETURN(const Transport transport, TransportOf(info));
  if (transport == Transport::kCudaIpc) COPPICE_RETURN_IF_ERROR(IpcMemory::CheckSupported());
  if (transport != Transport::kNccl) return std::optional<GroupInfo>();
  COPPICE_ASSIGN_OR_RETURN(GroupInfo group, ReadGroupInfo(info));
  return std::optional(std::move(group));
}

Result<std::optional<GroupInfo>> ReadSglangGroup(const json& info) {
  constexpr std::string_view kDefaultName = "weight_update_group";
  COPPICE_ASSIGN_OR_RETURN(std::optional<GroupInfo> group, ReadTransfer(info));
  if (!group) return group;
  const json* const name = Find(info, "group_name");
  if (name != nullptr && (!name->is_string() || name->get_ref<const std::string&>().empty()))
    return Wrong("group_name", name, "the name of a group of torch.distributed");
  group->torch_name = name != nullptr ? name->get<std::string>() : kDefaultName;
  return group;
}

}  // namespace coppice::server
