#include "ops/cuda/algorithm_file.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/cache_folder.h"

namespace coppice::ops::cuda {
namespace {

namespace fs = std::filesystem;

std::optional<DType> DTypeOf(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == Name(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace

AlgorithmFile::AlgorithmFile(std::string path, std::string header) : path_(std::move(path)), header_(std::move(header)) { Read(); }

std::string AlgorithmFile::DefaultPath(const std::string& folder, const std::string& device, size_t library_version) {
  const fs::path base = folder.empty() ? CacheFolder() : folder;
  if (base.empty()) return {};
  const std::string name = AsFileName("products-" + device + "-cublaslt-" + std::to_string(library_version) + ".txt");
  return (base / name).string();
}

AlgorithmFile AlgorithmFile::Of(const std::string& folder, const std::string& device, size_t library_version) {
  return {DefaultPath(folder, device, library_version),
          "Coppice's products 4, " + device + ", cuBLASLt " + std::to_string(library_version)};
}

void AlgorithmFile::Read() {
  std::ifstream file(path_);
  std::string line;
  if (path_.empty() || !file || !std::getline(file, line) || line != header_) return;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string dtype, out_dtype;
    AlgorithmKey key;
    int64_t rows = 0;
    MeasuredAlgorithm algorithm;
    int kind = 0;
    words >> dtype >> out_dtype >> key.accumulates >> key.n >> key.k >> rows >> kind >> std::hex;
    for (uint64_t& word : algorithm.code) words >> word;
    const std::optional<DType> in = DTypeOf(dtype), out = DTypeOf(out_dtype);
    if (!words || !in || !out || rows <= 0 || kind < 0 || kind > static_cast<int>(MeasuredAlgorithm::Kind::kOurs)) continue;
    algorithm.kind = static_cast<MeasuredAlgorithm::Kind>(kind);
    key.dtype = *in;
    key.out_dtype = *out;
    Set(key, rows, algorithm);
  }
}

const MeasuredAlgorithm* AlgorithmFile::Find(const AlgorithmKey& key, int64_t rows) const {
  const auto of_key = measured_.find(key);
  if (of_key == measured_.end()) return nullptr;
  const auto found = of_key->second.lower_bound(rows);
  return found == of_key->second.end() || found->first >= 2 * rows ? nullptr : &found->second;
}

const MeasuredAlgorithm* AlgorithmFile::FindExact(const AlgorithmKey& key, int64_t rows) const {
  const auto of_key = measured_.find(key);
  if (of_key == measured_.end()) return nullptr;
  const auto found = of_key->second.find(rows);
  return found == of_key->second.end() ? nullptr : &found->second;
}

void AlgorithmFile::Set(const AlgorithmKey& key, int64_t rows, const MeasuredAlgorithm& algorithm) {
  measured_[key][rows] = algorithm;
}

Status AlgorithmFile::Save() const {
  if (path_.empty()) return OkStatus();
  AlgorithmFile kept(path_, header_);  // what others have measured meanwhile stays
  for (const auto& [key, by_rows] : measured_) {
    for (const auto& [rows, algorithm] : by_rows) kept.Set(key, rows, algorithm);
  }
  std::error_code error;
  fs::create_directories(fs::path(path_).parent_path(), error);
  const std::string temporary = path_ + "." + std::to_string(std::rand()) + ".tmp";
  std::ofstream file(temporary);
  file << header_ << "\n";
  for (const auto& [key, by_rows] : kept.measured_) {
    for (const auto& [rows, algorithm] : by_rows) {
      file << Name(key.dtype) << " " << Name(key.out_dtype) << " " << key.accumulates << " " << key.n << " " << key.k << " " << rows
           << " " << static_cast<int>(algorithm.kind) << std::hex;
      for (const uint64_t word : algorithm.code) file << " " << word;
      file << std::dec << "\n";
    }
  }
  file.close();
  if (file) fs::rename(temporary, path_, error);
  if (!file || error) {
    fs::remove(temporary, error);
    return FailedPrecondition("cannot write " + path_ +
                              ", which keeps what is measured of products: set COPPICE_CACHE_DIR to a folder that can be written");
  }
  return OkStatus();
}

}  // namespace coppice::ops::cuda
