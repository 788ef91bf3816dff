// The one pickled value that is taken, and that every other one is refused.
#include "server/trainer/pickled_id.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

namespace coppice::server {
namespace {

using ::testing::HasSubstr;

// As pickle.dumps(ncclUniqueId(), protocol=4) gives it, whose bytes are 0, 1, 2 and so on.
std::string Pickled(const std::string& module = "vllm.distributed.device_communicators.pynccl_wrapper",
                    const std::string& name = "ncclUniqueId", size_t size = 128, char protocol = 4) {
  const auto text = [](const std::string& value) {
    return "\x8c" + std::string(1, static_cast<char>(value.size())) + value + "\x94";
  };
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes += static_cast<char>(i);
  const std::string content = text("_ctypes") + text("_unpickle") + "\x93\x94" + text(module) + text(name) + "\x93\x94" + "}\x94" +
                              "C" + std::string(1, static_cast<char>(size)) + bytes + "\x94" + "\x86\x94" + "\x86\x94" + "R\x94" +
                              ".";
  std::string pickled = std::string("\x80") + protocol + "\x95";
  const uint64_t frame = content.size();
  pickled.append(reinterpret_cast<const char*>(&frame), sizeof(frame));
  return pickled + content;
}

Result<ops::NcclId> Read(const std::string& pickled) { return ReadPickledId(std::as_bytes(std::span(pickled))); }

TEST(PickledId, IsTheNameOfAGroup) {
  for (const std::string& pickled : {Pickled(), Pickled("a.b_2", "ncclUniqueId", 128, 5)}) {
    const Result<ops::NcclId> id = Read(pickled);
    ASSERT_TRUE(id.ok()) << id.status().message();
    for (size_t i = 0; i < 128; ++i) EXPECT_EQ(id->bytes[i], static_cast<std::byte>(i));
  }
  EXPECT_EQ(Pickled().size(), 247u);  // as Python 3.11's
}

TEST(PickledId, OtherValuesAreNeverRead) {
  std::string calls = Pickled();
  calls.replace(calls.find("_ctypes"), 7, "_random");
  std::string other_function = Pickled();
  other_function.replace(other_function.find("_unpickle"), 9, "CDLLaaaaa");
  const std::string plain = std::string("\x80\x04\x95\x84\0\0\0\0\0\0\0C\x80", 13) + std::string(128, 'x') + "\x94.";
  const std::string system = "cos\nsystem\n(S'true'\ntR.";
  for (const std::string& refused :
       {std::string(), calls, other_function, plain, system, Pickled("os", "system"), Pickled("", "ncclUniqueId"), Pickled("a\nb"),
        Pickled("m", "ncclUniqueId", 127), Pickled("m", "ncclUniqueId", 129), Pickled("m", "ncclUniqueId", 128, 3),
        Pickled("m", "ncclUniqueId", 128, 2), Pickled() + ".", Pickled() + system}) {
    const Result<ops::NcclId> id = Read(refused);
    ASSERT_FALSE(id.ok());
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(id.status().message(), HasSubstr("another value than a pickled ncclUniqueId, which is never read"));
  }
}

// Only the name of the module and the 128 bytes may differ.
TEST(PickledId, EveryOtherByteCounts) {
  const std::string good = Pickled();
  const size_t module = good.find("vllm"), module_end = good.find("\x94", module), bytes = good.find(std::string("C\x80", 2)) + 2;
  std::mt19937 random(1);
  for (size_t at = 0; at < good.size(); ++at) {
    EXPECT_FALSE(Read(good.substr(0, at)).ok()) << "cut at " << at;
    for (int i = 0; i < 20; ++i) {
      std::string changed = good;
      changed[at] = static_cast<char>(random());
      const bool is_free = at >= bytes && at < bytes + 128;
      const bool is_name = at >= module && at < module_end;
      const bool is_protocol = at == 1 && changed[at] == 5;
      if (changed == good || is_protocol || is_name) continue;
      EXPECT_EQ(Read(changed).ok(), is_free) << "byte " << at << " is " << static_cast<int>(changed[at]);
    }
    std::string longer = good;
    longer.insert(at, 1, 'R');
    EXPECT_FALSE(Read(longer).ok()) << "more at " << at;
  }
}

}  // namespace
}  // namespace coppice::server
