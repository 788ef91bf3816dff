// Random models of any small shape for tests, as a GGUF file or a Hugging Face folder with the same weights, so that no test needs
// a file that git does not hold. Layer: tests.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/stored_type.h"
#include "tests/support/gguf_writer.h"

namespace coppice::testing {

// Weights by Hugging Face name, in f32. Shapes are ExpectedWeights(config).
struct TinyModel {
  ModelConfig config;
  std::map<std::string, std::vector<float>> weights;
};

// 2 layers, 4 query heads on 2 kv heads of dimension 8, hidden 32, vocabulary 40; every weight distinct with high probability.
ModelConfig TinyConfig();
TinyModel RandomModel(const ModelConfig& config, uint64_t seed);

// The file that llama.cpp's converter would write: its names, q and k rows in interleaved rotary order for "llama", no tokenizer;
// vectors in F32, matrices too or in F16. Add to the writer what a test needs.
GgufWriter ToGguf(const TinyModel& model, uint32_t version = 3, StoredType matrices = StoredType::kF32);

// The text of config.json.
std::string ToConfigJson(const ModelConfig& config);
// A safetensors file (F32) of the weights whose names are listed; all of them if `names` is empty.
std::string ToSafetensors(const TinyModel& model, const std::vector<std::string>& names = {});

// A folder of its own under the test's temporary folder, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  // Writes a file and returns its path.
  std::string Write(const std::string& name, const std::string& contents) const;

 private:
  std::string path_;
};

}  // namespace coppice::testing
