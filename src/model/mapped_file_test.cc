// MappedFile::Release: the bytes stay what they are, and the pages leave the process. Layer: model.
#include "model/mapped_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/tiny_model.h"

namespace coppice {
namespace {

// Of files, in memory of this process.
int64_t FileBytesInMemory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) return std::stoll(line.substr(8)) << 10;
  }
  return -1;
}

TEST(MappedFile, WhatIsReleasedLeavesTheProcessAndReadsAsBefore) {
  constexpr size_t kSize = (size_t{16} << 20) + 1234;
  std::vector<char> contents(kSize);
  for (size_t i = 0; i < kSize; ++i) contents[i] = static_cast<char>(i * 7919 >> 8);
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  std::ofstream(path, std::ios::binary).write(contents.data(), kSize);
  const MappedFile file = MappedFile::Open(path).value();
  const auto is_as_written = [&] {
    return std::equal(file.bytes().begin(), file.bytes().end(), reinterpret_cast<const std::byte*>(contents.data()));
  };
  ASSERT_TRUE(is_as_written());
  const int64_t before = FileBytesInMemory();
  ASSERT_GT(before, int64_t{16} << 20);
  // Neither ends lie on pages; parts within one page; nothing.
  file.Release(file.bytes().subspan(100, kSize - 300));
  EXPECT_LT(FileBytesInMemory(), before - (int64_t{15} << 20));
  for (const auto& [begin, count] : {std::pair<size_t, size_t>{0, 10}, {5000, 100}, {4096, 4096}, {kSize, 0}, {0, kSize}})
    file.Release(file.bytes().subspan(begin, count));
  EXPECT_TRUE(is_as_written());
}

}  // namespace
}  // namespace coppice
