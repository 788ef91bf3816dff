// A library with NCCL's C interface for tests without a GPU: processes of one machine, host memory, TCP on the loopback address. It
// is found as libnccl.so.2. Ranks of a group must make the same calls with the same counts and types, or each gets
// ncclInvalidUsage; what is not called here answers that too. A stream is ignored: a blocking call has done its work when it
// returns, another one when ncclCommGetAsyncError says so. Layer: ops.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace {

enum Result : int { kSuccess = 0, kSystemError = 2, kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7 };

struct Id {
  char bytes[128];
};
constexpr uint64_t kIdMagic = 0x6c63636e656b6166;  // "fakenccl"

struct Config {
  size_t size;
  uint32_t magic, version;
  int32_t blocking;
};

enum class Call : int32_t { kJoin, kAllReduce, kBroadcast };
// Goes before the data of a call, and is compared.
struct Header {
  Call call = Call::kJoin;
  int32_t type = 0;  // or the number of ranks
  uint64_t count = 0;
  bool operator==(const Header&) const = default;
};

size_t SizeOf(int type) {
  constexpr std::array<size_t, 10> kSizes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return type >= 0 && type < static_cast<int>(kSizes.size()) ? kSizes[type] : 0;
}

class Comm {
 public:
  Comm(int ranks, int rank, bool blocking) : ranks_(ranks), rank_(rank), blocking_(blocking) {}
  ~Comm() { Abort(); }

  int Join(const Id& id) {
    uint64_t magic = 0;
    std::memcpy(&magic, id.bytes, sizeof(magic));
    if (magic != kIdMagic || rank_ < 0 || rank_ >= ranks_) return kInvalidArgument;
    return Run([this, id] { return rank_ == 0 ? Accept(id) : Connect(id); });
  }
  int AllReduce(const void* from, void* to, size_t count, int type) {
    if (type != 7) return kInvalidUsage;  // f32
    return Run([=, this] {
      std::vector<float> sum(count), part(count);
      std::memcpy(sum.data(), from, count * sizeof(float));
      const Header header{Call::kAllReduce, type, count};
      for (int peer = 1; peer < ranks_ && rank_ == 0; ++peer) {
        if (const int result = Receive(peer, header, part.data(), count * sizeof(float)); result != kSuccess) return result;
        for (size_t i = 0; i < count; ++i) sum[i] += part[i];
      }
      if (rank_ > 0) {
        if (const int result = Send(0, header, sum.data(), count * sizeof(float)); result != kSuccess) return result;
      }
      const int result = Share(header, sum.data(), count * sizeof(float));
      if (result == kSuccess) std::memcpy(to, sum.data(), count * sizeof(float));
      return result;
    });
  }
  int Broadcast(const void* from, void* to, size_t count, int type, int root) {
    const size_t size = SizeOf(type);
    if (root != 0 || size == 0 || (rank_ != 0 && from == to)) return kInvalidUsage;
    return Run([=, this] {
      if (rank_ == 0 && from != to) std::memcpy(to, from, count * size);
      return Share({Call::kBroadcast, type, count}, to, count * size);
    });
  }
  int async_error() const { return state_; }

  void Abort() {
    aborted_ = true;
    if (worker_.joinable()) worker_.join();
    for (const int socket : sockets_) close(socket);
    sockets_.clear();
  }

 private:
  int Run(std::function<int()> work) {
    if (state_ != kSuccess) return state_ == kInProgress ? kInvalidUsage : state_.load();
    if (blocking_) return state_ = work();
    state_ = kInProgress;
    if (worker_.joinable()) worker_.join();
    worker_ = std::jthread([this, work = std::move(work)] { state_ = work(); });
    return kInProgress;
  }

  // The first rank's bytes become those of all.
  int Share(const Header& header, void* data, size_t bytes) {
    if (rank_ > 0) return Receive(0, header, data, bytes);
    for (int peer = 1; peer < ranks_; ++peer) {
      if (const int result = Send(peer, header, data, bytes); result != kSuccess) return result;
    }
    return kSuccess;
  }

  int Send(int peer, const Header& header, const void* data, size_t bytes) {
    const int result = Move(peer, &header, nullptr, sizeof(header));
    return result == kSuccess ? Move(peer, data, nullptr, bytes) : result;
  }
  int Receive(int peer, const Header& header, void* data, size_t bytes) {
    Header theirs;
    if (const int result = Move(peer, nullptr, &theirs, sizeof(theirs)); result != kSuccess) return result;
    if (theirs != header) return kInvalidUsage;
    return Move(peer, nullptr, data, bytes);
  }
  // Sends bytes, or receives them.
  int Move(int peer, const void* from, void* to, size_t bytes) {
    const int socket = sockets_[rank_ == 0 ? peer - 1 : 0];
    size_t done = 0;
    while (done < bytes) {
      if (aborted_) return kRemoteError;
      pollfd entry{.fd = socket, .events = static_cast<short>(to != nullptr ? POLLIN : POLLOUT), .revents = 0};
      if (poll(&entry, 1, 10) <= 0) continue;
      const ssize_t size = to != nullptr
                               ? recv(socket, static_cast<char*>(to) + done, bytes - done, MSG_DONTWAIT)
                               : send(socket, static_cast<const char*>(from) + done, bytes - done, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) return kRemoteError;
      done += static_cast<size_t>(std::max<ssize_t>(size, 0));
    }
    return kSuccess;
  }

