// The memory behind the page ids: one pool of KV per layer in the native layout, on any device, bound to the attention library.
// Untouched pages of a CPU's pool cost no memory.
// Layer: runner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coppice/attention/attention.h"
#include "coppice/core/status.h"
#include "core/device.h"
#include "runner/token_stripe.h"

namespace coppice {

// Thread-compatible.
class KvPool {
 public:
  struct Shape {
    // One per layer group: alike but for their windows.
    std::span<const attention::AttentionSpec> specs;
    std::span<const int32_t> layer_groups;  // of each layer
    int32_t num_pages = 0, page_size = 16;  // slots of a page that the pool has
    TokenStripe stripe = {};  // the tokens that it has, where it is one of several ranks'; its page_size is not looked at
    // The heads of a model that the pool has where it is one of several ranks': its first `count` heads are those from `first` on
    // of `total`, its others are padding. total 0: it has all. A copy: another rank has them too, and is the one that is read.
    struct Heads {
      int32_t first = 0, count = 0, total = 0;
      bool is_copy = false;
    } heads = {};
  };
  // `device` and `context`, of the same device, outlive the pool.
  static Result<std::unique_ptr<KvPool>> Create(Device* device, attention::Context* context, const Shape& shape);

  // One per layer.
  std::span<const std::unique_ptr<attention::BoundKv>> layers() const { return layers_; }
  int64_t num_slots() const { return int64_t{shape_.num_pages} * shape_.page_size; }
  // In stream order.
  Status CopyPages(std::span<const attention::PageCopy> copies, Stream stream = nullptr);
  Status MoveSlots(std::span<const attention::SlotMove> moves, Stream stream = nullptr);

  // KV of tokens [0, num_tokens) of a path whose pages, in order, are `pages`: `kv` is host memory, [layer][K, V][token][kv_head]
  // [head_dim] in the pool's element type, whatever the page size is, of all heads and tokens of the model, of which the pool's are
  // read and written. In stream order; done when it returns.
  Status ReadKv(std::span<const int32_t> pages, int32_t num_tokens, std::span<std::byte> kv, Stream stream = nullptr) const;
  // Writes tokens [begin, num_tokens) of such a path; `pages` are those from kv index `begin` on. REQUIRES: a page begins there.
  Status WriteKv(std::span<const int32_t> pages, int32_t begin, int32_t num_tokens, std::span<const std::byte> kv,
                 Stream stream = nullptr);

  // Bytes of one page over all layers.
  static int64_t BytesPerPage(const attention::AttentionSpec& spec, int32_t num_layers, int32_t page_size);

 private:
  KvPool(Device* device, attention::Context* context, const attention::AttentionSpec& spec, const attention::KvPoolShape& shape,
         const Shape::Heads& heads, const TokenStripe& stripe)
      : device_(device), context_(context), spec_(spec), shape_(shape), heads_(heads), stripe_(stripe) {}
  size_t page_bytes() const { return shape_.elements_per_page() * SizeOf(shape_.dtype); }
  // Copies a layer's pages between the pool and `staging`, one after the other, and waits.
  enum class Direction : bool { kFromPool, kToPool };
  Status CopyLayer(size_t layer, Direction direction, std::span<const int32_t> pages, std::byte* staging, Stream stream) const;
  // Calls visit(offset in the staged pages, offset in one layer of `kv`) for each (K or V, token, head) in [begin, num_tokens) that
  // the pool has.
  template <class Visit>
  void ForEachRow(int32_t begin, int32_t num_tokens, const Visit& visit) const;

  Device* const device_;
  attention::Context* const context_;
  const attention::AttentionSpec spec_;
  const attention::KvPoolShape shape_;  // of a layer
  const Shape::Heads heads_;
  const TokenStripe stripe_;
  std::vector<DeviceMemory> memory_;
  std::vector<std::unique_ptr<attention::BoundKv>> layers_;
};

}  // namespace coppice
