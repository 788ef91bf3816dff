#include "cli/eval/control_group.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

#include "core/check.h"

namespace coppice::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRoot = "/sys/fs/cgroup";
// Members that were killed are gone in milliseconds, but for one that waits for a device.
constexpr std::chrono::seconds kTimeToEnd{10};

std::string Read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

Status Write(const fs::path& path, const std::string& text) {
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) return SystemError("open", path);
  return WriteAll(file.get(), text, path);
}

// Whether the list of controllers in `path` has both that bound a program.
bool HasControllers(const fs::path& path) {
  std::istringstream names(Read(path));
  int found = 0;
  for (std::string name; names >> name;) found += name == "memory" || name == "pids";
  return found == 2;
}

// Whether groups can be made in `group` and this process's children moved into them.
bool MayWrite(const fs::path& group) {
  return faccessat(AT_FDCWD, group.c_str(), W_OK | X_OK, AT_EACCESS) == 0 &&
         faccessat(AT_FDCWD, (group / "cgroup.procs").c_str(), W_OK, AT_EACCESS) == 0;
}

// Groups with members pass no controllers on; so the only member, this process, moves into one below.
Status MoveBelow(const fs::path& group) {
  const fs::path below = group / "coppice";
  if (mkdir(below.c_str(), 0755) != 0 && errno != EEXIST) return SystemError("make", below);
  COPPICE_RETURN_IF_ERROR(Write(below / "cgroup.procs", "0"));
  return Write(group / "cgroup.subtree_control", "+memory +pids");
}

}  // namespace

Result<std::string> FindControlGroupParent() {
  struct statfs facts = {};
  if (statfs(kRoot, &facts) != 0 || facts.f_type != CGROUP2_SUPER_MAGIC)
    return NotFound(fmt::format("{} holds no control groups of version 2", kRoot));
  std::string own;  // "/user.slice/user-1000.slice/session-2.scope"
  std::istringstream lines(Read("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("0::/")) own = line.substr(3);
  }
  fs::path group = fs::path(kRoot + own).lexically_normal();
  if (group != kRoot && !group.has_filename()) group = group.parent_path();  // "/sys/fs/cgroup/"
  if (own.empty() || own.starts_with("/..") || !fs::exists(group / "cgroup.procs"))
    return NotFound(fmt::format("the control group of this process is not below {}", kRoot));
  for (fs::path above = group;; above = above.parent_path()) {
    if (MayWrite(above) && HasControllers(above / "cgroup.subtree_control")) return above.string();
    if (above == kRoot) break;
  }
  if (MayWrite(group) && HasControllers(group / "cgroup.controllers") &&
      Read(group / "cgroup.procs") == fmt::format("{}\n", getpid()) && MoveBelow(group).ok())
    return group.string();
  return NotFound(fmt::format("this process may make no control groups for memory and processes in {} or above it", own));
}

Result<ControlGroup> ControlGroup::Create(const std::string& parent, const Limits& limits) {
  std::string path = parent + "/coppice-eval-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return SystemError("make a control group in", parent);
  ControlGroup group(path);
  COPPICE_RETURN_IF_ERROR(Write(path + "/memory.max", std::to_string(limits.memory_bytes)));
  if (const std::string swap = path + "/memory.swap.max"; fs::exists(swap)) COPPICE_RETURN_IF_ERROR(Write(swap, "0"));
  COPPICE_RETURN_IF_ERROR(Write(path + "/memory.oom.group", "1"));
  COPPICE_RETURN_IF_ERROR(Write(path + "/pids.max", std::to_string(limits.tasks)));
  group.members_ = FileDescriptor(open((path + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
  if (group.members_.get() < 0) return SystemError("open", path + "/cgroup.procs");
  return group;
}

ControlGroup::~ControlGroup() {
  if (!path_.empty()) static_cast<void>(Remove());
}

Status ControlGroup::Remove() {
  const std::string path = std::exchange(path_, {});
  // Linux 5.14 and newer; before, members end with bubblewrap's namespace of processes alone.
  if (const std::string kill = path + "/cgroup.kill"; fs::exists(kill)) COPPICE_RETURN_IF_ERROR(Write(kill, "1"));
  const auto end = std::chrono::steady_clock::now() + kTimeToEnd;
  while (rmdir(path.c_str()) != 0) {
    if (errno != EBUSY || std::chrono::steady_clock::now() > end) return SystemError("remove the control group", path);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return OkStatus();
}

}  // namespace coppice::cli
