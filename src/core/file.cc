#include "core/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>

#include "core/check.h"

namespace coppice {
namespace {

constexpr int kMostLinks = 40;  // as Linux follows

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "no regular file";
}

bool IsOpenAs(int fd, const struct stat& file) {
  struct stat facts = {};
  return fstat(fd, &facts) == 0 && facts.st_dev == file.st_dev && facts.st_ino == file.st_ino;
}

Status CheckExisting(const std::string& path, const struct stat& facts) {
  if (!S_ISREG(facts.st_mode))
    return InvalidArgument(path + " is " + KindOf(facts.st_mode) + ", expected a regular file or a new name");
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    if (IsOpenAs(fd, facts))
      return InvalidArgument(path + " is the file that " + (fd == STDOUT_FILENO ? "standard output" : "stderr") +
                             " goes to; give another one");
  }
  return OkStatus();
}

std::optional<std::string> RealPath(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr), std::free);
  return real ? std::optional<std::string>(real.get()) : std::nullopt;
}

// `path`, or where the link leads that it is.
std::filesystem::path FollowLinks(std::filesystem::path path) {
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, error); ++i)
    path = path.parent_path() / std::filesystem::read_symlink(path, error);
  return path;
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

Status SystemError(std::string_view action, const std::string& path) {
  const int error = errno;
  std::string message = "cannot " + std::string(action) + " " + path + ": " + std::strerror(error);
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE: return ResourceExhausted(std::move(message));
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
    case ENAMETOOLONG: return NotFound(std::move(message));
    default: return Internal(std::move(message));
  }
}

Result<RegularFile> OpenRegularFile(const std::string& path, Links links) {
  const auto refused = [&](const char* action) {
    const int error = errno;
    const StatusCode code = error == ENOENT || error == ENOTDIR ? StatusCode::kNotFound : StatusCode::kInvalidArgument;
    return Status(code, path + ": cannot " + action + ": " + std::strerror(error));
  };
  const int no_links = links == Links::kRefused ? O_NOFOLLOW : 0;
  RegularFile opened = {.file = FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | no_links))};
  if (opened.file.get() < 0) {
    if (errno == ELOOP && no_links != 0) return InvalidArgument(path + ": a symbolic link, expected a regular file");
    return refused("open");
  }
  struct stat facts = {};
  if (fstat(opened.file.get(), &facts) != 0) return refused("read the size");
  if (!S_ISREG(facts.st_mode)) return InvalidArgument(path + ": not a regular file, but " + KindOf(facts.st_mode));
  opened.size = static_cast<size_t>(facts.st_size);
  return opened;
}

