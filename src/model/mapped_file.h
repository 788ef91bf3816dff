// A file as read-only memory, mapped, so that loading copies nothing and untouched parts cost nothing.
// Layer: model.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "coppice/core/status.h"

namespace coppice {

// Movable; the bytes keep their address. Safe to read from several threads. The file must not be shortened while it is mapped.
class MappedFile {
 public:
  // NOT_FOUND if there is no such file; INVALID_ARGUMENT if it is a directory or another special file; DATA_LOSS if it is empty.
  static Result<MappedFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_.get(), data_.get_deleter().size}; }
  // Takes the pages that lie whole in `part` out of the process's memory once they are read; a later read gets them from
  // the system's cache, or the file. REQUIRES: part lies in bytes(). Thread-safe.
  void Release(std::span<const std::byte> part) const;

 private:
  struct Unmap {
    size_t size = 0;
    void operator()(const std::byte* p) const;
  };

  MappedFile(std::string path, const std::byte* data, size_t size) : path_(std::move(path)), data_(data, Unmap{size}) {}

  std::string path_;
  std::unique_ptr<const std::byte, Unmap> data_;
};

// The whole of a small text file (JSON, templates). Errors as MappedFile::Open, but an empty file is an empty string.
Result<std::string> ReadTextFile(const std::string& path);

}  // namespace coppice
