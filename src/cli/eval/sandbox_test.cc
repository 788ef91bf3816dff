// The sandbox of programs that a model wrote: by root, if the test has its rights, and by an ordinary user.
#include "cli/eval/sandbox.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/eval/control_group.h"

namespace coppice::cli {
namespace {

using ::testing::HasSubstr;

constexpr const char* kPython = "/usr/bin/python3";
constexpr uid_t kOrdinaryUser = 54321;

// syscall(name, ...) for programs, by the numbers of this machine; raises OSError where the call fails.
std::string WithSystemCalls(const std::string& program) {
  return fmt::format(R"(
import ctypes, errno, os, signal, socket, struct, sys, threading, time
NUMBERS = dict(add_key={}, bpf={}, fsopen={}, io_uring_setup={}, keyctl={}, memfd_create={}, mount={}, move_mount={}, open_tree={},
               perf_event_open={}, pivot_root={}, process_vm_readv={}, ptrace={}, request_key={}, setns={}, shmget={}, umount2={}, unshare={},
               userfaultfd={}, init_module={}, kexec_load={}, clone3={}, clone={}, getpid={})
libc = ctypes.CDLL(None, use_errno=True)
def syscall(name, *arguments):
  result = libc.syscall(ctypes.c_long(NUMBERS[name]), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
  if result == -1: raise OSError(ctypes.get_errno(), name)
  return result
def refused(*call):
  try: syscall(*call)
  except OSError as e: assert e.errno in (errno.ENOSYS, errno.EPERM), (call, e)
  else: raise AssertionError(call)
)",
                     SYS_add_key, SYS_bpf, SYS_fsopen, SYS_io_uring_setup, SYS_keyctl, SYS_memfd_create, SYS_mount, SYS_move_mount,
                     SYS_open_tree, SYS_perf_event_open, SYS_pivot_root, SYS_process_vm_readv, SYS_ptrace, SYS_request_key,
                     SYS_setns, SYS_shmget, SYS_umount2, SYS_unshare, SYS_userfaultfd, SYS_init_module, SYS_kexec_load, SYS_clone3,
                     SYS_clone, SYS_getpid) +
         program;
}

bool IsRoot() { return geteuid() == 0; }

enum class Caller : uint8_t { kRoot, kOrdinaryUser };

// The value that `function` returns in a process of an ordinary user; 255 if it does not return.
int AsOrdinaryUser(const std::function<int()>& function) {
  if (!IsRoot()) return function();
  const pid_t child = fork();
  if (child == 0) {
    const bool dropped = syscall(SYS_setgroups, 0, nullptr) == 0 &&
                         syscall(SYS_setresgid, kOrdinaryUser, kOrdinaryUser, kOrdinaryUser) == 0 &&
                         syscall(SYS_setresuid, kOrdinaryUser, kOrdinaryUser, kOrdinaryUser) == 0;
    _exit(dropped ? function() : 255);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

// 0 to 2: a ProgramResult; 100: there was none, and stderr says why.
int RunHere(const std::string& program, const SandboxLimits& limits) {
  const Result<Sandbox> sandbox = Sandbox::Create(kPython, limits);
  const Result<ProgramResult> result = sandbox.ok() ? sandbox->Run(program) : sandbox.status();
  if (result.ok()) return static_cast<int>(*result);
  std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
  return 100;
}

class SandboxTest : public ::testing::TestWithParam<Caller> {
 protected:
  void SetUp() override {
    if (GetParam() == Caller::kRoot && !IsRoot()) GTEST_SKIP() << "not run by root";
    const bool works = GetParam() == Caller::kRoot
                           ? Sandbox::Create(kPython, {}).ok()
                           : AsOrdinaryUser([] { return static_cast<int>(Sandbox::Create(kPython, {}).ok()); }) == 1;
    if (!works) GTEST_SKIP() << "no sandbox here: " << Sandbox::Create(kPython, {}).status().message();
  }
  static ProgramResult Run(const std::string& program, const SandboxLimits& limits = {.seconds = 20}) {
    const auto run = [&] { return RunHere(program, limits); };
    const int result = GetParam() == Caller::kRoot ? run() : AsOrdinaryUser(run);
    EXPECT_LE(result, 2) << "no program ran";
    return static_cast<ProgramResult>(result);
  }
  static bool HasControlGroups() {
    const auto find = [] { return static_cast<int>(FindControlGroupParent().ok()); };
    return (GetParam() == Caller::kRoot ? find() : AsOrdinaryUser(find)) == 1;
  }
};

INSTANTIATE_TEST_SUITE_P(Callers, SandboxTest, ::testing::Values(Caller::kRoot, Caller::kOrdinaryUser),
                         [](const auto& info) { return info.param == Caller::kRoot ? "Root" : "OrdinaryUser"; });

TEST_P(SandboxTest, PassesWhatComesToItsEnd) {
  EXPECT_EQ(Run("def f(x):\n    return x + 1\nassert f(1) == 2"), ProgramResult::kPassed);
  EXPECT_EQ(Run("print('x' * 10_000_000)"), ProgramResult::kPassed);
  for (const char* failing : {"assert False", "raise SystemExit(0)", "import os; os._exit(0)", "exit()", "syntax error",
                              "import os; os.abort()", "import sys; sys.exit(1)"}) {
    EXPECT_EQ(Run(failing), ProgramResult::kFailed) << failing;
  }
}

// Threads, files, sockets and libraries, as harmless programs use them.
TEST_P(SandboxTest, OrdinaryProgramsRun) {
  for (const char* program :
       {"import threading\nparts = []\nthreads = [threading.Thread(target=parts.append, args=(i,)) for i in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\nassert sorted(parts) == list(range(8))",
        "from concurrent.futures import ThreadPoolExecutor\nassert list(ThreadPoolExecutor(4).map(abs, [-1, 2])) == [1, 2]",
        "import asyncio\nasync def f():\n  await asyncio.sleep(0.01)\n  return 3\nassert asyncio.run(f()) == 3",
        "import os, shutil, tempfile\nwith tempfile.TemporaryDirectory() as d:\n  open(d + '/a', 'w').write('x')\n  shutil.copy2(d "
        "+ '/a', d + '/b')\n"
        "  os.rename(d + '/b', d + '/c')\n  assert sorted(os.listdir(d)) == ['a', 'c']",
        "import socket, threading\ns = socket.create_server(('127.0.0.1', 0))\nc = socket.create_connection(s.getsockname())\n"
        "s.accept()[0].sendall(b'x')\nassert c.recv(1) == b'x'",
        "import ctypes, decimal, hashlib, json, random, re, sqlite3, time, uuid\nassert "
        "sqlite3.connect(':memory:').execute('select 1').fetchone() == (1,)\n"
        "uuid.uuid4(); time.sleep(0.01); random.SystemRandom().random(); hashlib.sha256(b'').hexdigest()",
        "import signal\nsignal.signal(signal.SIGALRM, lambda *a: None)\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\nsignal.pause()",
        "import mmap\nwith open('/dev/shm/x', 'w+b') as f:\n  f.truncate(1000)\n  mmap.mmap(f.fileno(), 1000)[0] = 1"}) {
    EXPECT_EQ(Run(program), ProgramResult::kPassed) << program;
  }
}

TEST_P(SandboxTest, TimeAndMemoryEnd) {
  const auto begin = std::chrono::steady_clock::now();
  for (const char* endless : {"while True: pass", "import time; time.sleep(1000)",
                              "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\nwhile True: pass",
                              "import os\nwhile True:\n  if os.fork() == 0:\n    import time; time.sleep(1000)"})
    EXPECT_NE(Run(endless, {.seconds = 1}), ProgramResult::kPassed) << endless;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  EXPECT_EQ(Run("while True: pass", {.seconds = 1}), ProgramResult::kTimedOut);
  EXPECT_EQ(Run("x = bytearray(1 << 33)"), ProgramResult::kFailed);
}

// A process named by a word in its command line is gone soon after its time.
TEST_P(SandboxTest, NothingOutlivesItsTime) {
  const std::string word = fmt::format("endless-{}", getpid());
  const std::string program = fmt::format(
      "import os, sys\nif sys.argv[1:] != ['{0}']: os.execv(sys.executable, [sys.executable, '-c', 'import time; "
      "time.sleep(1000)', '{0}'])",
      word);
  const auto runs = [&] {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "cmdline");
      std::string line;
      std::getline(file, line);  // nothing, where the process has ended meanwhile
      if (line.find("time.sleep") != std::string::npos && line.find(word) != std::string::npos) return true;
    }
    return false;
  };
  bool ran = false;
  for (const double seconds : {1, 5, 30}) {  // a slow machine needs longer until it runs
    std::atomic<bool> ended = false;
    std::thread watch([&] {
      while (!ran && !ended) {
        ran = runs();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
    EXPECT_EQ(Run(program, {.seconds = seconds}), ProgramResult::kTimedOut);
    ended = true;
    watch.join();
    if (ran) break;
  }
  EXPECT_TRUE(ran);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (runs() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(runs());
}

TEST_P(SandboxTest, NothingOutsideIsSeenOrChanged) {
  EXPECT_EQ(
      Run("import os\nassert sorted(os.listdir('/')) == ['bin', 'dev', 'lib', 'lib64', 'proc', 'tmp', 'usr'], os.listdir('/')\n"
          "assert os.listdir('/tmp') == []\nassert os.getcwd() == '/tmp'\nopen('/tmp/x', 'w').write('y')\n"
          "assert set(os.environ) <= {'PATH', 'PWD', 'LC_CTYPE'}, os.environ"),
      ProgramResult::kPassed);
  for (const char* harm :
       {"open('/usr/x', 'w')", "open('/etc/passwd')", "open('/home')", "import os; os.kill(os.getppid() + 100000, 9)",
        "import socket; socket.create_connection(('127.0.0.1', 1), 1)",
        "import socket; socket.create_connection(('1.1.1.1', 80), 1)",
        "import socket; socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
        "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "import socket; socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)"}) {
    EXPECT_EQ(Run(harm), ProgramResult::kFailed) << harm;
  }
  EXPECT_EQ(Run("import os\nassert [p for p in os.listdir('/proc') if p.isdigit()].__len__() <= 3"), ProgramResult::kPassed);
  EXPECT_EQ(Run("import os\nfor fd in range(3, 50):\n  try: os.fstat(fd)\n  except OSError: continue\n  raise AssertionError(fd)"),
            ProgramResult::kPassed);
}

// Keys of API servers are in environments; bubblewrap's own process is seen in /proc.
TEST_P(SandboxTest, TheCallersEnvironmentIsNotSeen) {
  setenv("COPPICE_TEST_SECRET", "squeamish-ossifrage", 1);
  EXPECT_EQ(Run("import os\nfor pid in (p for p in os.listdir('/proc') if p.isdigit()):\n  for name in ('environ', 'cmdline'):\n"
                "    try: text = open(f'/proc/{pid}/{name}').read()\n    except OSError: continue\n    assert 'squeamish' not in "
                "text, pid"),
            ProgramResult::kPassed);
  unsetenv("COPPICE_TEST_SECRET");
}

TEST_P(SandboxTest, NoRightsAreLeft) {
  EXPECT_EQ(
      Run("s = dict(l.split(':', 1) for l in open('/proc/self/status'))\nassert int(s['CapEff'], 16) == int(s['CapBnd'], 16) == 0\n"
          "assert '0' not in s['Uid'].split()\nassert s['Seccomp'].split() == ['2'] and s['NoNewPrivs'].split() == ['1']"),
      ProgramResult::kPassed);
  if (GetParam() == Caller::kRoot) {
    EXPECT_EQ(Run("import os\nassert os.getresuid() == os.getresgid() == (65534,) * 3"), ProgramResult::kPassed);
  }
  // The control: the helpers themselves work.
  EXPECT_EQ(Run(WithSystemCalls("assert syscall('getpid') == os.getpid()")), ProgramResult::kPassed);
  const std::vector<std::string> calls = {"'mount', None, b'/usr', None, 32 | 4096, None",  // MS_REMOUNT | MS_BIND: writable again
                                          "'mount', None, b'/', None, 32 | 4096, None",     //
                                          "'mount', b'x', b'/tmp', b'tmpfs', 0, None",      //
                                          "'umount2', b'/usr', 2",
                                          "'pivot_root', b'/tmp', b'/tmp'",  //
                                          "'open_tree', -100, b'/usr', 1",
                                          "'fsopen', b'tmpfs', 0",                        //
                                          "'move_mount', -1, b'/usr', -100, b'/tmp', 0",  //
                                          "'unshare', 0x10000000",
                                          "'unshare', 0x20000",
                                          "'unshare', 0x40000000",
                                          "'setns', 0, 0",
                                          "'clone', 0x10000000 | 17, 0, 0, 0, 0",
                                          "'clone', 0x20000 | 17, 0, 0, 0, 0",
                                          "'clone3', 0, 0",
                                          "'keyctl', 0, -3, 0",
                                          "'add_key', b'user', b'x', b'y', 1, -3",
                                          "'request_key', b'user', b'x', None, -3",
                                          "'ptrace', 0, 0, 0, 0",
                                          "'process_vm_readv', 1, 0, 0, 0, 0, 0",
                                          "'bpf', 0, 0, 0",
                                          "'perf_event_open', 0, 0, -1, -1, 0",
                                          "'userfaultfd', 1",
                                          "'io_uring_setup', 1, 0",
                                          "'init_module', 0, 0, b''",
                                          "'kexec_load', 0, 0, 0, 0",
                                          "'memfd_create', b'x', 0",
                                          "'shmget', 0, 1 << 30, 0o1600"};
  std::string all;
  for (const std::string& call : calls) all += fmt::format("refused({})\n", call);
  if (Run(WithSystemCalls(all)) == ProgramResult::kPassed) return;
  for (const std::string& call : calls)
    EXPECT_EQ(Run(WithSystemCalls(fmt::format("refused({})", call))), ProgramResult::kPassed) << call;
}

TEST_P(SandboxTest, SettingsOfTheKernelAreReadOnly) {
  EXPECT_EQ(
      Run("import os\nfor folder, _, names in os.walk('/proc/sys'):\n  for name in names:\n    path = os.path.join(folder, name)\n"
          "    try: os.close(os.open(path, os.O_WRONLY))\n    except OSError: continue\n    raise AssertionError(path)"),
      ProgramResult::kPassed);
  for (const char* path : {"/proc/sysrq-trigger", "/proc/1/mem", "/proc/self/oom_score_adj", "/dev/x", "/x", "/usr/x",
                           "/proc/sys/kernel/core_pattern"})
    EXPECT_EQ(Run(fmt::format("open('{}', 'w')", path)), ProgramResult::kFailed) << path;
}

TEST_P(SandboxTest, OneProcessUnlessSubprocessesAreAllowed) {
  for (const char* start :
       {"os.fork()", "os.posix_spawn('/usr/bin/true', ['true'], {})", "__import__('subprocess').run('/usr/bin/true')",
        "syscall('clone', 17, 0, 0, 0, 0)", "syscall('clone', 0x4100 | 17, 0, 0, 0, 0)"}) {
    EXPECT_EQ(Run(WithSystemCalls(fmt::format(
                  "try: {}\nexcept OSError as e: assert e.errno == errno.EAGAIN, e\nelse: raise AssertionError()", start))),
              ProgramResult::kPassed)
        << start;
  }
  EXPECT_EQ(Run("import threading, time\nfor i in range(100): threading.Thread(target=time.sleep, args=(1,)).start()"),
            ProgramResult::kFailed);
}

TEST_P(SandboxTest, FileSystemsInMemoryAreSmall) {
  for (const auto& [folder, mebibytes] : {std::pair("/tmp", 64), std::pair("/dev/shm", 64)}) {
    const std::string program = fmt::format(
        "import errno\nwritten = 0\ntry:\n  for i in range(1000):\n    with open('{}/%d' % i, 'wb') as f: f.write(bytes(1 << 20))\n"
        "    written += 1\nexcept OSError as e: assert e.errno == errno.ENOSPC, e\nassert 0 < written <= {}, written",
        folder, mebibytes);
    EXPECT_EQ(Run(program), ProgramResult::kPassed) << folder;
  }
  EXPECT_EQ(Run("open('/tmp/x', 'wb').write(bytes(2 << 20))"), ProgramResult::kFailed);  // a file's bytes
}

TEST_P(SandboxTest, MemoryIsBoundedForAllTogether) {
  constexpr SandboxLimits kLimits = {.seconds = 20, .memory_bytes = 256 << 20};
  // Threads and mappings share what one process has, files in memory have the rest.
  EXPECT_EQ(
      Run("import mmap, os\nheld = 0\ntry:\n  kept = []\n  while held < 512:\n    kept.append(mmap.mmap(-1, 1 << 20, "
          "mmap.MAP_SHARED))\n"
          "    kept[-1].write(bytes(1 << 20))\n    held += 1\nexcept (MemoryError, OSError): pass\nassert 0 < held < 128, held",
          kLimits),
      ProgramResult::kPassed);
}

TEST_P(SandboxTest, SubprocessesNeedAControlGroup) {
  if (HasControlGroups()) GTEST_SKIP() << "the caller may make control groups";
  const Status status = Sandbox::Create(kPython, {.subprocesses = true}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("systemd-run"));
}

// Needs a control group; of its 256 MiB, eight processes take 64 each.
TEST_P(SandboxTest, ProcessesShareTheMemoryOfTheirControlGroup) {
  constexpr SandboxLimits kLimits = {.seconds = 120, .memory_bytes = 256 << 20, .subprocesses = true};
  if (!HasControlGroups()) GTEST_SKIP() << "the caller may make no control groups: " << FindControlGroupParent().status().message();
  EXPECT_EQ(Run("import subprocess\nsubprocess.run(['/usr/bin/true'], check=True)", kLimits), ProgramResult::kPassed);
  const char* together =
      "import os, time\nchildren = []\nfor i in range({}):\n  pid = os.fork()\n  if pid == 0:\n    x = b'x' * (64 << 20)\n    "
      "time.sleep(2)\n    os._exit(0)\n"
      "  children.append(pid)\nassert all(os.waitpid(p, 0)[1] == 0 for p in children)";
  EXPECT_EQ(Run(fmt::format(fmt::runtime(together), 2), kLimits), ProgramResult::kPassed);
  EXPECT_EQ(Run(fmt::format(fmt::runtime(together), 8), kLimits), ProgramResult::kFailed);
  EXPECT_EQ(Run("import os\nfor i in range(1000000):\n  os.mknod('/tmp/%d' % i)", kLimits), ProgramResult::kFailed);
  EXPECT_NE(Run("import os\nwhile True: os.fork()", {.seconds = 2, .subprocesses = true}), ProgramResult::kPassed);
  for (const auto& entry : std::filesystem::directory_iterator(*FindControlGroupParent()))
    EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr("coppice-eval-")));
}

TEST(Sandbox, WhatIsMissingIsNamed) {
  const Status status = Sandbox::Create("/usr/bin/no-such-python", {}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("/usr/bin/no-such-python"));
}

// Without bubblewrap nothing runs, in no case outside of it.
TEST(Sandbox, BubblewrapIsNeeded) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nonexistent", 1);
  const Status status = Sandbox::Create(kPython, {}).status();
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("apt-get install bubblewrap"));
}

}  // namespace
}  // namespace coppice::cli
