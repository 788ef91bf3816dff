#include "attention/argument_checks.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace coppice::attention {

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

Status CheckAppend(const AttentionSpec& spec, const AppendArgs& args) {
  if (args.k == nullptr || args.v == nullptr) return InvalidArgument("AppendKv: k or v is null; pass the rows to append");
  const int64_t row_elements = int64_t{spec.num_kv_heads} * spec.head_dim;
  if (args.row_stride >= row_elements) return OkStatus();
  return InvalidArgument("AppendKv: row_stride = " + std::to_string(args.row_stride) +
                         " elements; expected at least num_kv_heads * head_dim = " + std::to_string(row_elements));
}

Status CheckSlots(const KvLayerView& kv, std::span<const int64_t> slot_mapping) {
  const int64_t num_slots = int64_t{kv.num_pages} * kv.page_size;
  const auto bad = std::ranges::find_if(slot_mapping, [&](int64_t slot) { return slot >= num_slots; });
  if (bad == slot_mapping.end()) return OkStatus();
  return OutOfRange("AppendKv: slot_mapping[" + std::to_string(bad - slot_mapping.begin()) + "] = " + std::to_string(*bad) +
                    "; the pool has " + std::to_string(num_slots) + " slots");
}

Status CheckPageCopies(const KvLayerView& kv, std::span<const PageCopy> copies) {
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
