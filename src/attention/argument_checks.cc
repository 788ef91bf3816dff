#include "attention/argument_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "attention/forest.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

// |value|, for INT64_MIN too.
uint64_t Magnitude(int64_t value) { return value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value); }

// Whether `count` steps of `stride` elements span less than 2^61 bytes: three such spans and a row add up in 64 bits.
bool IsAddressable(int64_t stride, int64_t count, size_t element) {
  uint64_t elements = 0;
  const bool overflows = __builtin_mul_overflow(Magnitude(stride), static_cast<uint64_t>(std::max<int64_t>(count, 1)), &elements);
  return !overflows && elements < (uint64_t{1} << 61) / element;
}

bool IsAligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace

Status CheckKvLayer(const AttentionSpec& spec, const KvLayerView& kv) {
  COPPICE_RETURN_IF_ERROR(ValidateSpec(spec));
  if (kv.k == nullptr || kv.v == nullptr) return InvalidArgument("KV layer: k or v is null; pass the layer's pool");
  if (kv.dtype != spec.kv_dtype) {
    return InvalidArgument("KV layer: dtype " + std::string(Name(kv.dtype)) + ", the spec says " +
                           std::string(Name(spec.kv_dtype)));
  }
  if (kv.page_size < 1 || kv.page_size > 256) {
    return InvalidArgument("KV layer: page_size = " + std::to_string(kv.page_size) + "; expected 1..256");
  }
  if (!std::isfinite(kv.k_scale) || !std::isfinite(kv.v_scale)) {
    return InvalidArgument("KV layer: k_scale = " + std::to_string(kv.k_scale) + ", v_scale = " + std::to_string(kv.v_scale) +
                           "; expected finite numbers, 1 for none");
  }
  const size_t element = SizeOf(kv.dtype);
  if (!IsAligned(kv.k, element) || !IsAligned(kv.v, element)) {
    return InvalidArgument("KV layer: k or v is not aligned to its elements of " + std::to_string(element) + " bytes");
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
    if (count > 1 && Magnitude(stride) < static_cast<uint64_t>(spec.head_dim)) {
      return InvalidArgument("KV layer: " + std::string(name) + " = " + std::to_string(stride) +
                             " elements; expected at least head_dim = " + std::to_string(spec.head_dim));
    }
    if (!IsAddressable(stride, count, element)) {
      return InvalidArgument("KV layer: " + std::string(name) + " = " + std::to_string(stride) + " elements, " +
                             std::to_string(count) + " times; expected less than 2^61 bytes in all");
    }
  }
  return OkStatus();
}

Status CheckAppend(const AttentionSpec& spec, const AppendArgs& args) {
  if (args.k == nullptr || args.v == nullptr) return InvalidArgument("AppendKv: k or v is null; pass the rows to append");
  const int64_t row_elements = int64_t{spec.num_kv_heads} * spec.head_dim;
  if (args.row_stride < row_elements) {
    return InvalidArgument("AppendKv: row_stride = " + std::to_string(args.row_stride) +
                           " elements; expected at least num_kv_heads * head_dim = " + std::to_string(row_elements));
  }
  if (!IsAddressable(args.row_stride, std::ssize(args.slot_mapping), SizeOf(spec.kv_dtype))) {
    return InvalidArgument("AppendKv: row_stride = " + std::to_string(args.row_stride) + " elements, " +
                           std::to_string(args.slot_mapping.size()) + " tokens; expected less than 2^61 bytes in all");
  }
  return OkStatus();
}

