#include "coppice/attention/attention.h"

namespace coppice::attention {

KvLayerView KvPoolShape::View(void* base) const {
  const int64_t plane = int64_t{page_size} * head_dim;  // K (then V) of one page and head
  return {
      .k = base,
      .v = static_cast<std::byte*>(base) + plane * SizeOf(dtype),
      .page_stride = elements_per_page(),
      .head_stride = 2 * plane,
      .slot_stride = head_dim,
      .num_pages = num_pages,
      .page_size = page_size,
      .dtype = dtype,
  };
}

}  // namespace coppice::attention