Result<std::string> ReadRegularFile(const std::string& path, size_t max_bytes, Links links) {
  COPPICE_ASSIGN_OR_RETURN(const RegularFile opened, OpenRegularFile(path, links));
  if (opened.size > max_bytes) {
    return InvalidArgument(path + ": " + std::to_string(opened.size) + " bytes, expected at most " + std::to_string(max_bytes) +
                           ": the file is damaged, or another one");
  }
  std::string text(opened.size, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = read(opened.file.get(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return InvalidArgument(path + ": cannot read: " + std::strerror(errno));
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

Status MakePrivateFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::path(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "a/" is "a"
  if (folder.has_parent_path()) std::filesystem::create_directories(folder.parent_path(), error);
  if (!error && mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) error = {errno, std::generic_category()};
  if (error || !std::filesystem::is_directory(folder, error))
    return InvalidArgument(path + " cannot be used as a folder: " + (error ? error.message() : "it is none"));
  return OkStatus();
}

Result<OthersAccess> AccessOfOthers(const std::string& path) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0) return SystemError("look at", path);
  const bool foreign = facts.st_uid != geteuid() && facts.st_uid != 0;
  const mode_t mode = facts.st_mode;
  return OthersAccess{.read = foreign || (mode & (S_IRGRP | S_IROTH)) != 0, .write = foreign || (mode & (S_IWGRP | S_IWOTH)) != 0};
}

Status WriteAll(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("write to", path);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return OkStatus();
}

Result<std::string> ResolveOutput(const std::string& path) {
  if (path == "-")
    return InvalidArgument(
        "- (standard output) cannot be written here: expected a file, which can be read again; ./- is one of that name");
  struct stat facts = {};
  if (stat(path.c_str(), &facts) == 0) {
    COPPICE_RETURN_IF_ERROR(CheckExisting(path, facts));
    if (std::optional<std::string> real = RealPath(path)) return *std::move(real);
    return SystemError("write to", path);
  }
  if (errno != ENOENT || path.empty()) return SystemError("write to", path);
  const std::filesystem::path target = FollowLinks(path);
  if (!target.has_filename()) return SystemError("write to", path);
  const std::string folder = target.has_parent_path() ? target.parent_path().string() : ".";
  const std::optional<std::string> real = RealPath(folder);
  if (!real || faccessat(AT_FDCWD, real->c_str(), W_OK | X_OK, AT_EACCESS) != 0) return SystemError("write to", path);
  return (std::filesystem::path(*real) / target.filename()).string();
}

Status CheckReplaceable(const std::string& target, const std::string& path, std::string_view begin, std::string_view what) {
  std::ifstream file(target, std::ios::binary);
  std::string held(begin.size(), '\0');
  if (!file) return OkStatus();
  file.read(held.data(), static_cast<std::streamsize>(held.size()));
  if (file.gcount() == 0 || held == begin) return OkStatus();
  return InvalidArgument(path + " holds something else than " + std::string(what) +
                         ", which would be lost; give another name or remove it");
}

Result<FileReplacement> FileReplacement::Begin(const std::string& path) {
  FileReplacement replacement(path);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  // Without a name until it is complete, where the file system has such files.
  replacement.file_ = FileDescriptor(open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
  for (int number = 0; replacement.file_.get() < 0 && number < 100; ++number) {
    const std::string name = path + ".tmp" + std::to_string(getpid()) + "-" + std::to_string(number);
    replacement.file_ = FileDescriptor(open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (replacement.file_.get() >= 0) replacement.temporary_ = name;
    if (errno != EEXIST) break;
  }
  if (replacement.file_.get() < 0) return SystemError("write to", path);
  if (struct stat old = {}; stat(path.c_str(), &old) == 0) (void)fchmod(replacement.file_.get(), old.st_mode & 07777);
  return replacement;
}

FileReplacement::~FileReplacement() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Status FileReplacement::Write(std::span<const std::byte> bytes) {
  return WriteAll(file_.get(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path_);
}

// A link cannot take the place of a file that exists, a rename can.
Status FileReplacement::GiveTemporaryName() {
  const std::string self = "/proc/self/fd/" + std::to_string(file_.get());
  for (int number = 0; number < 100; ++number) {
    std::string name = path_ + ".tmp" + std::to_string(getpid()) + "-" + std::to_string(number);
    if (linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      temporary_ = std::move(name);
      return OkStatus();
    }
    if (errno != EEXIST) break;
  }
  return SystemError("name", path_);
}

Status FileReplacement::Commit(Lasting lasting) {
  if (lasting == Lasting::kYes && fsync(file_.get()) != 0) return SystemError("write to", path_);
  if (temporary_.empty()) COPPICE_RETURN_IF_ERROR(GiveTemporaryName());
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return SystemError("replace", path_);
  temporary_.clear();
  if (lasting == Lasting::kNo) return OkStatus();
  // The new name is lasting once the folder is on the disk; where a file system cannot say, the file is complete all the same.
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  const FileDescriptor directory(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) (void)fsync(directory.get());
  return OkStatus();
}

Status ReplaceFile(const std::string& path, std::string_view text, Lasting lasting) {
  COPPICE_ASSIGN_OR_RETURN(FileReplacement file, FileReplacement::Begin(path));
  COPPICE_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(text))));
  return file.Commit(lasting);
}

}  // namespace coppice
