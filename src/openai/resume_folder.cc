#include "openai/resume_folder.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

namespace coppice::openai {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNameDigits = 32;
constexpr std::string_view kSuffix = ".safetensors";

// A file of ours, complete or what a kill left of one on its way.
bool IsOurs(const std::string& name) {
  return name.size() >= kNameDigits + kSuffix.size() && name.compare(kNameDigits, kSuffix.size(), kSuffix) == 0 &&
         std::all_of(name.begin(), name.begin() + kNameDigits, [](unsigned char c) { return std::isxdigit(c) != 0; });
}

}  // namespace

ResumeFolder::ResumeFolder(const std::string& output) {
  std::error_code error;
  const fs::path real = fs::canonical(output, error);
  if (error) return;
  path_ = real.string() + ".resume";
  was_there_ = fs::is_directory(fs::symlink_status(path_, error));
  usable_ = was_there_ || fs::create_directory(path_, error);
}

std::string ResumeFolder::PathOf(const std::string& name) const {
  return usable_ ? (fs::path(path_) / (name + std::string(kSuffix))).string() : std::string();
}

bool ResumeFolder::LeavesRoom(const std::string& path) {
  std::error_code error;
  const fs::space_info space = fs::space(path, error);
  if (error) return false;
  const uintmax_t bytes = fs::file_size(path, error);
  return !error && space.available >= bytes;
}

void ResumeFolder::Remove() {
  if (!usable_) return;
  std::error_code error;
  std::vector<fs::path> ours;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, error)) {
    if (IsOurs(entry.path().filename().string())) ours.push_back(entry.path());
  }
  for (const fs::path& path : ours) fs::remove(path, error);
  fs::remove(path_, error);  // not if a stranger's file is in it
}

}  // namespace coppice::openai
