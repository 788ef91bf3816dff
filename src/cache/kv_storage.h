// The memory behind the page ids: one KV pool per layer in the native layout, bound to a backend. Untouched pages cost no memory.
// Layer: cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coppice/attention/attention.h"
#include "coppice/core/status.h"
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
  Status MoveSlots(std::span<const attention::SlotMove> moves);

  // KV of tokens [0, num_tokens) of a path whose pages, in order, are `pages`: `kv` is [layer][K, V][token][kv_head][head_dim] in
  // the pool's element type, num_tokens * BytesPerPage(.., 1) bytes, whatever the page size is. UNIMPLEMENTED for memory that the
  // host cannot read.
  Status ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv) const;
  // Writes tokens [begin, num_tokens) of such a path; `pages` are those from kv index `begin` on. REQUIRES: a page begins there.
  Status WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv);

  // Bytes of one page over all layers.
  static int64_t BytesPerPage(const attention::AttentionSpec& spec, int32_t num_layers, int32_t page_size);

 private:
  // Calls copy(bytes in the pool, bytes in `kv`, length) for each run of tokens [begin, num_tokens) of one layer, K or V and head.
  template <class Copy>
  Status ForEachRun(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, const Copy& copy) const;

  KvStorage(attention::Context* context, const attention::AttentionSpec& spec) : context_(context), spec_(spec) {}

  attention::Context* context_;
  attention::AttentionSpec spec_;
  std::vector<Buffer> memory_;
  std::vector<std::unique_ptr<attention::BoundKv>> layers_;
};

}  // namespace coppice
