#include "core/cache_folder.h"

#include <cctype>
#include <cstdlib>
#include <filesystem>

namespace coppice {

std::string CacheFolder() {
  namespace fs = std::filesystem;
  if (const char* set = std::getenv("COPPICE_CACHE_DIR"); set != nullptr && *set != '\0') return set;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') return fs::path(cache) / "coppice";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') return fs::path(home) / ".cache" / "coppice";
  return {};
}

std::string AsFileName(std::string text) {
  for (char& c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  }
  return text;
}

}  // namespace coppice
