#include <random>
#include <utility>

#include "attention_tools/bench_device.h"
#include "core/buffer.h"
#include "core/check.h"

namespace coppice::attention {

Result<std::unique_ptr<BenchMemory>> RandomBenchMemory(BenchDevice& device, size_t bytes, DType dtype, uint64_t seed) {
  constexpr size_t kPeriod = 4096;
  COPPICE_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(bytes));
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  const auto fill = [&]<class T>(std::span<T> all, const auto& convert) {
    T values[kPeriod];
    for (T& x : values) x = convert(normal(rng));
    for (size_t i = 0; i < all.size(); ++i) all[i] = values[(i ^ (i / kPeriod)) % kPeriod];
  };
  switch (dtype) {
    case DType::kF32: fill(buffer.Span<float>(), [](float x) { return x; }); break;
    case DType::kBF16: fill(buffer.Span<BF16>(), BF16::FromFloat); break;
    case DType::kF16: fill(buffer.Span<F16>(), F16::FromFloat); break;
  }
  COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<BenchMemory> memory, device.Allocate(bytes));
  COPPICE_RETURN_IF_ERROR(memory->CopyFrom({buffer.data(), bytes}));
  return Result<std::unique_ptr<BenchMemory>>(std::move(memory));
}

}  // namespace coppice::attention
