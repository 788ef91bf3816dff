// Which algorithm was measured to be fastest for which product in a step, the library's or ours: a text file a device and library
// version, so that a machine measures once. Layer: ops/cuda, host only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "coppice/core/status.h"
#include "coppice/core/types.h"

namespace coppice::ops::cuda {

struct AlgorithmKey {
  DType dtype = DType::kBF16, out_dtype = DType::kF32;
  bool accumulates = false;
  int64_t n = 0, k = 0;
  auto Tuple() const { return std::tuple(dtype, out_dtype, accumulates, n, k); }
  bool operator<(const AlgorithmKey& other) const { return Tuple() < other.Tuple(); }
};

struct MeasuredAlgorithm {
  enum class Kind : uint8_t {
    kDefault,  // as without a file: nothing was faster
    kLibrary,
    kOurs,
  };
  Kind kind = Kind::kDefault;
  std::array<uint64_t, 8> code{};  // kLibrary, cublasLtMatmulAlgo_t: opaque, valid for one version of the library
};

// Thread-compatible.
class AlgorithmFile {
 public:
  // `path` empty: nothing is read or kept. A file that is missing, or of another device or version, is as an empty one; a line that
  // cannot be read is left out.
  AlgorithmFile(std::string path, std::string header);
  // The file of a device in `folder`; empty: of $COPPICE_CACHE_DIR, $XDG_CACHE_HOME/coppice or ~/.cache/coppice, the first that is
  // set.
  static std::string DefaultPath(const std::string& folder, const std::string& device, size_t library_version);

  // The one that Ops reads and writes.
  static AlgorithmFile Of(const std::string& folder, const std::string& device, size_t library_version);

  // The algorithm measured for the least number of rows that is at least `rows` and less than twice as many.
  const MeasuredAlgorithm* Find(const AlgorithmKey& key, int64_t rows) const;
  const MeasuredAlgorithm* FindExact(const AlgorithmKey& key, int64_t rows) const;
  void Set(const AlgorithmKey& key, int64_t rows, const MeasuredAlgorithm& algorithm);
  // Replaces the file at once, so that a reader sees the old one or the new one.
  Status Save() const;

 private:
  void Read();
  std::string path_, header_;
  std::map<AlgorithmKey, std::map<int64_t, MeasuredAlgorithm>> measured_;
};

}  // namespace coppice::ops::cuda
