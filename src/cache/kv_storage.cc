#include "cache/kv_storage.h"

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

}  // namespace coppice
