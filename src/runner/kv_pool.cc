#include "runner/kv_pool.h"

#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/format_bytes.h"
#include "core/math.h"

namespace coppice {
namespace {

attention::KvPoolShape LayerShape(const attention::AttentionSpec& spec, int32_t num_pages, int32_t page_size) {
  return {.num_pages = num_pages,
          .page_size = page_size,
          .num_kv_heads = spec.num_kv_heads,
          .head_dim = spec.head_dim,
          .dtype = spec.kv_dtype};
}

}  // namespace

int64_t KvPool::BytesPerPage(const attention::AttentionSpec& spec, int32_t num_layers, int32_t page_size) {
  return static_cast<int64_t>(LayerShape(spec, 1, page_size).bytes()) * num_layers;
}

Result<std::unique_ptr<KvPool>> KvPool::Create(Device* device, attention::Context* context, const Shape& shape) {
  const attention::AttentionSpec& first = shape.specs.front();
  const attention::KvPoolShape layer_shape = LayerShape(first, shape.num_pages, shape.page_size);
  const Shape::Heads all = {.count = first.num_kv_heads, .total = first.num_kv_heads};
  TokenStripe stripe = shape.stripe;
  stripe.page_size = shape.page_size;
  std::unique_ptr<KvPool> pool(new KvPool(device, context, first, layer_shape, shape.heads.total == 0 ? all : shape.heads, stripe));
  for (const int32_t group : shape.layer_groups) {
    Result<DeviceMemory> memory = device->Allocate(layer_shape.bytes(), MemoryKind::kKv);
    if (!memory.ok()) {
      const double bytes = static_cast<double>(layer_shape.bytes()) * static_cast<double>(shape.layer_groups.size());
      return Status(memory.status().code(), "a KV cache of " + FormatBytes(bytes) + ", layer by layer: " +
                                                memory.status().message() + "; lower kv_cache_bytes (--kv-cache)");
    }
    COPPICE_ASSIGN_OR_RETURN(auto bound, context->BindKv(shape.specs[group], layer_shape.View(memory->data())));
    pool->memory_.push_back(*std::move(memory));
    pool->layers_.push_back(std::move(bound));
  }
  return pool;
}

Status KvPool::CopyPages(std::span<const attention::PageCopy> copies, Stream stream) {
  if (copies.empty()) return OkStatus();
  for (const auto& layer : layers_) COPPICE_RETURN_IF_ERROR(context_->CopyPages(spec_, layer->view(), copies, stream));
  return OkStatus();
}

Status KvPool::MoveSlots(std::span<const attention::SlotMove> moves, Stream stream) {
  if (moves.empty()) return OkStatus();
  for (const auto& layer : layers_) COPPICE_RETURN_IF_ERROR(context_->MoveSlots(spec_, layer->view(), moves, stream));
  return OkStatus();
}

Status KvPool::CopyLayer(size_t layer, Direction direction, std::span<const int32_t> pages, std::byte* staging,
                         Stream stream) const {
  for (size_t i = 0; i < pages.size(); ++i) {
    std::byte* const page = memory_[layer].data() + pages[i] * page_bytes();
    std::byte* const host = staging + i * page_bytes();
    const bool reads = direction == Direction::kFromPool;
    COPPICE_RETURN_IF_ERROR(device_->Copy(reads ? host : page, reads ? page : host, page_bytes(), stream));
  }
  return device_->Synchronize(stream);
}

template <class Visit>
void KvPool::ForEachRow(int32_t begin, int32_t num_tokens, const Visit& visit) const {
  const attention::KvLayerView& view = layers_.front()->view();
  const int64_t head_dim = shape_.head_dim, element = static_cast<int64_t>(SizeOf(shape_.dtype));
  for (int64_t plane = 0; plane < 2; ++plane) {  // K, V: planes of a head in the native layout
    const int64_t plane_offset = plane * shape_.page_size * head_dim;
    for (int32_t token = begin; token < num_tokens; ++token) {
      const int64_t slot = stripe_.Slot(token % stripe_.whole_page_size()), page = (token - begin) / stripe_.whole_page_size();
      if (slot < 0) continue;  // another rank's
      for (int64_t head = 0; head < heads_.count; ++head) {
        const int64_t staged = page * view.page_stride + head * view.head_stride + plane_offset + slot * view.slot_stride;
        const int64_t flat = ((plane * num_tokens + token) * heads_.total + heads_.first + head) * head_dim;
        visit(staged * element, flat * element);
      }
    }
  }
}

Status KvPool::ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv, Stream stream) const {
  if (heads_.is_copy) return OkStatus();
  pages = pages.first(CeilDiv(num_tokens, stripe_.whole_page_size()));
  COPPICE_ASSIGN_OR_RETURN(const DeviceMemory staging, device_->Allocate(pages.size() * page_bytes(), MemoryKind::kHostPinned));
  const size_t layer_bytes = kv.size() / layers_.size(), row_bytes = shape_.head_dim * SizeOf(shape_.dtype);
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    COPPICE_RETURN_IF_ERROR(CopyLayer(layer, Direction::kFromPool, pages, staging.data(), stream));
    std::byte* const to = kv.data() + layer * layer_bytes;
    ForEachRow(0, num_tokens, [&](int64_t staged, int64_t flat) { std::memcpy(to + flat, staging.data() + staged, row_bytes); });
  }
  return OkStatus();
}

Status KvPool::WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv,
                       Stream stream) {
  if (begin >= num_tokens) return OkStatus();
  pages = pages.first(CeilDiv(num_tokens - begin, stripe_.whole_page_size()));
  // The last page may have tokens of others behind ours: what it holds now is kept.
  const bool partial = num_tokens % stripe_.whole_page_size() != 0;
  COPPICE_ASSIGN_OR_RETURN(const DeviceMemory staging, device_->Allocate(pages.size() * page_bytes(), MemoryKind::kHostPinned));
  const size_t layer_bytes = kv.size() / layers_.size(), row_bytes = shape_.head_dim * SizeOf(shape_.dtype);
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    if (partial) {
      std::byte* const last = staging.data() + (pages.size() - 1) * page_bytes();
      COPPICE_RETURN_IF_ERROR(CopyLayer(layer, Direction::kFromPool, pages.last(1), last, stream));
    }
    const std::byte* const from = kv.data() + layer * layer_bytes;
    ForEachRow(begin, num_tokens,
               [&](int64_t staged, int64_t flat) { std::memcpy(staging.data() + staged, from + flat, row_bytes); });
    COPPICE_RETURN_IF_ERROR(CopyLayer(layer, Direction::kToPool, pages, staging.data(), stream));
  }
  return OkStatus();
}

}  // namespace coppice
