#include "attention/cpu/kv_ops.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/check.h"

namespace coppice::attention::cpu {
namespace {

// Work this small is done by the caller: waking the workers costs more (a few microseconds, some 100 KB of copying).
constexpr int64_t kMinBytesPerLoop = 64 * 1024;

template <class F>
void ForEach(Executor& executor, int64_t count, int64_t bytes_each, const F& body) {
  if (count * bytes_each < kMinBytesPerLoop) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  // Runs of tokens or pages: one task a chunk, so that the shared counter is touched rarely.
  const int64_t chunk = std::max<int64_t>(1, kMinBytesPerLoop / 4 / bytes_each);
  executor.ParallelFor((count + chunk - 1) / chunk, [&](int64_t c, int) {
    for (int64_t i = c * chunk; i < std::min(count, (c + 1) * chunk); ++i) body(i);
  });
}

}  // namespace

Status CheckKvLayer(const AttentionSpec& spec, const KvLayerView& kv) {
  if (kv.k == nullptr || kv.v == nullptr) return InvalidArgument("KV layer: k or v is null; pass the layer's pool");
  if (kv.dtype != spec.kv_dtype) {
    return InvalidArgument("KV layer: dtype " + std::string(Name(kv.dtype)) + ", the spec says " +
                           std::string(Name(spec.kv_dtype)));
  }
  if (kv.page_size < 1 || kv.page_size > 256) {
    return InvalidArgument("KV layer: page_size = " + std::to_string(kv.page_size) + "; expected 1..256");
  }
  if (kv.num_pages < 0) return InvalidArgument("KV layer: num_pages = " + std::to_string(kv.num_pages) + "; expected >= 0");
  const struct {
    const char* name;
    int64_t stride;
    int32_t count;
  } strides[] = {{"page_stride", kv.page_stride, kv.num_pages},
                 {"head_stride", kv.head_stride, spec.num_kv_heads},
                 {"slot_stride", kv.slot_stride, kv.page_size}};
  for (const auto& [name, stride, count] : strides) {
    if (count > 1 && std::abs(stride) < spec.head_dim) {
      return InvalidArgument("KV layer: " + std::string(name) + " = " + std::to_string(stride) +
                             " elements; expected at least head_dim = " + std::to_string(spec.head_dim));
    }
  }
  return OkStatus();
}

Status AppendKv(Executor& executor, const AttentionSpec& spec, const KvLayerView& kv, const AppendArgs& args) {
  COPPICE_RETURN_IF_ERROR(CheckKvLayer(spec, kv));
  const int64_t row_elements = int64_t{spec.num_kv_heads} * spec.head_dim, num_tokens = std::ssize(args.slot_mapping);
  if (num_tokens == 0) return OkStatus();
  if (args.k == nullptr || args.v == nullptr) return InvalidArgument("AppendKv: k or v is null; pass the rows to append");
  if (args.row_stride < row_elements) {
    return InvalidArgument("AppendKv: row_stride = " + std::to_string(args.row_stride) +
                           " elements; expected at least num_kv_heads * head_dim = " + std::to_string(row_elements));
  }
  const int64_t num_slots = int64_t{kv.num_pages} * kv.page_size;
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (args.slot_mapping[t] >= num_slots) {
      return OutOfRange("AppendKv: slot_mapping[" + std::to_string(t) + "] = " + std::to_string(args.slot_mapping[t]) +
                        "; the pool has " + std::to_string(num_slots) + " slots");
    }
  }
  const size_t element = SizeOf(kv.dtype), head_bytes = spec.head_dim * element;
  ForEach(executor, num_tokens, static_cast<int64_t>(2 * row_elements * element), [&](int64_t t) {
    const int64_t slot = args.slot_mapping[t];
    if (slot < 0) return;
    const int64_t to = slot / kv.page_size * kv.page_stride + slot % kv.page_size * kv.slot_stride, from = t * args.row_stride;
    for (int32_t h = 0; h < spec.num_kv_heads; ++h) {
      const size_t to_byte = (to + h * kv.head_stride) * element, from_byte = (from + int64_t{h} * spec.head_dim) * element;
      std::memcpy(static_cast<std::byte*>(kv.k) + to_byte, static_cast<const std::byte*>(args.k) + from_byte, head_bytes);
      std::memcpy(static_cast<std::byte*>(kv.v) + to_byte, static_cast<const std::byte*>(args.v) + from_byte, head_bytes);
    }
  });
  return OkStatus();
}

Status CopyPages(Executor& executor, const AttentionSpec& spec, const KvLayerView& kv, std::span<const PageCopy> copies) {
  COPPICE_RETURN_IF_ERROR(CheckKvLayer(spec, kv));
  for (size_t i = 0; i < copies.size(); ++i) {
    for (const int32_t page : {copies[i].from, copies[i].to}) {
      if (page < 0 || page >= kv.num_pages) {
        return OutOfRange("CopyPages: copy " + std::to_string(i) + " names page " + std::to_string(page) + "; the pool has " +
                          std::to_string(kv.num_pages) + " pages");
      }
    }
  }
  const size_t element = SizeOf(kv.dtype), head_bytes = spec.head_dim * element;
  const int64_t page_bytes = static_cast<int64_t>(2 * kv.page_size * spec.num_kv_heads * head_bytes);
  ForEach(executor, std::ssize(copies), page_bytes, [&](int64_t i) {
    const auto [from, to] = copies[i];
    if (from == to) return;
    for (int32_t h = 0; h < spec.num_kv_heads; ++h) {
      for (int32_t s = 0; s < kv.page_size; ++s) {
        const int64_t inside = h * kv.head_stride + s * kv.slot_stride;
        const size_t from_byte = (from * kv.page_stride + inside) * element, to_byte = (to * kv.page_stride + inside) * element;
        std::memcpy(static_cast<std::byte*>(kv.k) + to_byte, static_cast<const std::byte*>(kv.k) + from_byte, head_bytes);
        std::memcpy(static_cast<std::byte*>(kv.v) + to_byte, static_cast<const std::byte*>(kv.v) + from_byte, head_bytes);
      }
    }
  });
  return OkStatus();
}

}  // namespace coppice::attention::cpu
