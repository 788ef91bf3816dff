#include "cli/model_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>

#include "cli/run_stats.h"
#include "core/check.h"
#include "core/device.h"
#include "core/format_bytes.h"

namespace coppice::cli {
namespace {

std::string Bytes(int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); }

}  // namespace

int64_t ModelMemory::kv_tokens(int64_t free_bytes, int64_t weight_bytes, DType kv_dtype) const {
  const int64_t left = std::max<int64_t>(free_bytes - weight_bytes, 0) / 2;
  return kv_elements_per_token > 0 ? left / kv_bytes_per_token(kv_dtype) : 0;
}

ModelMemory MemoryOf(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  ModelMemory memory = {.kv_elements_per_token = int64_t{2} * config.num_layers * config.num_kv_heads * config.head_dim};
  for (const Checkpoint::TensorInfo& tensor : checkpoint.Tensors()) {
    memory.parameters += std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
    memory.stored_bytes += tensor.bytes;
  }
  return memory;
}

Result<int64_t> FreeMemory() {
  COPPICE_ASSIGN_OR_RETURN(const Device::MemoryInfo info, Device::CreateCpu(nullptr)->GetMemoryInfo());
  return info.free_bytes;
}

std::string FormatMemory(const ModelMemory& memory, int64_t max_position) {
  std::string text =
      fmt::format("{:.1f} M parameters: {} as stored, {} in bf16, {} in f32\n", static_cast<double>(memory.parameters) * 1e-6,
                  Bytes(memory.stored_bytes), Bytes(memory.weight_bytes(DType::kBF16)), Bytes(memory.weight_bytes(DType::kF32)));
  text += fmt::format("KV of one token: {} in bf16, {} in f32; of the whole context: {}, {}\n",
                      Bytes(memory.kv_bytes_per_token(DType::kBF16)), Bytes(memory.kv_bytes_per_token(DType::kF32)),
                      Bytes(max_position * memory.kv_bytes_per_token(DType::kBF16)),
                      Bytes(max_position * memory.kv_bytes_per_token(DType::kF32)));
  const Result<int64_t> free = FreeMemory();
  if (!free.ok()) return text;
  text += fmt::format("this machine has {} free:", Bytes(*free));
  const struct {
    const char* name;
    int64_t weight_bytes;
    DType kv;
  } forms[] = {{"bf16", memory.weight_bytes(DType::kBF16), DType::kBF16}, {"f32", memory.weight_bytes(DType::kF32), DType::kF32}};
  for (const auto& form : forms) {
    const int64_t tokens = memory.kv_tokens(*free, form.weight_bytes, form.kv);
    text += form.weight_bytes > *free
                ? fmt::format(" {} does not fit;", form.name)
                : fmt::format(" in {} the KV of {} tokens fits beside the weights ({:.1f} whole contexts);", form.name, tokens,
                              static_cast<double>(tokens) / static_cast<double>(std::max<int64_t>(max_position, 1)));
  }
  text.back() = '\n';
  return text;
}

}  // namespace coppice::cli
