#include "cli/eval/sandbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <vector>

#include "core/check.h"
#include "core/file.h"

namespace coppice::cli {
namespace {

// The exit status of a program that came to its end: none that `raise SystemExit` or an exception has.
constexpr int kCameToItsEnd = 86;
constexpr rlim_t kMostFileBytes = 1 << 20, kMostFiles = 64;

// What exec is given; made before fork, after which nothing may allocate.
std::vector<std::string> Arguments(const std::string& interpreter) {
  return {"bwrap",
          "--unshare-all",
          "--die-with-parent",
          "--new-session",
          "--clearenv",
          "--setenv",
          "PATH",
          "/usr/bin",
          "--ro-bind",
          "/usr",
          "/usr",
          "--symlink",
          "usr/lib",
          "/lib",
          "--symlink",
          "usr/lib64",
          "/lib64",
          "--symlink",
          "usr/bin",
          "/bin",
          "--proc",
          "/proc",
          "--dev",
          "/dev",
          "--tmpfs",
          "/tmp",
          "--chdir",
          "/tmp",
          "/usr/bin/prlimit",  // in here, as the caller may have more processes than this
          "--nproc=64:64",
          "--",
          interpreter,
          "-I",
          "-B",
          "-"};
}

[[noreturn]] void Exec(char* const* arguments, int program, const std::array<std::pair<int, rlimit>, 5>& limits) {
  const int nowhere = open("/dev/null", O_WRONLY);
  dup2(program, STDIN_FILENO);
  dup2(nowhere, STDOUT_FILENO);
  dup2(nowhere, STDERR_FILENO);
  close_range(3, ~0U, 0);
  for (const auto& [resource, limit] : limits) setrlimit(static_cast<__rlimit_resource>(resource), &limit);
  execvp(arguments[0], arguments);
  _exit(127);
}

// The exit status of the child, or -1 if it did not end in time and was killed, or ended by a signal.
struct Ending {
  bool in_time = true;
  int status = -1;
};
Result<Ending> WaitFor(pid_t child, double seconds) {
  const FileDescriptor handle(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));  // glibc 2.36 declares pidfd_open for C alone
  if (handle.get() < 0) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    return SystemError("watch", "a sandboxed program");
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  Ending ending;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd wanted = {.fd = handle.get(), .events = POLLIN, .revents = 0};
    const int ready = left > 0 ? poll(&wanted, 1, static_cast<int>(left)) : 0;
    if (ready > 0) break;
    if (ready < 0 && errno == EINTR) continue;
    ending.in_time = false;
    kill(child, SIGKILL);  // its namespace goes with it
    break;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(status)) ending.status = WEXITSTATUS(status);
  return ending;
}

}  // namespace

Result<ProgramResult> RunProgram(const std::string& interpreter, const std::string& program, const SandboxLimits& limits) {
  const FileDescriptor file(memfd_create("program", MFD_CLOEXEC));
  if (file.get() < 0) return SystemError("make", "a file in memory");
  COPPICE_RETURN_IF_ERROR(
      WriteAll(file.get(), program + fmt::format("\nimport os\nos._exit({})\n", kCameToItsEnd), "a file in memory"));
  lseek(file.get(), 0, SEEK_SET);
  std::vector<std::string> texts = Arguments(interpreter);
  std::vector<char*> arguments;
  for (std::string& text : texts) arguments.push_back(text.data());
  arguments.push_back(nullptr);
  const auto cpu = static_cast<rlim_t>(std::ceil(limits.seconds)) + 1;
  const auto memory = static_cast<rlim_t>(limits.memory_bytes);
  const std::array<std::pair<int, rlimit>, 5> resources = {{{RLIMIT_CPU, {cpu, cpu}},
                                                            {RLIMIT_AS, {memory, memory}},
                                                            {RLIMIT_FSIZE, {kMostFileBytes, kMostFileBytes}},
                                                            {RLIMIT_NOFILE, {kMostFiles, kMostFiles}},
                                                            {RLIMIT_CORE, {0, 0}}}};
  const pid_t child = fork();
  if (child < 0) return SystemError("start", "a sandboxed program");
  if (child == 0) Exec(arguments.data(), file.get(), resources);
  COPPICE_ASSIGN_OR_RETURN(const Ending ending, WaitFor(child, limits.seconds));
  if (!ending.in_time) return ProgramResult::kTimedOut;
  return ending.status == kCameToItsEnd ? ProgramResult::kPassed : ProgramResult::kFailed;
}

Status CheckSandbox(const std::string& interpreter) {
  COPPICE_ASSIGN_OR_RETURN(const ProgramResult result, RunProgram(interpreter, "x = 1", {.seconds = 30}));
  if (result == ProgramResult::kPassed) return OkStatus();
  return Unavailable(
      fmt::format("no program runs in the sandbox: expected bubblewrap (apt-get install bubblewrap), a system that "
                  "gives it namespaces, and a Python interpreter at {}",
                  interpreter));
}

}  // namespace coppice::cli
