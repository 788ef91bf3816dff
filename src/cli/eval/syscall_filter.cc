#include "cli/eval/syscall_filter.h"

#include <asm/ioctls.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace coppice::cli {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;
#endif

// Allowed whatever their arguments are.
constexpr uint32_t kAllowed[] = {
    // Memory. No memfd_create and no System V segments: their memory is in no address space, so no limit of a process counts it.
    SYS_brk,
    SYS_madvise,
    SYS_membarrier,
    SYS_mincore,
    SYS_mlock,
    SYS_mlock2,
    SYS_mlockall,
    SYS_mmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_msync,
    SYS_munlock,
    SYS_munlockall,
    SYS_munmap,
    // Files and folders.
    SYS_chdir,
    SYS_close,
    SYS_close_range,
    SYS_copy_file_range,
    SYS_dup,
    SYS_dup3,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_fadvise64,
    SYS_fallocate,
    SYS_fchdir,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_fcntl,
    SYS_fdatasync,
    SYS_fgetxattr,
    SYS_flistxattr,
    SYS_flock,
    SYS_fremovexattr,
    SYS_fsetxattr,
    SYS_fstat,
    SYS_fstatfs,
    SYS_fsync,
    SYS_ftruncate,
    SYS_getcwd,
    SYS_getdents64,
    SYS_getxattr,
    SYS_lgetxattr,
    SYS_linkat,
    SYS_listxattr,
    SYS_llistxattr,
    SYS_lremovexattr,
    SYS_lseek,
    SYS_lsetxattr,
    SYS_mkdirat,
    SYS_mknodat,
    SYS_newfstatat,
    SYS_openat,
    SYS_openat2,
    SYS_pipe2,
    SYS_pread64,
    SYS_preadv,
    SYS_preadv2,
    SYS_pwrite64,
    SYS_pwritev,
    SYS_pwritev2,
    SYS_read,
    SYS_readlinkat,
    SYS_readv,
    SYS_removexattr,
    SYS_renameat,
    SYS_renameat2,
    SYS_sendfile,
    SYS_setxattr,
    SYS_statfs,
    SYS_statx,
    SYS_symlinkat,
    SYS_sync_file_range,
    SYS_truncate,
    SYS_umask,
    SYS_unlinkat,
    SYS_utimensat,
    SYS_write,
    SYS_writev,
    // Waiting.
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_eventfd2,
    SYS_ppoll,
    SYS_pselect6,
    SYS_signalfd4,
    SYS_timerfd_create,
    SYS_timerfd_gettime,
    SYS_timerfd_settime,
    // Time.
    SYS_clock_getres,
    SYS_clock_gettime,
    SYS_clock_nanosleep,
    SYS_getitimer,
    SYS_gettimeofday,
    SYS_nanosleep,
    SYS_setitimer,
    SYS_timer_create,
    SYS_timer_delete,
    SYS_timer_getoverrun,
    SYS_timer_gettime,
    SYS_timer_settime,
    SYS_times,
    // Processes and threads; clone and fork: see SyscallFilter.
    SYS_capget,
    SYS_execve,
    SYS_execveat,
    SYS_exit,
    SYS_exit_group,
    SYS_futex,
    SYS_futex_waitv,
    SYS_get_robust_list,
    SYS_getcpu,
    SYS_getegid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getgroups,
    SYS_getpgid,
    SYS_getpid,
    SYS_getppid,
    SYS_getpriority,
    SYS_getrandom,
    SYS_getresgid,
    SYS_getresuid,
    SYS_getrlimit,
    SYS_getrusage,
    SYS_getsid,
    SYS_gettid,
    SYS_getuid,
    SYS_kill,
    SYS_pidfd_open,
    SYS_pidfd_send_signal,
    SYS_prctl,
    SYS_prlimit64,
    SYS_restart_syscall,
    SYS_rseq,
    SYS_rt_sigaction,
    SYS_rt_sigpending,
    SYS_rt_sigprocmask,
    SYS_rt_sigqueueinfo,
    SYS_rt_sigreturn,
    SYS_rt_sigsuspend,
    SYS_rt_sigtimedwait,
    SYS_rt_tgsigqueueinfo,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_sched_getaffinity,
    SYS_sched_getattr,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_rr_get_interval,
    SYS_sched_setaffinity,
    SYS_sched_yield,
    SYS_set_robust_list,
    SYS_set_tid_address,
    SYS_setpgid,
    SYS_setpriority,
    SYS_setrlimit,
    SYS_setsid,
    SYS_sigaltstack,
    SYS_sysinfo,
    SYS_tgkill,
    SYS_tkill,
    SYS_uname,
    SYS_wait4,
    SYS_waitid,
    // Sockets; socket: see SyscallFilter.
    SYS_accept,
    SYS_accept4,
    SYS_bind,
    SYS_connect,
    SYS_getpeername,
    SYS_getsockname,
    SYS_getsockopt,
    SYS_listen,
    SYS_recvfrom,
    SYS_recvmmsg,
    SYS_recvmsg,
    SYS_sendmmsg,
    SYS_sendmsg,
    SYS_sendto,
    SYS_setsockopt,
    SYS_shutdown,
    SYS_socketpair,
#if defined(__x86_64__)  // older forms of the above
    SYS_access,
    SYS_alarm,
    SYS_arch_prctl,
    SYS_chmod,
    SYS_chown,
    SYS_creat,
    SYS_dup2,
    SYS_epoll_create,
    SYS_epoll_wait,
    SYS_eventfd,
    SYS_futimesat,
    SYS_getdents,
    SYS_getpgrp,
    SYS_lchown,
    SYS_link,
    SYS_lstat,
    SYS_mkdir,
    SYS_mknod,
    SYS_open,
    SYS_pause,
    SYS_pipe,
    SYS_poll,
    SYS_readlink,
    SYS_rename,
    SYS_rmdir,
    SYS_select,
    SYS_signalfd,
    SYS_stat,
    SYS_symlink,
    SYS_time,
    SYS_unlink,
    SYS_utime,
    SYS_utimes,
#endif
};