  int Accept(const Id& id);
  int Connect(const Id& id) {
    sockaddr_in address{};
    std::memcpy(&address, id.bytes + sizeof(kIdMagic), sizeof(address));
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockets_.push_back(socket);
    if (connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return kRemoteError;
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return Send(0, {Call::kJoin, ranks_, static_cast<uint64_t>(rank_)}, nullptr, 0);
  }

  const int ranks_, rank_;
  const bool blocking_;
  std::vector<int> sockets_;  // of the first rank, one to each other; of another, one to the first
  std::atomic<bool> aborted_{false};
  std::atomic<int> state_{kSuccess};
  std::jthread worker_;  // of a call that does not block
};

// Sockets that listen for the ranks of groups that this process named, by the address in the name.
class Listeners {
 public:
  static Listeners& Get() {
    static Listeners listeners;
    return listeners;
  }
  int Make(Id* id) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (socket < 0 || bind(socket, any, size) != 0 || listen(socket, 64) != 0 || getsockname(socket, any, &size) != 0)
      return kSystemError;
    *id = {};
    std::memcpy(id->bytes, &kIdMagic, sizeof(kIdMagic));
    std::memcpy(id->bytes + sizeof(kIdMagic), &address, sizeof(address));
    const std::lock_guard lock(mutex_);
    sockets_[address.sin_port] = socket;
    return kSuccess;
  }
  // -1: another process has it.
  int Take(const Id& id) {
    sockaddr_in address{};
    std::memcpy(&address, id.bytes + sizeof(kIdMagic), sizeof(address));
    const std::lock_guard lock(mutex_);
    const auto found = sockets_.find(address.sin_port);
    if (found == sockets_.end()) return -1;
    const int socket = found->second;
    sockets_.erase(found);
    return socket;
  }

 private:
  std::mutex mutex_;
  std::map<uint16_t, int> sockets_;
};

int Comm::Accept(const Id& id) {
  const int listener = Listeners::Get().Take(id);
  if (listener < 0) return kInvalidUsage;
  sockets_.assign(ranks_ - 1, -1);
  int result = kSuccess;
  for (int joined = 0; joined < ranks_ - 1 && result == kSuccess;) {
    pollfd entry{.fd = listener, .events = POLLIN, .revents = 0};
    if (aborted_) result = kRemoteError;
    if (poll(&entry, 1, 10) <= 0) continue;
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    Header header;
    if (recv(socket, &header, sizeof(header), MSG_WAITALL) != sizeof(header) || header.call != Call::kJoin ||
        header.type != ranks_ || header.count < 1 || header.count >= static_cast<uint64_t>(ranks_) ||
        sockets_[header.count - 1] != -1) {
      close(socket);
      result = kInvalidUsage;
      break;
    }
    sockets_[header.count - 1] = socket;
    ++joined;
  }
  close(listener);
  return result;
}

int Init(void** handle, int ranks, const Id& id, int rank, bool blocking) {
  auto comm = std::make_unique<Comm>(ranks, rank, blocking);
  const int result = comm->Join(id);
  if (result == kSuccess || result == kInProgress) *handle = comm.release();
  return result;
}

}  // namespace

extern "C" {

extern const int coppice_nccl_takes_host_memory = 1;

int ncclGetVersion(int* version) {
  *version = 22700;
  return kSuccess;
}
const char* ncclGetErrorString(int result) {
  switch (result) {
    case kSuccess: return "no error";
    case kSystemError: return "unhandled system error";
    case kInvalidArgument: return "invalid argument";
    case kInvalidUsage: return "invalid usage";
    case kRemoteError: return "remote process exited or there was a network error";
    case kInProgress: return "operation in progress";
    default: return "unknown result code";
  }
}
int ncclGetUniqueId(Id* id) { return Listeners::Get().Make(id); }
int ncclCommInitRank(void** handle, int ranks, Id id, int rank) { return Init(handle, ranks, id, rank, /*blocking=*/true); }
int ncclCommInitRankConfig(void** handle, int ranks, Id id, int rank, const Config* config) {
  if (config == nullptr || config->magic != 0xcafebeef || config->version < 21400 || config->size < sizeof(Config))
    return kInvalidArgument;
  return Init(handle, ranks, id, rank, config->blocking != 0);
}
int ncclCommAbort(void* handle) {
  delete static_cast<Comm*>(handle);
  return kSuccess;
}
int ncclCommDestroy(void* handle) { return ncclCommAbort(handle); }
int ncclCommGetAsyncError(void* handle, int* result) {
  *result = static_cast<Comm*>(handle)->async_error();
  return kSuccess;
}
int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, void* handle, void* /*stream*/) {
  return op == 0 ? static_cast<Comm*>(handle)->AllReduce(from, to, count, type) : static_cast<int>(kInvalidUsage);
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* handle, void* /*stream*/) {
  return static_cast<Comm*>(handle)->Broadcast(from, to, count, type, root);
}

// These are looked up, and not called.
int ncclCommInitAll(void**, int, const int*) { return kInvalidUsage; }
int ncclReduce(const void*, void*, size_t, int, int, int, void*, void*) { return kInvalidUsage; }
int ncclAllGather(const void*, void*, size_t, int, void*, void*) { return kInvalidUsage; }
int ncclReduceScatter(const void*, void*, size_t, int, int, void*, void*) { return kInvalidUsage; }
int ncclSend(const void*, size_t, int, int, void*, void*) { return kInvalidUsage; }
int ncclRecv(void*, size_t, int, int, void*, void*) { return kInvalidUsage; }
int ncclGroupStart() { return kInvalidUsage; }
int ncclGroupEnd() { return kInvalidUsage; }
int ncclCommWindowRegister(void*, void*, size_t, void*, int) { return kInvalidUsage; }
int ncclCommWindowDeregister(void*, void*) { return kInvalidUsage; }

}  // extern "C"
