#include "server/trainer/arrived_weights.h"

#include <fmt/format.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <variant>

#include "core/check.h"
#include "core/file.h"
#include "core/quoted.h"
#include "model/stored_type.h"

namespace coppice::server {
namespace {

constexpr std::string_view kSegments = "/dev/shm/";
constexpr int64_t kAlignment = 64;  // of a tensor in memory, as vector loads want it

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Bytes [offset, offset + out.size()) of the file.
Status ReadAt(int file, int64_t offset, std::span<std::byte> out, const std::string& path) {
  while (!out.empty()) {
    const ssize_t size = pread(file, out.data(), out.size(), offset);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return SystemError("read", path);
    if (size == 0) return InvalidArgument(fmt::format("{} became shorter while it was read", path));
    out = out.subspan(static_cast<size_t>(size));
    offset += size;
  }
  return OkStatus();
}

Status CheckLiesIn(const SegmentTensor& tensor, size_t size, const std::string& place) {
  if (tensor.offset + tensor.bytes <= static_cast<int64_t>(size)) return OkStatus();
  return InvalidArgument(fmt::format("tensor {} lies in bytes {} to {} of {}, which has {}", Quoted(tensor.name), tensor.offset,
                                     tensor.offset + tensor.bytes, place, size));
}

std::optional<DType> DTypeOf(StoredType type) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (StoredTypeOf(dtype) == type) return dtype;
  }
  return std::nullopt;
}

}  // namespace

Result<ArrivedWeights> ArrivedWeights::Read(const WeightMessage& message, Buffer memory) {
  if (const IpcSource* const source = std::get_if<IpcSource>(&message.source)) return Map(message, *source);
  return CopySegment(message, std::get<std::string>(message.source), std::move(memory));
}

Result<ArrivedWeights> ArrivedWeights::Map(const WeightMessage& message, const IpcSource& source) {
  ArrivedWeights arrived;
  COPPICE_ASSIGN_OR_RETURN(arrived.mapped_, IpcMemory::Open(source.handle, source.device));
  const std::span<const std::byte> allocation = arrived.mapped_->data();
  for (const SegmentTensor& tensor : message.tensors) {
    COPPICE_RETURN_IF_ERROR(CheckLiesIn(tensor, allocation.size(), "the GPU's allocation"));
    arrived.tensors_.push_back({.name = tensor.name,
                                .dtype = tensor.dtype,
                                .shape = tensor.shape,
                                .data = allocation.data() + tensor.offset,
                                .device = DeviceKind::kCuda});
  }
  return arrived;
}

ArrivedWeights ArrivedWeights::Lend(std::span<const WeightTensor> tensors, Device* device) {
  ArrivedWeights arrived;
  arrived.tensors_.assign(tensors.begin(), tensors.end());
  arrived.device_ = device;
  return arrived;
}

Result<ArrivedWeights> ArrivedWeights::CopySegment(const WeightMessage& message, const std::string& name, Buffer memory) {
  const std::string path = std::string(kSegments) + name;
  COPPICE_ASSIGN_OR_RETURN(const RegularFile segment, OpenRegularFile(path, Links::kRefused));
  int64_t bytes = 0;
  for (const SegmentTensor& tensor : message.tensors) {
    COPPICE_RETURN_IF_ERROR(CheckLiesIn(tensor, segment.size, path));
    if (__builtin_add_overflow(bytes, Aligned(tensor.bytes), &bytes))
      return InvalidArgument("the tensors have more bytes than fit into memory: send fewer at a time");
  }
  ArrivedWeights arrived;
  if (static_cast<int64_t>(memory.size()) < bytes) {
    memory = Buffer();  // first, so that there are not two
    COPPICE_ASSIGN_OR_RETURN(memory, Buffer::Allocate(static_cast<size_t>(bytes)));
  }
  arrived.memory_ = std::move(memory);
  int64_t at = 0;
  for (const SegmentTensor& tensor : message.tensors) {
    std::byte* const data = arrived.memory_.data() + at;
    COPPICE_RETURN_IF_ERROR(ReadAt(segment.file.get(), tensor.offset, {data, static_cast<size_t>(tensor.bytes)}, path));
    arrived.tensors_.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .data = data});
    at += Aligned(tensor.bytes);
  }
  return arrived;
}

Result<ArrivedWeights> ArrivedWeights::Open(const std::string& path) {
  ArrivedWeights arrived;
  COPPICE_ASSIGN_OR_RETURN(arrived.folder_, Checkpoint::Open(path));
  for (const auto& [name, tensor] : arrived.folder_->tensors()) {
    const std::optional<DType> dtype = DTypeOf(tensor.type);
    if (!dtype || tensor.interleaved_heads != 0)
      return InvalidArgument(
          fmt::format("{} stores tensor {} as {}: weights come from a folder of *.safetensors with f32, bf16 or f16", path,
                      Quoted(name), Name(tensor.type)));
    arrived.tensors_.push_back({.name = name, .dtype = *dtype, .shape = tensor.shape, .data = tensor.data.data()});
  }
  return arrived;
}

Result<std::string> ArrivedWeights::ChecksumOf(const WeightTensor& tensor) const {
  size_t bytes = SizeOf(tensor.dtype);
  for (const int64_t size : tensor.shape) bytes *= static_cast<size_t>(size);
  const auto* data = static_cast<const std::byte*>(tensor.data);
  Buffer copy;
  if (mapped_ || device_ != nullptr) {
    COPPICE_ASSIGN_OR_RETURN(copy, Buffer::Allocate(bytes));
    if (mapped_) {
      COPPICE_RETURN_IF_ERROR(mapped_->CopyToHost(static_cast<size_t>(data - mapped_->data().data()), copy.Span<std::byte>()));
    } else {
      COPPICE_RETURN_IF_ERROR(device_->Copy(copy.data(), data, bytes, nullptr));
      COPPICE_RETURN_IF_ERROR(device_->Synchronize(Stream{nullptr}));
    }
    data = copy.data();
  }
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash;
  SHA256(reinterpret_cast<const unsigned char*>(data), bytes, hash.data());
  std::string hex;
  for (const unsigned char byte : hash) hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace coppice::server
