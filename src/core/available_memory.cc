#include "core/available_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace coppice {
namespace {

std::optional<int64_t> SystemBytes() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    if (line.starts_with("MemAvailable:")) return std::stoll(line.substr(13)) * 1024;
  }
  return std::nullopt;
}

std::optional<int64_t> AddressSpaceBytes() {
  rlimit limit = {};
  int64_t used_pages = 0;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  if (limit.rlim_cur > static_cast<rlim_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  if (!(std::ifstream("/proc/self/statm") >> used_pages)) return std::nullopt;
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - used_pages * sysconf(_SC_PAGESIZE));
}

}  // namespace

int64_t AvailableMemoryBytes() {
  const std::optional<int64_t> system = SystemBytes(), address_space = AddressSpaceBytes();
  if (system && address_space) return std::min(*system, *address_space);
  return system ? *system : address_space.value_or(0);
}

}  // namespace coppice