constexpr uint32_t kNewNamespaces =
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
// The sandbox has a network of its own for these. AF_VSOCK, which reaches the host of a virtual machine, has no namespace.
constexpr std::array<uint32_t, 3> kSocketFamilies = {AF_UNIX, AF_INET, AF_INET6};
// Requests that type into a terminal.
constexpr std::array<uint32_t, 2> kRefusedRequests = {TIOCSTI, TIOCLINUX};

constexpr uint32_t Errno(int error) { return SECCOMP_RET_ERRNO | static_cast<uint32_t>(error); }

// The low half of an argument, which is all that the kernel reads of those that are looked at here.
constexpr uint32_t OffsetOfArgument(int index) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  return static_cast<uint32_t>(offsetof(seccomp_data, args) + static_cast<size_t>(index) * sizeof(uint64_t));
}

// A program of classic BPF, which the kernel reads from the top; jumps go over the next instruction.
class FilterWriter {
 public:
  void Load(uint32_t offset) { Add(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset); }
  void Return(uint32_t action) { Add(BPF_RET | BPF_K, 0, 0, action); }
  void ReturnIfEqual(uint32_t value, uint32_t action) { ReturnIf(BPF_JEQ, value, action); }
  void ReturnUnlessEqual(uint32_t value, uint32_t action) {
    Add(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, value);
    Return(action);
  }
  void ReturnIfAnyBit(uint32_t bits, uint32_t action) { ReturnIf(BPF_JSET, bits, action); }
  // Instructions that `write` adds are for the system call `number` alone, and end with Return.
  template <class Write>
  void For(uint32_t number, Write write) {
    const size_t jump = program_.size();
    Add(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, number);
    write();
    program_[jump].jf = static_cast<uint8_t>(program_.size() - jump - 1);
  }
  std::vector<sock_filter> Take() && { return std::move(program_); }

 private:
  void Add(int code, uint8_t if_true, uint8_t if_false, uint32_t value) {
    program_.push_back({static_cast<uint16_t>(code), if_true, if_false, value});
  }
  void ReturnIf(int comparison, uint32_t value, uint32_t action) {
    Add(BPF_JMP | comparison | BPF_K, 0, 1, value);
    Return(action);
  }

  std::vector<sock_filter> program_;
};

}  // namespace

std::vector<sock_filter> SyscallFilter(bool subprocesses) {
  if (kArchitecture == 0) return {};
  const uint32_t allowed = SECCOMP_RET_ALLOW, fork = subprocesses ? allowed : Errno(EAGAIN);
  FilterWriter filter;
  filter.Load(offsetof(seccomp_data, arch));
  filter.ReturnUnlessEqual(kArchitecture, SECCOMP_RET_KILL_PROCESS);
  filter.Load(offsetof(seccomp_data, nr));
  for (const uint32_t number : kAllowed) filter.ReturnIfEqual(number, allowed);
  // Of clone3 a filter cannot see the flags; without it, libraries call clone.
  filter.For(SYS_clone, [&] {
    filter.Load(OffsetOfArgument(0));
    filter.ReturnIfAnyBit(kNewNamespaces, Errno(EPERM));
    filter.ReturnIfAnyBit(CLONE_THREAD, allowed);
    filter.Return(fork);
  });
#if defined(__x86_64__)
  for (const uint32_t number : {SYS_fork, SYS_vfork}) filter.ReturnIfEqual(number, fork);
#endif
  filter.For(SYS_socket, [&] {
    filter.Load(OffsetOfArgument(0));
    for (const uint32_t family : kSocketFamilies) filter.ReturnIfEqual(family, allowed);
    filter.Return(Errno(EAFNOSUPPORT));
  });
  filter.For(SYS_ioctl, [&] {
    filter.Load(OffsetOfArgument(1));
    for (const uint32_t request : kRefusedRequests) filter.ReturnIfEqual(request, Errno(EPERM));
    filter.Return(allowed);
  });
  filter.Return(Errno(ENOSYS));
  return std::move(filter).Take();
}

}  // namespace coppice::cli
