// Input: a safetensors file. Tensors and metadata; the tensors of an accepted file cover its data exactly.
#include <numeric>

#include "model/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

using namespace coppice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const auto metadata = ParseSafetensorsMetadata(bytes, "f.safetensors");
  if (!metadata.ok()) fuzz::RequireOneLine(metadata.status());

  const Result<TensorMap> tensors = ParseSafetensors(bytes, "f.safetensors");
  if (!tensors.ok()) {
    fuzz::RequireOneLine(tensors.status());
    return 0;
  }
  size_t covered = 0;
  volatile uint8_t read = 0;  // every byte that a tensor claims can be read
  for (const auto& [name, tensor] : *tensors) {
    covered += tensor.data.size();
    for (const std::byte b : tensor.data) read = read ^ static_cast<uint8_t>(b);
    const int64_t elements = std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
    fuzz::Require(StoredBytes(tensor.type, elements) == static_cast<int64_t>(tensor.data.size()),
                  "a tensor of another size than its shape");
  }
  uint64_t header_bytes;
  std::memcpy(&header_bytes, data, sizeof header_bytes);
  fuzz::Require(covered == size - sizeof header_bytes - header_bytes, "data that no tensor covers, or two do");
  return 0;
}
