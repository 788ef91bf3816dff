// Input: a prefix file. Its checksum would stop nearly every mutation, so a file that only the checksum refuses is read once more
// with the one that the reader asks for: a forged file can do the same.
#include "engine/prefix_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz_target.h"

using namespace coppice;
using fuzz::Require;

namespace {

const KvOrigin& Origin() {
  static const KvOrigin origin = {.model = "m", .dtype = DType::kBF16, .num_layers = 2, .num_kv_heads = 1, .head_dim = 4};
  return origin;
}

// Through a file in memory, for the reader maps files.
Result<StoredPrefix> Read(std::string_view bytes) {
  const int file = memfd_create("prefix", MFD_CLOEXEC);
  Require(file >= 0 && write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
          "cannot make a file in memory");
  Result<StoredPrefix> prefix = ReadPrefixFile("/proc/self/fd/" + std::to_string(file), Origin());
  close(file);
  return prefix;
}

// The bytes with the checksum that `message` says is right; empty if it is about something else.
std::string WithChecksum(std::string bytes, const std::string& message) {
  constexpr std::string_view kComputed = "the checksum is ", kStated = ", the file says \"";
  constexpr size_t kDigits = 32;
  const size_t computed = message.find(kComputed), stated = message.find(kStated);
  if (computed == message.npos || stated == message.npos) return "";
  const std::string old = message.substr(stated + kStated.size(), kDigits);
  const size_t place = bytes.find(old);
  if (old.size() != kDigits || place == bytes.npos) return "";
  return bytes.replace(place, kDigits, message.substr(computed + kComputed.size(), kDigits));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  Result<StoredPrefix> prefix = Read(bytes);
  if (!prefix.ok()) {
    if (bytes = WithChecksum(std::move(bytes), prefix.status().message()); bytes.empty()) return 0;
    prefix = Read(bytes);
  }
  if (!prefix.ok()) return 0;
  const auto num_tokens = static_cast<int64_t>(prefix->tokens.size());
  Require(static_cast<int64_t>(prefix->kv.size()) == num_tokens * Origin().bytes_per_token(),
          "KV of another size than the tokens'");
  Require(prefix->private_begin >= 0 && prefix->private_begin <= num_tokens, "private_begin outside the tokens");
  return 0;
}
