#include "cli/bench/bench_support.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace coppice::cli {

using nlohmann::ordered_json;

namespace {

bool WriteAll(int fd, const std::string& text) {
  for (size_t written = 0; written < text.size();) {
    const ssize_t count = write(fd, text.data() + written, text.size() - written);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) written += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

Result<ordered_json> MeasureInChild(const std::function<Result<ordered_json>()>& measure) {
  int ends[2];
  if (pipe(ends) != 0) return Internal(fmt::format("pipe: {}", std::strerror(errno)));
  const pid_t child = fork();
  if (child < 0) return Internal(fmt::format("fork: {}", std::strerror(errno)));
  if (child == 0) {
    const Result<ordered_json> result = measure();
    _exit(WriteAll(ends[1], (result.ok() ? *result : ordered_json{{"error", result.status().message()}}).dump()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  std::array<char, 4096> piece;
  for (ssize_t count; (count = read(ends[0], piece.data(), piece.size())) > 0;)
    text.append(piece.data(), static_cast<size_t>(count));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  ordered_json result = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!result.is_object()) return Internal("the measuring process ended early; is there enough memory?");
  if (result.contains("error")) return InvalidArgument(result["error"].get<std::string>());
  return result;
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

ordered_json Medians(const std::vector<ordered_json>& runs) {
  const ordered_json& first = runs.front();
  if (first.is_number()) {
    std::vector<double> values;
    for (const ordered_json& run : runs) values.push_back(run.get<double>());
    const double median = Median(std::move(values));
    return first.is_number_integer() ? ordered_json(static_cast<int64_t>(median)) : ordered_json(median);
  }
  if (!first.is_structured()) return first;
  ordered_json combined = first;
  for (auto element = combined.begin(); element != combined.end(); ++element) {
    std::vector<ordered_json> values;
    for (const ordered_json& run : runs)
      values.push_back(first.is_object() ? run.at(element.key()) : run.at(static_cast<size_t>(element - combined.begin())));
    *element = Medians(values);
  }
  return combined;
}

std::string CpuName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

Status WriteFile(const std::string& path, const std::string& text, std::string_view option) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) return NotFound(fmt::format("cannot write {}; check {}", path, option));
  return OkStatus();
}

}  // namespace coppice::cli
