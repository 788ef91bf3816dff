#include "grammar/fork_server.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "core/check.h"

namespace coppice {
namespace {

// ------------------------------------------------------------------------------------------------------------ both processes

// A message on the control socket is one of these, with the call's socket. On that one the input goes there and the answer comes
// back, each as a frame: kind, length, bytes. kPrepareAgain does nothing where it was done, kRunPrepared is not done where it was
// not: the server may be another one than before.
constexpr char kPrepare = 'p', kPrepareAgain = 'a', kRun = 'r', kRunPrepared = 'q';
// Kinds of answers.
constexpr char kDone = 'd', kThrew = 't', kOutOfTime = 'c', kOutOfMemory = 'm', kNoProcess = 'f', kUnprepared = 'u';

struct FrameHead {
  uint64_t kind = 0, size = 0;
};

// False where the other side is gone.
bool SendAll(int fd, const void* data, size_t size) {
  for (const char* at = static_cast<const char*>(data); size > 0;) {
    const ssize_t count = send(fd, at, size, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

bool ReceiveAll(int fd, void* data, size_t size) {
  for (char* at = static_cast<char*>(data); size > 0;) {
    const ssize_t count = recv(fd, at, size, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

bool SendFrame(int fd, char kind, std::string_view bytes) {
  const FrameHead head = {.kind = static_cast<uint64_t>(kind), .size = bytes.size()};
  return SendAll(fd, &head, sizeof head) && SendAll(fd, bytes.data(), bytes.size());
}

bool ReceiveFrame(int fd, char* kind, std::string* bytes) {
  FrameHead head;
  if (!ReceiveAll(fd, &head, sizeof head)) return false;
  *kind = static_cast<char>(head.kind);
  bytes->resize(head.size);
  return ReceiveAll(fd, bytes->data(), bytes->size());
}

// A message of one character, with room for one descriptor.
class DescriptorMessage {
 public:
  explicit DescriptorMessage(char* kind) : text_{.iov_base = kind, .iov_len = 1} {
    message_.msg_iov = &text_;
    message_.msg_iovlen = 1;
    message_.msg_control = room_.data();
    message_.msg_controllen = room_.size();
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  msghdr* get() { return &message_; }

 private:
  iovec text_;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room_ = {};
  msghdr message_ = {};
};

bool SendDescriptor(int control, char kind, int fd) {
  DescriptorMessage message(&kind);
  cmsghdr* const head = CMSG_FIRSTHDR(message.get());
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
  ssize_t sent = 0;
  do sent = sendmsg(control, message.get(), MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == 1;
}

// None where the other side is gone.
FileDescriptor ReceiveDescriptor(int control, char* kind) {
  DescriptorMessage message(kind);
  ssize_t received = 0;
  do received = recvmsg(control, message.get(), MSG_CMSG_CLOEXEC);
  while (received < 0 && errno == EINTR);
  const cmsghdr* const head = received == 1 ? CMSG_FIRSTHDR(message.get()) : nullptr;
  int fd = -1;
  if (head && head->cmsg_type == SCM_RIGHTS) std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
  return FileDescriptor(fd);
}

// --------------------------------------------------------------------------------------------------- the server and its children

volatile sig_atomic_t answer_fd = -1;  // of the child, for the signal that says that its time is over

void AnswerOutOfTime(int) {
  const FrameHead head = {.kind = kOutOfTime};
  (void)!send(answer_fd, &head, sizeof head, MSG_NOSIGNAL);
  _exit(0);
}

// Ends the child when its caller has given up, or is gone.
void* WatchCaller(void*) {
  pollfd caller = {.fd = answer_fd, .events = POLLRDHUP, .revents = 0};
  while (poll(&caller, 1, -1) < 0 && errno == EINTR) continue;
  _exit(0);
}

void LimitMemory([[maybe_unused]] int64_t more_bytes) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose shadow is data too
  rlim_t pages = 0;
  if (FILE* const file = std::fopen("/proc/self/statm", "r")) {
    unsigned long long data = 0;
    if (std::fscanf(file, "%*u %*u %*u %*u %*u %llu", &data) == 1) pages = data;
    std::fclose(file);
  }
  const rlim_t most = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + static_cast<rlim_t>(more_bytes);
  const rlimit limit = {.rlim_cur = most, .rlim_max = most};
  setrlimit(RLIMIT_DATA, &limit);
#endif
}

void LimitTime(double cpu_seconds) {
  signal(SIGPROF, AnswerOutOfTime);
  const auto whole = static_cast<time_t>(cpu_seconds);
  const itimerval timer = {
      .it_interval = {},
      .it_value = {.tv_sec = whole, .tv_usec = static_cast<suseconds_t>(1e6 * (cpu_seconds - static_cast<double>(whole)))}};
  setitimer(ITIMER_PROF, &timer, nullptr);
  // Where the work has changed the signal.
  const auto most = static_cast<rlim_t>(std::ceil(cpu_seconds)) + 2;
  const rlimit limit = {.rlim_cur = most, .rlim_max = most};
  setrlimit(RLIMIT_CPU, &limit);
}

[[noreturn]] void RunChild(ForkedWork* work, const ForkServerOptions& options, FileDescriptor caller, pid_t server) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != server) _exit(0);  // it was gone before
  answer_fd = caller.get();
  if (FILE* const file = std::fopen("/proc/self/oom_score_adj", "w")) {  // the first to go where the machine has no memory
    std::fputs("1000", file);
    std::fclose(file);
  }
  char kind = 0;
  std::string input;
  if (!ReceiveFrame(caller.get(), &kind, &input)) _exit(0);
  pthread_t watcher = {};
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, size_t{64} << 10);
  if (pthread_create(&watcher, &small, WatchCaller, nullptr) != 0) {
    SendFrame(caller.get(), kNoProcess, "");
    _exit(0);
  }
  LimitMemory(options.memory_bytes);
  LimitTime(options.cpu_seconds);
  try {
    const std::string answer = work->Run(input);
    const itimerval none = {};
    setitimer(ITIMER_PROF, &none, nullptr);  // no other answer comes in between
    SendFrame(caller.get(), kDone, answer);
  } catch (const std::bad_alloc&) {
    SendFrame(caller.get(), kOutOfMemory, "");
  } catch (const std::exception& error) {
    SendFrame(caller.get(), kThrew, error.what());
  }
  _exit(0);
}

// Whether that was done.
bool PrepareHere(ForkedWork* work, const FileDescriptor& caller) {
  char kind = 0;
  std::string data;
  try {
    if (!ReceiveFrame(caller.get(), &kind, &data)) return false;
    work->Prepare(data);
    SendFrame(caller.get(), kDone, "");
    return true;
  } catch (const std::bad_alloc&) {
    SendFrame(caller.get(), kOutOfMemory, "");
  } catch (const std::exception& error) {
    SendFrame(caller.get(), kThrew, error.what());
  }
  return false;
}

// Until the program is gone: ends with 0 then.
[[noreturn]] void Serve(ForkedWork* work, const ForkServerOptions& options, FileDescriptor control) {
  signal(SIGCHLD, SIG_IGN);  // no child is waited for
  const pid_t self = getpid();
  bool prepared = false;
  for (;;) {
    char kind = 0;
    FileDescriptor caller = ReceiveDescriptor(control.get(), &kind);
    if (kind == 0) _exit(0);
    if (caller.get() < 0) continue;  // no descriptor was left: the caller finds its end closed
    if (kind == kPrepareAgain && prepared) {
      SendFrame(caller.get(), kDone, "");
      continue;
    }
    if (kind == kPrepare || kind == kPrepareAgain) {
      prepared = PrepareHere(work, caller);
      continue;
    }
    if (kind == kRunPrepared && !prepared) {
      SendFrame(caller.get(), kUnprepared, "");
      continue;
    }
    const pid_t child = fork();
    if (child == 0) {
      control = FileDescriptor();
      RunChild(work, options, std::move(caller), self);
    }
    if (child < 0) SendFrame(caller.get(), kNoProcess, "");
  }
}

// The processes close the program's files: a reader that waits for the end of a pipe waits for the program alone.
void CloseAllBut(int kept) {
  const int nowhere = open("/dev/null", O_RDWR);
  dup2(nowhere, STDIN_FILENO);
  dup2(nowhere, STDOUT_FILENO);
  constexpr unsigned kFirst = STDERR_FILENO + 1, kLast = ~0u;
  const auto at = static_cast<unsigned>(kept);
  if (at > kFirst) close_range(kFirst, at - 1, 0);
  close_range(at + 1, kLast, 0);
}

// Forks the server, and another one where that was killed, until the program is gone.
[[noreturn]] void Keep(ForkedWork* work, const ForkServerOptions& options, FileDescriptor control) {
  prctl(PR_SET_NAME, options.name.c_str());
  // Ctrl-C comes to all processes of a terminal, and the program may still need its answers.
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) signal(signal_number, SIG_IGN);
  CloseAllBut(control.get());
  const rlimit no_core = {};
  setrlimit(RLIMIT_CORE, &no_core);
  setpriority(PRIO_PROCESS, 0, options.niceness);
  for (;;) {
    const pid_t server = fork();
    if (server == 0) Serve(work, options, std::move(control));
    int status = 0;
    while (server > 0 && waitpid(server, &status, 0) < 0 && errno == EINTR) continue;
    if (server > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) _exit(0);
    constexpr int kPause = 100;  // ms: the system gives no process, or what is prepared crashes
    pollfd program = {.fd = control.get(), .events = 0, .revents = 0};
    if (poll(&program, 1, kPause) > 0) _exit(0);  // it has hung up
  }
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------------ the program

Result<std::unique_ptr<ForkServer>> ForkServer::Start(std::unique_ptr<ForkedWork> work, ForkServerOptions options) {
  std::array<int, 2> ends = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return SystemError("make", "a pair of sockets");
  FileDescriptor here(ends[0]), there(ends[1]);
  const pid_t keeper = fork();
  if (keeper < 0) return SystemError("fork", options.name);
  if (keeper == 0) {
    here = FileDescriptor();
    Keep(work.get(), options, std::move(there));
  }
  return std::unique_ptr<ForkServer>(new ForkServer(keeper, std::move(here), std::move(options)));
}

ForkServer::~ForkServer() {
  control_ = FileDescriptor();
  while (waitpid(keeper_, nullptr, 0) < 0 && errno == EINTR) continue;
}

Status ForkServer::Prepare(std::string_view data) {
  COPPICE_RETURN_IF_ERROR(Call(kPrepare, data, {}).status());
  const std::lock_guard lock(mutex_);
  prepared_ = std::make_shared<const std::string>(data);
  return OkStatus();
}

Result<std::string> ForkServer::Run(std::string_view input, std::stop_token stop) {
  std::shared_ptr<const std::string> prepared;
  {
    const std::lock_guard lock(mutex_);
    prepared = prepared_;
  }
  Result<std::string> answer = Call(prepared ? kRunPrepared : kRun, input, stop);
  if (answer.status().code() != StatusCode::kFailedPrecondition) return answer;
  COPPICE_RETURN_IF_ERROR(Call(kPrepareAgain, *prepared, stop).status());
  return Call(kRunPrepared, input, stop);
}

Result<std::string> ForkServer::Call(char kind, std::string_view input, const std::stop_token& stop) {
  std::array<int, 2> ends = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return SystemError("make", "a pair of sockets");
  const FileDescriptor here(ends[0]);
  {
    const FileDescriptor there(ends[1]);
    const std::lock_guard lock(mutex_);
    if (!SendDescriptor(control_.get(), kind, there.get())) return Unavailable(options_.name + " has ended");
  }
  // Ends what waits below, and the child.
  const std::stop_callback stopped(stop, [&] { shutdown(here.get(), SHUT_RDWR); });
  char outcome = 0;
  std::string answer;
  const bool answered = SendFrame(here.get(), kind, input) && ReceiveFrame(here.get(), &outcome, &answer);
  if (stop.stop_requested()) return Status(StatusCode::kCancelled, options_.name + " was asked to stop");
  if (!answered) return Internal(options_.name + " crashed, or was killed");
  switch (outcome) {
    case kDone: return answer;
    case kOutOfTime: return DeadlineExceeded(options_.name + " took too much CPU time");
    case kOutOfMemory: return ResourceExhausted(options_.name + " took too much memory");
    case kNoProcess: return Unavailable(options_.name + " got no process from the system");
    case kUnprepared: return FailedPrecondition(options_.name + " was ended and begins anew");
    default: return Internal(answer);
  }
}

}  // namespace coppice
