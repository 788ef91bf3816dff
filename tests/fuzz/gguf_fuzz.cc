// Input: a GGUF file. Its directory, the model it describes, every weight in every dtype, and its tokenizer.
#include <utility>
#include <vector>

#include "model/dequantize.h"
#include "model/gguf_model.h"
#include "tests/fuzz/fuzz_target.h"
#include "tokenizer/tokenizer.h"

using namespace coppice;
using fuzz::Require;

namespace {

void LoadInEveryDType(const std::string& name, const StoredTensor& tensor) {
  const int64_t rows = tensor.shape.size() == 1 ? 1 : tensor.shape[0], cols = tensor.shape.back();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::vector<std::byte> out(static_cast<size_t>(rows * cols) * SizeOf(dtype));
    Require(LoadWeight(name, tensor, rows, cols, dtype, out).ok(), "an accepted weight does not load");
  }
  if (CodeBits(tensor.type) == 0 || tensor.shape.size() != 2) return;
  std::vector<int8_t> codes(static_cast<size_t>(rows * cols));
  std::vector<F16> scales(codes.size() / 32), minima(codes.size() / 32);
  (void)LoadCodes(tensor, WholeOf(tensor), cols, codes.data(), scales.data(), minima.data());  // false where a code is out of range
}

void UseTokenizer(const TokenizerData& data) {
  const Result<std::unique_ptr<Tokenizer>> tokenizer = CreateTokenizer(data);
  if (!tokenizer.ok()) return;
  const Result<std::vector<int32_t>> ids = (*tokenizer)->Encode("a token, 12 of them\n");
  if (!ids.ok()) return;
  for (const int32_t id : *ids) {
    Require(id >= 0 && static_cast<size_t>(id) < data.tokens.size(), "an id beyond the vocabulary");
    (void)(*tokenizer)->TokenBytes(id);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Result<GgufDirectory> gguf = GgufDirectory::Parse(std::as_bytes(std::span(data, size)), "f.gguf");
  if (!gguf.ok()) {
    fuzz::RequireOneLine(gguf.status());
    return 0;
  }
  const Result<ModelContents> contents = ReadGgufModel(*gguf);
  if (!contents.ok()) {
    fuzz::RequireOneLine(contents.status());
    return 0;
  }
  Require(CheckWeights(contents->config, contents->tensors, "f.gguf").ok(), "an accepted model lacks weights");
  for (const auto& [name, tensor] : contents->tensors) LoadInEveryDType(name, tensor);
  if (contents->tokenizer) UseTokenizer(*contents->tokenizer);
  return 0;
}
