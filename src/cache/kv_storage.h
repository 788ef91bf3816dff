// The memory behind the page ids: one KV pool per layer in the native layout, bound to a backend. Untouched pages cost no memory.
// Layer: cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coppice/attention.h"
#include "coppice/status.h"
#include "core/buffer.h"

namespace coppice {

// Thread-compatible.
class KvStorage {
 public:
  // `context` outlives the storage.
  static Result<std::unique_ptr<KvStorage>> Create(attention::Context* context, const attention::AttentionSpec& spec,
                                                   int32_t num_layers, int32_t num_pages, int32_t page_size);

  // One per layer.
  std::span<const std::unique_ptr<attention::BoundKv>> layers() const { return layers_; }
  Status CopyPages(std::span<const attention::PageCopy> copies);

  // Bytes of one page over all layers.
  static int64_t BytesPerPage(const attention::AttentionSpec& spec, int32_t num_layers, int32_t page_size);

 private:
  KvStorage(attention::Context* context, const attention::AttentionSpec& spec) : context_(context), spec_(spec) {}

  attention::Context* context_;
  attention::AttentionSpec spec_;
  std::vector<Buffer> memory_;
  std::vector<std::unique_ptr<attention::BoundKv>> layers_;
};

}  // namespace coppice
