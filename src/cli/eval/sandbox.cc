#include "cli/eval/sandbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <optional>
#include <string_view>
#include <utility>

#include "cli/eval/control_group.h"
#include "cli/eval/syscall_filter.h"
#include "core/check.h"
#include "core/file.h"

namespace coppice::cli {
namespace {

// The exit status of a program that came to its end: none that `raise SystemExit` or an exception has.
constexpr int kCameToItsEnd = 86;
constexpr rlim_t kMostFileBytes = 1 << 20, kMostFiles = 64;
constexpr int kMostTasks = 64;  // processes and threads of a program
// bubblewrap outside, its first process in the new namespace of processes, and a program's own.
constexpr int kTasksOfBubblewrap = 2;
constexpr int64_t kMostTmpBytes = 64 << 20, kMostShmBytes = 64 << 20;
// The user without rights: owner of nothing.
constexpr uid_t kUnprivileged = 65534;

// Passes in a process that has no rights left; else its last line on stderr says which it has.
constexpr const char* kCheckProgram = R"(
status = {name: value.split() for name, value in (line.split(":", 1) for line in open("/proc/self/status"))}
assert "0" not in status["Uid"], "it runs as root"
assert all(int(status[name][0], 16) == 0 for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")), "it has capabilities"
assert status["NoNewPrivs"] == ["1"] and status["Seccomp"] == ["2"], "its system calls are not filtered"
)";
constexpr double kSecondsOfCheck = 30;

using Limit = std::pair<__rlimit_resource, rlimit>;

// Soft and hard limit, or this process's hard limit where that is lower.
Limit LimitOf(__rlimit_resource resource, rlim_t value) {
  rlimit own = {};
  getrlimit(resource, &own);
  value = std::min(value, own.rlim_max);
  return {resource, {value, value}};
}

// Arguments of exec; made before fork, after which nothing may allocate.
std::vector<std::string> Arguments(const std::string& interpreter, int filter) {
  return {
      "bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--assert-userns-disabled", "--cap-drop", "ALL", "--seccomp",
      std::to_string(filter), "--die-with-parent", "--new-session", "--clearenv", "--setenv", "PATH", "/usr/bin", "--ro-bind",
      "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin", "--proc",
      "/proc", "--dev", "/dev", "--size", std::to_string(kMostShmBytes), "--tmpfs", "/dev/shm", "--size",
      std::to_string(kMostTmpBytes), "--tmpfs", "/tmp",
      // These are file systems in memory as well, without a size, and settings of the kernel that the namespaces' owner may write.
      "--remount-ro", "/dev", "--remount-ro", "/proc", "--remount-ro", "/", "--chdir", "/tmp",
      "/usr/bin/prlimit",  // in here, as the caller may have more processes than this
      fmt::format("--nproc={0}:{0}", LimitOf(RLIMIT_NPROC, kMostTasks).second.rlim_max), "--", interpreter, "-I", "-B", "-"};
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// A file in memory, read from its beginning.
Result<FileDescriptor> MemoryFile(std::string_view bytes) {
  FileDescriptor file(memfd_create("sandbox", MFD_CLOEXEC));
  if (file.get() < 0) return SystemError("make", "a file in memory");
  COPPICE_RETURN_IF_ERROR(WriteAll(file.get(), bytes, "a file in memory"));
  lseek(file.get(), 0, SEEK_SET);
  return file;
}

bool HasRightsOfRoot() {
  uid_t real = 0, effective = 0, saved = 0;
  getresuid(&real, &effective, &saved);
  return real == 0 || effective == 0 || saved == 0;
}

// Arguments, descriptors and limits by which the new process becomes the sandbox; all of them made before fork.
struct Start {
  char* const* arguments;
  int program, output, errors, filter;  // descriptors
  int group = -1;                       // a control group's members, if there is one
  bool drop_root;
  std::array<Limit, 6> limits;
};
// A step of the start that failed: errno, and the words of SystemError, which parent and child have at the same addresses.
struct StartFailure {
  const char *action, *object;
  int error;
};

// In the new process, up to exec: async-signal-safe calls alone, system calls for those that glibc would make in all threads.
StartFailure Exec(const Start& start) {
  const auto failed = [](const char* action, const char* object) { return StartFailure{action, object, errno}; };
  if (dup2(start.program, STDIN_FILENO) < 0 || dup2(start.output, STDOUT_FILENO) < 0 || dup2(start.errors, STDERR_FILENO) < 0 ||
      close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC) != 0 || fcntl(start.filter, F_SETFD, 0) != 0)
    return failed("give its descriptors to", "a sandboxed program");
  if (start.group >= 0 && write(start.group, "0", 1) != 1) return failed("move into its control group", "a sandboxed program");
  for (const auto& [resource, limit] : start.limits) {
    if (setrlimit(resource, &limit) != 0) return failed("limit", "a sandboxed program");
  }
  if (start.drop_root &&
      (syscall(SYS_setgroups, 0, nullptr) != 0 || syscall(SYS_setresgid, kUnprivileged, kUnprivileged, kUnprivileged) != 0 ||
       syscall(SYS_setresuid, kUnprivileged, kUnprivileged, kUnprivileged) != 0))
    return failed("give up root's rights (become the user 65534) for", "a sandboxed program; run as an ordinary user");
  if (chdir("/") != 0) return failed("enter", "/");
  // None of this process's environment: the program can read that of bubblewrap in /proc.
  char* const no_environment[] = {nullptr};
  execvpe(start.arguments[0], start.arguments, no_environment);
  return failed("run", "bwrap (apt-get install bubblewrap)");
}

// The new process, with bubblewrap running in it.
Result<pid_t> Begin(const Start& start) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("make", "a pipe");
  const FileDescriptor reading(ends[0]);
  FileDescriptor writing(ends[1]);
  const pid_t child = fork();
  if (child < 0) return SystemError("start", "a sandboxed program");
  if (child == 0) {
    const StartFailure failure = Exec(start);
    static_cast<void>(!write(writing.get(), &failure, sizeof failure));
    _exit(127);
  }
  writing = FileDescriptor();  // the child's closes with exec
  StartFailure failure = {};
  ssize_t got = 0;
  while ((got = read(reading.get(), &failure, sizeof failure)) < 0 && errno == EINTR) continue;
  if (got == 0) return child;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  errno = got == sizeof failure ? failure.error : EIO;
  return got == sizeof failure ? SystemError(failure.action, failure.object) : SystemError("start", "a sandboxed program");
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

// The last line of a file that is not empty.
std::string LastLine(int file) {
  std::string text(4096, '\0');
  const off_t size = lseek(file, 0, SEEK_END);
  const ssize_t got = pread(file, text.data(), text.size(), std::max<off_t>(0, size - std::ssize(text)));
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
  text.erase(text.find_last_not_of(" \n") + 1);
  return text.substr(text.find_last_of('\n') + 1);
}

}  // namespace

Sandbox::Sandbox(std::string interpreter, const SandboxLimits& limits)
    : interpreter_(std::move(interpreter)), limits_(limits), filter_(SyscallFilter(limits.subprocesses)) {}

Result<Sandbox> Sandbox::Create(std::string interpreter, const SandboxLimits& limits) {
  Sandbox sandbox(std::move(interpreter), limits);
  if (sandbox.filter_.empty())
    return Unavailable("no program runs in the sandbox: system calls are filtered on x86-64 and aarch64 alone");
  if (const Result<std::string> parent = FindControlGroupParent(); parent.ok()) {
    sandbox.control_groups_ = *parent;
  } else if (limits.subprocesses) {
    return Unavailable(
        fmt::format("programs with subprocesses need a control group that bounds their memory together, and {}; run coppice by "
                    "`systemd-run --user "
                    "--scope`, or programs without subprocesses",
                    parent.status().message()));
  }
  COPPICE_ASSIGN_OR_RETURN(const FileDescriptor errors, MemoryFile(""));
  const Result<ProgramResult> result = sandbox.Run(kCheckProgram, kSecondsOfCheck, errors.get());
  if (result.ok() && *result == ProgramResult::kPassed) return sandbox;
  std::string why = result.ok() ? LastLine(errors.get()) : result.status().message();
  if (why.empty()) why = *result == ProgramResult::kTimedOut ? "it does not end" : "it ends without a word";
  return Unavailable(
      fmt::format("no program runs in the sandbox: {}; expected bubblewrap 0.8 or newer, user namespaces for it (on Ubuntu by a "
                  "profile of AppArmor), a "
                  "/proc that can be mounted, and a Python interpreter at {}; docs/evaluation.md has the settings",
                  why, sandbox.interpreter_));
}

Result<ProgramResult> Sandbox::Run(const std::string& program) const {
  const FileDescriptor nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (nowhere.get() < 0) return SystemError("open", "/dev/null");
  return Run(program, limits_.seconds, nowhere.get());
}

Result<ProgramResult> Sandbox::Run(const std::string& program, double seconds, int errors) const {
  COPPICE_ASSIGN_OR_RETURN(const FileDescriptor text,
                           MemoryFile(program + fmt::format("\nimport os\nos._exit({})\n", kCameToItsEnd)));
  COPPICE_ASSIGN_OR_RETURN(const FileDescriptor filter,
                           MemoryFile({reinterpret_cast<const char*>(filter_.data()), filter_.size() * sizeof(sock_filter)}));
  std::optional<ControlGroup> group;
  if (!control_groups_.empty()) {
    COPPICE_ASSIGN_OR_RETURN(ControlGroup made, ControlGroup::Create(control_groups_, {.memory_bytes = limits_.memory_bytes,
                                                                                       .tasks = kMostTasks + kTasksOfBubblewrap}));
    group.emplace(std::move(made));
  }
  std::vector<std::string> texts = Arguments(interpreter_, filter.get());
  const std::vector<char*> arguments = Pointers(texts);
  const auto cpu = static_cast<rlim_t>(std::ceil(seconds)) + 1;
  const auto memory = static_cast<rlim_t>(limits_.memory_bytes - kMostTmpBytes - kMostShmBytes);
  const Start start = {.arguments = arguments.data(),
                       .program = text.get(),
                       .output = errors,
                       .errors = errors,
                       .filter = filter.get(),
                       .group = group ? group->members() : -1,
                       .drop_root = HasRightsOfRoot(),
                       .limits = {LimitOf(RLIMIT_CPU, cpu), LimitOf(RLIMIT_AS, memory), LimitOf(RLIMIT_FSIZE, kMostFileBytes),
                                  LimitOf(RLIMIT_NOFILE, kMostFiles), LimitOf(RLIMIT_MSGQUEUE, 0),
                                  LimitOf(RLIMIT_CORE, 1)}};  // 1, as the kernel with 0 still calls a handler of core dumps
  COPPICE_ASSIGN_OR_RETURN(const pid_t child, Begin(start));
  const Result<Ending> ending = WaitFor(child, seconds);
  if (group) COPPICE_RETURN_IF_ERROR(group->Remove());
  COPPICE_RETURN_IF_ERROR(ending.status());
  if (!ending->in_time) return ProgramResult::kTimedOut;
  return ending->status == kCameToItsEnd ? ProgramResult::kPassed : ProgramResult::kFailed;
}

}  // namespace coppice::cli