Status CheckRun(const AttentionSpec& spec, int32_t page_size, int32_t max_queries, const BoundKv& kv, const RunArgs& args) {
  const AttentionSpec& bound = kv.spec();
  if (bound.kv_dtype != spec.kv_dtype || bound.num_kv_heads != spec.num_kv_heads || bound.head_dim != spec.head_dim) {
    const auto describe = [](const AttentionSpec& s) {
      return std::string(Name(s.kv_dtype)) + ", " + std::to_string(s.num_kv_heads) + " kv heads, head_dim " +
             std::to_string(s.head_dim);
    };
    return InvalidArgument("Run: the KV layer was bound for " + describe(bound) + "; the plan's spec has " + describe(spec) +
                           "; bind it with the plan's spec");
  }
  if (kv.view().page_size != page_size) {
    return InvalidArgument("Run: the KV layer has page_size " + std::to_string(kv.view().page_size) + ", the plan's forest " +
                           std::to_string(page_size) + "; bind the pool that the forest's pages index");
  }
  if (args.q == nullptr || args.out == nullptr) return InvalidArgument("Run: q or out is null; pass both");
  const int64_t row_elements = int64_t{spec.num_qo_heads} * spec.head_dim;
  const size_t element = SizeOf(spec.q_dtype);
  for (const int64_t stride : {args.q_row_stride, args.out_row_stride}) {
    if (stride >= row_elements && IsAddressable(stride, max_queries, element)) continue;
    return InvalidArgument("Run: q_row_stride = " + std::to_string(args.q_row_stride) +
                           ", out_row_stride = " + std::to_string(args.out_row_stride) +
                           "; each must be at least num_qo_heads * head_dim = " + std::to_string(row_elements) +
                           " elements, and span less than 2^61 bytes");
  }
  if (IsAligned(args.q, element) && IsAligned(args.out, element) && IsAligned(args.lse, sizeof(float))) return OkStatus();
  return InvalidArgument("Run: q, out or lse is not aligned to its elements");
}

Status CheckSlots(const KvLayerView& kv, std::span<const int64_t> slot_mapping) {
  const int64_t num_slots = int64_t{kv.num_pages} * kv.page_size;
  const auto bad = std::ranges::find_if(slot_mapping, [&](int64_t slot) { return slot >= num_slots; });
  if (bad == slot_mapping.end()) return OkStatus();
  return OutOfRange("AppendKv: slot_mapping[" + std::to_string(bad - slot_mapping.begin()) + "] = " + std::to_string(*bad) +
                    "; the pool has " + std::to_string(num_slots) + " slots");
}

Status CheckPageCopies(const KvLayerView& kv, std::span<const PageCopy> copies) {
  if (std::ssize(copies) > kv.num_pages) {
    return InvalidArgument("CopyPages: " + std::to_string(copies.size()) + " copies in a pool of " + std::to_string(kv.num_pages) +
                           " pages; each page is written once at most");
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    for (const int32_t page : {copies[i].from, copies[i].to}) {
      if (page >= 0 && page < kv.num_pages) continue;
      return OutOfRange("CopyPages: copy " + std::to_string(i) + " names page " + std::to_string(page) + "; the pool has " +
                        std::to_string(kv.num_pages) + " pages");
    }
  }
  return OkStatus();
}

Status CheckSlotMoves(const KvLayerView& kv, std::span<const SlotMove> moves) {
  const int64_t num_slots = int64_t{kv.num_pages} * kv.page_size;
  for (size_t i = 0; i < moves.size(); ++i) {
    for (const int64_t slot : {moves[i].from, moves[i].to}) {
      if (slot >= 0 && slot < num_slots) continue;
      return OutOfRange("MoveSlots: move " + std::to_string(i) + " names slot " + std::to_string(slot) + "; the pool has " +
                        std::to_string(num_slots) + " slots");
    }
  }
  return OkStatus();
}

Status CheckMerge(const StateView& into, std::span<const StateView> from, int64_t num_rows, int32_t num_heads, int32_t head_dim,
                  std::span<const uint8_t> mask) {
  if (num_rows < 0 || num_heads < 1 || head_dim < 1 || head_dim > 256) {
    return InvalidArgument("MergeStates: num_rows = " + std::to_string(num_rows) + ", num_heads = " + std::to_string(num_heads) +
                           ", head_dim = " + std::to_string(head_dim) + "; expected >= 0, >= 1 and 1..256");
  }
  if (!IsAddressable(int64_t{num_heads} * head_dim, num_rows, sizeof(float))) {
    return InvalidArgument("MergeStates: num_rows = " + std::to_string(num_rows) + " of " + std::to_string(num_heads) +
                           " heads; expected less than 2^61 bytes in all");
  }
  if (!mask.empty() && static_cast<int64_t>(mask.size()) != num_rows) {
    return InvalidArgument("MergeStates: mask has " + std::to_string(mask.size()) + " entries for " + std::to_string(num_rows) +
                           " rows; pass one per row or none");
  }
  const auto is_null = [](const StateView& state) { return state.out == nullptr || state.lse == nullptr; };
  if (num_rows > 0 && (is_null(into) || std::ranges::any_of(from, is_null))) {
    return InvalidArgument("MergeStates: a state has a null out or lse; pass both for each of the " +
                           std::to_string(from.size() + 1) + " states");
  }
  return OkStatus();
}

}  // namespace coppice::attention
