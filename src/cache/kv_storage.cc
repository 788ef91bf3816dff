#include "cache/kv_storage.h"

#include <cstring>
#include <utility>

#include "core/check.h"

namespace coppice {
namespace {

attention::KvPoolShape PoolShape(const attention::AttentionSpec& spec, int32_t num_pages, int32_t page_size) {
  return {.num_pages = num_pages,
          .page_size = page_size,
          .num_kv_heads = spec.num_kv_heads,
          .head_dim = spec.head_dim,
          .dtype = spec.kv_dtype};
}

}  // namespace

int64_t KvStorage::BytesPerPage(const attention::AttentionSpec& spec, int32_t num_layers, int32_t page_size) {
  return static_cast<int64_t>(PoolShape(spec, 1, page_size).bytes()) * num_layers;
}

Result<std::unique_ptr<KvStorage>> KvStorage::Create(attention::Context* context, const attention::AttentionSpec& spec,
                                                     int32_t num_layers, int32_t num_pages, int32_t page_size) {
  std::unique_ptr<KvStorage> storage(new KvStorage(context, spec));
  const attention::KvPoolShape shape = PoolShape(spec, num_pages, page_size);
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    COPPICE_ASSIGN_OR_RETURN(Buffer memory, Buffer::Allocate(shape.bytes()));
    COPPICE_ASSIGN_OR_RETURN(auto bound, context->BindKv(spec, shape.View(memory.data())));
    storage->memory_.push_back(std::move(memory));
    storage->layers_.push_back(std::move(bound));
  }
  return storage;
}

Status KvStorage::CopyPages(std::span<const attention::PageCopy> copies) {
  if (copies.empty()) return OkStatus();
  for (const auto& layer : layers_) COPPICE_RETURN_IF_ERROR(context_->CopyPages(spec_, layer->view(), copies));
  return OkStatus();
}

template <class Copy>
Status KvStorage::ForEachRun(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, const Copy& copy) const {
  if (context_->device() != attention::DeviceKind::kCpu) {
    return Unimplemented("KV on a device cannot be saved or restored yet: use the CPU backend");
  }
  const size_t element = SizeOf(spec_.kv_dtype);
  const size_t row = spec_.head_dim * element;
  size_t plane = 0;  // [token][kv_head][head_dim] of one layer's K or V
  for (const auto& layer : layers_) {
    const attention::KvLayerView& view = layer->view();
    for (void* const base : {view.k, view.v}) {
      for (int32_t token = begin; token < num_tokens; ++token) {
        const int64_t page = pages[(token - begin) / view.page_size];
        for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
          const int64_t at = page * view.page_stride + head * view.head_stride + token % view.page_size * view.slot_stride;
          copy(static_cast<std::byte*>(base) + at * static_cast<int64_t>(element),
               (plane * num_tokens + token) * spec_.num_kv_heads * row + head * row, row);
        }
      }
      ++plane;
    }
  }
  return OkStatus();
}

Status KvStorage::ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const {
  return ForEachRun(pages, 0, num_tokens,
                    [&](const std::byte* pool, size_t offset, size_t bytes) { std::memcpy(&kv[offset], pool, bytes); });
}

Status KvStorage::WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv) {
  return ForEachRun(pages, begin, num_tokens,
                    [&](std::byte* pool, size_t offset, size_t bytes) { std::memcpy(pool, &kv[offset], bytes); });
}

Status KvStorage::MoveSlots(std::span<const attention::SlotMove> moves) {
  if (moves.empty()) return OkStatus();
  for (const auto& layer : layers_) COPPICE_RETURN_IF_ERROR(context_->MoveSlots(spec_, layer->view(), moves));
  return OkStatus();
}

}  // namespace coppice
