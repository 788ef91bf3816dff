#include "server/trainer/tcp_store.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "core/check.h"
#include "core/quoted.h"
#include "core/random_bytes.h"

namespace coppice::server {
namespace {

// Integers go as they lie in memory.
static_assert(std::endian::native == std::endian::little);

constexpr std::chrono::milliseconds kSlice{20};

// Commands, each a byte; that of an unknown client comes first, with a number that all of them send.
enum class Command : uint8_t { kValidate = 0, kGet = 3, kAdd = 4, kWait = 6, kPing = 13 };
constexpr uint32_t kMagic = 0x3C85F7CE;
constexpr std::byte kStopWaiting{0};

// Keys of callers stand behind a slash; that of the count of workers does not.
constexpr std::string_view kWorkers = "init/";

class Message {
 public:
  explicit Message(Command command) { Add(command); }
  template <class T>
  Message& Add(T value) {
    const auto* const bytes = reinterpret_cast<const char*>(&value);
    text_.append(bytes, sizeof(T));
    return *this;
  }
  Message& AddText(std::string_view text) {
    Add(static_cast<uint64_t>(text.size()));
    text_ += text;
    return *this;
  }
  std::string_view text() const { return text_; }

 private:
  std::string text_;
};

std::string ReasonOf(int error) { return std::system_category().message(error); }

Status Broken(std::string_view why) { return Unavailable(fmt::format("the connection to the trainer's store broke: {}", why)); }

// Returns once the socket has one of the events.
Status Poll(int socket, short events, const TcpStore::MayWait& may_wait) {
  for (;;) {
    pollfd entry{.fd = socket, .events = events, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(kSlice.count()));
    if (ready > 0) return OkStatus();
    if (ready < 0 && errno != EINTR) return Broken(ReasonOf(errno));
    COPPICE_RETURN_IF_ERROR(may_wait());
  }
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<Addresses> Resolve(std::string host, uint16_t port) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0)
    return InvalidArgument(fmt::format("the trainer's address {} is unknown: {}", Quoted(host), gai_strerror(error)));
  return Addresses(found, freeaddrinfo);
}

// A connected socket; UNAVAILABLE where no process listens.
Result<FileDescriptor> ConnectTo(const addrinfo& address, const TcpStore::MayWait& may_wait) {
  FileDescriptor socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return Unavailable(ReasonOf(errno));
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return Unavailable(ReasonOf(errno));
    COPPICE_RETURN_IF_ERROR(Poll(socket.get(), POLLOUT, may_wait));
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Unavailable(ReasonOf(error));
  }
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return socket;
}

}  // namespace

Result<TcpStore> TcpStore::Connect(const std::string& host, uint16_t port, const MayWait& may_wait) {
  COPPICE_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, port));
  for (;;) {
    Status last;
    for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
      Result<FileDescriptor> socket = ConnectTo(*address, may_wait);
      if (socket.ok()) {
        TcpStore store(*std::move(socket));
        COPPICE_RETURN_IF_ERROR(store.Greet(may_wait));
        return store;
      }
      last = socket.status();
    }
    if (const Status more = may_wait(); !more.ok())
      return Status(more.code(), fmt::format("{}; {}:{} says: {}", more.message(), host, port, last.message()));
    std::this_thread::sleep_for(kSlice);
  }
}

// The answer to a ping is its number, which no other service gives.
Status TcpStore::Greet(const MayWait& may_wait) {
  uint32_t number = 0;
  DrawRandom(std::as_writable_bytes(std::span(&number, 1)));
  Message message(Command::kValidate);
  message.Add(kMagic).Add(Command::kPing).Add(number);
  COPPICE_RETURN_IF_ERROR(Send(message.text(), may_wait));
  uint32_t answer = 0;
  COPPICE_RETURN_IF_ERROR(Receive(std::as_writable_bytes(std::span(&answer, 1)), may_wait));
  if (answer != number) return InvalidArgument("what listens at the trainer's address is no store of torch.distributed (TCPStore)");
  return OkStatus();
}

Status TcpStore::JoinWorkers(const MayWait& may_wait) {
  Message message(Command::kAdd);
  message.AddText(kWorkers).Add(int64_t{1});
  COPPICE_RETURN_IF_ERROR(Send(message.text(), may_wait));
  int64_t workers = 0;
  return Receive(std::as_writable_bytes(std::span(&workers, 1)), may_wait);
}

Result<std::vector<std::byte>> TcpStore::Get(std::string_view key, const MayWait& may_wait) {
  const std::string stored = "/" + std::string(key);
  Message wait(Command::kWait);
  wait.Add(uint64_t{1}).AddText(stored);
  COPPICE_RETURN_IF_ERROR(Send(wait.text(), may_wait));
  std::byte there{};
  COPPICE_RETURN_IF_ERROR(Receive(std::span(&there, 1), may_wait));
  if (there != kStopWaiting) return InvalidArgument("the trainer's store does not speak as TCPStore does");
  Message get(Command::kGet);
  get.AddText(stored);
  COPPICE_RETURN_IF_ERROR(Send(get.text(), may_wait));
  uint64_t size = 0;
  COPPICE_RETURN_IF_ERROR(Receive(std::as_writable_bytes(std::span(&size, 1)), may_wait));
  if (size > kMostBytes)
    return InvalidArgument(
        fmt::format("{} of the trainer's store has {} bytes, expected at most {}", Quoted(key), size, kMostBytes));
  std::vector<std::byte> value(size);
  COPPICE_RETURN_IF_ERROR(Receive(value, may_wait));
  return value;
}

Status TcpStore::CheckOpen() const {
  char byte = 0;
  const ssize_t size = recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (size > 0 || (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))) return OkStatus();
  return Unavailable("the trainer has closed its store, so it has gone");
}

Status TcpStore::Send(std::string_view bytes, const MayWait& may_wait) const {
  while (!bytes.empty()) {
    const ssize_t size = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size >= 0) {
      bytes.remove_prefix(static_cast<size_t>(size));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      COPPICE_RETURN_IF_ERROR(Poll(socket_.get(), POLLOUT, may_wait));
    } else if (errno != EINTR) {
      return Broken(ReasonOf(errno));
    }
  }
  return OkStatus();
}

Status TcpStore::Receive(std::span<std::byte> bytes, const MayWait& may_wait) const {
  while (!bytes.empty()) {
    const ssize_t size = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (size > 0) {
      bytes = bytes.subspan(static_cast<size_t>(size));
    } else if (size == 0) {
      return Broken("it was closed");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      COPPICE_RETURN_IF_ERROR(Poll(socket_.get(), POLLIN, may_wait));
    } else if (errno != EINTR) {
      return Broken(ReasonOf(errno));
    }
  }
  return OkStatus();
}

}  // namespace coppice::server
