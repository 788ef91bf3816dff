// The messages that bring weights: what is read of them, and what is refused, and where their bytes come from.
#include "server/trainer/weight_message.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/testing/shared_segment.h"
#include "server/trainer/arrived_weights.h"

namespace coppice::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string Refusal(const json& info) { return std::string(ReadWeightMessage(info).status().message()); }

json Tensor(const std::string& name, int64_t offset) {
  return {{"name", name}, {"dtype", "float32"}, {"shape", {2, 3}}, {"offset", offset}};
}

TEST(WeightMessage, SaysWhereEachTensorLies) {
  const json info = {{"segment", "weights-1"},
                     {"checksum", true},
                     {"tensors", {Tensor("a", 64), {{"name", "b"}, {"dtype", "torch.bfloat16"}, {"shape", {5}}, {"offset", 0}}}}};
  const WeightMessage message = ReadWeightMessage(info).value();
  EXPECT_EQ(std::get<std::string>(message.source), "weights-1");
  EXPECT_TRUE(message.checksum);
  ASSERT_EQ(message.tensors.size(), 2u);
  EXPECT_EQ(message.tensors[0].name, "a");
  EXPECT_EQ(message.tensors[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(message.tensors[0].offset, 64);
  EXPECT_EQ(message.tensors[0].bytes, 24);
  EXPECT_EQ(message.tensors[1].dtype, DType::kBF16);
  EXPECT_EQ(message.tensors[1].bytes, 10);
}

TEST(WeightMessage, ARefusalNamesTheFieldAndItsValue) {
  const json good = {{"segment", "s"}, {"tensors", {Tensor("a", 0)}}};
  const auto with = [&](const char* path, json value) {
    json changed = good;
    changed[json::json_pointer(path)] = std::move(value);
    return Refusal(changed);
  };
  EXPECT_EQ(Refusal(good), "");
  EXPECT_EQ(Refusal(7), "update_info is 7, expected an object");
  for (const json& name : {json("a/b"), json("../x"), json(".."), json(""), json(3), json(std::string("a\0b", 3))})
    EXPECT_THAT(with("/segment", name), HasSubstr("expected a name below /dev/shm, without a slash")) << name;
  EXPECT_EQ(with("/tensors", json::array()), "tensors is [], expected a list of objects with name, dtype, shape and offset");
  EXPECT_EQ(with("/tensors/0/name", ""), "tensors[0].name is \"\", expected a tensor's name");
  EXPECT_EQ(with("/tensors/0/dtype", "int8"), "tensors[0].dtype is \"int8\", expected float32, bfloat16 or float16");
  for (const json& shape : {json::array(), json({0}), json({-1}), json({1.5}), json({1LL << 40, 1LL << 40}), json("2")})
    EXPECT_THAT(with("/tensors/0/shape", shape), HasSubstr("tensors[0].shape is ")) << shape;
  for (const json& offset : {json(-1), json(INT64_MAX), json(UINT64_MAX), json("0"), json()})
    EXPECT_THAT(with("/tensors/0/offset", offset), HasSubstr("expected bytes from the beginning of the segment")) << offset;
  EXPECT_THAT(with("/transport", "rdma"), HasSubstr("expected shared_memory, cuda_ipc or nccl"));
  EXPECT_THAT(with("/checksum", 1), HasSubstr("expected true or false"));
}

TEST(WeightMessage, PickledPayloadsAreNeverRead) {
  for (const char* field : {"ipc_handles_pickled", "ipc_handles", "serialized_named_tensors"}) {
    EXPECT_THAT(Refusal({{field, "gASVKg=="}, {"names", {"a"}}}),
                HasSubstr(std::string(field) + " is a pickled payload, which this server never reads"));
    EXPECT_EQ(ReadTransfer({{field, "gASVKg=="}}).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(WeightMessage, ABroadcastIsAnnouncedByLists) {
  json info = {{"names", {"a", "b"}}, {"dtype_names", {"float32", "bfloat16"}}, {"shapes", {{1}, {3, 5}}}};
  WeightMessage message = ReadWeightMessage(info).value();
  ASSERT_TRUE(std::holds_alternative<BroadcastSource>(message.source));
  EXPECT_EQ(std::get<BroadcastSource>(message.source).packed, std::nullopt);
  EXPECT_EQ(std::get<BroadcastSource>(message.source).buffer_bytes, std::nullopt);
  ASSERT_EQ(message.tensors.size(), 2u);
  EXPECT_EQ(message.tensors[1].name, "b");
  EXPECT_EQ(message.tensors[1].dtype, DType::kBF16);
  EXPECT_EQ(message.tensors[1].shape, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(message.tensors[1].bytes, 30);
  info.update({{"packed", true}, {"packed_buffer_size_bytes", 100}, {"packed_num_buffers", 3}});
  message = ReadWeightMessage(info).value();
  EXPECT_EQ(std::get<BroadcastSource>(message.source).packed, true);
  EXPECT_EQ(std::get<BroadcastSource>(message.source).buffer_bytes, 100);
  const auto with = [&](const char* path, json value) {
    json changed = info;
    changed[json::json_pointer(path)] = std::move(value);
    return Refusal(changed);
  };
  EXPECT_EQ(with("/names", json::array()), "names is [], expected a list with an entry for each tensor");
  EXPECT_EQ(with("/names/1", ""), "names[1] is \"\", expected a tensor's name");
  EXPECT_EQ(with("/dtype_names", {"float32"}), "dtype_names has 1 entries, expected 2, one for each of names");
  EXPECT_EQ(with("/dtype_names/0", "int8"), "dtype_names[0] is \"int8\", expected float32, bfloat16 or float16");
  EXPECT_THAT(with("/shapes", json()), HasSubstr("shapes is missing"));
  EXPECT_THAT(with("/shapes/1", {1LL << 40, 1LL << 40}), HasSubstr("shapes[1] is "));
  EXPECT_THAT(with("/packed", 1), HasSubstr("expected true or false"));
  for (const json& bytes : {json(0), json(-1), json("1"), json(1.5)})
    EXPECT_THAT(with("/packed_buffer_size_bytes", bytes), HasSubstr("expected a number of bytes")) << bytes;
}

TEST(WeightMessage, AGroupHasAPlaceToMeet) {
  json info = {{"master_address", "10.0.0.1"}, {"master_port", 51216}, {"rank_offset", 2}, {"world_size", 4}, {"packed", true}};
  const GroupInfo group = ReadTransfer(info).value().value();
  EXPECT_EQ(group.address, "10.0.0.1");
  EXPECT_EQ(group.port, 51216);
  EXPECT_EQ(group.rank, 2);
  EXPECT_EQ(group.size, 4);
  EXPECT_EQ(group.form.packed, true);
  const auto with = [&](const char* field, json value) {
    json changed = info;
    changed[field] = std::move(value);
    return std::string(ReadTransfer(changed).status().message());
  };
  for (const json& address : {json(1), json(""), json(std::string("a\0b", 3))})
    EXPECT_THAT(with("master_address", address), HasSubstr("master_address is ")) << address;
  for (const json& port : {json(0), json(65536), json("1"), json(UINT64_MAX), json()})
    EXPECT_THAT(with("master_port", port), HasSubstr("expected a whole number from 1 to 65535")) << port;
  EXPECT_EQ(with("world_size", 1), "world_size is 1, expected a whole number from 2 to 4096");
  EXPECT_EQ(with("rank_offset", 4), "rank_offset is 4, expected a whole number from 1 to 3");
  EXPECT_THAT(std::string(ReadTransfer({{"transport", "nccl"}}).status().message()), HasSubstr("master_address is missing"));
  EXPECT_FALSE(ReadTransfer({{"transport", "shared_memory"}}).value().has_value());
}

TEST(WeightMessage, SglangsGroupsAreOfTorchDistributed) {
  json group = {{"master_address", "10.0.0.1"}, {"master_port", 1}, {"rank_offset", 1}, {"world_size", 2}, {"backend", "nccl"}};
  EXPECT_EQ(ReadSglangGroup(group).value()->torch_name, "weight_update_group");
  group["group_name"] = "g";
  EXPECT_EQ(ReadSglangGroup(group).value()->torch_name, "g");
  EXPECT_EQ(ReadTransfer(group).value()->torch_name, "");
  group["group_name"] = 3;
  EXPECT_EQ(ReadSglangGroup(group).status().message(), "group_name is 3, expected the name of a group of torch.distributed");
  group["group_name"] = "g";
  group["backend"] = "gloo";
  EXPECT_EQ(ReadSglangGroup(group).status().message(), "backend is \"gloo\", expected shared_memory, cuda_ipc or nccl");
  EXPECT_FALSE(ReadSglangGroup({{"transport", "shared_memory"}}).value().has_value());

  json update = {{"names", {"a"}}, {"dtypes", {"torch.float32"}}, {"shapes", {{1}}}, {"group_name", "g"}};
  WeightMessage message = ReadWeightMessage(update).value();
  EXPECT_EQ(message.tensors[0].dtype, DType::kF32);
  EXPECT_EQ(std::get<BroadcastSource>(message.source).packed, std::nullopt);
  update["load_format"] = "flattened_bucket";
  message = ReadWeightMessage(update).value();
  EXPECT_EQ(std::get<BroadcastSource>(message.source).packed, true);
  update["load_format"] = "direct";
  EXPECT_EQ(ReadWeightMessage(update).status().message(), "load_format is \"direct\", expected flattened_bucket, or nothing");
  update.erase("load_format");
  update["dtypes"] = {"int8"};
  EXPECT_EQ(ReadWeightMessage(update).status().message(), "dtypes[0] is \"int8\", expected float32, bfloat16 or float16");
}

TEST(WeightMessage, MemoryOfAGpuIsNamedByAHandle) {
  json ipc = {
      {"transport", "cuda_ipc"}, {"handle", std::string(126, '0') + "fE"}, {"device", "GPU-0"}, {"tensors", {Tensor("a", 8)}}};
  WeightMessage message = ReadWeightMessage(ipc).value();
  EXPECT_EQ(std::get<IpcSource>(message.source).handle[63], std::byte{0xfe});
  EXPECT_EQ(std::get<IpcSource>(message.source).device, IpcMemory::DeviceId("GPU-0"));
  EXPECT_EQ(message.tensors[0].offset, 8);
  ipc["handle"] = std::string(83, 'A') + "B/g==";  // zeros, and 0x01 0xfe
  ipc["device"] = 3;
  message = ReadWeightMessage(ipc).value();
  EXPECT_EQ(std::get<IpcSource>(message.source).handle[62], std::byte{0x01});
  EXPECT_EQ(std::get<IpcSource>(message.source).handle[63], std::byte{0xfe});
  EXPECT_EQ(std::get<IpcSource>(message.source).device, IpcMemory::DeviceId(int64_t{3}));
  for (const json& handle : {json(std::string(127, 'a')), json(std::string(127, 'a') + "g"), json(std::string(88, 'A')),
                             json(std::string(84, 'A') + "===="), json(std::string(85, 'A') + "!=="), json(), json(3)}) {
    ipc["handle"] = handle;
    EXPECT_THAT(Refusal(ipc), HasSubstr("expected 64 bytes as 128 hex digits or as base64")) << handle;
  }
  ipc["handle"] = std::string(128, 'a');
  for (const json& device : {json(-1), json(""), json(1.5), json()}) {
    ipc["device"] = device;
    EXPECT_THAT(Refusal(ipc), HasSubstr("expected the UUID of the GPU")) << device;
  }
}

TEST(ArrivedWeights, HandlesOfNothingAreRefused) {
  const json ipc = {{"transport", "cuda_ipc"}, {"handle", std::string(128, 'a')}, {"device", 0}, {"tensors", {Tensor("a", 0)}}};
  const Status refused = ArrivedWeights::Read(ReadWeightMessage(ipc).value(), Buffer()).status();
  const Status transfer = ReadTransfer({{"transport", "cuda_ipc"}}).status();
  EXPECT_EQ(transfer.message(), IpcMemory::CheckSupported().message());
  EXPECT_FALSE(refused.ok());
  EXPECT_TRUE(transfer.ok() || refused.message() == transfer.message()) << refused.message();
}

TEST(ArrivedWeights, AreCopiesOfWhatTheSegmentHolds) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7};
  SharedSegment segment(std::as_bytes(std::span(values)));
  const json info = {{"segment", segment.name()},
                     {"tensors", {Tensor("a", 4), {{"name", "b"}, {"dtype", "f32"}, {"shape", {1}}, {"offset", 0}}}}};
  const ArrivedWeights weights = ArrivedWeights::Read(ReadWeightMessage(info).value(), Buffer()).value();
  segment.Truncate(0);
  ASSERT_EQ(weights.tensors().size(), 2u);
  EXPECT_EQ(std::memcmp(weights.tensors()[0].data, &values[1], 24), 0);
  EXPECT_EQ(*static_cast<const float*>(weights.tensors()[1].data), 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(weights.tensors()[1].data) % 64, 0u);
  // sha256 of 00 00 80 3f
  EXPECT_EQ(weights.ChecksumOf(weights.tensors()[1]).value(), "e00e5eb9444182f352323374ef4e08ebcb784725fdd4fd612d7730540b3e0c8c");
}

TEST(ArrivedWeights, MustLieInTheSegment) {
  const std::vector<std::byte> bytes(24);
  const SharedSegment segment(bytes);
  const auto read = [&](const std::string& name, int64_t offset) {
    const json info = {{"segment", name}, {"tensors", {Tensor("a", offset)}}};
    return std::string(ArrivedWeights::Read(ReadWeightMessage(info).value(), Buffer()).status().message());
  };
  EXPECT_EQ(read(segment.name(), 0), "");
  EXPECT_EQ(read(segment.name(), 4), "tensor \"a\" lies in bytes 4 to 28 of /dev/shm/" + segment.name() + ", which has 24");
  EXPECT_THAT(read(segment.name(), INT64_MAX - 24), HasSubstr("lies in bytes"));
  EXPECT_THAT(read("coppice-no-such-segment", 0), HasSubstr("/dev/shm/coppice-no-such-segment"));
  const std::string link = segment.name() + "-link";
  std::filesystem::create_symlink("/dev/shm/" + segment.name(), "/dev/shm/" + link);
  EXPECT_NE(read(link, 0), "") << "a link may lead anywhere";
  std::filesystem::remove("/dev/shm/" + link);
}

TEST(ArrivedWeights, ComeFromAFolder) {
  const ArrivedWeights weights = ArrivedWeights::Open(std::string(COPPICE_TEST_DATA) + "/models/llama-gqa").value();
  EXPECT_GT(weights.tensors().size(), 10u);
  EXPECT_EQ(ArrivedWeights::Open("/no/such/folder").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace coppice::server
