#include "attention/cpu/kv_ops.h"

#include <algorithm>
#include <cstring>

#include "attention/argument_checks.h"
#include "core/check.h"
#include "core/math.h"

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
  executor.ParallelFor(CeilDiv(count, chunk), [&](int64_t c, int) {
    for (int64_t i = c * chunk; i < std::min(count, (c + 1) * chunk); ++i) body(i);
  });
}

}  // namespace

Status AppendKv(Executor& executor, const AttentionSpec& spec, const KvLayerView& kv, const AppendArgs& args) {
  COPPICE_RETURN_IF_ERROR(CheckKvLayer(spec, kv));
  if (args.slot_mapping.empty()) return OkStatus();
  COPPICE_RETURN_IF_ERROR(CheckAppend(spec, args));
  COPPICE_RETURN_IF_ERROR(CheckSlots(kv, args.slot_mapping));
  const int64_t row_elements = int64_t{spec.num_kv_heads} * spec.head_dim, num_tokens = std::ssize(args.slot_mapping);
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
  COPPICE_RETURN_IF_ERROR(CheckPageCopies(kv, copies));
  const size_t element = SizeOf(kv.dtype), head_bytes = spec.head_dim * element;
  const int64_t page_bytes = int64_t{2} * kv.page_size * spec.num_kv_heads * static_cast<int64_t>(head_bytes);
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

Status MoveSlots(const AttentionSpec& spec, const KvLayerView& kv, std::span<const SlotMove> moves) {
  COPPICE_RETURN_IF_ERROR(CheckKvLayer(spec, kv));
  COPPICE_RETURN_IF_ERROR(CheckSlotMoves(kv, moves));
  const size_t element = SizeOf(kv.dtype), head_bytes = spec.head_dim * element;
  const auto place = [&](int64_t slot) { return slot / kv.page_size * kv.page_stride + slot % kv.page_size * kv.slot_stride; };
  for (const auto [from, to] : moves) {  // a few tokens of a few branches: not worth waking the workers
    for (int32_t h = 0; h < spec.num_kv_heads; ++h) {
      const size_t from_byte = (place(from) + h * kv.head_stride) * element, to_byte = (place(to) + h * kv.head_stride) * element;
      std::memmove(static_cast<std::byte*>(kv.k) + to_byte, static_cast<const std::byte*>(kv.k) + from_byte, head_bytes);
      std::memmove(static_cast<std::byte*>(kv.v) + to_byte, static_cast<const std::byte*>(kv.v) + from_byte, head_bytes);
    }
  }
  return OkStatus();
}

}  // namespace coppice::attention::cpu
