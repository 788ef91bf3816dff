#include "server/trainer/pickled_id.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace coppice::server {
namespace {

// Python's pickletools lists these opcodes.
constexpr char kProto = '\x80', kFrame = '\x95', kShortText = '\x8c', kMemoize = '\x94', kStackGlobal = '\x93', kShortBytes = 'C';
constexpr std::string_view kEmptyDict = "}", kPair = "\x86", kReduce = "R", kStop = ".";

// The unread rest of the bytes. Each step takes those that are expected next; after one that fails, matches() is false.
class Recogniser {
 public:
  explicit Recogniser(std::span<const std::byte> bytes) : rest_(reinterpret_cast<const char*>(bytes.data()), bytes.size()) {}

  bool matches() const { return matches_; }

  std::string_view Take(size_t size) {
    if (size > rest_.size()) {
      matches_ = false;
      return {};
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  void Expect(std::string_view text) { matches_ &= Take(text.size()) == text && !text.empty(); }
  void Expect(char byte) { Expect(std::string_view(&byte, 1)); }
  // `text`, and the unpickler's note of it.
  void ExpectNoted(std::string_view text) {
    Expect(text);
    Expect(kMemoize);
  }
  uint8_t TakeByte() {
    const std::string_view byte = Take(1);
    return byte.empty() ? 0 : static_cast<uint8_t>(byte[0]);
  }
  std::string_view TakeNotedText() {
    Expect(kShortText);
    const std::string_view text = Take(TakeByte());
    Expect(kMemoize);
    return text;
  }
  void ExpectNotedText(std::string_view text) { matches_ &= TakeNotedText() == text; }
  void ExpectNotedGlobal() { ExpectNoted(std::string_view(&kStackGlobal, 1)); }
  void ExpectRest(uint64_t size) { matches_ &= rest_.size() == size; }

 private:
  std::string_view rest_;
  bool matches_ = true;
};

// Of a dotted name of a module.
bool IsModule(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  });
}

}  // namespace

Result<ops::NcclId> ReadPickledId(std::span<const std::byte> pickled) {
  ops::NcclId id{};
  Recogniser in(pickled);
  in.Expect(kProto);
  const uint8_t protocol = in.TakeByte();
  in.Expect(kFrame);
  uint64_t frame = 0;
  if (const std::string_view size = in.Take(sizeof(frame)); size.size() == sizeof(frame))
    std::memcpy(&frame, size.data(), sizeof(frame));
  in.ExpectRest(frame);
  in.ExpectNotedText("_ctypes");
  in.ExpectNotedText("_unpickle");
  in.ExpectNotedGlobal();
  const bool is_module = IsModule(in.TakeNotedText());
  in.ExpectNotedText("ncclUniqueId");
  in.ExpectNotedGlobal();
  in.ExpectNoted(kEmptyDict);
  in.Expect(kShortBytes);
  const uint8_t size = in.TakeByte();
  const std::string_view bytes = in.Take(id.bytes.size());
  in.Expect(kMemoize);
  in.ExpectNoted(kPair);  // the structure's fields of its own, of which there are none, and its bytes
  in.ExpectNoted(kPair);  // its class, and these
  in.ExpectNoted(kReduce);
  in.Expect(kStop);
  in.ExpectRest(0);
  if (!in.matches() || !is_module || (protocol != 4 && protocol != 5) || size != id.bytes.size())
    return InvalidArgument(
        "the trainer's store holds another value than a pickled ncclUniqueId, which is never read, since reading one runs what its "
        "sender wrote");
  std::memcpy(id.bytes.data(), bytes.data(), bytes.size());
  return id;
}

}  // namespace coppice::server
