#include "engine/draft_record.h"

#include <algorithm>

namespace coppice {

void DraftRecord::Begin(int32_t length, bool computed) {
  length_ = length;
  computed_ = computed;
  accepted_ = 0;
  node_ = Draft::kRoot;
}

bool DraftRecord::Follow(const Draft& draft, int32_t length, int32_t last) {
  if (length_ == 0) return true;
  if (computed_) {
    Count(std::min(length - length_, draft.size() + 1));  // more came without a guess: for a while there was no room for one
    return true;
  }
  const int32_t followed = length_ + accepted_;
  if (length == followed) return false;
  if (length > followed + 1) return true;
  node_ = draft.ChildOf(node_, last, draft.size());
  if (node_ != Draft::kRoot) {
    ++accepted_;
    return false;
  }
  Count(accepted_ + 1);
  return true;
}

}  // namespace coppice
