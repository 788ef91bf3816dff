// A client of the key-value store at which PyTorch's processes meet before they form a group: torch.distributed.TCPStore, of either
// of its servers. Of its commands those that a worker needs to join; values are bytes, and small. Layer: server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "core/file.h"

namespace coppice::server {

// Movable; thread-compatible. Another machine answers: nothing that it says costs more than kMostBytes or a wait.
class TcpStore {
 public:
  static constexpr uint64_t kMostBytes = 4096;  // of a value
  // Asked every 20 ms while a call waits; an error ends the wait, and is returned.
  using MayWait = std::function<Status()>;

  // Connects, again and again until the store is there: its process may start later. `host`: a name or an address. Errors:
  // INVALID_ARGUMENT: the name is unknown, or what answers is no such store; UNAVAILABLE: the connection broke; `may_wait`'s.
  static Result<TcpStore> Connect(const std::string& host, uint16_t port, const MayWait& may_wait);

  // Counts this process as one of the workers that the store's owner waits for. Errors as Connect.
  Status JoinWorkers(const MayWait& may_wait);
  // Returns the value of the key once there is one. Errors as Connect.
  Result<std::vector<std::byte>> Get(std::string_view key, const MayWait& may_wait);
  // UNAVAILABLE once the store's process has closed the connection, as the system does when it ends.
  Status CheckOpen() const;

 private:
  explicit TcpStore(FileDescriptor socket) : socket_(std::move(socket)) {}
  Status Greet(const MayWait& may_wait);
  Status Send(std::string_view bytes, const MayWait& may_wait) const;
  Status Receive(std::span<std::byte> bytes, const MayWait& may_wait) const;

  FileDescriptor socket_;
};

}  // namespace coppice::server
