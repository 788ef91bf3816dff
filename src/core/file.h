// Files that this program writes: descriptors, whole writes, and the checks that keep it from harming what others wrote.
// Layer: core.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "coppice/core/status.h"

namespace coppice {

// A file descriptor that is closed at the end.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return fd_; }

 private:
  int fd_;
};

// errno as a Status, "cannot `action` `path`: reason": RESOURCE_EXHAUSTED for a full disk, a quota or a limit, NOT_FOUND for a path
// that cannot be used, else INTERNAL.
Status SystemError(std::string_view action, const std::string& path);

// Whether the last part of a path may be a symbolic link.
enum class Links : bool { kRefused, kFollowed };

struct RegularFile {
  FileDescriptor file;
  size_t size = 0;  // bytes
};
// Opens a file to be read; at a pipe it waits for no writer. NOT_FOUND: there is none; INVALID_ARGUMENT with the system's
// reason, or for what is no regular file.
Result<RegularFile> OpenRegularFile(const std::string& path, Links links = Links::kFollowed);
// The whole of it. Errors as OpenRegularFile, and INVALID_ARGUMENT for one of more than `max_bytes`.
Result<std::string> ReadRegularFile(const std::string& path, size_t max_bytes, Links links = Links::kFollowed);

// Makes a folder that is its owner's alone (0700), and those above it as the umask says. One that is there stays as it is.
Status MakePrivateFolder(const std::string& path);
// Access to a file or folder that users other than its owner (this process's or root) have: to read it, and to write to it or, in a
// folder, make and remove files.
struct OthersAccess {
  bool read = false, write = false;
};
Result<OthersAccess> AccessOfOthers(const std::string& path);

// All of `text`, whatever signals come between; an error may leave a part. `path` is for the message.
Status WriteAll(int fd, std::string_view text, const std::string& path);

// The file that `path` leads to, symbolic links followed; it may not exist yet, its folder must. INVALID_ARGUMENT for what is no
// regular file (a folder, device, pipe, socket, "-") and for the file that standard output or stderr goes to; NOT_FOUND where no
// file could be written.
Result<std::string> ResolveOutput(const std::string& path);

// OK where replacing `target`, as ResolveOutput returns it for `path`, loses nothing: a new name, an empty file, or one that begins
// with `begin`. INVALID_ARGUMENT otherwise: it holds something else than `what`.
Status CheckReplaceable(const std::string& target, const std::string& path, std::string_view begin, std::string_view what);

// Whether a file that is written outlives a power cut from then on, for which the disk is waited for.
enum class Lasting : bool { kNo, kYes };

// A file that takes another's place, whole or not at all: a reader finds the old one or the new one. A kill leaves nothing behind.
// Permissions are those of the file it replaces, else what the umask leaves of 0666.
class FileReplacement {
 public:
  // `path`: as ResolveOutput returns it.
  static Result<FileReplacement> Begin(const std::string& path);
  FileReplacement(FileReplacement&& other) noexcept
      : path_(std::move(other.path_)), temporary_(std::exchange(other.temporary_, {})), file_(std::move(other.file_)) {}
  FileReplacement& operator=(FileReplacement&&) = delete;
  ~FileReplacement();

  Status Write(std::span<const std::byte> bytes);
  // Puts the file on the disk and into its place. Once; after an error, the old file is as it was.
  Status Commit(Lasting lasting = Lasting::kYes);

 private:
  explicit FileReplacement(std::string path) : path_(std::move(path)) {}
  Status GiveTemporaryName();

  std::string path_;
  std::string temporary_;  // the file's name until Commit; empty while it has none
  FileDescriptor file_;
};

// Replaces `path` by `text`.
Status ReplaceFile(const std::string& path, std::string_view text, Lasting lasting = Lasting::kYes);

}  // namespace coppice
